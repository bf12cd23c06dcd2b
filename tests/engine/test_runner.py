"""The runner: one plan whole, in parts, and in Spark's tasks returns the same rows, counts and samples."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from structlog.testing import capture_logs

from backstory.engine import tasks
from backstory.engine.plans import LocalSide, PlanTerms, Side, SideRows
from backstory.engine.runner import IN_TASKS, NOT_HERE, run_plan
from backstory.engine.tasks import Wire
from backstory.errors import MAX_KEYS, Refused
from backstory.formats.memory import CLEAR_TEXT_SHARE, Memory
from backstory.model.change import RowBatches
from backstory.model.table import TableName
from backstory.stores.iceberg import frames
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.strategies.part_plan import PartPlan

TABLE = TableName("crm", "customer")
# Names that Spark would confuse with each other, or with its own syntax.
SCHEMA = pa.schema([("k", pa.int64()), ("a.`b", pa.string()), ("A.`B", pa.list_(pa.float64()))])
CAME, STORED, PAIRS, ALONE = "came", "stored", "pairs", "alone"
KINDS = {PAIRS: pa.schema([("k", pa.int64()), ("n", pa.int64())]), ALONE: SCHEMA}


def side(keys):
    texts = [f"text {key}" for key in keys]
    lists = [[0.5, None] if key % 2 else None for key in keys]
    return pa.table([pa.array(keys, pa.int64()), texts, lists], SCHEMA)


def plan(sides, _whole):
    """The keys of both sides with the number of stored rows, and whole rows of one side."""
    came, stored = sides[CAME], sides[STORED]
    if 666 in came["k"].to_pylist():
        raise Refused("bad", "A number is bad.", "Nothing was written.")
    there = pc.is_in(came["k"], value_set=stored["k"].combine_chunks())
    both, alone = came.filter(there), came.filter(pc.invert(there))
    sizes = [pc.sum(pc.equal(stored["k"], key)).as_py() for key in both["k"]]
    pairs = pa.table([both["k"], pa.array(sizes, pa.int64())], KINDS[PAIRS])
    most = max(came["k"].to_pylist(), default=0)
    return PartPlan(
        {PAIRS: pairs, ALONE: alone}, {"alone": len(alone)}, {"alone": alone.select(["k"])}, {"most": most}
    )


def terms_of(store, came, stored, theirs=None):
    def local(rows):
        return lambda _lease, _met: LocalSide(SideRows(SCHEMA, lambda: [rows.slice(0, 9), rows.slice(9)]))

    sides = {
        CAME: Side(SCHEMA, lambda: frame_of(store, came), local(came), size=came.nbytes),
        STORED: theirs
        or Side(SCHEMA, lambda: frame_of(store, stored), local(stored), stored.nbytes, len(stored), CAME),
    }
    return PlanTerms(store, TABLE, sides, ["k"], KINDS, plan)


def with_memory(store, size):
    return replace(store, memory=Memory(CLEAR_TEXT_SHARE * size))


@contextmanager
def captured_events():
    with capture_logs() as logs:
        yield lambda: [line["event"] for line in logs]


def rows_of(planned, kind):
    rows = planned.rows(kind)
    if rows is None:
        return []
    if isinstance(rows, RowBatches):
        rows = pa.concat_tables(rows.tables())
    if not isinstance(rows, pa.Table):
        names = [f"c{n}" for n in range(len(rows.columns))]
        rows = rows.toDF(*names).toArrow().rename_columns(rows.columns)
    return sorted(map(str, rows.to_pylist()))


WAYS = {
    "whole": (1 << 20, None),
    "in parts": (2_000, "planned in parts"),
    "in one task": (0, IN_TASKS),
    "in tasks": (0, "buckets of keys"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_planning_gives_the_same_plan(store, monkeypatch, way):
    monkeypatch.setattr(frames, "ROWS_IN_BUCKET", 10)
    monkeypatch.setattr(tasks, "LONG", 0)
    if way == "in tasks":
        monkeypatch.setattr(tasks, "FEW", 0)
    random = np.random.default_rng(1)
    came, stored = side(range(100)), side(random.integers(50, 200, 100).tolist())
    memory, line = WAYS[way]
    expected = plan({CAME: came, STORED: stored}, None)
    with captured_events() as lines, run_plan(terms_of(with_memory(store, memory), came, stored)) as planned:
        for kind in KINDS:
            assert rows_of(planned, kind) == sorted(map(str, expected.rows[kind].to_pylist()))
            assert planned.sums.added[kind] == len(expected.rows[kind])
        assert planned.sums.counts["alone"] == expected.counts["alone"]
        assert planned.sums.greatest["most"] == 99
        few = planned.sums.samples["alone"]["k"].to_pylist()
        assert len(few) == MAX_KEYS
        assert {*few} <= {*expected.rows[ALONE]["k"].to_pylist()}
    assert (line is None) == (not lines())
    assert line is None or any(line in each for each in lines())


@pytest.mark.parametrize("way", WAYS)
def test_a_plan_is_refused_in_every_way_of_planning(store, way):
    terms = terms_of(with_memory(store, WAYS[way][0]), side([*range(50), 666]), side(range(50)))
    with pytest.raises(Refused) as refused, translate_faults(TABLE), run_plan(terms):
        pass
    assert refused.value.code == "bad"


def test_parts_already_have_the_columns_that_a_side_would_add(store):
    """To add them to each part would read the table once for each part."""
    came, stored = side(range(0, 60, 2)), side(range(60))

    def columns(names):
        return SideRows(pa.schema([SCHEMA.field(name) for name in names]), lambda: [stored.select(names)])

    def never(_):
        raise AssertionError("a part asked for more columns")

    narrow = LocalSide(columns(["k"]), never, columns)
    theirs = Side(
        SCHEMA, lambda: frame_of(store, stored), lambda _lease, _met: narrow, stored.nbytes, 60, CAME
    )

    def whole_rows(part, whole):
        rows = whole(
            part[STORED].filter(pc.is_in(part[STORED]["k"], value_set=part[CAME]["k"].combine_chunks()))
        )
        return PartPlan({ALONE: rows.select(SCHEMA.names)})

    terms = replace(terms_of(with_memory(store, came.nbytes), came, stored, theirs), plan=whole_rows)
    with run_plan(terms) as planned:
        assert rows_of(planned, ALONE) == sorted(map(str, came.to_pylist()))


@pytest.mark.parametrize("meets", [CAME, None])
def test_rows_read_only_by_spark_are_collected_if_memory_permits(store, meets):
    """The driver's own attempt to read them releases its memory."""
    came, stored = side(range(30)), side(range(20, 60))

    def unreadable(lease, _met):
        lease.hold("digests", (1 << 20) - came.nbytes - 1)

        def tables():
            yield stored.slice(0, 5)
            raise Unreadable("values that Spark converts")

        return LocalSide(SideRows(SCHEMA, tables))

    theirs = Side(SCHEMA, lambda: frame_of(store, stored), unreadable, stored.nbytes, len(stored), meets)
    terms = terms_of(with_memory(store, 1 << 20), came, stored, theirs)
    with captured_events() as lines, run_plan(terms) as planned:
        assert len(rows_of(planned, PAIRS)) == 10
        assert planned.sums.counts["alone"] == 20
    assert lines() == []


def test_a_too_large_frame_is_planned_by_tasks(store):
    came, stored = side(range(30)), side(range(20, 60))
    theirs = Side(SCHEMA, lambda: frame_of(store, stored), size=1 << 40, count=len(stored))
    terms = terms_of(with_memory(store, 1 << 20), came, stored, theirs)
    with captured_events() as lines, run_plan(terms) as planned:
        assert len(rows_of(planned, PAIRS)) == 10
    assert IN_TASKS in lines()
    assert NOT_HERE not in lines()


def test_kinds_of_rows_share_columns_of_the_same_type():
    wire = Wire(KINDS)
    assert wire.columns(PAIRS) == ["0 1", "0 2"]
    assert len(wire.schema) == 2 + 4  # besides the head: two whole numbers, a text and a list
    empty = list(wire.encode(PartPlan()))
    assert [batch.num_rows for batch in empty] == [1]


@pytest.mark.parametrize(
    ("type_", "keys", "count"),
    [
        ("INT", "6, 8", 3),
        ("STRING", "'6', '8'", 3),
        ("DATE", "DATE'1086-01-07', DATE'1086-01-09'", 3),
        ("TIMESTAMP", "TIMESTAMP'1086-01-07 00:00:00Z', TIMESTAMP'1086-01-09 00:00:00Z'", 3),
        ("INT", "6, NULL", 9),
        ("DOUBLE", "6.0, 8.0", 9),
    ],
    ids=["numbers", "texts", "days", "instants", "with NULL", "floats"],
)
def test_only_rows_within_the_bounds_of_the_keys_are_read(store, type_, keys, count):
    """This includes years before 1582, where Java's old calendar differs. NaN is outside all bounds."""
    values = {
        "DATE": "date_add(DATE'1086-01-01', int(id))",
        "TIMESTAMP": "TIMESTAMP'1086-01-01 00:00:00Z' + make_interval(0, 0, 0, int(id))",
    }
    rows = store.spark.range(9).selectExpr(f"CAST({values.get(type_, 'id')} AS {type_}) AS c0")
    wanted = store.spark.sql(f"SELECT CAST(c1 AS {type_}) AS c1 FROM (SELECT explode(array({keys})) AS c1)")
    assert tasks.within_bounds(rows, wanted, ["c0"], ["c1"]).count() == count
