"""A value is the same in another type, or refused (E1)."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from backstory.formats.values.same import same

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
def test_a_value_that_fits_is_itself(value, stored, type_, expected):
    found = same(pa.array([value], stored), type_)
    assert (found.type, found.to_pylist()) == (type_, [expected])


@pytest.mark.parametrize(("value", "stored", "type_"), LOST, ids=str)
def test_a_value_that_would_be_another_is_refused(value, stored, type_):
    with pytest.raises(pa.ArrowInvalid):
        same(pa.array([value], stored), type_)
