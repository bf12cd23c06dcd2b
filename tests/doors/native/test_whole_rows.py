"""Tables without a key: the whole row is the key, and equal rows are counted, in every way of planning."""

import random
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from itertools import count

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from depth import deep
from remembering import day
from specification.copies import Copy, take
from specification.stored import StoredVersions
from specification.whole_rows import COPIES, ROW_KEY, records
from structlog.testing import capture_logs

from backstory.errors import BackstoryError
from backstory.formats.memory import CLEAR_TEXT_SHARE, Memory
from backstory.model.table import table_name
from backstory.model.versions_layout import WHOLE_ROWS
from backstory.stores.iceberg.frames import frame_of, spark_fields
from backstory.stores.iceberg.store import existing, load
from backstory.strategies.whole_rows import row_keys
from backstory.warehouse import Warehouse

NUMBERS = count()
SCHEMA = pa.schema({"a": pa.string(), "b": pa.float64(), "c": pa.list_(pa.int64())})
ACCEPT, REFUSE = {"on_schema_change": "accept"}, {"on_schema_change": "refuse"}


class Ledger:
    """A table without a key, in a warehouse with this driver memory in bytes (None: the default)."""

    def __init__(self, store, held=None):
        memory = store.memory if held is None else Memory(CLEAR_TEXT_SHARE * held)
        self.store, self.name = replace(store, memory=memory), f"whole.t{next(NUMBERS)}"
        self.warehouse = Warehouse(self.store, embedded=False)

    def copy(self, at, source, key="row", **options):
        return self.warehouse.snapshot(source, into=self.name, key=key, at=day(at), **options)

    def refused(self, at, source, **options):
        before = load(self.store, table_name(self.name))
        with pytest.raises(BackstoryError) as stop:
            self.copy(at, source, **options)
        after = load(self.store, table_name(self.name))
        assert (before and before.location) == (after and after.location)
        return stop.value

    @property
    def table(self):
        return self.warehouse.table(self.name)

    def versions(self, *names):
        """Versions as values, copies, start and end."""
        rows = self.store.spark.table(f"backstory.{self.name}").where("_memory.role IS NULL").toArrow()
        return sorted(
            (
                *map(repr, map(row.get, names)),
                row[COPIES],
                _days(row["valid_from"]),
                _days(row["valid_to"]) or 0,
            )
            for row in rows.to_pylist()
        )

    def broken(self):
        return {each["law"]: each["keys"] for each in self.table.check() if each["violations"]}


def _days(instant):
    return instant and (instant - day(0)).days


def rows(*values, schema=SCHEMA):
    return pa.Table.from_pylist([dict(zip(schema.names, each, strict=False)) for each in values], schema)


@pytest.fixture
def ledger(store):
    return Ledger(store)


def test_a_changed_count_of_equal_rows_opens_a_version(ledger):
    """From two to three copies, one version closes and another opens. A missing row is closed."""
    ann, bob = ("ann", 1.5, [1]), ("bob", None, None)
    first = ledger.copy(1, rows(ann, ann, bob))
    assert (first.counts["new"], first.counts["closed"]) == (2, 0)
    assert ledger.copy(2, rows(ann, bob, ann)).snapshot_id is None
    assert ledger.copy(3, rows(ann, ann, ann, bob)).counts["changed"] == 1
    assert ledger.copy(4, rows(ann, ann, ann)).counts["closed"] == 1
    assert ledger.copy(5, rows(ann, ann, ann, bob)).counts["reopened"] == 1
    assert ledger.versions("a") == [
        ("'ann'", 2, 1, 3),
        ("'ann'", 3, 3, 0),
        ("'bob'", 1, 1, 4),
        ("'bob'", 1, 5, 0),
    ]
    assert ledger.broken() == {}
    shape = existing(ledger.store, table_name(ledger.name)).shape
    assert shape.names[:5] == ["a", "b", "c", COPIES, ROW_KEY]


@pytest.mark.parametrize("held", [None, 0], ids=["driver", "tasks"])
def test_nulls_floats_and_nested_values_are_part_of_the_row(store, held):
    """NULL is an ordinary value, even in all columns. NaN equals NaN, and -0.0 equals 0.0. [], NULL and
    [NULL] differ."""
    ledger = Ledger(store, held)
    nothing, nan = (None, None, None), float("nan")
    values = [nothing, nothing, ("x", nan, []), ("x", nan, None), ("x", -0.0, [None]), ("x", 0.0, [None])]
    assert ledger.copy(1, rows(*values)).counts["new"] == 4
    assert sorted(row[3] for row in ledger.versions("a", "b", "c")) == [1, 1, 2, 2]
    again = [("x", 0.0, [None]), ("x", 0.0, [None]), *values[:4]]
    assert ledger.copy(2, rows(*again)).snapshot_id is None
    assert ledger.broken() == {}


TYPED = {
    "day": pa.array([date(1969, 12, 31), None], pa.date32()),
    "at": pa.array([day(1), None], pa.timestamp("us", "UTC")),
    "local": pa.array([datetime(2026, 3, 29, 2, 30), None], pa.timestamp("us")),
    "price": pa.array([Decimal("0.0000001"), None], pa.decimal128(20, 7)),
    "big": pa.array([Decimal(10) ** 37, None], pa.decimal128(38, 0)),
    "bytes": pa.array([b"\x00\xff", None], pa.binary()),
    "single": pa.array([72.1, None], pa.float32()),
    "double": pa.array([1e-7, None], pa.float64()),
    "flag": pa.array([True, None], pa.bool_()),
    "struct": pa.array([{"x": 1, "y": None}, None], pa.struct([("x", pa.int32()), ("y", pa.string())])),
    "map": pa.array([[("b", 1), ("a", None)], None], pa.map_(pa.string(), pa.int64())),
    "deep": pa.array(
        [[{"x": [1.5, None]}, None], None], pa.list_(pa.struct([("x", pa.list_(pa.float64()))]))
    ),
}


def test_a_row_of_any_type_has_one_key_in_every_way_of_planning(store):
    """The key is equal on the driver, in Spark's tasks and for Spark frames, so a copy from another way
    changes nothing."""
    source = pa.table(TYPED)
    frame = store.spark.createDataFrame(frame_of(store, source).rdd, spark_fields(source.schema))
    here = Ledger(store)
    here.copy(1, source)
    there = Ledger(store, 0)
    there.copy(1, source)
    keys = [sorted(row.row_key for row in each.table.current().collect()) for each in (here, there)]
    assert keys[0] == keys[1] == sorted(row_keys(source).to_pylist())
    for each in (here, there):
        assert each.copy(2, frame).snapshot_id is None
        assert each.copy(3, source.take([1, 0])).snapshot_id is None


SIFTED = "more rows than a step: planned where fingerprints differ"
IN_PARTS = "more rows than driver-memory holds: planned in parts"
# The bytes that the driver may hold, and the log lines of some copies.
WAYS = {"whole": None, "sifted": 30_000, "parts": 10_000, "tasks": 0}
LOGGED = {"whole": set(), "sifted": {SIFTED}, "parts": {IN_PARTS}, "tasks": {"planned in Spark's tasks"}}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(deep(6, 1)))
def test_every_way_of_planning_equals_the_rule(store, monkeypatch, way, seed):
    """Copies in order, restated and backfilled have the rule's result, which counts rows in plain Python."""
    monkeypatch.setattr("backstory.stores.iceberg.data_files.ROWS_IN_GROUP", 50)
    monkeypatch.setattr("backstory.stores.iceberg.slice.BY_PLACE", 50)
    monkeypatch.setattr("backstory.engine.tasks.SIFTED_FROM", 1)
    monkeypatch.setattr("backstory.engine.tasks.FEW", 0 if seed % 2 == 0 else 1 << 25)
    ledger, chance = Ledger(store, WAYS[way]), random.Random(seed)
    names = (*SCHEMA.names, COPIES)
    rule, size = StoredVersions(names), 400 if way in {"sifted", "parts"} else 30
    values = [(f"r{number}", float(number % 3), [number]) for number in range(size)]
    series = [(50, {}), (60, {}), (60, {"restate": True}), (40, {"backfill": True}), (70, {}), (65, {})]
    now, ways = values, set()
    for commit, (at, options) in enumerate(series[: deep(6, 6 if way == "whole" else 4)]):
        now = [*chance.sample(values, len(values) - 5), *chance.choices(values, k=5)]
        named = [dict(zip(SCHEMA.names, each, strict=True)) for each in now]
        taken = take(rule, Copy(at, records(named), names, **options), commit)
        with capture_logs() as logs:
            receipt = ledger.copy(at, rows(*now), **options)
        ways |= {each["event"] for each in logs if "planned" in each["event"]}
        assert dict(receipt.counts) == dict(taken.counts)
        rule = taken.table
    versions = sorted(
        (repr(row.values["a"]), row.values[COPIES], row.start, row.end or 0) for row in rule.versions
    )
    assert ledger.versions("a") == versions
    assert ledger.broken() == {}
    assert ledger.copy(at, rows(*now)).snapshot_id is None
    assert ways >= LOGGED[way]


def test_the_whole_row_key_survives_new_columns(ledger):
    """The key need not be specified again. A later column `row` is an ordinary column."""
    ledger.copy(1, rows(("ann", 1.0, None), ("bob", 1.0, None)))
    ledger.copy(2, rows(("ann", 1.0, None), ("bob", 1.0, None), ("cid", 2.0, None)), key=None)
    wider = pa.schema([*SCHEMA, ("row", pa.int64())])
    three = [("ann", 1.0, None, None), ("bob", 1.0, None, None), ("cid", 2.0, None, 3)]
    assert ledger.copy(3, rows(*three, schema=wider)).counts["new"] == 1
    assert existing(ledger.store, table_name(ledger.name)).properties[WHOLE_ROWS] == "true"
    wrong = ledger.refused(4, rows(*three, schema=wider), key="a")
    assert (wrong.code, "whole row" in wrong.message) == ("key-changed", True)
    assert ledger.refused(4, rows(*three, schema=wider), key=[ROW_KEY]).code == "key-changed"


def test_a_column_named_row_is_the_key(ledger):
    """Existing projects keep their meaning. If the name has another spelling, the right one is required."""
    source = pa.table({"row": [1, 2], "v": ["x", "x"]})
    ledger.copy(1, source)
    assert existing(ledger.store, table_name(ledger.name)).shape.key == ("row",)
    other = Ledger(ledger.store)
    assert other.refused(1, source.rename_columns(["Row", "v"])).code == "missing-column"
    assert ledger.refused(2, pa.table({"v": ["x"]})).code == "missing-column"


@pytest.mark.parametrize("name", ["copies", "Copies", "row_key"])
def test_a_source_with_a_reserved_column_is_refused(ledger, name):
    """The first copy and later ones are refused."""
    own = pa.table({"a": ["x"], name: ["y"]})
    assert ledger.refused(1, own).code == "reserved-column"
    ledger.copy(1, pa.table({"a": ["x"]}))
    stop = ledger.refused(2, own)
    assert (stop.code, list(stop.keys)) == ("reserved-column", [name])


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"track": ["a"]}, "bad-option"),
        ({"ignore": ["a"]}, "bad-option"),
        ({"overwrite": ["a"]}, "bad-option"),
        ({"rename": {"a": "z"}}, "bad-option"),
        ({"retype": {"b": "STRING"}}, "bad-option"),
        ({"backfill_added": True}, "bad-option"),
        ({"deletes": "ignore"}, "partial-copy"),
    ],
)
def test_options_that_need_a_key_are_refused(ledger, options, code):
    """Such options would merge two rows or split one."""
    assert ledger.refused(1, rows(("x", 1.0, None)), **options).code == code
    ledger.copy(1, rows(("x", 1.0, None)))
    assert ledger.refused(2, rows(("y", 1.0, None)), **options).code == code


def test_a_feed_is_refused(ledger):
    """Changes, envelopes and streams cannot identify a record, and nothing is written."""
    ledger.copy(1, rows(("x", 1.0, None)))
    before = load(ledger.store, table_name(ledger.name)).location
    change = pa.table({"a": ["x"], "at": [day(2)]})
    for options in ({"sequence_by": "at"}, {"key": "a", "sequence_by": "at"}, {"envelope": "changes"}):
        with pytest.raises(BackstoryError) as stop:
            ledger.warehouse.apply(change, into=ledger.name, **options)
        assert (stop.value.code, stop.value.exit_code) == ("whole-rows", 2)
    write = ledger.warehouse.apply_batch(into=ledger.name, sequence_by="at")
    with pytest.raises(BackstoryError, match="whole-rows"):
        write(ledger.store.spark.createDataFrame([("x", day(2))], "a string, at timestamp"), 0)
    assert load(ledger.store, table_name(ledger.name)).location == before
    new = f"whole.t{next(NUMBERS)}"
    with pytest.raises(BackstoryError) as stop:
        ledger.warehouse.apply(change, into=new, key="row", sequence_by="at")
    assert stop.value.code == "missing-column"


MANY = [(f"r{number}", 1.0, None) for number in range(10)]
WIDER = pa.schema([*SCHEMA, ("d", pa.string())])


def test_a_new_column_changes_rows_with_a_value(ledger):
    """A few changed rows are accepted. Many are refused, unless this copy accepts its columns."""
    ledger.copy(1, rows(*MANY))
    few = [(*each, None) for each in MANY[:8]] + [(*each, "new") for each in MANY[8:]]
    assert ledger.copy(2, rows(*few, schema=WIDER)).counts["unchanged"] == 8
    all_ = rows(*((*each, "new") for each in MANY), schema=pa.schema([*SCHEMA, ("e", pa.string())]))
    stop = ledger.refused(3, all_)
    assert (stop.code, "other columns" in stop.message) == ("mass-delete", True)
    assert "`on_schema_change='accept'`" in stop.remedy
    receipt = ledger.copy(3, all_, **ACCEPT)
    assert (receipt.counts["closed"], receipt.counts["new"]) == (10, 10)
    assert ledger.broken() == {}
    assert len(ledger.table.as_of(day(2)).collect()) == len(ledger.table.as_of(day(3)).collect()) == 10


def test_a_missing_column_changes_rows_and_merges_equal_rows(ledger):
    """The values disappear from every row. The number of rows is still checked."""
    ledger.copy(1, rows(*((f"r{number}", 1.0, None) for number in range(10))))
    fewer = pa.table({"b": [1.0] * 10})
    assert ledger.refused(2, fewer).code == "mass-delete"
    assert ledger.refused(2, fewer.slice(0, 4), **ACCEPT).code == "mass-delete"
    assert ledger.copy(2, fewer, **ACCEPT).counts["new"] == 1
    assert [row.copies for row in ledger.table.current().collect()] == [10]
    assert ledger.refused(3, rows(*MANY)).code == "mass-delete"  # the column is back
    assert ledger.copy(3, rows(*MANY), **ACCEPT).counts["reopened"] == 10


def test_the_refuse_policy_accepts_no_other_columns(ledger):
    """The table stores `refuse`, which covers new and missing columns with any values."""
    ledger.copy(1, rows(*MANY), **REFUSE)
    new = ledger.refused(2, rows(*((*each, None) for each in MANY), schema=WIDER))
    gone = ledger.refused(2, rows(*MANY).drop_columns(["b"]))
    assert [(each.code, list(each.keys)) for each in (new, gone)] == [
        ("columns-changed", ["d"]),
        ("columns-changed", ["b"]),
    ]
    assert ledger.copy(2, rows(*MANY).drop_columns(["b"]), **ACCEPT).counts["new"] == 10


def test_the_mass_delete_guard_counts_repeated_rows(ledger):
    """A decrease from a hundred copies to ten is a loss, although no record closes."""
    one = ("x", 1.0, None)
    ledger.copy(1, rows(*[one] * 100))
    stop = ledger.refused(2, rows(*[one] * 10))
    assert (stop.code, "90 of 100 rows" in stop.message) == ("mass-delete", True)
    assert ledger.copy(2, rows(*[one] * 10), max_delete_ratio=0.9).counts["changed"] == 1
    assert ledger.refused(3, rows()).code == "empty-snapshot"


def test_a_copy_of_a_scope_changes_only_its_rows(store):
    """This holds on the driver and in tasks. A row outside the scope is refused."""
    for held in (None, 0):
        ledger = Ledger(store, held)
        ledger.copy(1, rows(("e", 1.0, None), ("e", 1.0, None)), scope={"a": "e"})
        ledger.copy(2, rows(("u", 1.0, None)), scope={"a": "u"})
        ledger.copy(3, rows(("e", 1.0, None), ("e", 1.0, None), ("e", 2.0, None)), scope={"a": "e"})
        ledger.copy(4, rows(("e", 1.0, None)), scope={"a": "e"}, max_delete_ratio=1)
        assert ledger.refused(5, rows(("u", 1.0, None)), scope={"a": "e"}).code == "out-of-scope"
        assert ledger.versions("a", "b") == [
            ("'e'", "1.0", 1, 4, 0),
            ("'e'", "1.0", 2, 1, 4),
            ("'e'", "2.0", 1, 3, 4),
            ("'u'", "1.0", 1, 2, 0),
        ]
        assert ledger.broken() == {}


def test_widened_types_keep_the_row_keys(ledger):
    """Widened integers and floats keep the keys of the same numbers, although floats rewrite the rows."""
    ledger.copy(1, pa.table({"n": pa.array([1, 2], pa.int32()), "f": pa.array([72.1, None], pa.float32())}))
    wide = pa.table({"n": pa.array([1, 2], pa.int64()), "f": pa.array([72.1, None], pa.float64())})
    assert ledger.copy(2, wide).counts["unchanged"] == 2
    assert ledger.copy(3, wide.slice(0, 1)).counts["closed"] == 1


def test_all_readers_support_tables_of_whole_rows(ledger, tmp_path):
    """`as_of`, `diff`, `timeline`, `changes`, `export` and `rewind` work on a table without a key."""
    ann, bob = ("ann", 1.5, None), ("bob", None, None)
    ledger.copy(1, rows(ann, ann, bob))
    ledger.copy(2, rows(ann, ann, ann, bob))
    table = ledger.table
    assert sorted((row.a, row.copies) for row in table.as_of(day(1)).collect()) == [("ann", 2), ("bob", 1)]
    (change,) = table.diff(day(1), day(2)).collect()
    assert (change.change, change.before.copies, change.after.copies) == ("changed", 2, 3)
    life = table.timeline(change.key[ROW_KEY])
    assert [version[COPIES] for version in life.versions] == [2, 3]
    with table.changes() as feed:
        kinds = [(row._change_type, row.copies) for row in feed.frame.where("a = 'ann'").collect()]
    assert sorted(kinds) == [("insert", 2), ("insert", 3), ("update_postimage", 2), ("update_preimage", 2)]
    table.export(tmp_path / "whole.parquet")
    exported = pq.read_table(tmp_path / "whole.parquet")
    assert exported.column_names[:5] == ["a", "b", "c", COPIES, ROW_KEY]
    assert len(exported) == 3
    before = (
        ledger.store.spark.table(f"backstory.{ledger.name}")
        .selectExpr("min(recorded_at)")
        .toArrow()[0][0]
        .as_py()
    )
    table.rewind(before, apply=True)
    assert sorted((row.a, row.copies) for row in table.current().collect()) == [("ann", 2), ("bob", 1)]
    table.forget(change.key[ROW_KEY], apply=True)
    assert [row.a for row in table.current().collect()] == ["bob"]
    assert ledger.broken() == {}
