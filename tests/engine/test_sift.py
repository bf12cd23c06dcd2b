"""A sift: with the remaining rows, a plan has the same result as with all rows."""

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstory.engine import sift
from backstory.engine.plans import LocalSide, SideRows
from backstory.engine.sift import (
    Buckets,
    ComparedSide,
    RowCounts,
    SiftTerms,
    count_values,
    counts_of_unchanged,
    sift_frames,
    sift_sides,
    with_counts,
)
from backstory.errors import Failed
from backstory.formats.memory import CLEAR_TEXT_SHARE, Memory
from backstory.stores.iceberg.frames import frame_of
from backstory.strategies.part_plan import PartPlan, as_they_are

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("w", pa.int64()), ("on", pa.bool_())])
CAME, STORED, OTHER = "came", "stored", "other"
ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 12)),
        st.sampled_from([None, "", "a", "b", "long"]),
        st.one_of(st.none(), st.integers(0, 1)),
        st.sampled_from([True, True, False, None]),
    ),
    max_size=12,
)


def table(rows):
    return (
        pa.table(
            [
                pa.array(each, type_)
                for each, type_ in zip(zip(*rows, strict=True), SCHEMA.types, strict=True)
            ],
            schema=SCHEMA,
        )
        if rows
        else SCHEMA.empty_table()
    )


def local(rows):
    def columns(names):
        return SideRows(
            pa.schema([SCHEMA.field(name) for name in names]),
            lambda: [rows.select(names).slice(0, len(names)), rows.select(names).slice(len(names))],
        )

    return LocalSide(columns(SCHEMA.names), columns=columns)


def terms_of():
    came = ComparedSide(CAME, ["v", "w"], ["w"], lengths={"v": 3})
    stored = ComparedSide(STORED, ["v", "w"], [])
    return SiftTerms(
        [(came, stored), (ComparedSide(STORED, ["v"], [], "on"), ComparedSide(OTHER, ["v"], ["v"]))],
        lambda rows: {name: each.rows for name, each in rows.items()},
        {STORED: ["w"]},
        lambda _: {STORED: ["w"]},
    )


def same_records(sides):
    """The keys whose rows are equal on all sides, one on each, and may be omitted."""
    keys = set()
    for key in range(13):
        came, stored, other = (
            [row for row in side.to_pylist() if row["k"] == key] for side in sides.values()
        )
        if len(came) != 1 or len(stored) != 1:
            continue
        mine, theirs = came[0], stored[0]
        if (
            (mine["v"], mine["w"]) != (theirs["v"], theirs["w"])
            or mine["w"] is None
            or len(mine["v"] or "") > 3
        ):
            continue
        on = [row["v"] for row in stored if row["on"]]
        if on == [row["v"] for row in other] and None not in on:
            keys.add(key)
    return keys


def plan(part, _whole):
    return PartPlan(counts={name: len(rows) for name, rows in part.items()})


@given(ROWS, ROWS, ROWS)
def test_a_sift_keeps_every_record_that_differs(came, stored, other):
    """It omits equal records unless another record shares their bucket."""
    tables = {CAME: table(came), STORED: table(stored), OTHER: table(other)}
    memory = Memory(CLEAR_TEXT_SHARE << 20)
    sides = {name: local(rows) for name, rows in tables.items()}
    with memory.lease() as lease:
        totals, left = sift_sides(terms_of(), ["k"], sides, Buckets.for_rows(1, memory), lease)
        left = {
            name: pa.concat_tables([*side.rows.tables(), SCHEMA.empty_table()]) for name, side in left.items()
        }
    same = same_records(tables)
    for name, rows in tables.items():
        expected = [row for row in rows.to_pylist() if row["k"] not in same]
        doubles = Counter(map(repr, left[name].to_pylist()))
        assert doubles >= Counter(map(repr, expected)) or _twice_on_both(tables)
    planned = with_counts(plan, terms_of())(left, as_they_are)
    counts = Counter(planned.counts) + counts_of_unchanged(terms_of(), totals, planned.counts)
    for name, rows in tables.items():
        assert counts[name] == len(rows)


def _twice_on_both(sides):
    """Whether a key has the same rows several times on two sides, which cannot be detected."""
    seen = [Counter((row["k"], row["v"], row["w"]) for row in side.to_pylist()) for side in sides.values()]
    twice = [{key for key, count in each.items() if count > 1} for each in seen]
    return bool(twice[0] & twice[1] or {k[:2] for k in twice[1]} & {k[:2] for k in twice[2]})


@pytest.mark.parametrize("count", [4, 6])
def test_a_side_that_changes_between_two_reads_is_an_error(count):
    """It can have fewer rows or more rows."""
    rows = table([(key, "a", 1, True) for key in range(6)])
    came = replace(local(rows.slice(0, 5)), rows=local(rows.slice(0, count)).rows)
    sides = {CAME: came, STORED: local(rows.slice(0, 4)), OTHER: local(rows)}
    memory = Memory(CLEAR_TEXT_SHARE << 20)
    with memory.lease() as lease:
        _, left = sift_sides(terms_of(), ["k"], sides, Buckets.for_rows(5, memory), lease)
        with pytest.raises(Failed) as stop:
            list(left[CAME].rows.tables())
    assert stop.value.code == "source-changed"


def test_unchanged_rows_are_not_read_again():
    rows = table([(key, "a", 1, True) for key in range(5)])
    reads = []

    def columns(names):
        reads.append(names)
        return SideRows(pa.schema([SCHEMA.field(name) for name in names]), lambda: [rows.select(names)])

    def never():
        raise AssertionError("read")

    sides = {name: LocalSide(SideRows(SCHEMA, never), columns=columns) for name in (CAME, STORED, OTHER)}
    memory = Memory(CLEAR_TEXT_SHARE << 20)
    with memory.lease() as lease:
        totals, left = sift_sides(terms_of(), ["k"], sides, Buckets.for_rows(5, memory), lease)
        assert [[*side.rows.tables()] for side in left.values()] == [[], [], []]
        assert lease.size <= sift.LEAST_BUCKETS  # a flag for each bucket
    assert counts_of_unchanged(terms_of(), totals, Counter()) == {CAME: 5, STORED: 5, OTHER: 5}
    assert all({*names} <= {*SCHEMA.names} for names in reads)


@pytest.mark.parametrize(("share", "memory"), [(0.5, 1 << 20), (1e-6, 1 << 20), (0.5, 0)])
def test_a_sift_by_spark_keeps_every_record_that_differs(store, monkeypatch, share, memory):
    """If many buckets differ, all rows remain. Without memory on the driver, tasks add up the fingerprints."""
    store = replace(store, memory=Memory(CLEAR_TEXT_SHARE * memory))
    monkeypatch.setattr("backstory.engine.sift.MOST_DIFFERING", share)
    same = [(key, "a", 1, True) for key in range(40)]
    tables = {
        CAME: table(
            [*same, (50, "b", 1, True), (51, "long", 1, True), (52, "x", None, True), (None, "a", 1, True)]
        ),
        STORED: table(
            [*same, (50, "a", 1, True), (51, "long", 1, True), (52, "x", None, True), (None, "a", 1, True)]
        ),
        OTHER: table([*same, (60, None, 1, True)]),
    }
    terms, schemas = terms_of(), dict.fromkeys(tables, SCHEMA)
    frames = {
        name: frame_of(store, rows).toDF(*(f"c{place}" for place in range(4)))
        for name, rows in tables.items()
    }
    with ExitStack() as stack:
        sifted = sift_frames(terms, ["k"], frames, schemas, store, stack)
        left = {name: {row[0] for row in frame.collect()} for name, frame in sifted.frames.items()}
    for name, keys in left.items():
        rows = tables[name]["k"].to_pylist()
        assert {key for key in rows if key is None or key >= 50} <= keys
        assert (keys == {*rows}) == (share < 0.5)
    totals = count_values(sifted.totals, frames, schemas, terms.columns_to_count({}))
    assert {name: each.rows for name, each in totals.items()} == {CAME: 44, STORED: 44, OTHER: 41}
    assert totals[STORED].values == {"w": 43}


def test_planned_rows_are_not_counted_as_unchanged():
    terms = terms_of()
    rows = table([(1, "a", 1, True), (2, "a", None, True)])
    planned = with_counts(plan, terms)({CAME: rows, STORED: rows, OTHER: rows.slice(0, 1)}, as_they_are)
    totals = {CAME: RowCounts(5), STORED: RowCounts(6, Counter(w=4)), OTHER: RowCounts(7)}
    assert sift.counts_of_unchanged(terms, totals, planned.counts) == {CAME: 3, STORED: 4, OTHER: 6}


def test_sums_of_plans_keep_negative_counts():
    """A digest of rows is a count too, and may be negative."""
    both = PartPlan(counts={"content": -2, "rows": 1}) + PartPlan(counts={"content": 1, "rows": 1})
    assert both.counts == {"content": -1, "rows": 2}
