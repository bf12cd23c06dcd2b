"""A column changes its type in the commit of a copy, and every value, version, time and row id is kept."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count

import pandas as pd
import pyarrow as pa
import pytest
from committing import snapshots_of
from depth import deep

from backstory.errors import BackstoryError
from backstory.formats.memory import Memory
from backstory.model.table import TableName
from backstory.stores.iceberg.store import existing
from backstory.warehouse import Warehouse

DAY = datetime(2026, 1, 1, tzinfo=UTC)
NUMBERS = count()


class Kept:
    """A table, compared by the driver or by Spark, and its receipts."""

    def __init__(self, store, *, by_frames=False):
        store = replace(store, memory=Memory(0)) if by_frames else store
        self.store, self.name = store, f"retyping.t{next(NUMBERS)}"
        self.warehouse = Warehouse(store, embedded=False)

    def copy(self, at, rows, **options):
        source = pd.DataFrame(rows) if isinstance(rows, list) else rows
        return self.warehouse.snapshot(
            source, into=self.name, key="k", at=DAY + timedelta(days=at), **options
        )

    def refused(self, at, rows, **options):
        before = self.table.location
        with pytest.raises(BackstoryError) as error:
            self.copy(at, rows, **options)
        assert self.table.location == before
        return error.value

    @property
    def table(self):
        return existing(self.store, TableName(*self.name.split(".")))

    @property
    def type(self):
        return str(self.table.shape.column("v").type)

    def rows(self, *names):
        """The stored rows including memory, by row id if rows have them."""
        ids = ["_row_id"] if self.store.format_version > 2 else []
        stored = self.store.spark.table(f"backstory.{self.name}").selectExpr("*", *ids).toArrow().to_pylist()
        return sorted(
            ({name: row[name] for name in names} if names else row for row in stored),
            key=lambda row: repr([*row.values()]),
        )

    def sound(self):
        records = self.warehouse.table(self.name).check()
        return {record["law"]: record["keys"] for record in records if record["violations"]} == {}


def records(**values):
    return [{"k": key, "v": value} for key, value in values.items()]


@pytest.fixture
def history(store, request):
    """A table on the driver, unless a test selects others by `every_way` or `both_ways`."""
    way = getattr(request, "param", "driver")
    store = replace(store, format_version=2) if way == "version 2" else store
    return Kept(store, by_frames=way == "frames")


both_ways = pytest.mark.parametrize("history", ["driver", "frames"], indirect=True)
# `test_guards_every_way` tests the guards of a copy in every way.
one_way = pytest.mark.parametrize("history", ["driver", "frames"][: deep(2, 1)], indirect=True)
every_way = pytest.mark.parametrize("history", ["driver", "frames", "version 2"][: deep(3, 2)], indirect=True)


# Tests below use frames with other new types, so frames run here only before a release.
@pytest.mark.parametrize("history", ["driver", "frames", "version 2"][: deep(3, 1)], indirect=True)
def test_a_column_of_integers_can_become_double(history):
    """In one commit, old versions, hidden rows, earlier snapshots and known states are kept."""
    history.copy(1, records(a=1, b=2, c=3, d=4))
    history.copy(2, records(a=1, b=5, d=4))
    before, snapshots = history.rows(), [each.id for each in snapshots_of(history.table)]
    stop = history.refused(3, records(a=1.5, b=5.0, d=4.0))
    assert (stop.code, "`retype={'v': 'DOUBLE'}`" in stop.remedy) == ("type-changed", True)
    options = {"retype": {"v": "double"}}
    plan = history.copy(3, records(a=1.5, b=5.0, d=4.0), dry_run=True, **options)
    assert plan.schema_changes == ["column v: type is now DOUBLE", "all rows are rewritten"]
    assert (history.type, history.rows()) == ("BIGINT", before)
    receipt = history.copy(3, records(a=1.5, b=5.0, d=4.0), **options)
    assert (receipt.counts["changed"], receipt.counts["unchanged"]) == (1, 2)
    assert (history.type, len(snapshots_of(history.table))) == ("DOUBLE", len(snapshots) + 1)
    after = history.rows()
    assert {type(row["v"]) for row in after} == {float}
    kept_rows = [row for row in after if row["recorded_at"] != max(each["recorded_at"] for each in after)]
    ended = next(row for row in kept_rows if row["k"] == "a")
    undone = [
        {**row, "valid_to": None, "is_current": True, "_memory": None} if row is ended else row
        for row in kept_rows
    ]
    assert sorted(undone, key=lambda row: repr([*row.values()])) == sorted(
        ({**row, "v": float(row["v"])} for row in before), key=lambda row: repr([*row.values()])
    )
    table = history.warehouse.table(history.name)
    then = history.store.spark.read.option("versionAsOf", str(snapshots[0])).table(
        f"backstory.{history.name}"
    )
    assert sorted((row.k, row.v) for row in then.collect()) == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    known = table.as_of(DAY + timedelta(days=9), known_at=max(row["recorded_at"] for row in before))
    assert sorted((row.k, row.v) for row in known.collect()) == [("a", 1.0), ("b", 5.0), ("d", 4.0)]
    assert history.sound()
    # A repeated nightly command has nothing to do, whether its numbers are whole or not.
    assert history.copy(4, records(a=1.5, b=5.0, d=4.0), **options).snapshot_id is None
    assert history.copy(5, records(a=2, b=5, d=4), **options).counts["changed"] == 1
    assert history.refused(6, [{"k": "a", "v": "x"}], **options).keys == ["v"]


# Stored values are compared before a way is chosen.
@one_way
def test_a_value_that_would_change_is_refused_with_its_keys(history):
    """Closed versions and delivered values count too. The error names a type that holds them."""
    big = 2**53 + 1
    history.copy(1, records(a=1, b=big, c=3, d=big))
    history.copy(2, records(a=1, b=2, c=3, d=4))
    for type_, keys in (
        ("DOUBLE", ["b", "d"]),
        ("DATE", list("abcd")),
        ("INT", ["b", "d"]),
        ("DECIMAL(9,2)", ["b", "d"]),
    )[: deep(4, 2)]:
        stop = history.refused(3, records(a=1, b=2, c=3, d=4), retype={"v": type_})
        assert (stop.code, stop.exit_code) == ("type-changed", 3)
        assert (stop.keys, "`retype={'v': 'STRING'}`" in stop.remedy) == (keys, True)
    assert history.refused(3, records(a="1"), retype={"k": "BINARY"}).code == "bad-option"
    history.copy(3, records(a=1, b=2, c=3, d=4), retype={"v": "STRING"})
    assert [row["v"] for row in history.rows("k", "v")] == ["1", "2", str(big), "3", "4", str(big)]
    assert history.copy(4, records(a=1, b=2, c=3, d=4), retype={"v": "STRING"}).snapshot_id is None
    assert history.refused(4, records(a="007", b="2", c="3", d="4"), retype={"v": "BIGINT"}).keys == ["v"]


@one_way
def test_the_remedy_for_stored_values_does_not_name_the_refused_type(history):
    history.copy(1, [{"k": "a", "v": b"\xff"}])
    stop = history.refused(2, records(a="x"), retype={"v": "STRING"})
    assert (stop.code, stop.keys) == ("type-changed", ["a"])
    assert ("retype" in stop.remedy, "cast it to BINARY" in stop.remedy) == (False, True)


@pytest.mark.parametrize("by_frames", [False, True][: deep(2, 1)])
def test_marks_remain_valid_after_a_retype(store, by_frames):
    """Marks refer to a retyped column by its new id, including after renames, new columns and restatements."""
    history = Kept(store, by_frames=by_frames)
    history.copy(5, [{"k": "a", "v": 1, "w": 1}, {"k": "b", "v": 2, "w": 1}], backfill=True)
    history.copy(6, records(a=1, b=3))
    history.copy(4, [{"k": "a", "v": 9, "w": 1}])

    def marks():
        names = {each.fieldId(): each.name() for each in history.table.iceberg.schema().columns()}
        memories = [row["_memory"] for row in history.rows() if (row["_memory"] or {}).get("kind") == "copy"]
        return sorted("".join(names[each] for each in memory["columns"]) for memory in memories)

    assert marks() == ["kv", "kvw", "kvw"]
    facts = ("k", "w", "valid_from", "valid_to", "recorded_at", "_row_id")
    before = history.rows(*facts)
    frame = pd.DataFrame({"k": ["a", "b"], "menge": [Decimal("1.50"), Decimal("3.00")], "n": [None, "x"]})
    receipt = history.copy(6, frame, rename={"v": "menge"}, retype={"menge": "DECIMAL(18,2)"}, restate=True)
    assert receipt.schema_changes[:3] == [
        "new column n (STRING)",
        "column menge: type is now DECIMAL(18,2)",
        "column v renamed to menge",
    ]
    assert marks().count("kmenge") == 1  # the withdrawn mark
    assert "kmengen" in marks()
    same = [row for row in history.rows(*facts) if row in before]
    assert len(same) >= len(before) - 3
    values = {(row["k"], row["menge"]) for row in history.rows("k", "menge") if row["k"]}
    assert values == {
        ("a", Decimal(1)),
        ("a", Decimal(9)),
        ("a", Decimal("1.5")),
        ("b", Decimal(2)),
        ("b", Decimal(3)),
    }
    assert history.sound()


def test_files_are_read_in_the_new_type(store, tmp_path):
    """After 1 and 2, a CSV has 1.5. The refusal names the option, and with it every later copy works."""
    history, file = Kept(store), tmp_path / "a.csv"

    def csv(text):
        file.write_text("k,v\n" + text)
        return file

    first = history.copy(1, csv("a,1\nb,2\n"))
    assert first.schema_changes == ["new table: k STRING, v BIGINT"]
    stop = history.refused(2, csv("a,1\nb,1.5\n"))
    assert (stop.code, "`retype={'v': 'DOUBLE'}`" in stop.remedy) == ("type-changed", True)
    options = {"retype": {"v": "DECIMAL(18,2)"}}
    assert history.copy(2, csv("a,1\nb,1.5\n"), **options).counts["changed"] == 1
    assert history.copy(3, csv("a,1.00\nb,1.50\n"), **options).snapshot_id is None
    assert history.copy(4, csv("a,1\nb,2\n"), **options).counts["changed"] == 1
    assert history.refused(5, csv("a,1\nb,1.505\n"), **options).code == "type-changed"
    assert history.refused(5, csv("a,1\nb,2\n"), retype={"x": "INT"}).code == "bad-option"
    other = Kept(store)
    other.copy(1, csv("a,01\nb,2\n"), retype={"v": "STRING"})
    assert [row["v"] for row in other.rows("k", "v")] == ["01", "2"]


@one_way
def test_a_column_without_values_accepts_any_type(history):
    """The column exists from its first copy on. When numbers arrive, no row has another type."""
    first = history.copy(1, [{"k": "a", "v": None}])
    assert first.schema_changes == ["new table: k STRING, v STRING"]
    receipt = history.copy(2, records(a=1))
    assert (receipt.schema_changes, receipt.counts["changed"]) == (["column v: type is now BIGINT"], 1)
    assert [row["v"] for row in history.rows("valid_from", "v")] == [None, 1]
    assert history.copy(3, records(a=1)).snapshot_id is None
    assert history.refused(4, records(a="x")).code == "type-changed"
    assert history.sound()


def test_a_partition_column_keeps_its_type(store):
    history = Kept(store)
    history.copy(1, records(a=1))
    store.spark.sql(f"ALTER TABLE backstory.{history.name} ADD PARTITION FIELD v")
    assert history.refused(2, records(a=1), retype={"v": "STRING"}).keys == ["v"]


def test_overwritten_and_ignored_columns_can_be_retyped(store):
    for option in ("ignore", "overwrite"):
        history = Kept(store)
        history.copy(1, records(a=1, b=2), **{option: "v"})
        counts = history.copy(2, records(a=1.5, b=2.0), retype={"v": "DOUBLE"}).counts
        assert (counts["changed"], history.type) == (int(option == "overwrite"), "DOUBLE")
        assert [row["v"] for row in history.rows("k", "v")] == (
            [1.0, 2.0] if option == "ignore" else [1.5, 2.0]
        )


def test_an_empty_source_may_have_any_types(history, tmp_path):
    """C5: Columns of an empty pandas frame are objects. With `allow_empty`, the copy is accepted."""
    history.copy(1, records(a=1, b=2))
    (tmp_path / "a.csv").write_text("k,v\n")
    frame = pd.DataFrame({"k": pd.Series([], dtype=object), "v": pd.Series([], dtype=object)})
    floats = pa.table({"k": pa.array([], pa.float64()), "v": pa.array([], pa.list_(pa.int32()))})
    spark = history.store.spark.sql("SELECT 1 AS k, 'x' AS v").limit(0)
    for source in (frame, pd.DataFrame({"k": [], "v": []}), floats, spark, tmp_path / "a.csv"):
        assert history.refused(2, source).code == "empty-snapshot"
    options = {"allow_empty": True, "max_delete_ratio": 1}
    assert history.copy(2, floats, dry_run=True, **options).counts["closed"] == 2
    assert (history.copy(2, frame, **options).counts["closed"], history.type) == (2, "BIGINT")


def losing(number, of=39):
    return [{"k": f"k{place:02}", "v": None if place < number else "x", "w": place} for place in range(of)]


@one_way
def test_a_copy_that_loses_half_of_its_values_is_refused(history):
    """N4: More than half of the values, and at least 20, may not be lost without a larger `max_null_ratio`."""
    history.copy(1, [*losing(0), {"k": "gone", "v": "x", "w": 1}, {"k": "null", "v": None, "w": 1}])
    history.copy(2, [*losing(0), {"k": "null", "v": None, "w": 1}])
    stop = history.refused(3, losing(24))
    assert (stop.code, stop.exit_code, len(stop.keys)) == ("mass-null", 3, 10)
    assert set(stop.keys) <= {f"k{place:02}" for place in range(24)}
    assert "v: 24 of 39 records" in stop.message
    assert "`max_null_ratio=0.62`" in stop.remedy
    assert history.refused(3, losing(24), dry_run=True).code == "mass-null"
    assert history.refused(3, losing(24), max_null_ratio=0.61).code == "mass-null"
    assert (
        history.refused(
            3, pa.table({"k": [f"k{n:02}" for n in range(39)], "v": pa.nulls(39), "w": range(39)})
        ).code
        == "mass-null"
    )
    for number, warnings in (
        (3, []),
        (4, ["column v: 4 of 39 records lose their value"]),
        (19, ["column v: 19 of 39 records lose their value"]),
    ):
        plan = history.copy(3, losing(number), dry_run=True)
        assert plan.warnings == warnings
    assert history.copy(3, [{"k": row["k"], "w": row["w"]} for row in losing(0)], dry_run=True).warnings == []
    assert history.copy(3, losing(24), max_null_ratio=0.62).counts["changed"] == 24
    assert history.copy(4, losing(39), dry_run=True).warnings == [
        "column v: 15 of 15 records lose their value"
    ]


def test_lost_values_are_checked_in_restatements_and_older_copies(store):
    """N4: The values at the copy's own instant count."""
    history = Kept(store)
    history.copy(5, losing(0), backfill=True)
    assert history.refused(5, losing(24), restate=True).code == "mass-null"
    assert history.copy(3, losing(24)).counts["reopened"] == 39
    assert history.copy(4, losing(39), dry_run=True).warnings == [
        "column v: 15 of 15 records lose their value"
    ]
    assert history.copy(5, losing(24), restate=True, max_null_ratio=1).counts["changed"] == 24


def test_a_likely_rename_is_suggested_in_the_receipt(history):
    """The receipt lists both columns, and suggests a rename if nine in ten values are equal."""
    places = [{"k": f"k{n}", "ort": f"o{n}", "v": n} for n in range(20)]
    history.copy(1, places)

    def copied(same, ort="stadt"):
        rows = [
            {"k": row["k"], "v": row["v"], ort: row["ort"] if n < same else "?"}
            for n, row in enumerate(places)
        ]
        return history.copy(2, rows, dry_run=same < 20).schema_changes

    both = [
        "new column stadt (STRING)",
        "column ort is missing from the copy; kept, NULL in new versions",
    ]
    asking = "column stadt has the values of ort: renamed? `rename={'ort': 'stadt'}`"
    assert copied(17) == both
    assert copied(18) == [*both, asking]
    fewer = [{"k": row["k"], "v": row["v"]} for row in places]
    assert history.copy(2, fewer, dry_run=True).schema_changes == both[1:]
    *lines, hint = copied(20)
    assert lines == both
    assert hint.startswith(f"{asking}, after `backstory rewind ")


BESIDE = """SELECT 'a' AS k, CAST(1 AS bigint) AS v, map('x', 1) AS m, named_struct('s', array(1, NULL), 'Ä.`b', 2) AS n,
    TIMESTAMP_NTZ'1850-03-29 02:30:00.000001' AS t, TIMESTAMP'1850-03-29 02:30:00Z' AS u, DATE'0001-01-03' AS d,
    CAST(1.5 AS decimal(20,3)) AS e, X'00FF' AS b, double('NaN') AS f, CAST(NULL AS string) AS `a b.c`, true AS y"""


def test_a_retype_leaves_other_columns_unchanged(store):
    """Nested values, old times and unusual names are kept. A feed of changes contains the retyped column
    again."""
    history = Kept(store)
    history.copy(1, store.spark.sql(BESIDE))
    before, since = history.rows(), snapshots_of(history.table)[-1].id
    frame = store.spark.sql(BESIDE.replace("CAST(1 AS bigint)", "CAST(1 AS decimal(9,2))"))
    assert history.copy(2, frame, retype={"v": "DECIMAL(9,2)"}).counts["unchanged"] == 1
    assert repr(history.rows()) == repr([{**row, "v": Decimal("1.00")} for row in before])
    with history.warehouse.table(history.name).changes(since=since) as feed:
        changes = [(row["_change_type"], row.v) for row in feed.frame.collect()]
    assert changes == [("update_preimage", None), ("update_postimage", Decimal("1.00"))]
    assert history.copy(3, frame).snapshot_id is None


def test_several_columns_are_retyped_in_one_copy(history):
    """If a value does not fit its new type, no column changes. A column that has the type already is unchanged."""
    history.copy(1, [{"k": "a", "v": 1, "w": "1.5", "x": 0.5}])
    receipt = history.copy(
        2,
        [{"k": "a", "v": 1, "w": "1.5", "x": 0.5}],
        retype={"v": "STRING", "w": "DECIMAL(9,1)", "x": "double"},
    )
    assert (receipt.counts["unchanged"], receipt.recorded_at is None) == (1, False)
    assert history.rows("v", "w", "x") == [{"v": "1", "w": Decimal("1.5"), "x": 0.5}]
    stop = history.refused(3, [{"k": "a", "v": "1", "w": 2.5, "x": 0.5}], retype={"v": "BIGINT", "w": "INT"})
    assert (stop.code, stop.keys) == ("type-changed", ["a"])
    assert history.sound()


# The wider types of a float, one column each. The plain column has the delivered type, and the others have
# the named types.
WIDER = {"plain": None, "d": "double", "e": "decimal(18,2)", "t": "string"}


def floats(type_, **values):
    columns = dict.fromkeys(WIDER, pa.array([*values.values()], type_))
    return pa.table({"k": [*values], **columns})


@both_ways
def test_a_float_keeps_its_displayed_number_in_wider_types(history):
    """FLOAT 72.1 and DOUBLE 72.1 are equal: no version begins, in either order, and past rows are the same."""
    shown = {"a": 72.1, "b": 0.1, "c": 66.0, "d": 0.07, "e": None}
    options = {"retype": {name: type_ for name, type_ in WIDER.items() if type_}}
    history.copy(1, floats(pa.float32(), **shown))
    receipt = history.copy(2, floats(pa.float64(), **shown), **options)
    assert receipt.counts["unchanged"] == 5
    types = [str(history.table.shape.column(name).type) for name in WIDER]
    assert types == ["DOUBLE", "DOUBLE", "DECIMAL(18,2)", "STRING"]
    past = history.warehouse.table(history.name).as_of(DAY + timedelta(days=1)).collect()
    for name in WIDER:
        assert {row.k: None if row[name] is None else float(row[name]) for row in past} == shown
    assert history.copy(3, floats(pa.float32(), **shown), **options).counts["unchanged"] == 5
    assert history.copy(4, floats(pa.float32(), **{**shown, "a": 72.2}), **options).counts["changed"] == 1
    assert history.sound()


def test_a_feed_refuses_doubles_for_floats_and_widens_floats_to_double(history):
    """A feed rewrites no rows. DOUBLE into FLOAT is refused, and FLOAT into DOUBLE is its displayed number."""
    at = pa.array([DAY], pa.timestamp("us", "UTC"))

    def feed(type_, value, name):
        rows = pa.table({"k": ["a"], "at": at, "v": pa.array([value], type_)})
        return history.warehouse.apply(rows, into=name, key="k", sequence_by="at")

    single, double = f"{history.name}f", f"{history.name}d"
    feed(pa.float32(), 72.1, single)
    with pytest.raises(BackstoryError) as stop:
        feed(pa.float64(), 72.1, single)
    assert stop.value.code == "type-changed"
    feed(pa.float64(), 72.1, double)
    assert feed(pa.float32(), 72.1, double).counts["duplicate"] == 1


@one_way
def test_a_column_that_orders_changes_keeps_its_order(history):
    """Another order would make the table refuse every later feed. A wider type has the same order."""

    def feed(seq, type_, day=1):
        at = pa.array([DAY + timedelta(days=day)], pa.timestamp("us", "UTC"))
        rows = pa.table({"k": ["a"], "v": [str(seq)], "at": at, "seq": pa.array([seq], type_)})
        return history.warehouse.apply(rows, into=history.name, key="k", sequence_by=["at", "seq"]).counts

    def copied(type_, seq=2):
        return pa.table({"k": ["a"], "v": [str(seq)], "seq": pa.array([seq]).cast(type_)})

    assert feed(1, pa.int32())["began"] == 1
    stop = history.refused(5, copied(pa.string()), retype={"seq": "STRING"})
    assert (stop.code, stop.keys) == ("type-changed", ["seq"])
    renamed = copied(pa.string()).rename_columns(["k", "v", "s"])
    stop = history.refused(5, renamed, rename={"seq": "s"}, retype={"s": "STRING"})
    assert (stop.code, stop.keys) == ("type-changed", ["s"])
    history.copy(5, copied(pa.int64()))
    assert str(history.table.shape.column("seq").type) == "BIGINT"
    assert feed(3, pa.int64(), 6)["began"] == feed(4, pa.int32(), 6)["began"] == 1
    with pytest.raises(BackstoryError) as stop:
        feed(2**31, pa.int64(), 7)
    assert (stop.value.code, stop.value.keys) == ("type-changed", ["seq"])
    assert history.sound()


ELEMENT = pa.struct([("a", pa.int64())])
GROWN = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])


def _nested(element, value):
    """A column of each nested kind with one value of this type, a NULL and an empty one."""
    kinds = {
        "l": (pa.list_(element), [[value, None], None, []]),
        "m": (pa.map_(pa.string(), element), [[("x", value)], None, []]),
        "s": (pa.struct([("n", element), ("z", pa.int64())]), [{"n": value, "z": 1}, None, {"n": None}]),
        "ll": (pa.list_(pa.list_(element)), [[[value]], None, [None]]),
    }
    columns = {name: pa.array(values, type_) for name, (type_, values) in kinds.items()}
    return pa.table({"k": ["a", "b", "c"], **columns})


@every_way
def test_a_new_field_is_added_to_structs_at_any_depth(history):
    """A new field in lists, maps and structs is NULL in stored values, and begins no version."""
    history.copy(1, _nested(ELEMENT, {"a": 1}))
    receipt = history.copy(2, _nested(GROWN, {"a": 1, "b": None}))
    assert (receipt.counts["changed"], len(receipt.schema_changes)) == (0, 4)
    assert history.copy(3, _nested(GROWN, {"a": 1, "b": {"c": "x"}})).counts["changed"] == 1
    table = history.warehouse.table(history.name)
    (past,) = table.as_of(DAY + timedelta(days=1), key="a").collect()
    (now,) = table.current(key="a").collect()
    assert [row.l[0].b and row.l[0].b.c for row in (past, now)] == [None, "x"]
    assert [row.m["x"].b and row.m["x"].b.c for row in (past, now)] == [None, "x"]
    assert (now.s.n.b.c, now.ll[0][0].b.c) == ("x", "x")
    assert history.sound()


def test_a_renamed_struct_column_can_gain_a_field(history):
    """A rename, a new field and the new type of another column are one commit."""
    numbers = pa.array([1, 2, 3])
    history.copy(1, _nested(ELEMENT, {"a": 1}).select(["k", "l"]).append_column("v", numbers))
    renamed = _nested(GROWN, {"a": 1, "b": None}).select(["k", "l"]).rename_columns(["k", "r"])
    receipt = history.copy(2, renamed.append_column("v", numbers), rename={"l": "r"}, retype={"v": "STRING"})
    assert receipt.counts["changed"] == 0
    assert history.rows("k", "r", "v")[0] == {"k": "a", "r": [{"a": 1, "b": None}, None], "v": "1"}
