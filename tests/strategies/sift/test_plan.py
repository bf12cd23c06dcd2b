"""Two states matched by key: added, changed, removed and unchanged records."""

from collections import Counter
from dataclasses import astuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from specification.sift import APPEARED, CHANGED, KEPT, SAME, VANISHED, sift

from backstory.strategies.values import pair_rows, side_codes

EVERY = pa.field("x", pa.float64())


def sides(delivered, stored):
    """Tables of rows `(key, x)`."""
    schema = pa.schema([pa.field("k", pa.string()), EVERY])
    return [
        pa.Table.from_pylist([{"k": key, "x": x} for key, x in rows], schema) for rows in (delivered, stored)
    ]


def paired(delivered, stored, scope):
    counts = pa.chunked_array([pa.array(scope, pa.bool_())])
    return pair_rows(delivered, stored, side_codes(delivered, stored, ["k"]), ["x"], counts)


def outcomes(delivered, stored, *scope):
    pairs = paired(*sides(delivered, stored), scope or [True] * len(stored))
    flat = [each if isinstance(each, tuple) else (each,) for each in astuple(pairs)]
    return [[side.to_pylist() for side in each] for each in flat]


def test_each_record_has_one_of_five_outcomes():
    """Places of delivered rows are before places of stored rows."""
    places = outcomes(
        [("new", 1), ("other", 2), ("same", 3)],
        [("same", 3), ("gone", 4), ("other", 5), ("spared", 6), ("unknown", 7)],
        *(True, True, True, False, None),
    )
    assert places == [[[0]], [[1], [2]], [[1]], [[3, 4]], [[2], [0]]]


def test_null_equals_null_nan_equals_nan_and_zeros_are_equal():
    """Values compare as in Spark, so that both ways of loading agree on the changes."""
    pairs = [
        (None, None),
        (float("nan"), float("nan")),
        (0.0, -0.0),
        (None, float("nan")),
        (None, 0.0),
        (1.0, 2.0),
    ]
    rows = [[(str(place), pair[side]) for place, pair in enumerate(pairs)] for side in (0, 1)]
    assert outcomes(*rows)[1] == [[3, 4, 5]] * 2


def test_repeated_keys_are_flagged_and_missing_keys_have_no_match():
    """A load with a repeated key is refused, and the refusal names the keys."""
    whole, twice = [("a", 1)], [("a", 1), ("b", 1), ("a", 2)]
    flags = side_codes(*sides(twice, whole), ["k"]).repeats
    assert [each.tolist() for each in flags] == [[True, False, True], [False]]
    assert outcomes(whole, [(None, 1), ("a", 1)]) == [[[]], [[], []], [[0]], [[]], [[0], [1]]]
    assert outcomes([], []) == [[[]], [[], []], [[]], [[]], [[], []]]


FLOATS = st.none() | st.sampled_from([0.0, -0.0, float("nan"), 1.0])
RECORDS = st.lists(
    st.tuples(st.none() | st.sampled_from([0.0, -0.0, float("nan"), 1.0, 2.0]), FLOATS), max_size=5
)


@given(RECORDS, RECORDS, st.lists(st.none() | st.booleans(), min_size=5, max_size=5))
def test_the_sift_gives_the_outcomes_of_the_rule(delivered, stored, scope):
    """This includes keys and values that are equal with different bits. Sides with faults are refused."""
    schema = pa.schema([("k", pa.float64()), ("x", pa.float64())])
    rows = [[{"k": key, "x": x} for key, x in side] for side in (delivered, stored)]
    counts = scope[: len(stored)]
    expected = sift(*rows, ["k"], ["x"], counts)
    left, right = (pa.Table.from_pylist(each, schema) for each in rows)
    repeats = any(flags.any() for flags in side_codes(left, right, ["k"]).repeats)
    assert (repeats or left["k"].null_count > 0) == (expected is None)
    if expected is not None:
        numbers = Counter(expected.values())
        pairs = paired(left, right, counts)
        assert pairs.sizes == tuple(numbers[each] for each in (APPEARED, CHANGED, VANISHED, KEPT, SAME))
