"""An embedded warehouse lists its tables with the same result with and without Spark."""

import pyarrow as pa
import pytest
from committing import commit, hide_by_value, make
from destination import HISTORY, LIVE, VERSIONS, Place
from structlog.testing import capture_logs

from backstory.errors import Failed, UsageError
from backstory.formats.memory import Memory
from backstory.model.change import Change, Note
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.model.versions_layout import OWN_COLUMNS, RECORDED, SETTLED
from backstory.reading.commits import commits, inventory
from backstory.reading.frames import table_in_session
from backstory.reading.options import TimelineRequest
from backstory.reading.questions import life
from backstory.stores.iceberg.create import drop, rename
from backstory.stores.iceberg.store import existing
from backstory.stores.metadata.catalogs import EmbeddedCatalog
from backstory.stores.metadata.pyiceberg_catalog import open_catalog, open_table, read_counts
from backstory.stores.metadata.table_rows import TableReader
from backstory.stores.table_files import local_path
from backstory.upkeep.adopting import adopt

STORED = "id v n synced \n 1 a 1 T1 \n 2 b 2 T1 \n 3 c 3 T1 \n 4 d 4 T1"
# key, from, to, role: the row with a role is a memory, not a version.
TOLD = [(1, 1, 5, None), (1, 5, None, None), (2, 1, 9, None), (3, 3, 3, "past"), (3, 3, None, None)]


# An open version has no end, or one in 2200 or later.
OF_DBT = """SELECT id, TIMESTAMP_NTZ '2026-01-01' AS dbt_valid_from, CAST(ended AS TIMESTAMP_NTZ) AS dbt_valid_to
    FROM VALUES (1, '2026-01-02'), (2, NULL), (3, '9999-12-31'), (4, '2199-12-31') AS t(id, ended)"""


def day(number):
    return None if number is None else 1767225600_000000 + number * 86_400_000_000


def versions(table, rows):
    """Rows of layout `versions` in its table's form."""
    instants = pa.timestamp("us", "UTC")
    memory = memory_type()
    keys, starts, ends, roles = zip(*rows, strict=True)
    return pa.table(
        {
            "id": pa.array(keys, pa.int32()),
            "valid_from": pa.array(map(day, starts), pa.int64()).cast(instants),
            "valid_to": pa.array(map(day, ends), pa.int64()).cast(instants),
            "is_current": pa.array([end is None for end in ends]),
            "recorded_at": pa.array(map(day, starts), pa.int64()).cast(instants),
            "_memory": pa.array([role and {"role": role} for role in roles], memory),
        }
    )


def memory_type():
    instants = pa.timestamp("us", "UTC")
    return pa.struct(
        [
            ("role", pa.string()),
            ("ended_at", instants),
            ("end_before", instants),
            ("kind", pa.string()),
            ("columns", pa.list_(pa.int32())),
            ("scope", pa.string()),
        ]
    )


def native(store, schema, name, rows, **properties):
    table = TableName(schema, name)
    columns = (Column("id", ColumnType(Kind.INT)), *OWN_COLUMNS)
    make(store, Shape(table, columns, ("id",), Layout.VERSIONS))
    note = Note("native", "t", {RECORDED: "2026-01-09T00:00:00Z"})
    change = Change(added=versions(table, rows), properties=properties)
    commit(store, existing(store, table), change, note)
    return table


@pytest.fixture
def tables(sender, store, schema):
    """A live table, a history with deletion vectors, versions with and without memory, and an empty table."""
    live = Place.made(sender, store, schema, LIVE, STORED)
    live.write(replace="id v n synced \n 1 x 1 T2", update="id v \n 2 y", delete="id \n 3")
    history = Place.made(sender, store, schema, HISTORY, VERSIONS)
    history.write(delete="id end \n 3 T7")
    empty = TableName(schema, "empty")
    make(store, Shape(empty, (Column("id", ColumnType(Kind.INT)),), ("id",), Layout.FIVETRAN_LIVE))
    settled = {SETTLED: '[null, "2026-01-02T00:00:00Z"]'}
    adopted = TableName(schema, "adopted")
    store.spark.sql(f"CREATE TABLE {store.sql_name(adopted)} USING iceberg AS {OF_DBT}")
    adopt(store, adopted, "dbt", "id")
    return {
        adopted: (4, 2),
        live.name: (3, None),
        history.name: (len(history.rows()), sum(row["_fivetran_active"] for row in history.rows())),
        native(store, schema, "plain", TOLD[:3]): (3, 1),
        native(store, schema, "remembering", TOLD, **settled): (4, 2),
        empty: (0, None),
    }


def _named(catalog, schema):
    """The tables of this test, because others share the warehouse."""
    return [each for each in catalog.tables() if each.schema == schema]


def test_v122_tables_and_log_are_equal_with_and_without_spark(tables, store, warehouse, schema):
    """Rows, open versions, memory rows and commits are equal, without deleted rows."""
    without, within = EmbeddedCatalog(warehouse), store
    opened = open_catalog({"type": "jdbc", "uri": f"jdbc:sqlite:{warehouse}/catalog.db"})
    there, session_tables = (
        {row["table"]: row for row in inventory(catalog, _named(catalog, schema))}
        for catalog in (without, within)
    )
    assert there == session_tables
    assert {name: (row["rows"], row["open_versions"]) for name, row in there.items()} == {
        str(name): counts for name, counts in tables.items()
    }
    remembering = there[f"{schema}.remembering"]
    assert remembering["memory_rows"] == 1
    assert remembering["settled"] == [None, "2026-01-02T00:00:00Z"]
    assert there[f"{schema}.plain"]["settled"] is None
    for name in tables:
        assert commits(without, name) == commits(within, name) == commits(opened, name)
        assert opened.count(opened.describe(name)) == without.count(without.describe(name))
        table = without.describe(name)
        assert table.shape == within.describe(name).shape
        assert table.newest is None or read_counts(table, open_table(table.location)) == without.count(table)
    newest = commits(without, TableName(schema, "plain"))[0]
    assert newest["recorded_at"] == "2026-01-09T00:00:00Z"


def test_tables_with_equality_deletes_are_counted_only_by_spark(sender, store, warehouse, schema):
    """The table is listed without a count, and Spark counts its rows."""
    place = Place.made(sender, store, schema, LIVE, STORED)
    place.write(delete="id \n 1")
    hide_by_value(store, place.name, "id", 2)
    for catalog, rows in ((EmbeddedCatalog(warehouse), None), (store, 2)):
        held = {row["table"]: row["rows"] for row in inventory(catalog, _named(catalog, schema))}
        assert held[str(place.name)] == rows


def test_a_description_stays_readable_after_a_rename_of_the_table(store, schema):
    """A session's catalog loads a table once for all of its files."""
    described = store.describe(native(store, schema, "moving", TOLD[:3]))
    rename(store, described.shape.table, TableName(schema, "moved"))
    with Memory(1 << 30).lease() as lease:
        rows = TableReader(described, store, lease).rows(described.snapshot, described.fields, ["id"])
    assert sorted(rows["id"].to_pylist()) == [1, 1, 2]


def test_a_table_whose_files_cannot_be_listed_is_dropped_with_a_warning(store, schema):
    """The files of such a table stay."""
    name = native(store, schema, "torn", TOLD[:3])
    metadata = local_path(existing(store, name).location)
    local_path(store.spark.table(store.sql_name(name, "manifests")).first().path).unlink()
    with capture_logs() as logs:
        assert drop(store, name)
    warnings = [each["event"] for each in logs if each["log_level"] == "warning"]
    assert warnings == [f"{name} was dropped; its files cannot be listed and stay"]
    assert metadata.exists()


def test_a_table_with_a_lost_file_is_listed_without_a_count(store, warehouse, schema):
    """Reading it names the file and a remedy. The same holds for a table with an unknown layout."""
    lost, whole, newer = (native(store, schema, name, TOLD[:3]) for name in ("lost", "whole", "newer"))
    store.spark.sql(f"ALTER TABLE {store.sql_name(newer)} SET TBLPROPERTIES ('backstory.layout' = 'next')")
    paths = [row.path for row in store.spark.table(store.sql_name(lost, "manifests")).collect()]
    for path in paths:
        local_path(path).rename(local_path(f"{path}.away"))
    for catalog in (EmbeddedCatalog(warehouse), store):
        rows = {row["table"]: row["rows"] for row in inventory(catalog, _named(catalog, schema))}
        assert (rows[str(lost)], rows[str(whole)], rows[str(newer)]) == (None, 3, None)
    with pytest.raises(
        Failed, match=f"A file of {lost} is missing or cannot be reached: [-0-9a-z]*-m0.avro"
    ) as error:
        life(table_in_session(store, lost), TimelineRequest({"id": 1}))
    assert error.value.code == "file-lost"
    for path in paths:
        local_path(f"{path}.away").rename(
            local_path(path)
        )  # for tests that inspect every table of the catalog


def test_a_folder_without_a_catalog_has_no_tables_and_stays_unchanged(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        assert inventory(EmbeddedCatalog(folder)) == []
        with pytest.raises(UsageError, match=r"There is no table a\.b"):
            commits(EmbeddedCatalog(folder), TableName("a", "b"))
    (tmp_path / "catalog.db").touch()  # the file that Spark leaves if it only opens the catalog
    assert EmbeddedCatalog(tmp_path).tables() == []
    assert [each.name for each in tmp_path.iterdir()] == ["catalog.db"]
