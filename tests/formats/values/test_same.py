"""A value in another type is equal, or refused (E1)."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from backstory.formats.values.casts import DoesNotFit, cast
from backstory.formats.values.exactly import cast_same
from backstory.model.types import ColumnType, Kind

EXACT = [
    (2.0**53 + 2, pa.float64(), pa.int64(), 2**53 + 2),
    (-(2.0**63), pa.float64(), pa.int64(), -(2**63)),
    (np.float16(3), pa.float16(), pa.int8(), 3),
    (255.0, pa.float32(), pa.uint8(), 255),
    (None, pa.float64(), pa.int32(), None),
    (Decimal("7.00"), pa.decimal128(5, 2), pa.int32(), 7),
    (2**64 - 1, pa.uint64(), pa.decimal128(38, 18), Decimal(2**64 - 1)),
    (7, pa.int64(), pa.decimal128(3, 2), Decimal("7.00")),
    (1.5, pa.float64(), pa.float32(), 1.5),
    (1, pa.int8(), pa.bool_(), True),
]
LOST = [
    (2.0**63, pa.float64(), pa.int64()),
    (-1.0, pa.float64(), pa.uint8()),
    (1.5, pa.float64(), pa.int64()),
    (float("nan"), pa.float64(), pa.int64()),
    (float("inf"), pa.float64(), pa.int64()),
    (Decimal("7.10"), pa.decimal128(5, 2), pa.int32()),
    (1000, pa.int64(), pa.decimal128(3, 2)),
    (2**53 + 1, pa.int64(), pa.float64()),
    (0.1, pa.float64(), pa.float32()),
    (2, pa.int8(), pa.bool_()),
    (1001, pa.timestamp("ns"), pa.timestamp("us")),
]


@pytest.mark.parametrize(("value", "stored", "type_", "expected"), EXACT, ids=str)
def test_a_fitting_value_stays_the_same(value, stored, type_, expected):
    result = cast_same(pa.array([value], stored), type_)
    assert (result.type, result.to_pylist()) == (type_, [expected])


@pytest.mark.parametrize(("value", "stored", "type_"), LOST, ids=str)
def test_a_value_that_would_change_is_refused(value, stored, type_):
    with pytest.raises(pa.ArrowInvalid):
        cast_same(pa.array([value], stored), type_)


SINGLE = pa.float32()
FLOAT, LONG = ColumnType(Kind.FLOAT), ColumnType(Kind.LONG)


@pytest.mark.parametrize("wrap", ["plain", "list", "map", "struct"])
@pytest.mark.parametrize(
    ("narrow", "wide"), [(SINGLE, pa.float64()), (pa.float16(), SINGLE), (pa.float16(), pa.float64())]
)
def test_a_widened_float_keeps_its_displayed_number(narrow, wide, wrap):
    """This includes 72.1, 0.1, signed zeros, NaN and infinities, alone or nested."""
    shown = [72.1, 0.1, -0.0, float("nan"), float("-inf"), 1.5, 2048.0, None]
    numbers = np.array([0.0 if each is None else each for each in shown], narrow.to_pandas_dtype())
    values = pa.array(numbers, mask=np.array([each is None for each in shown]))
    wraps = {
        "plain": lambda each, _: each,
        "list": lambda each, type_: pa.ListArray.from_arrays([0, 3, 8], each, pa.list_(type_)),
        "map": lambda each, type_: pa.MapArray.from_arrays(
            [0, 3, 8], pa.array([*"abcdefgh"]), each, pa.map_(pa.string(), type_)
        ),
        "struct": lambda each, type_: pa.StructArray.from_arrays([each], fields=[pa.field("f", type_)]),
    }
    wrapped, wanted = wraps[wrap](values, narrow), wraps[wrap](pa.array(shown, wide), wide)
    assert repr(cast_same(wrapped, wanted.type).to_pylist()) == repr(wanted.to_pylist())
    assert repr(cast_same(wrapped.slice(1), wanted.type).to_pylist()) == repr(wanted.to_pylist()[1:])


@pytest.mark.parametrize("type_", [pa.float16(), SINGLE, pa.float64()])
def test_a_float_amount_becomes_its_displayed_decimal(type_):
    """This covers each of a hundred cents. Three digits are refused."""
    texts = [f"0.{cents:02}" for cents in range(100)]
    amounts = pa.array(np.array([float(text) for text in texts], type_.to_pandas_dtype()))
    assert [str(each) for each in cast_same(amounts, pa.decimal128(18, 2)).to_pylist()] == texts
    with pytest.raises(pa.ArrowInvalid):
        cast_same(pa.array(np.array([1.125], type_.to_pandas_dtype())), pa.decimal128(18, 2))


def test_whole_half_floats_keep_all_digits():
    """65504 is not 65500, although no other half has that shorter text."""
    assert cast_same(pa.array(np.array([65504, 2050], np.float16)), SINGLE).to_pylist() == [65504.0, 2050.0]


@pytest.mark.parametrize("way", [cast_same, lambda values, _: cast(values, FLOAT, LONG)])
def test_a_whole_float_becomes_its_displayed_integer(way):
    """The float 123456792 of 32 bits displays 123456790, and has this value as a DOUBLE."""
    values = pa.array([123456792.0, 16777216.0, -3.0, None], SINGLE)
    assert way(values, pa.int64()).to_pylist() == [123456790, 16777216, -3, None]
    with pytest.raises((pa.ArrowInvalid, DoesNotFit)):
        way(pa.array([72.1], SINGLE), pa.int64())
