"""The contract of a table store, for memory and Iceberg, in any session.

It excludes SQL stores, whose histories are changed by statements instead of a Change. For these,
`tests/doors/historize/test_equals_rule.py` compares the result with the rule.
"""

import itertools
import json
import os
from contextlib import ExitStack
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from committing import commit as commit_change
from committing import snapshots_of
from depth import deep
from destination import fresh
from memory_store.store import MemoryStore
from own_sessions import KINDS, catalog_of, own_session
from rest_catalog import serving_rest
from tables_as_text import in_order, instant, table

from backstory.errors import BackstoryError, Failed, Refused, TryAgain, UsageError
from backstory.formats.delivered import arrow_schema
from backstory.model.change import COUNTS, DOOR, TOKEN, Change, Note, Tag
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType
from backstory.spark.session import hold_settings
from backstory.spark.versions import is_before_4
from backstory.stores.iceberg.store import IcebergStore
from backstory.stores.port import DISORDER
from backstory.stores.tables import existing, load, read_slice, rows_of, tables

SCHEMA = "stores"
STORED = "id v \n 1 a \n 2 b \n 3 c"
NAMES = {"start": "_fivetran_start", "end": "_fivetran_end", "active": "_fivetran_active"}
TYPES = {"start": "UTC_DATETIME", "end": "UTC_DATETIME", "active": "BOOLEAN"}
VERSIONS = "id:LONG* v start end active"

numbers = itertools.count(1)


def shape(columns, name=None, layout=None):
    """A shape: `id:LONG* v` names a key of type LONG and a column of text."""
    fields, key = [], []
    for word in columns.split():
        column, _, type_ = word.rstrip("*").partition(":")
        name_of = NAMES.get(column, column)
        fields.append(Column(name_of, ColumnType.parse(type_ or TYPES.get(column, "STRING"))))
        key += [name_of] * word.endswith("*")
    layout = layout or (Layout.FIVETRAN_HISTORY if "active" in columns else Layout.FIVETRAN_LIVE)
    return Shape(TableName(SCHEMA, name or fresh()), tuple(fields), tuple(key), layout)


def arrow(shape, rows):
    """Rows of a shape, as a text table or as dicts."""
    rows = table(rows) if isinstance(rows, str) else rows
    schema = arrow_schema({each.name: each.type for each in shape.columns})
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema)


class WithoutJava(Exception):
    """A change was refused by the code `needs-java`."""


def commit(*change):
    """One commit; a refusal for lack of Java is an error of its own."""
    try:
        return commit_change(*change)
    except UsageError as error:
        if error.code != "needs-java":
            raise
        raise WithoutJava from error


class Kept:
    """A table of a store, which a test changes and inspects."""

    def __init__(self, store, columns="id:LONG* v", rows=None, **options):
        made = shape(columns, **options)
        self.store, self.name = store, made.table
        commit(store, None, Change(into=made))
        if rows is not None:
            self.change(come=rows)

    @property
    def now(self):
        return existing(self.store, self.name)

    def change(self, *, come=None, gone=None, of=None, token=None, **more):
        """Make one commit. A text table of keys names the removed rows."""
        of = of or self.now
        if come is not None:
            come = arrow(more.get("into") or of.shape, come)
        if gone is not None:
            keys = arrow(
                shape(" ".join(f"{name}:{of.shape.column(name).type.stored_name}" for name in of.shape.key)),
                gone,
            )
            gone = read_slice(self.store, of, keys).select(["_file", "_pos"])
        change = Change(added=come, removed=gone, **more)
        return commit(self.store, of, change, Note("test", token or f"token {next(numbers)}"))

    def rows(self):
        rows = rows_of(self.store, self.now)
        rows = (rows if isinstance(rows, pa.Table) else rows.toArrow()).select(self.now.shape.names)
        return in_order({name: _utc(value) for name, value in row.items()} for row in rows.to_pylist())

    def state(self):
        """All parts of a table that a commit could change."""
        now = self.now
        return self.rows(), now.shape, now.schema_id, snapshots_of(now), dict(now.properties)


def _utc(value):
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


def rows_of_text(rows):
    return in_order(table(rows))


# Foreign sessions: the type of the catalog, and whether it caches, which is its default. At the gate only one
# runs, on the newest Spark.
OWN = [f"own {kind} {cached}" for kind in KINDS for cached in ("true", "false")]
if not deep(1, 0):
    OWN = [] if is_before_4() else ["own jdbc true"]


# A process has sessions of one kind. With this variable it tests a store over Spark Connect, and no other
# store.
CONNECT = os.environ.get("BACKSTORY_CONNECT")
KINDS_OF_STORES = [f"connect {CONNECT}"] if CONNECT else ["memory", "iceberg", *OWN]
# Laws that need Iceberg's Java. Over Spark Connect, each of them is refused with its code.
BY_JAVA = {
    "test_a_column_gets_another_type_together_with_new_rows",
    "test_a_renamed_column_keeps_its_values",
    "test_a_table_gets_another_key_and_layout",
    "test_tags_are_set_moved_and_removed",
    "test_a_table_can_be_recreated",
    "test_a_table_is_restored_to_a_snapshot",
}


@pytest.fixture(scope="module", params=KINDS_OF_STORES)
def tables_on(request):
    return request.param


@pytest.fixture(autouse=True)
def refused_without_java(tables_on, request):
    """Expect the error of a store without Java from each law of `BY_JAVA`, only over Spark Connect."""
    if tables_on.startswith("connect") and request.node.originalname in BY_JAVA:
        request.applymarker(pytest.mark.xfail(raises=WithoutJava, strict=True))


@pytest.fixture(scope="module")
def store(tables_on, request, tmp_path_factory):
    if tables_on == "memory":
        yield MemoryStore()
        return
    if tables_on.startswith("connect"):
        from pyspark.sql import SparkSession

        from backstory import open as open_warehouse

        _, address, catalog = tables_on.split()
        spark = SparkSession.builder.remote(address).getOrCreate()
        yield open_warehouse(spark=spark, catalog=catalog).store
        return
    spark = request.getfixturevalue("spark")
    if tables_on == "iceberg":
        yield IcebergStore(spark)
        return
    _, kind, cached = tables_on.split()
    folder, name = tmp_path_factory.mktemp("own"), kind if kind == "spark_catalog" else f"own_{kind}"
    with ExitStack() as server:
        rest = server.enter_context(serving_rest(folder)) if kind == "rest" else None
        session = own_session(spark, name, catalog_of(kind, folder, rest), cached)
        server.enter_context(hold_settings(session))  # as each method of a warehouse does
        yield IcebergStore(session, name)


@pytest.fixture
def renames(tables_on):
    """Whether the catalog can rename tables. In a Hadoop catalog, folders are the names."""
    return not tables_on.startswith(("own hadoop", "own spark_catalog")) and not tables_on.endswith(" hadoop")


@pytest.fixture
def stored_table(store):
    """A table of three rows."""
    return Kept(store, rows=STORED)


@pytest.fixture
def quiet(tables_on):
    """Whether a change without rows makes no snapshot. A REST catalog and SQL detect changes only by snapshots."""
    return not tables_on.startswith(("own rest", "connect"))


class TestStore:
    """The laws of every store."""

    @pytest.mark.parametrize("columns", ["id:LONG* part:INT* v", f"{VERSIONS} n:DECIMAL(12,2)"])
    def test_a_table_is_created_with_its_requested_shape(self, store, columns):
        stored_table = Kept(store, columns)
        assert stored_table.now.shape == shape(columns, stored_table.name.name)
        assert (
            stored_table.now.rows,
            stored_table.now.newest_token,
            list(snapshots_of(stored_table.now)),
        ) == (0, None, [])
        assert stored_table.rows() == []
        assert stored_table.name in tables(store, SCHEMA)
        assert stored_table.name not in tables(store, "elsewhere")

    def test_a_missing_table_is_not_found(self, store):
        nowhere = TableName("nowhere", "nothing")
        assert load(store, nowhere) is None
        with pytest.raises(UsageError) as caught:
            existing(store, nowhere)
        assert caught.value.code == "no-table"

    def test_an_existing_table_is_not_created_again(self, stored_table):
        """It was planned for a missing table, empty or with rows, but another writer created it first."""
        before, again = stored_table.state(), shape("id:LONG*", stored_table.name.name)
        for change in (Change(into=again), Change(into=again, added=arrow(again, "id \n 9"))):
            with pytest.raises(TryAgain) as caught:
                commit(stored_table.store, None, change)
            assert caught.value.code == "conflict"
        assert stored_table.state() == before

    @pytest.mark.parametrize(
        ("names", "code"),
        [(["_file"], "reserved-column"), ([""], "reserved-column"), (["id"], "repeated-column")],
    )
    def test_invalid_column_names_are_refused(self, stored_table, names, code):
        columns = (
            *stored_table.now.shape.columns,
            *(Column(each, ColumnType.parse("LONG")) for each in names),
        )
        new = Shape(TableName(SCHEMA, fresh()), columns, ("id",), Layout.FIVETRAN_LIVE)
        before = stored_table.state()
        for table_, into in (
            (None, new),
            (stored_table.now, Shape(stored_table.name, columns, ("id",), new.layout)),
        ):
            with pytest.raises(Refused) as caught:
                commit(stored_table.store, table_, Change(into=into))
            assert caught.value.code == code
        assert load(stored_table.store, new.table) is None
        assert stored_table.state() == before

    def test_column_names_of_the_source_are_stored(self, store):
        """F21: The store keeps the source's names of columns."""
        columns = (Column("id", ColumnType.parse("LONG")), Column("_pos_", ColumnType.parse("INT"), "_pos"))
        made = Shape(TableName(SCHEMA, fresh()), columns, ("id",), Layout.FIVETRAN_LIVE)
        commit(store, None, Change(into=made))
        assert existing(store, made.table).shape == made

    def test_rows_are_added_removed_and_changed_in_one_commit(self, stored_table):
        """A changed row is removed and added."""
        counts, before = {"inserted": 1, "updated": 1, "deleted": 1}, len(snapshots_of(stored_table.now))
        done = stored_table.change(gone="id \n 1 \n 2", come="id v \n 2 B \n 4 d", counts=counts, token="it")
        assert stored_table.rows() == rows_of_text("id v \n 2 B \n 3 c \n 4 d")
        assert stored_table.now.newest_token == "it"
        newest = snapshots_of(stored_table.now)[-1]
        assert (newest.id, len(snapshots_of(stored_table.now))) == (done.snapshot_id, before + 1)
        assert (newest.properties[DOOR], newest.properties[TOKEN]) == ("test", "it")
        assert json.loads(newest.properties[COUNTS]) == counts == done.counts

    def test_all_rows_can_be_removed(self, stored_table):
        stored_table.change(gone="id \n 1 \n 2 \n 3")
        assert stored_table.rows() == []

    def test_all_rows_can_be_replaced(self, stored_table):
        done = stored_table.change(come="id v \n 7 x", whole=True, count_as="rewritten")
        assert stored_table.rows() == rows_of_text("id v \n 7 x")
        assert done.counts == {"rewritten": 1}

    def test_a_change_without_rows_makes_a_snapshot_only_on_request(self, store, quiet):
        stored_table = Kept(store)
        assert (stored_table.change(come="id v", whole=True).snapshot_id is None) is quiet
        assert (stored_table.change(properties={"a": "b"}).snapshot_id is None) is quiet
        assert stored_table.change(snapshot=True, token="asked").snapshot_id is not None
        tokens = [
            each.properties[TOKEN] for each in snapshots_of(stored_table.now) if TOKEN in each.properties
        ]
        assert (tokens[-1], len(tokens)) == ("asked", 1 if quiet else 3)

    def test_late_properties_are_computed_from_the_pending_table(self, stored_table):
        stored_table.change(
            come="id v \n 9 z", late_properties=lambda pending: {"names": " ".join(pending.shape.names)}
        )
        assert snapshots_of(stored_table.now)[-1].properties["names"] == "id v"

    def test_new_columns_have_the_position_of_the_shape(self, stored_table):
        """Earlier rows have NULL in the new column."""
        stored_table.change(into=shape("new:LONG id:LONG* v", stored_table.name.name))
        assert stored_table.now.shape.names == ["new", "id", "v"]
        stored_table.change(come="new id v \n 5 4 d")
        assert stored_table.rows() == rows_of_text("new id v \n - 1 a \n - 2 b \n - 3 c \n 5 4 d")

    def test_a_dropped_column_added_again_is_empty(self, stored_table):
        stored_table.change(into=shape("id:LONG*", stored_table.name.name))
        assert stored_table.rows() == rows_of_text("id \n 1 \n 2 \n 3")
        stored_table.change(into=shape("id:LONG* v", stored_table.name.name))
        assert stored_table.rows() == rows_of_text("id v \n 1 - \n 2 - \n 3 -")

    def test_columns_and_rows_are_added_in_one_commit(self, stored_table):
        stored_table.change(
            into=shape("id:LONG* v n:LONG", stored_table.name.name), gone="id \n 1", come="id v n \n 1 A 1"
        )
        assert stored_table.rows() == rows_of_text("id v n \n 1 A 1 \n 2 b - \n 3 c -")

    @pytest.mark.parametrize(
        ("old", "new", "value"),
        [
            ("SHORT", "LONG", -32768),
            ("DECIMAL(5,2)", "DECIMAL(38,2)", Decimal("999.99")),
            ("JSON", "STRING", "{}"),
        ],
    )
    def test_types_widen_in_place(self, store, quiet, old, new, value):
        stored_table = Kept(store, f"id:LONG* v:{old}", [{"id": 1, "v": value}])
        before = stored_table.rows()
        done = stored_table.change(into=shape(f"id:LONG* v:{new}", stored_table.name.name))
        assert (done.snapshot_id is None) is quiet
        assert stored_table.now.shape.column("v").type == ColumnType.parse(new)
        assert stored_table.rows() == before

    def test_a_column_gets_another_type_together_with_new_rows(self, stored_table):
        stored_table.change(
            into=shape("id* v", stored_table.name.name), come=[{"id": "1", "v": "a"}], whole=True
        )
        assert stored_table.rows() == [{"id": "1", "v": "a"}]
        assert stored_table.now.shape == shape("id* v", stored_table.name.name)

    def test_a_renamed_column_keeps_its_values(self, stored_table):
        stored_table.change(
            into=shape("key:LONG* w", stored_table.name.name), renamed={"id": "key", "v": "w"}
        )
        assert stored_table.rows() == rows_of_text("key w \n 1 a \n 2 b \n 3 c")
        assert stored_table.now.shape.key == ("key",)
        stored_table.change(gone="key \n 1", come="key w \n 1 A")
        assert stored_table.rows() == rows_of_text("key w \n 1 A \n 2 b \n 3 c")

    def test_a_table_gets_another_key_and_layout(self, stored_table):
        """The mark of disorder is set in the same way."""
        stored_table.change(properties={DISORDER: "true"})
        assert stored_table.now.disorderly
        into = shape("id:LONG v* start end active", stored_table.name.name)
        rows = "id v start end active \n 1 a T1 TMAX true \n 1 a T0 T1-1 false"
        stored_table.change(into=into, come=rows, whole=True)
        assert stored_table.now.shape == into
        assert not stored_table.now.disorderly
        assert stored_table.rows() == rows_of_text(rows)
        stored_table.change(into=shape("id:LONG* v", stored_table.name.name), come=STORED, whole=True)
        assert stored_table.now.shape.layout is Layout.FIVETRAN_LIVE
        assert stored_table.rows() == rows_of_text(STORED)

    def test_the_schema_id_changes_only_with_the_columns(self, stored_table):
        before = stored_table.now.schema_id
        stored_table.change(come="id v \n 4 d", properties={"a": "b"})
        assert stored_table.now.schema_id == before
        stored_table.change(into=shape("id:LONG* v w", stored_table.name.name))
        assert stored_table.now.schema_id != before

    def test_properties_are_set_and_removed(self, stored_table):
        stored_table.change(properties={"mine": "1", "other": "2"}, come="id v \n 4 d")
        stored_table.change(properties={"mine": None, "other": "3"})
        assert "mine" not in stored_table.now.properties
        assert stored_table.now.properties["other"] == "3"

    def test_tags_are_set_moved_and_removed(self, stored_table):
        """No snapshot is made, and properties may change too. A tag of an unknown snapshot is refused."""
        first = snapshots_of(stored_table.now)[-1].id
        stored_table.change(
            tags={"read": Tag(first, 1000), "other": Tag(first, 1000)}, properties={"mine": "1"}
        )
        assert stored_table.now.tags == {"read": first, "other": first}
        stored_table.change(come="id v \n 4 d")
        second = snapshots_of(stored_table.now)[-1].id
        stored_table.change(tags={"read": Tag(second, 1000), "other": None})
        assert stored_table.now.tags == {"read": second}
        assert [each.id for each in snapshots_of(stored_table.now)][-2:] == [first, second]
        with pytest.raises(BackstoryError):
            stored_table.change(tags={"none": Tag(7, 1000)})
        assert stored_table.now.tags == {"read": second}

    def test_a_table_can_be_recreated(self, stored_table):
        other = Kept(stored_table.store, "other:LONG* w", "other w \n 1 x")
        into = shape("id:LONG* v", other.name.name)
        change = Change(into=into, added=arrow(into, STORED), recreate=True, count_as="inserted")
        assert commit(stored_table.store, None, change).counts == {"inserted": 3}
        assert (other.rows(), other.now.shape) == (stored_table.rows(), into)

    def test_a_table_is_dropped_with_its_rows(self, stored_table):
        stored_table.change(dropped=True)
        assert load(stored_table.store, stored_table.name) is None
        assert stored_table.name not in tables(stored_table.store)
        commit(stored_table.store, None, Change(into=shape("id:LONG*", stored_table.name.name)))
        assert stored_table.rows() == []

    def test_a_table_is_renamed_unless_the_name_is_taken(self, stored_table, renames):
        if not renames:
            with pytest.raises(Failed, match="UnsupportedOperationException"):
                stored_table.change(into=shape("id:LONG* v", fresh()))
            return
        other, before = Kept(stored_table.store, rows="id v \n 9 z"), stored_table.rows()
        with pytest.raises(TryAgain):
            stored_table.change(into=shape("id:LONG* v", other.name.name))
        assert (stored_table.rows(), other.rows()) == (before, rows_of_text("id v \n 9 z"))
        other.change(dropped=True)
        stored_table.change(into=shape("id:LONG* v", other.name.name))
        assert other.rows() == before
        assert load(stored_table.store, stored_table.name) is None

    def test_a_table_is_restored_to_a_snapshot(self, stored_table, quiet):
        """The present columns and the token of that time apply. Later snapshots are kept."""
        first = snapshots_of(stored_table.now)[0]
        stored_table.change(gone="id \n 1", come="id v \n 4 d")
        stored_table.change(into=shape("id:LONG* v n:LONG", stored_table.name.name))
        stored_table.change(back_to=first.id)
        assert stored_table.rows() == rows_of_text("id v n \n 1 a - \n 2 b - \n 3 c -")
        assert stored_table.now.newest_token == first.properties[TOKEN]
        assert len(snapshots_of(stored_table.now)) == (2 if quiet else 3)
        stored_table.change(come="id v n \n 5 e 5")
        assert stored_table.rows() == rows_of_text("id v n \n 1 a - \n 2 b - \n 3 c - \n 5 e 5")

    @pytest.mark.parametrize(
        "second",
        [
            {"come": "id v \n 5 e"},
            {"gone": "id \n 1"},
            {"come": "id v \n 5 e", "whole": True},
            {"properties": {"late": "1"}},
            {"tags": {"late": None}},
            {"into": shape("id:LONG* v late", "late")},
        ],
        ids=lambda second: "-".join(second),
    )
    def test_a_plan_for_an_older_table_is_not_committed(self, stored_table, second):
        """The second writer must try again, whatever either of them changes."""
        if "into" in second:
            second = {"into": shape("id:LONG* v late", stored_table.name.name)}
        seen = stored_table.now
        stored_table.change(come="id v \n 4 d")
        before = stored_table.state()
        with pytest.raises(TryAgain) as caught:
            stored_table.change(of=seen, **second)
        assert caught.value.code == "conflict"
        assert stored_table.state() == before

    def test_a_failed_commit_changes_nothing(self, stored_table):
        """After unexpected rows or an error, none of the other changes is visible."""

        def fault(_pending):
            raise BackstoryError("fault", "A fault.", "None.")

        before, into = stored_table.state(), shape("id:LONG* v n:LONG", stored_table.name.name)
        for failing, error in (({"expected": 2}, TryAgain), ({"late_properties": fault}, BackstoryError)):
            with pytest.raises(error):
                stored_table.change(
                    into=into, come="id v \n 9 z", gone="id \n 1", properties={"p": "1"}, **failing
                )
            assert stored_table.state() == before

    def test_null_and_extreme_values_of_every_type_are_read_back(self, store):
        extremes = {
            "BOOLEAN": [True, False],
            "SHORT": [-(2**15), 2**15 - 1],
            "INT": [-(2**31), 2**31 - 1],
            "LONG": [-(2**63), 2**63 - 1],
            "DECIMAL(38,10)": [Decimal("-9999999999999999999999999999.9999999999"), Decimal("1E-10")],
            "FLOAT": [float("inf"), -(2.0**-149)],
            "DOUBLE": [-float("inf"), 5e-324, -0.0, 1.7976931348623157e308],
            "NAIVE_DATE": [date(1, 1, 1), date(9999, 12, 31)],
            "NAIVE_DATETIME": [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)],
            "UTC_DATETIME": [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)],
            "BINARY": [b"", b"\0\xff"],
            "STRING": ["", "\0", "🦉 ü\n\"'"],
            "JSON": ["{}"],
            "XML": ["<a/>"],
            "NAIVE_TIME": ["23:59:59.999999"],
        }
        columns = " ".join(f"c{place}:{type_}" for place, type_ in enumerate(extremes))
        cells = [(f"c{place}", value) for place, values in enumerate(extremes.values()) for value in values]
        blank = {f"c{place}": None for place in range(len(extremes))}
        rows = [{"id": number} | blank | {name: value} for number, (name, value) in enumerate(cells)]
        stored_table = Kept(store, f"id:LONG* {columns}", rows)
        assert stored_table.rows() == in_order(rows)
        text = repr(sorted(map(repr, stored_table.rows())))
        assert "-0.0" in text

    def test_a_slice_has_the_rows_of_its_keys(self, store):
        """NULL is an ordinary key, keys may repeat, and a missing key finds nothing."""
        stored_table = Kept(store, "id:LONG* part* v", "id part v \n 1 x a \n 1 - b \n 2 x c \n - x d")
        keys = arrow(shape("id:LONG part"), "id part \n 1 - \n 1 - \n - x \n 2 y")
        rows = read_slice(store, stored_table.now, keys)
        assert sorted(rows["v"].to_pylist()) == ["b", "d"]
        assert rows.column_names[:5] == ["id", "part", "v", "_file", "_pos"]
        stored_table.change(gone="id part \n 1 - \n - x")
        assert read_slice(store, stored_table.now, keys).num_rows == 0

    def test_a_slice_omits_versions_that_ended_earlier(self, store):
        rows = """
            id v start end   active
            1  a T1    T2-1  false
            1  b T2    T5-1  false
            1  c T5    TMAX  true
            2  d T1    TMAX  true
        """
        stored_table = Kept(store, VERSIONS, rows)
        since = int(instant("T5").timestamp()) * 1_000_000
        versions = read_slice(store, stored_table.now, arrow(shape("id:LONG"), "id \n 1"), since)
        assert sorted(versions["v"].to_pylist()) == ["b", "c"]
