"""Arrow's values as Python's: floats as displayed, and times beyond Python's range as texts."""

import math
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from backstory.stores.metadata.values import rows_of, values_of

SINGLE = pa.float32()
INSTANT, NAIVE = pa.timestamp("us", "UTC"), pa.timestamp("us")
LONG_AGO, FAR_OFF = -63_549_878_400_000_000, 316_516_550_400_000_001


def nested(leaf, value):
    """A value of a type in each possible kind of column, with its display."""
    kinds = {
        "alone": (leaf, value, lambda shown: shown),
        "in a list": (pa.list_(leaf), [value, None], lambda shown: [shown, None]),
        "in a map": (pa.map_(pa.string(), leaf), [("x", value)], lambda shown: {"x": shown}),
        "in a struct": (pa.struct([("x", leaf)]), {"x": value}, lambda shown: {"x": shown}),
        "deep": (
            pa.list_(pa.struct([("x", pa.list_(leaf))])),
            [{"x": [value]}, None],
            lambda shown: [{"x": [shown]}, None],
        ),
    }
    return kinds.items()


@pytest.mark.parametrize("number", [72.1, 0.1, 1e-45, 3.4e38, -0.0, math.inf])
def test_a_float_of_32_bits_keeps_its_displayed_number(number):
    """72.1 is printed as 72.1, not as 72.0999984741211, at any depth."""
    for where, (type_, value, shown) in nested(SINGLE, number):
        column = pa.chunked_array([pa.array([value, None], type_), pa.array([value], type_)])
        assert values_of(column) == [shown(number), None, shown(number)], where


def test_every_nan_is_the_same_object():
    first, second = values_of(pa.chunked_array([pa.array([math.nan, math.nan], SINGLE)]))
    assert first is second
    assert math.isnan(first)


@pytest.mark.parametrize(
    ("type_", "counted", "shown"),
    [
        (pa.date32(), -735_000, "-0043-08-22"),
        (pa.date32(), 3_700_000, "+12100-04-04"),
        (INSTANT, LONG_AGO, "-0044-03-09T00:00:00Z"),
        (INSTANT, FAR_OFF, "+12000-01-05T00:00:00.000001Z"),
        (NAIVE, LONG_AGO, "-0044-03-09T00:00:00"),
        (NAIVE, FAR_OFF, "+12000-01-05T00:00:00.000001"),
        (NAIVE, 9_089_348_860_800_000_000, "+290000-01-01T00:00:00"),
        (pa.date32(), 0, date(1970, 1, 1)),
        (INSTANT, 253_402_300_799_999_999, datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)),
        (INSTANT, -62_135_596_800_000_000, datetime(1, 1, 1, tzinfo=UTC)),
        (NAIVE, -62_135_596_800_000_000, datetime(1, 1, 1)),
    ],
)
def test_a_time_outside_pythons_calendar_becomes_text(type_, counted, shown):
    """Years before 1 and after 9999 do not fail, and other times remain times."""
    number = pa.int32() if type_ == pa.date32() else pa.int64()
    (value,) = pa.array([counted], number).cast(type_)
    (other,) = pa.array([3_663_385 if number == pa.int32() else FAR_OFF], number).cast(type_)
    for where, (whole, filled, as_shown) in nested(type_, value):
        column = pa.chunked_array([pa.array([filled, None], whole)])
        assert values_of(column) == [as_shown(shown), None], where
    beside = pa.chunked_array([pa.array([value, other, None], type_)])
    assert values_of(beside)[0] == shown


@pytest.mark.parametrize(
    ("type_", "pairs"),
    [
        (pa.map_(pa.string(), pa.float64()), [("k", 1.0), ("k", 2.0)]),
        (pa.map_(pa.struct([("a", pa.int64())]), pa.date32()), [({"a": 1}, date(2024, 1, 1))]),
        (pa.map_(pa.list_(pa.int64()), pa.string()), [([1], "x")]),
    ],
)
def test_a_map_unsuitable_for_a_dictionary_becomes_pairs(type_, pairs):
    """Other programs repeat a key, or have structs and lists as keys."""
    assert values_of(pa.chunked_array([pa.array([pairs, None], type_)])) == [pairs, None]


def test_keys_of_a_map_are_converted_like_its_values():
    days = pa.array([-735_000, 0], pa.int32()).cast(pa.date32())
    table = pa.table({"m": pa.MapArray.from_arrays(pa.array([0, 2], pa.int32()), days, days)})
    assert rows_of(table) == [{"m": {"-0043-08-22": "-0043-08-22", date(1970, 1, 1): date(1970, 1, 1)}}]
