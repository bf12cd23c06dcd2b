"""The query of differences gives the specified result for every kind of value, order and part."""

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specification.differences import Lived, Side, differences, in_order, passages

from backstory.reading.files import INSTANT, are_after
from backstory.reading.files import differences as by_query
from backstory.reading.files import sort_rows as sort
from backstory.reading.lifetimes import BETWEEN
from backstory.reading.options import Comparison
from backstory.reading.questions import SIDE_COLUMNS
from backstory.stores.metadata.values import rows_of

SCHEMA = pa.schema(
    [
        ("k", pa.float64()),
        ("l", pa.string()),
        ("f", pa.float64()),
        ("t", pa.string()),
        ("d", pa.decimal128(5, 2)),
        ("n", pa.list_(pa.float64())),
        ("s", pa.struct([("x", pa.int32()), ("y", pa.binary())])),
        ("m", pa.map_(pa.string(), pa.float64())),
    ]
)
FLOATS = [None, 0.0, -0.0, math.nan, 1.5]
VALUES = {
    "f": st.sampled_from(FLOATS),
    "t": st.sampled_from([None, "", "a", "b"]),
    "d": st.sampled_from([None, Decimal("1.00"), Decimal("-1.10")]),
    "n": st.sampled_from([None, [], [math.nan], [0.0], [-0.0, None]]),
    "s": st.sampled_from([None, {"x": None, "y": None}, {"x": 1, "y": b""}, {"x": 1, "y": b"\x00"}]),
    "m": st.sampled_from([None, [], [("a", 0.0), ("b", None)], [("b", None), ("a", -0.0)]]),
}
ROW = st.fixed_dictionaries({"k": st.sampled_from(FLOATS), "l": st.sampled_from([None, "a", "é"]), **VALUES})
# Without a key, few columns distinguish the versions, so that there are copies.
PLAIN = st.fixed_dictionaries({"f": st.sampled_from(FLOATS), "t": st.sampled_from([None, "a"])})
KINDS = ("added", "changed", "removed", "returned", "reverted", "passed", None)


def day(number):
    return None if number is None else datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=number)


@st.composite
def lives(draw):
    """Versions of some records without overlaps but with gaps, some beginning or ending between 2 and 6."""
    records = draw(st.lists(ROW, max_size=5, unique_by=lambda row: repr((zero(row["k"]), row["l"]))))
    versions = []
    for record in records:
        borders = sorted(draw(st.sets(st.integers(0, 8), min_size=1, max_size=5)))
        for start, end in zip(borders, [*borders[1:], None], strict=True):
            if draw(st.booleans()):
                values = {name: draw(each) for name, each in VALUES.items()}
                versions.append(({**record, **values}, start, end))
    return [each for each in versions if 2 < each[1] <= 6 or (each[2] is not None and 2 < each[2] <= 6)]


def zero(value):
    return value + 0.0 if isinstance(value, float) else value


def holds(start, end, time):
    return start <= time and (end is None or time < end)


def table(rows, schema=SCHEMA):
    return pa.Table.from_pylist(
        rows, pa.schema([each for each in schema if not rows or each.name in rows[0]])
    )


def query_differences(versions, key, comparison, *, timed=False):
    rows = table([row for row, _, _ in versions])
    spans = {
        "valid_from": pa.array([day(start) for _, start, _ in versions], INSTANT),
        "valid_to": pa.array([day(end) for _, _, end in versions], INSTANT),
    }
    truths = {
        side: pa.array([holds(*span, time) for _, *span in versions], pa.bool_())
        for side, time in zip(SIDE_COLUMNS, (2, 6), strict=True)
    }
    sides = pa.table({**spans, **truths})
    if not comparison.through:
        moved = [place for place, (_, *span) in enumerate(versions) if holds(*span, 2) != holds(*span, 6)]
        rows, sides = rows.take(pa.array(moved, pa.int64())), sides.take(pa.array(moved, pa.int64()))
    return rows, by_query(rows, key, sides, comparison, timed=timed)


def specified(versions, rows, key, comparison):
    """The differences by the specification, in key order."""
    whole = rows_of(table([row for row, _, _ in versions]))
    if comparison.through:
        lived = [
            Lived(row, day(start), day(end), holds(start, end, 2), holds(start, end, 6))
            for row, (_, start, end) in zip(whole, versions, strict=True)
        ]
        changes = passages(lived, key)
    else:
        sides = [
            Side(row, holds(*span, 6))
            for row, (_, *span) in zip(whole, versions, strict=True)
            if holds(*span, 2) != holds(*span, 6)
        ]
        changes = differences(sides, key)
    return [each for each in in_order(changes, ["key"]) if comparison.change in (None, each["change"])]


@given(lives(), st.sampled_from(KINDS), st.booleans())
def test_differences_equal_the_specification(versions, kind, through):
    """This covers ends and passages, with keys of NULL, NaN and both zeros, whole and in pages."""
    comparison = Comparison(change=kind, through=through or kind in BETWEEN)
    for key in (["k", "l"], ["l", "k"]):
        rows, answer = query_differences(versions, key, comparison)
        wanted = specified(versions, rows, key, comparison)
        assert repr(answer.page()) == repr(wanted)
        assert repr(answer.page(1, 3)) == repr(wanted[1:3])
        assert len(answer) == len(wanted)
        assert answer.kinds() == {
            each: n for each in KINDS if (n := [w["change"] for w in wanted].count(each))
        }


@given(st.lists(st.tuples(PLAIN, st.sampled_from([(0, 4), (4, None), (0, None)])), max_size=8))
def test_keyless_rows_are_added_and_removed_by_their_count(rows):
    versions = [(row, *span) for row, span in rows]
    shown, answer = query_differences(versions, [], Comparison())
    assert repr(answer.page()) == repr(specified(versions, shown, [], Comparison()))


@given(lives())
def test_equal_changes_of_several_records_are_one_group(versions):
    _, answer = query_differences(versions, ["k", "l"], Comparison())
    pairs = [
        (name, *(repr(found_in(each[side][name])) for side in ("before", "after")))
        for each in answer.page()
        for name in each["changed"]
    ]
    wanted = sorted(n for pair in set(pairs) if (n := pairs.count(pair)) > 1)
    assert sorted(each.count for each in answer.common_changes(99)) == wanted


def found_in(value):
    if isinstance(value, dict):
        return sorted((name, found_in(each)) for name, each in value.items())
    return list(map(found_in, value)) if isinstance(value, list) else zero(value)


def test_events_of_a_key_are_distinguished_by_their_times():
    """In a ledger, an event that disappears and another one that appears are not one change."""
    versions = [({"t": "a", "f": 1.0}, 0, 4), ({"t": "a", "f": 2.0}, 4, None)]
    _, answer = query_differences(versions, ["t"], Comparison(), timed=True)
    assert [each["change"] for each in answer.page()] == ["added", "removed"]


@given(st.lists(ROW, max_size=8), st.lists(st.sampled_from(SCHEMA.names[:-1]), max_size=3, unique=True))
def test_rows_are_sorted_like_the_specification(rows, first):
    plain = pa.schema(list(SCHEMA)[:-1])
    given_rows = pa.Table.from_pylist(rows, plain)
    assert repr(rows_of(sort(given_rows, first))) == repr(in_order(rows_of(given_rows), first))


@pytest.mark.parametrize(("value", "behind"), [(0.0, [2, 3]), (-0.0, [2, 3]), (1.5, [3]), (math.nan, [])])
def test_a_page_begins_after_a_value(value, behind):
    rows = pa.table({"k": [None, -0.0, 1.5, math.nan]})
    assert [place for place, each in enumerate(are_after(rows, {"k": value}).to_pylist()) if each] == behind
