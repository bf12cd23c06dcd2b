"""Full copies into tables of layout `versions` on Spark: the rule's rows, and refusals."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from committing import snapshots_of
from depth import DEPTH, deep
from rows_read import rows_read
from specification.copies import Copy, take
from specification.stored import StoredRow, StoredVersions
from structlog.testing import capture_logs

from backstory.engine.runner import IN_TASKS, TOO_LARGE
from backstory.errors import BackstoryError, Refused, UsageError
from backstory.formats.memory import CLEAR_TEXT_SHARE, Memory
from backstory.model.instant import parse_instant
from backstory.model.table import TableName
from backstory.model.versions_layout import COPIED_AT, MEMORY_SINCE, RECORDED, SETTLED, FactKind, Role
from backstory.reading.commits import inventory
from backstory.stores.iceberg import commit as commits
from backstory.stores.iceberg import data_files, frames
from backstory.stores.iceberg.positions import FEW
from backstory.stores.iceberg.store import existing, exists
from backstory.warehouse import Warehouse

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def day(number):
    return DAY + timedelta(days=number)


def days(instant):
    return None if instant is None else (instant - DAY).days


@pytest.fixture
def native(store):
    """The warehouse, with table names that no other test uses."""
    return Native(Warehouse(store, embedded=False))


class Native:
    numbers = iter(range(1000))

    def __init__(self, warehouse):
        self.warehouse, self.spark, self.store = warehouse, warehouse.spark, warehouse.store
        self.name = f"native.t{next(self.numbers)}"

    def frame(self, text, columns="k string, v string"):
        rows = [tuple(None if cell == "-" else cell for cell in row.split(":")) for row in text.split()]
        return self.spark.createDataFrame(rows, columns)

    def copy(self, at, source, **options):
        frame = self.frame(source) if isinstance(source, str) else source
        return self.warehouse.snapshot(frame, into=self.name, key="k", at=day(at), **options)

    def by_frames(self, *, always):
        """Compare copies by frames from now on, like copies too large for the driver, or only those."""
        store = replace(self.store, memory=Memory(0)) if always else self.store
        self.warehouse = Warehouse(store, embedded=False)

    def holding(self, most):
        """Limit the driver's memory to this number of bytes of clear text."""
        store = replace(self.store, memory=Memory(CLEAR_TEXT_SHARE * most))
        self.warehouse = Warehouse(store, embedded=False)

    def refused(self, at, source, **options):
        before = self.written
        with pytest.raises(BackstoryError) as error:
            self.copy(at, source, **options)
        assert self.written == before
        return error.value.code, error.value.keys

    @property
    def stored(self):
        return existing(self.warehouse.store, TableName(*self.name.split(".")))

    @property
    def written(self):
        """The table's metadata, and its files."""
        table = self.stored
        folder = Path(str(table.iceberg.location()).removeprefix("file:"))
        return table.location, sorted(path for path in folder.rglob("*") if path.is_file())

    @property
    def snapshots(self):
        return len(self.stored.metadata.get("snapshots") or ())

    def rows(self, *columns):
        """The stored rows in the rule's form, with numbered recorded times."""
        rows = self.spark.table(f"{self.store.catalog}.{self.name}").toArrow().to_pylist()
        times = {None, *(row["recorded_at"] for row in rows)}
        times |= {(row["_memory"] or {}).get("ended_at") for row in rows}
        numbers = {time: place + 1 for place, time in enumerate(sorted(times - {None}))} | {None: None}
        return {self._row(row, columns, numbers) for row in rows}

    @staticmethod
    def _row(row, columns, numbers):
        memory = row["_memory"] or {}
        assert row["is_current"] == (row["valid_to"] is None)
        return (
            row["k"],
            tuple(row[name] for name in columns),
            days(row["valid_from"]),
            days(row["valid_to"]),
            numbers[row["recorded_at"]],
            memory.get("role"),
            numbers[memory.get("ended_at")],
            days(memory.get("end_before")),
            memory.get("kind"),
        )

    def ids(self):
        """The row id of each version."""
        rows = self.spark.sql(
            f"SELECT k, v, valid_from, _row_id FROM {self.store.catalog}.{self.name} WHERE _memory.role IS NULL"
        )
        return {(row.k, row.v, days(row.valid_from.astimezone(UTC))): row._row_id for row in rows.collect()}


def by_rule(table, *columns):
    """The rule's rows in the same form."""
    times = sorted({row.recorded for row in table.rows} | {row.ended_at for row in table.rows} - {None})
    numbers = {time: place + 1 for place, time in enumerate(times)} | {None: None}

    def as_tuple(row: StoredRow):
        values = tuple(row.values.get(name) for name in columns)
        head = (row.key, values, row.start, row.end, numbers[row.recorded])
        return (
            *head,
            row.role and Role(row.role).value,
            numbers[row.ended_at],
            row.end_before,
            row.kind and FactKind(row.kind).value,
        )

    return {as_tuple(row) for row in table.rows}


def randomly(random, keys):
    there = (f"k{key}" for key in range(keys) if random.random() < 0.7)
    return {key: {"v": random.choice("abc"), "o": random.choice("xy")} for key in there}


@pytest.mark.parametrize("seed", [1])
def test_L3_L6_L7_L8_L13_the_plan_equals_the_rule(native, monkeypatch, seed):
    """Copies arrive in order, late and as replacements. A version that only ends keeps its row id.

    Copies within and beyond the driver's memory alternate, and each continues from the other's rows.
    """
    monkeypatch.setattr("backstory.engine.tasks.SIFTED_FROM", 1)
    random, table, keys = Random(seed), StoredVersions(("v", "o"), overwritten=frozenset("o")), 40
    series = [
        (50, {}),
        (60, {}),
        (60, {"restate": True}),
        (40, {"backfill": True}),
        (70, {}),
        (65, {}),
        (65, {"restate": True}),
    ]
    ids = {}
    for commit, (at, options) in enumerate(series):
        native.by_frames(always=commit % 2 == 1)
        monkeypatch.setattr("backstory.engine.tasks.FEW", 0 if commit % 4 == 1 else 1 << 25)
        rows = randomly(random, keys)
        taken = take(table, Copy(at, rows, ("v", "o"), **options), commit)
        text = " ".join(f"{key}:{row['v']}:{row['o']}" for key, row in rows.items())
        source = native.frame(text, "k string, v string, o string")
        receipt = native.copy(at, source, max_delete_ratio=1, overwrite=["o"], **options)
        assert dict(receipt.counts) == taken.counts
        table = taken.table
        assert native.rows("v", "o") == by_rule(table, "v", "o")
        now = native.ids()
        assert {place: id_ for place, id_ in now.items() if place in ids} == {
            place: id_ for place, id_ in ids.items() if place in now
        }
        ids = now
    assert native.copy(65, source).snapshot_id is None
    assert native.stored.properties[SETTLED] == json.dumps(
        ["2026-02-20T00:00:00.000000Z", "2026-03-02T00:00:00.000000Z"]
    )
    assert MEMORY_SINCE in native.stored.properties
    assert native.refused(90, source, deletes="ignore")[0] == "partial-copy"
    records = native.warehouse.table(native.name).check()
    assert {record["law"]: record["keys"] for record in records if record["violations"]} == {}


def of_file(native, path, rows):
    """A frame of a file with these rows, which the driver cannot hold whole."""
    pq.write_table(pa.Table.from_pylist([{"k": key, **row} for key, row in rows.items()]), path)
    return native.spark.read.parquet(str(path))


def wide(random, rows):
    return {key: {**row, "v": random.randbytes(400).hex()} for key, row in rows.items()}


def test_L3_L6_a_copy_from_a_frame_of_files_equals_the_rule(native, monkeypatch, tmp_path):
    """The driver adds up fingerprints and plans only differing records, without temporary files."""
    monkeypatch.setattr("backstory.engine.tasks.SIFTED_FROM", 1)
    random, table = Random(3), StoredVersions(("v", "o"), overwritten=frozenset("o"))
    native.holding(400_000)
    rows = wide(random, randomly(random, 2_000))
    for commit, at in enumerate((50, 60, 70)[: deep(3, 2)]):
        rows = dict(sorted((rows | wide(random, randomly(random, 20))).items())[5:])
        taken = take(table, Copy(at, rows, ("v", "o")), commit)
        with capture_logs() as logs:
            receipt = native.copy(at, of_file(native, tmp_path / f"{at}.parquet", rows), overwrite=["o"])
        events = {line["event"] for line in logs}
        assert events >= {"planned in Spark's tasks", *(["records sifted by fingerprints"] if commit else [])}
        assert "buckets of keys" not in events
        assert dict(receipt.counts) == taken.counts
        table = taken.table
        assert native.rows("v", "o") == by_rule(table, "v", "o")
    assert native.spark._jsparkSession.sharedState().cacheManager().isEmpty()


@pytest.mark.parametrize("first", [True, False])
def test_a_frame_whose_file_changes_during_the_copy_is_refused(native, monkeypatch, tmp_path, first):
    """The frame is read twice. If the second read finds other rows, no commit is made."""
    monkeypatch.setattr("backstory.engine.tasks.SIFTED_FROM", 1)
    random, path = Random(4), tmp_path / "rows.parquet"
    native.holding(400_000)
    rows = wide(random, randomly(random, 2_000))
    if not first:
        native.copy(50, of_file(native, path, rows))
    source = of_file(native, path, rows | wide(random, randomly(random, 20)))
    write = data_files.write_rows if not first else data_files.write_frame

    def rewrite(*arguments):
        of_file(native, path, rows)
        return write(*arguments)

    monkeypatch.setattr(commits, write.__name__, rewrite)
    with pytest.raises(BackstoryError) as refused:
        native.copy(60, source)
    assert refused.value.code == "source-changed"
    assert not first or not exists(native.warehouse.store, TableName(*native.name.split(".")))
    assert first or native.snapshots == 1


SIFTED = "more rows than a step: planned where fingerprints differ"
IN_PARTS = "more rows than driver-memory holds: planned in parts"


@pytest.mark.parametrize(
    ("shuffles", "held", "restated"),
    [(True, 10_000, [IN_PARTS]), (False, 30_000, [])][: deep(2, 1)],
    ids=["more than memory", "more than a step"][: deep(2, 1)],
)
def test_L3_L6_a_large_copy_equals_the_rule(native, monkeypatch, shuffles, held, restated):
    """Copies are sifted in any order of rows. Restated and late ones are planned in parts by key, or whole."""
    monkeypatch.setattr("backstory.stores.iceberg.data_files.ROWS_IN_GROUP", 50)
    monkeypatch.setattr("backstory.stores.iceberg.slice.BY_PLACE", 50)
    random, table = Random(2), StoredVersions(("v", "o"), overwritten=frozenset("o"))
    series = [(50, {}), (60, {}), (60, {"restate": True}), (40, {"backfill": True})]
    native.holding(held)
    rows = randomly(random, 400)
    for commit, (at, options) in enumerate(series):
        rows = dict(sorted((rows | randomly(random, 20)).items())[5:])
        taken = take(table, Copy(at, rows, ("v", "o"), **options), commit)
        order = list(rows)
        if shuffles:
            random.shuffle(order)
        source = pa.Table.from_pylist([{"k": key, **rows[key]} for key in order])
        with capture_logs() as logs:
            receipt = native.copy(at, source, max_delete_ratio=1, overwrite=["o"], **options)
        ways = [[], [SIFTED], restated, [IN_PARTS]]
        assert [each["event"] for each in logs if "planned" in each["event"]] == ways[commit]
        assert dict(receipt.counts) == taken.counts
        table = taken.table
        assert native.rows("v", "o") == by_rule(table, "v", "o")


@pytest.mark.parametrize("always", [False, True], ids=["driver", "tasks"])
def test_a_new_struct_field_counts_as_null_in_stored_rows(native, always):
    """V60: No other record changes. A removed or retyped field is refused."""
    native.by_frames(always=always)

    def rows(*values):
        return pa.table({"k": ["a", "b", "c"], "v": [*values, None]})

    native.copy(1, rows({"x": 1}, {"x": 2}))
    receipt = native.copy(2, rows({"x": 1, "y": None}, {"x": 2, "y": "n"}))
    assert receipt.counts == counts(changed=1, unchanged=2)
    assert receipt.schema_changes == ["column v: type is now STRUCT<x: BIGINT, y: STRING>"]
    assert native.copy(3, rows({"x": 1, "y": None}, {"x": 2, "y": "n"})).counts == counts(unchanged=3)
    for value in ({"y": "n"}, {"x": "1", "y": "n"}, {"x": 1}):
        assert native.refused(4, rows(value, value))[0] == "type-changed"


def test_columns_are_added_widened_omitted_and_renamed(native):
    """V1, V60, N1, N2: New columns are before `valid_from`, and a column with only NULL makes no version."""
    native.copy(1, native.frame("a:1 b:2").selectExpr("k", "CAST(v AS int) AS v"))
    wide = native.frame("a:1 b:2").selectExpr("k", "CAST(v AS bigint) AS v", "CAST(NULL AS string) AS w")
    receipt = native.copy(2, wide)
    assert receipt.counts["unchanged"] == 2
    assert receipt.schema_changes == ["new column w (STRING)", "column v: type is now BIGINT"]
    assert (receipt.snapshot_id, receipt.recorded_at) == (None, None)
    names = [column.name for column in native.stored.shape.columns]
    assert names == ["k", "v", "w", "valid_from", "valid_to", "is_current", "recorded_at", "_memory"]
    some = native.frame("a:1:x b:2:-", "k string, v string, w string").selectExpr(
        "k", "CAST(v AS int) AS v", "w"
    )
    assert native.copy(3, some).counts == counts(changed=1, unchanged=1)
    assert native.copy(4, native.frame("a b c", "k string")).counts == counts(new=1, unchanged=2)
    renamed = native.frame("a:x b:-  c:-", "k string, x string")
    rename_receipt = native.copy(5, renamed, rename={"w": "x"})
    assert (rename_receipt.counts, rename_receipt.schema_changes) == (
        counts(unchanged=3),
        ["column w renamed to x"],
    )
    assert native.copy(5, renamed, rename={"w": "x"}).schema_changes == []
    assert native.refused(6, renamed, rename={"q": "r"}) == ("bad-option", [])
    assert native.refused(6, renamed, rename={"x": "y"}) == ("bad-option", [])
    assert native.refused(6, "a:1 b:2 c:3") == ("type-changed", ["v"])
    assert native.rows("v", "x") == {
        ("a", (1, None), 1, 3, 1, None, 2, None, None),
        ("a", (1, "x"), 3, None, 2, None, None, None, None),
        ("b", (2, None), 1, None, 1, None, None, None, None),
        ("c", (None, None), 4, None, 3, None, None, None, None),
    }


def test_the_first_settings_of_a_table_apply(native):
    """V13, V18: Ignored columns make no version. Overwritten columns are kept only in the open version."""
    columns = "k string, v string, i string, o string"

    def frame(text):
        return native.frame(text, columns)

    native.copy(1, frame("a:1:1:1 b:1:1:1"), ignore="i", overwrite=["o"])
    before = native.ids()
    assert native.copy(2, frame("a:1:2:1 b:1:1:2")).counts == counts(changed=1, unchanged=1)
    assert native.ids() == before
    assert native.refused(3, frame("a:1:1:1"), ignore=["v"]) == ("settings-changed", ["i", "v"])
    assert native.refused(3, frame("a:1:1:1"), track=["v"])[0] == "settings-changed"
    with pytest.raises(Refused, match="key"):
        native.warehouse.snapshot(frame("a:1:1:1"), into=native.name, key=["k", "v"])
    added = native.frame("a:1:2:1:9 b:2:1:2:9", f"{columns}, n string")
    assert native.copy(3, added, ignore="i", backfill_added=True).counts == counts(changed=2)
    assert native.rows("v", "i", "o", "n") == {
        ("a", ("1", "1", "1", "9"), 1, None, 1, None, None, None, None),
        ("b", ("1", "1", "2", None), 1, 3, 1, None, 2, None, None),
        ("b", ("2", "1", "2", "9"), 3, None, 2, None, None, None, None),
    }


def test_a_first_copy_without_a_key_type_is_refused(native):
    """A file with only a header is refused. So is a first copy of records without keys."""
    nothing = native.spark.sql("SELECT NULL AS k, NULL AS v")
    for frame, code in ((nothing.limit(0), "empty-snapshot"), (nothing, "null-key")):
        with pytest.raises(Refused) as refusal:
            native.copy(1, frame)
        assert refusal.value.code == code


def test_refused_copies_write_nothing(native):
    """V36, V47, V126: Refusals name up to ten keys, and leave no property and no file."""
    native.copy(2, " ".join(f"k{number:02}:a" for number in range(20)))
    some = " ".join(f"k{number:02}:a" for number in range(14))
    assert native.refused(1, "k00:a") == ("time-backwards", [])
    assert native.refused(2, some, max_delete_ratio=1)[0] == "same-instant"
    assert native.refused(3, native.frame("a:1").limit(0)) == ("empty-snapshot", [])
    assert native.refused(3, f"{some} -:a") == ("null-key", ["NULL"])
    assert native.refused(3, f"{some} k00:b k01:a") == ("duplicate-key", ["k00"])
    code, keys = native.refused(3, some, max_delete_ratio=0.29)
    assert (code, keys) == ("mass-delete", [f"k{number}" for number in range(14, 20)])
    reserved = native.frame("k00:a", "k string, recorded_at string")
    assert native.refused(3, reserved) == ("reserved-column", ["recorded_at"])
    for instant in (datetime(2026, 1, 1), "soon"):
        with pytest.raises(UsageError):
            native.warehouse.snapshot(reserved, into=native.name, at=instant)
    with pytest.raises(UsageError, match="Use key"):
        native.warehouse.snapshot(reserved, into=native.name, keys="k")
    assert native.copy(3, f"{some} k00:a", max_delete_ratio=0.3).counts == counts(closed=6, unchanged=14)
    for always in (False, True):
        native.by_frames(always=always)
        rows = f"{some.replace('k01:a', 'k01:b')} k15:a new:a".replace("k02:a", "")
        assert native.copy(4, rows, dry_run=True).to_dict() == {
            "table": native.name,
            "counts": counts(new=1, changed=1, closed=1, reopened=1, unchanged=12),
            "keys": {"new": ["new"], "changed": ["k01"], "closed": ["k02"], "reopened": ["k15"]},
            "columns": {"v": 1},
            "schema_changes": [],
            "taken_back": 0,
            "warnings": [],
        }
    code, keys = native.refused(4, "k00:a", max_delete_ratio=0.29)
    assert (code, len(keys)) == ("mass-delete", 10)


VALUES_BEFORE = """
same    NaN  map('x',1,'y',2)  array(1,null)  null
turned  NaN  map('x',1,'y',2)  array(1,null)  null
zero    0.0  map('x',1,'y',2)  array(1,null)  null
number  NaN  map('x',1,'y',2)  array(1,null)  null
map     NaN  map('x',1,'y',2)  array(1,null)  null
array   NaN  map('x',1,'y',2)  array(1,null)  null
typed   NaN  map('x',1,'y',2)  array(1,null)  null
"""
VALUES_AFTER = """
same    NaN  map('x',1,'y',2)  array(1,null)  null
turned  NaN  map('y',2,'x',1)  array(1,null)  null
zero   -0.0  map('x',1,'y',2)  array(1,null)  null
number  0.0  map('x',1,'y',2)  array(1,null)  null
map     NaN  map('x',1,'y',3)  array(1,null)  null
array   NaN  map('x',1,'y',2)  array(1,0)     null
typed   NaN  map('x',1,'y',2)  array(1,null)  7
"""


@pytest.mark.parametrize("nested", [True, False], ids=["nested", "flat"])
def test_values_are_compared_by_meaning_and_keep_their_types(native, nested):
    """V16: NaN equals NaN, 0.0 equals -0.0, maps have no order, and a nested value is one value."""

    def frame(text):
        rows = (line.split() for line in text.strip().splitlines())
        literals = ", ".join(f"('{k}', CAST('{d}' AS double), {m}, {a}, {u})" for k, d, m, a, u in rows)
        names = ["k", "d", *(["m", "named_struct('s', a) AS n"] if nested else []), "u"]
        times = "TIMESTAMP_NTZ'2026-03-29 02:30:00' AS t, CAST(1 AS decimal(20,3)) AS e"
        query = f"SELECT {', '.join(names)}, {times} FROM VALUES {literals} AS v(k, d, m, a, u)"
        return native.spark.sql(query)

    native.copy(1, frame(VALUES_BEFORE))
    types = {column.name: str(column.type) for column in native.stored.shape.user_columns}
    expected = {"k": "STRING", "d": "DOUBLE", "u": "STRING", "t": "TIMESTAMP_NTZ", "e": "DECIMAL(20,3)"}
    assert types == expected | ({"m": "MAP<STRING, INT>", "n": "STRUCT<s: ARRAY<INT>>"} if nested else {})
    plan = native.copy(2, frame(VALUES_AFTER), dry_run=True)
    changed = ["array", "map", "number", "typed"] if nested else ["number", "typed"]
    assert plan.keys["changed"] == changed
    assert plan.counts == counts(changed=len(changed), unchanged=7 - len(changed))


@pytest.mark.parametrize("form", ["jsonl", "tasks", "parquet", "frame"][: deep(4, 2)])
def test_an_empty_part_of_a_nested_column_hides_no_other_values(native, tmp_path, form):
    """A field without values is text next to other fields. A column of empty lists is left out until a list
    has an element.
    """
    if form == "tasks":
        native.by_frames(always=True)

    def source(*elements):
        rows = [{"k": "a", "v": {"a": 1, "b": None}, "w": list(elements)}]
        frame = pa.Table.from_pylist(rows)
        if form == "jsonl":
            (tmp_path / "a.jsonl").write_text(json.dumps(rows[0]))
        else:
            pq.write_table(frame, tmp_path / "a.parquet")
        return tmp_path / f"a.{form}" if form in {"jsonl", "parquet"} else frame

    unknown = "column w is left out: all its values are empty, so its type is unknown"
    first = native.copy(1, source())
    assert first.schema_changes == ["new table: k STRING, v STRUCT<a: BIGINT, b: STRING>", unknown]
    second = native.copy(2, source(5))
    assert (second.schema_changes, second.counts) == (["new column w (ARRAY<BIGINT>)"], counts(changed=1))
    assert native.copy(3, source(5)).snapshot_id is None
    (row,) = native.warehouse.table(native.name).current().collect()
    assert (row["v"].asDict(), row["w"]) == ({"a": 1, "b": None}, [5])
    assert native.copy(4, source()).counts == counts(changed=1)


def test_times_without_a_zone_are_the_same_from_frames_and_files(native, tmp_path):
    """Interface, section 1: Naive date-times have type `timestamp`."""
    time = datetime(2026, 3, 29, 2, 30)
    naive, inside = pa.timestamp("us"), pa.struct([("t", pa.timestamp("us"))])
    rows = pa.table({"k": ["a"], "t": pa.array([time], naive), "n": pa.array([{"t": time}], inside)})
    native.copy(1, rows)
    types = {column.name: str(column.type) for column in native.stored.shape.user_columns}
    assert types == {"k": "STRING", "t": "TIMESTAMP_NTZ", "n": "STRUCT<t: TIMESTAMP_NTZ>"}
    pq.write_table(rows, tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text(f"k,t\na,{time}\n")
    (tmp_path / "a.jsonl").write_text(f'{{"k": "a", "t": "{time.isoformat()}"}}\n')
    for ending in ("parquet", "csv", "jsonl"):
        assert native.copy(2, tmp_path / f"a.{ending}").counts == counts(unchanged=1)


def test_recorded_times_increase_despite_a_clock_set_back(native, monkeypatch):
    """V10, V12, V14: This includes a clock that is set back, and the files of an in-order copy."""

    class Late(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2020, 1, 1, tzinfo=tz)

    first = native.copy(1, "a:1 b:1 c:1")
    monkeypatch.setattr("backstory.doors.native.instants.datetime", Late)
    second = native.copy(2, "a:2 b:1 d:1")
    assert parse_instant(second.recorded_at) == parse_instant(first.recorded_at) + timedelta(microseconds=1)
    summary = snapshots_of(native.stored)[-1].properties
    assert (summary[RECORDED], summary[COPIED_AT]) == (second.recorded_at, "2026-01-03T00:00:00.000000Z")
    assert (summary["added-data-files"], summary["added-delete-files"]) == ("2", "1")
    assert native.copy(2, "d:1 a:2 b:1").snapshot_id is None


def test_E20_a_copy_can_replace_a_rewound_copy(native):
    """The newest copy is then the previous one, derived from the remaining versions instead of a commit."""
    first = native.copy(10, "k:a")
    native.copy(20, "k:b")
    native.warehouse.table(native.name).rewind(first.recorded_at, apply=True)
    assert native.refused(5, "k:c")[0] == "time-backwards"
    assert native.copy(20, "k:c").counts == counts(changed=1)
    assert native.refused(15, "k:d") == ("time-backwards", [])
    assert native.copy(30, "k:c").snapshot_id is None
    versions = {
        (values, start, end) for _, values, start, end, _, role, *_ in native.rows("v") if role is None
    }
    assert versions == {(("a",), 10, 20), (("c",), 20, None)}


def test_a_mark_stores_the_columns_of_its_copy(native):
    """V2, V31: A mark refers to columns by field ids, including new ones. A restatement replaces the mark."""
    both = native.frame("a:1:1", "k string, v string, w string")

    def marks():
        rows = native.spark.table(f"backstory.{native.name}").where("_memory.kind = 'copy'").collect()
        names = {field.fieldId(): field.name() for field in native.stored.iceberg.schema().columns()}
        memories = [(days(row.valid_from.astimezone(UTC)), row._memory) for row in rows]
        return sorted(
            (
                at,
                memory.ended_at is None,
                "".join(names[each] for each in memory["columns"]),
            )
            for at, memory in memories
        )

    native.copy(5, both, backfill=True)
    native.copy(6, native.frame("a:9:9", "k string, v string, n string"))
    assert marks() == [(5, True, "kvw"), (6, True, "kvn")]
    assert native.refused(5.5, both)[0] == "settled"
    whole = native.frame("a:9:9:2", "k string, v string, n string, w string")
    assert native.copy(6, whole, restate=True).counts == counts(changed=1)
    assert marks() == [(5, True, "kvw"), (6, False, "kvn"), (6, True, "kvwn")]
    assert native.copy(6, whole).snapshot_id is None


def test_a_restatement_without_changes_stores_the_columns_of_its_copy(native):
    """V37: The remedy of `settled` also works if the copy with all columns changes no record."""
    columns = "k string, v string, w string"
    native.copy(1, native.frame("a:1:x", columns), backfill=True)
    native.copy(5, "a:1")
    older = native.frame("a:1:y", columns)
    assert native.refused(3, older)[0] == "settled"
    whole = native.frame("a:1:x", columns)
    assert native.copy(5, whole, restate=True).counts == counts(unchanged=1)
    assert native.copy(5, whole, restate=True).snapshot_id is None
    assert native.copy(3, older).counts == counts(changed=1)
    versions = {
        (values, start, end) for _, values, start, end, _, role, *_ in native.rows("w") if role is None
    }
    assert versions == {(("x",), 1, 3), (("y",), 3, 5), (("x",), 5, None)}


def test_a_mark_stores_a_new_column_next_to_a_new_field(native):
    """V31: The copy lacks a column, adds another, and adds a field to a struct."""
    first = native.spark.sql("SELECT 'a' AS k, named_struct('x', 1) AS s, 'w' AS w")
    native.copy(5, first, backfill=True)
    second = native.spark.sql("SELECT 'a' AS k, named_struct('x', 1, 'y', 2) AS s, 'n' AS n")
    native.copy(6, second)
    marks = native.spark.table(f"backstory.{native.name}").where("_memory.kind = 'copy'")
    names = {field.fieldId(): field.name() for field in native.stored.iceberg.schema().columns()}
    columns = [row._memory["columns"] for row in marks.orderBy("valid_from").collect()]
    assert ["".join(names[each] for each in ids) for ids in columns] == ["ksw", "ksn"]


def test_a_restatement_withdraws_the_values_of_missing_columns(native):
    """L11: The replaced copy's values in those columns are withdrawn, and the previous version continues."""
    native.copy(10, native.frame("k:a:1", "k string, v string, w string"))
    native.copy(20, native.frame("k:a:2 m:a:2", "k string, v string, w string"))
    assert native.copy(20, "k:a m:a", restate=True).counts == counts(changed=2)
    assert {(row["k"], row["w"]) for row in native.spark.table(f"backstory.{native.name}").where(
        "_memory.role IS NULL").collect()} == {("k", "1"), ("m", None)}  # fmt: skip


def test_a_corrupted_table_is_not_written(native):
    """V119: A table with two open versions of a key is refused."""
    native.copy(1, "a:1 b:1")
    native.spark.sql(
        f"INSERT INTO backstory.{native.name} SELECT * FROM backstory.{native.name} WHERE k = 'a'"
    )
    assert native.refused(3, "a:1 b:2") == ("spoilt-table", ["a"])


def test_a_table_with_a_version_without_a_start_is_not_written(native):
    """V119: Copies and feeds refuse a row without `valid_from`, which another program inserted."""
    native.copy(1, "a:1 b:1")
    native.spark.sql(f"INSERT INTO backstory.{native.name} (k, v) VALUES ('z', '1')")
    rows = native.frame("z:2").selectExpr("k", "v", "timestamp '2026-01-04' AS at")
    for always in (False, True):
        native.by_frames(always=always)
        assert native.refused(3, "a:1 b:2") == ("spoilt-table", ["z"])
        with pytest.raises(Refused) as refusal:
            native.warehouse.apply(rows, into=native.name, key="k", sequence_by="at", drop=["at"])
        assert (refusal.value.code, refusal.value.keys) == ("spoilt-table", ["z"])


def test_a_streaming_frame_is_refused_with_a_remedy(native):
    """A stream has no last row, but its batches do."""
    with pytest.raises(UsageError) as error:
        native.copy(1, native.spark.readStream.format("rate").load())
    assert (error.value.code, "apply_batch" in error.value.remedy) == ("streaming-frame", True)


def test_iceberg_maintenance_procedures_change_no_rows(native):
    """After sorting by columns or a curve, or packing, rows keep their ids, and the next copy is correct."""
    native.copy(1, "a:1 b:1 c:1")
    native.copy(2, "a:2 b:1")
    query = f"SELECT k, v, valid_from, valid_to, _row_id FROM backstory.{native.name}"
    before = sorted(map(repr, native.spark.sql(query).collect()))
    every = f"table => '{native.name}', options => map('rewrite-all', 'true')"
    for procedure, words in {
        "rewrite_data_files": [
            f"{every}, strategy => 'sort', sort_order => 'zorder(k, v)'",
            f"{every}, strategy => 'sort', sort_order => 'v DESC'",
            *([f"{every}, strategy => 'sort'", every] if DEPTH == "laws" else []),
        ],
        "rewrite_position_delete_files": [every],
        "rewrite_manifests": [f"table => '{native.name}'"],
        "remove_orphan_files": [f"table => '{native.name}', older_than => TIMESTAMP '2020-01-01'"],
    }.items():
        for each in words:
            native.spark.sql(f"CALL backstory.system.{procedure}({each})").collect()
        assert sorted(map(repr, native.spark.sql(query).collect())) == before, procedure
    assert native.copy(3, "a:3 b:1").counts == counts(changed=1, unchanged=1)
    assert not [each for each in native.warehouse.table(native.name).check() if each["violations"]]


def test_rows_too_large_for_the_java_heap_are_planned_in_tasks(native, monkeypatch):
    """If Java's heap is too small to collect the rows, tasks plan them, whatever the driver can hold."""
    monkeypatch.setattr(frames, "OF_HEAP", 1 << 50)
    with capture_logs() as logs:
        native.copy(1, "a:1 b:1")
    assert [each["reason"] for each in logs if each["event"] == IN_TASKS] == [TOO_LARGE]


# Writes of other programs, and the note about each. A move of rows is not a write.
WRITES = {
    "DELETE FROM {table} WHERE k = 'a'": "another program wrote to the table",
    "CALL backstory.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'));"
    "CALL backstory.system.expire_snapshots(table => '{name}', older_than => TIMESTAMP '2100-01-01')": "",
    "ALTER TABLE {table} DROP COLUMN n": "n was dropped",
    "UPDATE {table} SET v = '9' WHERE k = 'a'": "another program wrote to the table",
}


# The writers are determined before a way is chosen, at any door. Before a release, each statement runs before
# every way.
@pytest.mark.parametrize("way", ["copy", "feed", "feed by tasks", "copy by tasks"][: deep(4, 2)])
def test_foreign_writes_are_reported_once(native, way):
    """The next receipt, a dry run before it, and `check` report it, whatever was reported before."""
    columns = "k string, v string, n string"
    native.copy(1, native.frame("a:1:x b:1:y", columns))

    def deliver(number, **options):
        frame = native.frame(f"a:{number}:x b:1:y", columns)
        if "copy" in way:
            return native.copy(number, frame, **options)
        rows = frame.selectExpr("*", f"timestamp '{day(number):%Y-%m-%d}' AS at")
        return native.warehouse.apply(
            rows, into=native.name, key="k", sequence_by="at", drop=["at"], **options
        )

    def noted():
        records = native.warehouse.table(native.name).check()
        return [text for each in records if each["law"] == "foreign-writes" for text in each["keys"]]

    deliver(2)
    if "tasks" in way:
        native.by_frames(always=True)
    statements = list(WRITES)[: deep(4, 3 if way == "copy" else 1)]
    for number, statement in enumerate(statements, 3):
        for each in statement.format(name=native.name, table=f"backstory.{native.name}").split(";"):
            native.spark.sql(each)
        warnings = noted()
        assert [WRITES[statement] in each for each in warnings] == ([True] if WRITES[statement] else []), (
            statement
        )
        assert list(deliver(number, dry_run=True).warnings) == warnings
        receipt = deliver(number)
        assert (list(receipt.warnings), "warnings" in receipt.to_dict()) == (warnings, bool(warnings)), (
            statement
        )
    assert (noted(), list(deliver(number + 1).warnings)) == ([], [])


def test_a_key_of_several_columns(native):
    frame = native.frame("a:1:x a:2:x", "k string, `n 1` string, v string")
    for at, source, code in ((1, frame, None), (2, frame.limit(1), "mass-delete")):
        options = {"into": native.name, "key": ["k", "n 1"], "at": day(at), "max_delete_ratio": 0.4}
        if code is None:
            assert native.warehouse.snapshot(source, **options).counts == counts(new=2)
            continue
        with pytest.raises(Refused) as refusal:
            native.warehouse.snapshot(source, **options)
        assert (refusal.value.code, refusal.value.keys) == (code, ["k=a n 1=2"])


def counts(**some):
    return {"new": 0, "changed": 0, "closed": 0, "reopened": 0, "unchanged": 0, **some}


def test_the_driver_reads_each_row_of_a_table_once(native):
    """The size of the table's files is the limit, not the number of rows. Each row is read once."""
    source, rows = "backstory.native.many", FEW + 1
    native.spark.sql(
        f"CREATE OR REPLACE TABLE {source} USING iceberg AS SELECT id AS k, id AS v FROM range({rows})"
    )
    native.copy(1, native.spark.table(source))
    with rows_read(native.spark) as reads:
        native.copy(2, native.spark.table(source).where("k >= 0").selectExpr("v", "k"))
    assert reads == [rows]
    native.spark.sql(f"DROP TABLE {source}")


def test_a_foreign_table_is_read_but_not_written(native):
    """The table is listed as `foreign`, and no door writes to it."""
    native.spark.sql(
        f"CREATE OR REPLACE TABLE backstory.{native.name} USING iceberg AS SELECT 'a' AS k, 1 AS v"
    )
    (listed,) = inventory(native.warehouse.store, [TableName(*native.name.split("."))])
    assert (listed["table"], listed["layout"]) == (native.name, "foreign")
    with pytest.raises(Refused, match="did not create") as refusal:
        native.copy(1, "a:1")
    assert (refusal.value.code, "Fivetran" in str(refusal.value), "fivetran" in str(refusal.value)) == (
        "other-layout",
        False,
        False,
    )
    assert "adopt" in refusal.value.remedy
    rows = native.warehouse.table(native.name).current().collect()
    assert [(row.k, row.v) for row in rows] == [("a", 1)]
    native.spark.sql(f"DROP TABLE backstory.{native.name}")


# Names that differ only in case are one name to most engines that read a table, as are `s.n` and field n of s.


CASES = {
    "column": ({"k": ["a"], "Name": ["x"]}, {"k": ["a"], "NAME": ["x"]}, "other-case"),
    "key": ({"k": ["a"], "v": ["x"]}, {"K": ["a"], "v": ["x"]}, "other-case"),
    "field": (
        {"k": ["a"], "s": [{"n": 1}]},
        {"k": ["a"], "s": [{"n": 1, "N": 1}]},
        "repeated-column",
    ),
    "field that comes": ({"k": ["a"], "s": [{"n": 1}]}, {"k": ["a"], "s": [{"N": 1}]}, "type-changed"),
    "two columns": (None, {"k": ["a"], "V": ["x"], "v": ["x"]}, "repeated-column"),
    "deep": (None, {"k": ["a"], "s": [[{"p": {"q": 1, "Q": 2}}]]}, "repeated-column"),
    "column and field": (None, {"k": ["a"], "s": [{"n": 1}], "s.n": [1]}, "ambiguous-name"),
    "column named like a field": (
        {"k": ["a"], "s": [{"n": 1}]},
        {"k": ["a"], "s": [{"n": 1}], "s.n": [1]},
        "ambiguous-name",
    ),
    **{
        f"reserved {name}": (None, {"k": ["a"], name: ["x"]}, "reserved-column")
        for name in ("VALID_FROM", "Recorded_At", "_MEMORY", "Is_Current", "_File", "_CHANGE_TYPE")
    },
}


@pytest.mark.parametrize("feed", [False, True], ids=["copy", "feed"])
@pytest.mark.parametrize("case", CASES)
def test_ambiguous_column_names_are_refused(native, case, feed):
    """E4: Engines that ignore case could not read them, and Iceberg has one name for `s.n` and field n of s."""
    before, after, code = CASES[case]

    def bring(at, rows):
        if not feed:
            return native.warehouse.snapshot(
                pa.table(rows), into=native.name, key=None if at > 1 else "k", at=day(at)
            )
        times = pa.array([day(at)], pa.timestamp("us", "UTC"))
        rows = pa.table({**rows, "at": times})
        return native.warehouse.apply(rows, into=native.name, key=None if at > 1 else "k", sequence_by="at")

    if before is not None:
        bring(1, before)
    with pytest.raises(BackstoryError) as refused:
        bring(1 if before is None else 2, after)
    assert refused.value.code == code
    if case == "column":
        assert "rename={'Name': 'NAME'}" in refused.value.remedy


def test_a_rename_changes_the_case_of_a_column_in_one_commit(native):
    """N2: Values are kept, no version begins, and engines that ignore case read the table."""
    native.copy(1, pa.table({"k": ["a", "b"], "Name": ["x", "y"]}))
    again = pa.table({"k": ["a", "b"], "NAME": ["x", "y"]})
    assert native.copy(2, again, rename={"Name": "NAME"}).counts == counts(unchanged=2)
    assert native.copy(3, again).counts == counts(unchanged=2)
    changed = pa.table({"K": ["a", "b"], "name": ["x", "z"]})
    with pytest.raises(BackstoryError, match="only in case"):
        native.copy(4, changed)
    before = native.snapshots
    fed = native.warehouse.snapshot(changed, into=native.name, at=day(4), rename={"k": "K", "NAME": "name"})
    assert (fed.counts, native.snapshots) == (counts(changed=1, unchanged=1), before + 1)
    assert [each.name for each in native.stored.shape.user_columns] == ["K", "name"]
    both = pa.table({"k": ["a"], "w": ["x"]})
    native.name = f"{native.name}_other"
    native.copy(1, pa.table({"k": ["a"], "v": ["x"], "W": ["x"]}))
    with pytest.raises(BackstoryError, match="already is a column W"):
        native.copy(2, both, rename={"v": "w"})


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"key": "Id"}, "Write id instead of Id"),
        ({"ignore": ["Name"]}, "Write name instead of Name"),
        ({"track": ["NAME"]}, "Write name instead of NAME"),
        ({"overwrite": ["NAME"]}, "Write name instead of NAME"),
        ({"retype": {"NAME": "STRING"}}, "Write name instead of NAME"),
        ({"scope": {"NAME": "x"}}, "Write name instead of NAME"),
    ],
)
def test_an_option_in_another_case_is_refused_with_the_existing_name(native, options, hint):
    """E4: Names compare exactly, and the error contains the existing spelling."""
    rows = pa.table({"id": ["a"], "name": ["x"]})
    with pytest.raises(BackstoryError) as refused:
        native.warehouse.snapshot(rows, into=native.name, **{"key": "id", **options})
    assert hint in refused.value.remedy
