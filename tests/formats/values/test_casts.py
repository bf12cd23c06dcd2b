"""Casts of values to another type, exact or refused."""

import math
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstory.formats.rows import arrow_type
from backstory.formats.values.casts import DoesNotFit, cast
from backstory.model.types import ColumnType, Kind, are_related


def type_of(text: str) -> ColumnType:
    return ColumnType.parse(text)


def as_type(value: object, old: str, new: str) -> object:
    """The cast value, or `DoesNotFit`."""
    values = pa.array([value, None], arrow_type(type_of(old)))
    result = cast(values, type_of(old), type_of(new))
    assert result.type == arrow_type(type_of(new))
    assert result[1].as_py() is None
    return result[0].as_py()


@pytest.mark.parametrize(
    ("value", "old", "new", "gives"),
    [
        (7, "INT", "LONG", 7),
        (7, "LONG", "SHORT", 7),
        (7, "LONG", "STRING", "7"),
        ("-12", "STRING", "LONG", -12),
        (1.5, "DOUBLE", "FLOAT", 1.5),
        (0.1, "DOUBLE", "FLOAT", struct.unpack("f", struct.pack("f", 0.1))[0]),
        (math.inf, "DOUBLE", "FLOAT", math.inf),
        (2.0, "DOUBLE", "INT", 2),
        (0.1, "DOUBLE", "DECIMAL(38,10)", Decimal("0.1000000000")),
        (Decimal("0.1000000000"), "DECIMAL(38,10)", "DOUBLE", 0.1),
        (Decimal("0.1"), "DECIMAL(4,1)", "FLOAT", struct.unpack("f", struct.pack("f", 0.1))[0]),
        (Decimal("1.5000000000"), "DECIMAL(38,10)", "DECIMAL(38,15)", Decimal("1.500000000000000")),
        (Decimal("1.5000000000"), "DECIMAL(38,10)", "DECIMAL(12,2)", Decimal("1.50")),
        (Decimal("3.00"), "DECIMAL(12,2)", "INT", 3),
        (3, "INT", "DECIMAL(12,2)", Decimal("3.00")),
        (3, "LONG", "DOUBLE", 3.0),
        (Decimal("1.5000000000"), "DECIMAL(38,10)", "STRING", "1.5"),
        (Decimal("0E-10"), "DECIMAL(38,10)", "STRING", "0"),
        (Decimal("0.0000000001"), "DECIMAL(38,10)", "STRING", "0.0000000001"),
        (Decimal(100), "DECIMAL(38,0)", "STRING", "100"),
        (True, "BOOLEAN", "STRING", "true"),
        ("FALSE", "STRING", "BOOLEAN", False),
        (math.nan, "DOUBLE", "STRING", "NaN"),
        (-math.inf, "FLOAT", "STRING", "-Infinity"),
        (date(1, 2, 3), "NAIVE_DATE", "STRING", "0001-02-03"),
        (date(2020, 2, 3), "NAIVE_DATE", "NAIVE_DATETIME", datetime(2020, 2, 3)),
        (date(2020, 2, 3), "NAIVE_DATE", "UTC_DATETIME", datetime(2020, 2, 3, tzinfo=UTC)),
        (datetime(2020, 2, 3), "NAIVE_DATETIME", "NAIVE_DATE", date(2020, 2, 3)),
        (datetime(1960, 2, 3, 4), "NAIVE_DATETIME", "UTC_DATETIME", datetime(1960, 2, 3, 4, tzinfo=UTC)),
        (datetime(2020, 2, 3, tzinfo=UTC), "UTC_DATETIME", "STRING", "2020-02-03T00:00:00Z"),
        (datetime(2020, 2, 3, 4, 5, 6, 120_000), "NAIVE_DATETIME", "STRING", "2020-02-03T04:05:06.12"),
        ("2020-02-03T00:00:00+01:00", "STRING", "UTC_DATETIME", datetime(2020, 2, 2, 23, tzinfo=UTC)),
        ("<a/>", "XML", "STRING", "<a/>"),
        ("é", "STRING", "BINARY", "é".encode()),
        ("é".encode(), "BINARY", "STRING", "é"),
        ("10:15", "STRING", "NAIVE_TIME", "10:15:00"),
    ],
)
def test_a_value_that_fits_is_kept(value, old, new, gives):
    result = as_type(value, old, new)
    assert type(result) is type(gives)
    assert result == gives or str(result) == str(gives)


@pytest.mark.parametrize(
    ("value", "old", "new"),
    [
        (2**31, "LONG", "INT"),
        (40_000, "INT", "SHORT"),
        (2**53 + 1, "LONG", "DOUBLE"),
        (2**24 + 1, "INT", "FLOAT"),
        (1e300, "DOUBLE", "FLOAT"),
        (1e-50, "DOUBLE", "FLOAT"),
        (1.5, "DOUBLE", "INT"),
        (math.nan, "DOUBLE", "INT"),
        (math.nan, "DOUBLE", "DECIMAL(38,10)"),
        (0.125, "DOUBLE", "DECIMAL(12,2)"),
        (Decimal("1.25"), "DECIMAL(12,2)", "DECIMAL(12,1)"),
        (Decimal("1234.5"), "DECIMAL(12,1)", "DECIMAL(4,1)"),
        (Decimal("9" * 38), "DECIMAL(38,0)", "DECIMAL(38,1)"),
        (Decimal("9" * 20), "DECIMAL(38,0)", "LONG"),
        (Decimal("9" * 38), "DECIMAL(38,0)", "DOUBLE"),
        (Decimal("1.5"), "DECIMAL(12,1)", "INT"),
        (datetime(2020, 2, 3, 1), "NAIVE_DATETIME", "NAIVE_DATE"),
        ("seven", "STRING", "INT"),
        ("", "STRING", "INT"),
        ("1.5", "STRING", "LONG"),
        ("yes", "STRING", "BOOLEAN"),
        ("25:00", "STRING", "NAIVE_TIME"),
        (b"\xff", "BINARY", "STRING"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(value, old, new):
    with pytest.raises(DoesNotFit):
        as_type(value, old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [("BOOLEAN", "INT"), ("INT", "NAIVE_DATE"), ("BINARY", "LONG"), ("UTC_DATETIME", "DOUBLE")],
)
def test_types_with_different_meanings_are_unrelated(old, new):
    assert not are_related(type_of(old), type_of(new))


VALUES = {
    "LONG": st.integers(-(2**63), 2**63 - 1),
    "INT": st.integers(-(2**31), 2**31 - 1),
    "DECIMAL(20,5)": st.decimals(-(10**14), 10**14, places=5, allow_nan=False),
    "DECIMAL(38,0)": st.integers(-(10**37), 10**37).map(Decimal),
    "DOUBLE": st.floats(allow_nan=False, allow_infinity=False),
    "FLOAT": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "NAIVE_DATETIME": st.datetimes(),
    "UTC_DATETIME": st.datetimes(timezones=st.just(UTC)),
    "NAIVE_DATE": st.dates(),
    "BOOLEAN": st.booleans(),
}
NUMBERS = [name for name in VALUES if name not in {"NAIVE_DATETIME", "UTC_DATETIME", "NAIVE_DATE", "BOOLEAN"}]


def exact(value: object, type_: str) -> Fraction:
    """The number of a value. A float means its shortest text."""
    if type_ == "FLOAT":
        digits = (f"{value:.{places}g}" for places in range(1, 10))
        return Fraction(next(d for d in digits if struct.pack("f", float(d)) == struct.pack("f", value)))
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


@given(st.data(), st.sampled_from(NUMBERS), st.sampled_from(NUMBERS))
def test_a_number_keeps_its_value_or_is_refused(data, old, new):
    value = data.draw(VALUES[old])
    try:
        result = as_type(value, old, new)
    except DoesNotFit:
        return
    if (old, new) == ("DOUBLE", "FLOAT"):
        assert result == struct.unpack("f", struct.pack("f", value))[0]
    else:
        assert Fraction(result) == Fraction(value) or exact(result, new) == exact(value, old)


@given(st.data(), st.sampled_from(sorted(VALUES)))
def test_every_value_survives_a_round_trip_through_text(data, type_):
    value = data.draw(VALUES[type_])
    assert as_type(as_type(value, type_, "STRING"), "STRING", type_) == value


def test_every_kind_is_related_to_text():
    assert all(are_related(ColumnType(kind), ColumnType(Kind.STRING)) for kind in Kind)
