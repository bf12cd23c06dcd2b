"""Names of a value as text and in Python: exactly one value, or none."""

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from backstory.formats.values.cells import UnreadableCell, parse
from backstory.formats.values.named import Unnamed, named_value
from backstory.model.types import ColumnType, Kind

LONG, TEXT, DAY = ColumnType(Kind.LONG), ColumnType(Kind.STRING), ColumnType(Kind.NAIVE_DATE)
AT, NAIVE = ColumnType(Kind.UTC_DATETIME), ColumnType(Kind.NAIVE_DATETIME)
MONEY = ColumnType(Kind.DECIMAL, 10, 2)
DOUBLE, FLOAT, BOOL = ColumnType(Kind.DOUBLE), ColumnType(Kind.FLOAT), ColumnType(Kind.BOOLEAN)
BYTES = ColumnType(Kind.BINARY)
UUIDS, CLOCK = ColumnType(Kind.STRING, foreign="uuid"), ColumnType(Kind.STRING, foreign="time")
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
SINGLE = 0.10000000149011612

NAMED = [
    *((LONG, text, 3) for text in ("3", "03", " 3 ", 3, 3.0, Decimal("3.00"), np.int32(3), np.float64(3))),
    (LONG, "-9223372036854775808", -(1 << 63)),
    *((MONEY, text, Decimal("1.50")) for text in ("1.5", "1.50", "1.500", "15e-1", "+1.5", 1.5, Decimal("1.5"))),
    (MONEY, 7, Decimal("7.00")),
    *((DOUBLE, text, 2.5) for text in ("2.5", "2.50", "25e-1", 2.5, Decimal("2.5"), np.float64(2.5))),
    (DOUBLE, "0.1", 0.1),
    (DOUBLE, "-Infinity", -math.inf),
    *((FLOAT, text, SINGLE) for text in ("0.1", "0.10000000149011612", 0.1, SINGLE)),
    (BOOL, "True", True),
    (BOOL, np.bool_(False), False),
    *((DAY, text, date(2024, 1, 1)) for text in ("2024-01-01", date(2024, 1, 1))),
    *(
        (AT, text, NOON)
        for text in (
            "2024-01-01T12:00:00Z", "2024-01-01 12:00", "2024-01-01t13:00:00.000000000+01:00", "2024-01-01T07:00-05",
            NOON, NOON.astimezone(timezone(timedelta(hours=5))),
        )
    ),
    *((NAIVE, text, datetime(2024, 1, 1, 12)) for text in ("2024-01-01T12:00:00", "2024-01-01 12:00:00.0")),
    (NAIVE, datetime(2024, 1, 1, 12), datetime(2024, 1, 1, 12)),
    *((TEXT, text, text) for text in ("", " a ", "a=x=1", "1.0", "é", "e\u0301")),
    (TEXT, 17, "17"),
    (BYTES, "FF00", b"\xff\x00"),
    (BYTES, b"abc", b"abc"),
    (UUIDS, "F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
    (CLOCK, "10:00:00.5", "10:00:00.5"),
]  # fmt: skip

UNNAMED = [
    *((LONG, each) for each in ("3.7", "3.0", "1e1", "", "0x1", "1_0", "+3", "٣", "x=1", "9223372036854775808")),
    *((LONG, each) for each in (3.7, True, None, b"3", math.nan, 2.0**60, date(2024, 1, 1), [3], np.bool_(True))),
    *((MONEY, each) for each in ("1.005", "123456789", "NaN", "1,5", "", True, 1.005, 0.1 + 0.2, Decimal("NaN"))),
    (ColumnType(Kind.DECIMAL, 38, 2), 12345678901234567.89),
    *((DOUBLE, each) for each in ("0.10000000000000001", "1e999", "one", "", True, Decimal("0.10000000000000001"))),
    (FLOAT, "0.123456789123"),
    *((BOOL, each) for each in ("f", "1", "yes", 1, 0.0)),
    *((DAY, each) for each in ("2024", "2024-02", "2024-1-1", "2024-02-30", "2024-01-01 00:00:00", 2024, NOON)),
    *((AT, each) for each in ("2024", "2024-01-01", "2024-01-01T12:00:00.0000001Z", "2024-01-01T12", "noon")),
    *((AT, each) for each in (datetime(2024, 1, 1, 12), date(2024, 1, 1), "0001-01-01T00:00+01:00", 1704110400)),
    *((NAIVE, each) for each in ("2024-01-01T12:00:00Z", "2024-01-01T12:00:00+05:00", "2024-01-01", NOON)),
    *((TEXT, each) for each in (1.0, True, Decimal(1), date(2024, 1, 1), b"a", None)),
    *((BYTES, each) for each in ("abc", "xy", "ff 00", 255)),
    *((UUIDS, each) for each in ("f81d4fae", 5)),
    *((CLOCK, each) for each in ("10:00", "10:00:00.1234567", "25:00:00")),
    (ColumnType(Kind.STRUCT, parts=(("a", LONG),)), "1"),
    (ColumnType(Kind.LIST, parts=(("element", LONG),)), [1]),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "spelling", "value"), NAMED)
def test_each_spelling_gives_the_same_value(type_, spelling, value):
    result = named_value(spelling, type_)
    assert (type(result), result) == (type(value), value)
    if isinstance(spelling, str) and not type_.foreign and type_ != BYTES and spelling:
        with_csv = parse(pa.array([spelling.upper() if type_ == AT else spelling]), type_)
        assert with_csv.to_pylist() == [value]


@pytest.mark.parametrize(("type_", "spelling"), UNNAMED)
def test_inexact_spellings_of_a_value_are_refused(type_, spelling):
    with pytest.raises(Unnamed) as caught:
        named_value(spelling, type_)
    assert caught.value.remedy


def test_nan_is_accepted_as_a_value():
    assert math.isnan(named_value("nan", DOUBLE))
    assert math.isnan(named_value(math.nan, FLOAT))


def test_a_text_has_the_same_value_in_a_key_and_in_a_file():
    """If a key and a file's cell both accept a text, its value is the same."""
    spellings = [*(each for _, each, _ in NAMED), *(each for _, each in UNNAMED)]
    for type_ in (LONG, MONEY, DOUBLE, FLOAT, BOOL, DAY, AT, NAIVE, TEXT):
        for text in filter(lambda each: isinstance(each, str), spellings):
            try:
                key_value, (cell,) = named_value(text, type_), parse(pa.array([text]), type_).to_pylist()
            except (Unnamed, UnreadableCell):
                continue
            assert key_value == cell or math.isnan(key_value) is math.isnan(cell) is True, (type_, text)
