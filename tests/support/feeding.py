"""Tables that tests change commit by commit, and the feeds that they should produce."""

from contextlib import suppress

import pyarrow as pa
from committing import commit, make

from backstory.formats.delivered import arrow_schema
from backstory.formats.memory import Memory
from backstory.model.change import CHANGE_COLUMNS, CHANGE_TYPE, COMMIT_VERSION, Change
from backstory.model.layout import FILE, POSITION
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.reading.feeds import read_changes
from backstory.reading.options import ChangesRequest
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.store import existing
from backstory.stores.metadata.catalogs import EmbeddedCatalog
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.stores.metadata.table_rows import TableReader
from backstory.stores.metadata.values import rows_of
from backstory.table import Table

SCHEMA = "feeds"
# Keep only the newest snapshot and the named ones.
EXPIRE = (
    "CALL backstory.system.expire_snapshots(table => '{name}', older_than => TIMESTAMP '2100-01-01', "
    "retain_last => 1)"
)


class Fed:
    """A table whose rows are added and removed by commits with these rows."""

    def __init__(self, store, name, columns, key, layout, **properties):
        self.store, self.name = store, TableName(SCHEMA, name)
        made = tuple(
            type_ if isinstance(type_, Column) else Column(each, ColumnType(Kind[type_]))
            for each, type_ in columns.items()
        )
        self.small = 0
        drop(store, self.name)
        make(store, Shape(self.name, made, key, layout))
        if properties:
            commit(store, self.now, Change(properties=properties))

    @property
    def now(self):
        return existing(self.store, self.name)

    @property
    def table(self):
        return Table(self.store, self.name)

    @property
    def sql(self):
        return self.store.sql_name(self.name)

    def change(self, come=(), gone=None):
        """Make one commit, which adds rows given as dicts, and removes rows that meet a condition in SQL."""
        now = self.now
        if Kind.STRUCT in {each.type.kind for each in now.shape.columns}:
            spark = self.store.spark
            schema = spark.table(self.sql).schema
            rows = spark.createDataFrame(
                [{name: row.get(name) for name in schema.names} for row in come], schema
            )
        else:
            schema = arrow_schema({each.name: each.type for each in now.shape.columns})
            rows = pa.Table.from_pylist(
                [{name: row.get(name) for name in schema.names} for row in come], schema
            )
        places = None
        if gone is not None:
            places = self.store.spark.table(self.sql).where(gone).select(FILE, POSITION).toArrow()
        commit(self.store, now, Change(added=rows if come else None, removed=places))

    def do(self, *statements):
        """Run statements of Spark SQL, as any other writer would. `{t}` is the table."""
        for statement in statements:
            self.store.spark.sql(statement.format(t=self.sql, name=str(self.name))).collect()

    def rows(self, **options):
        """The rows of the feed in the order in which Spark collects them. Files must return the same rows."""
        with self.table.changes(**options) as feed:
            rows = feed.frame.toArrow()
            self.tell_the_same(feed, rows_of(rows), options)
            return rows.to_pylist()

    def tell_the_same(self, feed, rows, options):
        """Check that files produce the same feed, or that only Spark can read them."""
        catalog = EmbeddedCatalog(self.store.folder)
        with Memory(1 << 30).lease() as lease, suppress(Unreadable):
            reader = TableReader(catalog.describe(self.name), catalog, lease)
            small = read_changes(reader, ChangesRequest(**options))
            assert (small.since, small.until) == (feed.since, feed.until)
            assert list(small.rows) == rows
            self.small += 1

    def lines(self, **options):
        """The same as `version type values`."""
        return [line(row) for row in self.rows(**options)]


def line(row):
    values = [value for name, value in row.items() if name not in CHANGE_COLUMNS]
    return " ".join(map(str, (row[COMMIT_VERSION], row[CHANGE_TYPE], *values)))
