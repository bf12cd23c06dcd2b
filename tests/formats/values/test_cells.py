"""Text becomes typed values exactly, or is refused (requirements 59 and 63; F6, F18, E1)."""

from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from delivered_cells import REFUSED, outcome, read
from hypothesis import given
from hypothesis import strategies as st

from backstory.model.values import UNMODIFIED

TMAX = datetime(9999, 12, 31, 23, 59, 59, 999000, UTC)
FIRST = datetime.fromisoformat("0001-01-01T00:00:00")
LAST = datetime.fromisoformat("9999-12-31T23:59:59.999999")


def naive(second: int, micros: int = 0) -> datetime:
    return utc(second, micros).replace(tzinfo=None)


def utc(second: int, micros: int = 0) -> datetime:
    return datetime(2007, 12, 3, 10, 15, second, micros, UTC)


def single(text: str) -> float:
    return float(np.float32(text))


VALUES = {
    "BOOLEAN": [
        ("true", True),
        ("false", False),
        ("TRUE", True),
        ("False", False),
        ("tRuE", True),
        ("fALSE", False),
    ],
    "SHORT": [("-32768", -(2**15)), ("32767", 2**15 - 1), ("0", 0), ("-0", 0), ("-1", -1)],
    "INT": [("-2147483648", -(2**31)), ("2147483647", 2**31 - 1)],
    "LONG": [
        ("-9223372036854775808", -(2**63)),
        ("9223372036854775807", 2**63 - 1),
        ("9007199254740993", 2**53 + 1),
    ],
    "FLOAT": [
        ("3.4028235E+38", single("3.4028235E+38")),
        ("3.4028237E+38", single("3.4028235E+38")),
        ("-3.4028237E+38", -single("3.4028235E+38")),
        ("1.17549435E-38", single("1.17549435E-38")),
        ("1.4E-45", single("1.4E-45")),
        ("-1.4e-45", -single("1.4E-45")),
        ("0.1", single("0.1")),
        ("16777217", 16777216.0),
        ("NaN", float("nan")),
        ("Infinity", float("inf")),
        ("-Infinity", float("-inf")),
        ("-0.0", -0.0),
    ],
    "DOUBLE": [
        ("200", 200.0),
        ("1.7976931348623157E308", 1.7976931348623157e308),
        ("-2.2250738585072014E-308", -2.2250738585072014e-308),
        ("4.9E-324", 5e-324),
        ("0.1", 0.1),
        ("1e5", 100000.0),
        ("NaN", float("nan")),
        ("Infinity", float("inf")),
        ("-Infinity", float("-inf")),
        ("-0.0", -0.0),
    ],
    "DECIMAL(38,10)": [
        ("12345.123456789", "12345.1234567890"),
        ("9" * 28 + "." + "9" * 10, "9" * 28 + "." + "9" * 10),
        ("0E-10", "0.0000000000"),
        ("0E+3", "0.0000000000"),
        ("1.500E-8", "0.0000000150"),
        ("1E+27", "1" + "0" * 27 + "." + "0" * 10),
        ("-.5", "-0.5000000000"),
        ("00.10", "0.1000000000"),
        ("1.5" + "0" * 60, "1.5000000000"),
        ("-0.00000000010000", "-0.0000000001"),
        ("0" * 60 + "7", "7.0000000000"),
        ("12345.123456789011", "12345.1234567890"),
        ("1E-11", "0.0000000000"),
        ("1.00000000005", "1.0000000000"),
        ("1.00000000015", "1.0000000002"),
        ("1.00000000005" + "0" * 60, "1.0000000000"),
        ("1.00000000005" + "0" * 60 + "1", "1.0000000001"),
        ("-1.23456789012345E-8", "-0.0000000123"),
        ("1e-400", "0.0000000000"),
        ("9" * 28 + "." + "9" * 10 + "4", "9" * 28 + "." + "9" * 10),
    ],
    "DECIMAL(38,37)": [
        ("-9." + "9" * 37, "-9." + "9" * 37),
        ("1E-37", "0." + "0" * 36 + "1"),
        ("9." + "9" * 37 + "0", "9." + "9" * 37),
    ],
    "DECIMAL(38,0)": [
        ("9" * 38, "9" * 38),
        ("-" + "9" * 38, "-" + "9" * 38),
        ("1E37", "1" + "0" * 37),
        ("1.50E+1", "15"),
        ("5.000", "5"),
        ("0.5", "0"),
        ("-1.5", "-2"),
        ("1.55E+1", "16"),
    ],
    "DECIMAL(5,2)": [
        ("999.99", "999.99"),
        ("-999.9900", "-999.99"),
        ("1e2", "100.00"),
        ("7", "7.00"),
        ("0.005", "0.00"),
        ("0.015", "0.02"),
        ("-999.9949999", "-999.99"),
    ],
    "NAIVE_DATE": [
        ("2007-12-03", date(2007, 12, 3)),
        ("0001-01-01", date.min),
        ("9999-12-31", date.max),
        ("1582-10-10", date(1582, 10, 10)),
        ("2000-02-29", date(2000, 2, 29)),
    ],
    "NAIVE_DATETIME": [
        ("2007-12-03T10:15:30", naive(30)),
        ("2007-12-03T10:15:05.123", naive(5, 123000)),
        ("2007-12-03T10:15:30.123456", naive(30, 123456)),
        ("2007-12-03T10:15:30.123456789", naive(30, 123456)),
        ("2007-12-03T10:15:30Z", naive(30)),
        ("2007-12-03T10:15:30.123456789Z", naive(30, 123456)),
        ("0001-01-01T00:00:00", FIRST),
        ("9999-12-31T23:59:59.999999999", LAST),
        ("1969-12-31T23:59:59.999999999", datetime.fromisoformat("1969-12-31T23:59:59.999999")),
        ("1969-12-31T23:59:59.000000001", datetime.fromisoformat("1969-12-31T23:59:59")),
    ],
    "UTC_DATETIME": [
        ("2007-12-03T10:15:30Z", utc(30)),
        ("2007-12-03T10:15:30.1Z", utc(30, 100000)),
        ("2007-12-03T10:15:30.123Z", utc(30, 123000)),
        ("2007-12-03T10:15:30.123456Z", utc(30, 123456)),
        ("2007-12-03T10:15:30.123456789Z", utc(30, 123456)),
        ("2007-12-03T10:15:30", utc(30)),
        ("2007-12-03T11:15:30+01:00", utc(30)),
        ("2007-12-03T11:15:30+0100", utc(30)),
        ("2007-12-03T04:45:30.123456789-05:30", utc(30, 123456)),
        ("0001-01-01T00:00:00Z", FIRST.replace(tzinfo=UTC)),
        ("9999-12-31T23:59:59.999Z", TMAX),
        ("9999-12-31T23:59:59.999999999Z", LAST.replace(tzinfo=UTC)),
        ("1969-12-31T23:59:59.9999999Z", datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
        ("2024-03-10T02:30:00Z", datetime(2024, 3, 10, 2, 30, tzinfo=UTC)),
    ],
    "NAIVE_TIME": [
        ("10:15:30", "10:15:30"),
        ("10:15", "10:15:00"),
        ("10:15:30.000", "10:15:30"),
        ("10:10:00.000000", "10:10:00"),
        ("10:15:30.120", "10:15:30.12"),
        ("00:00:00.000001", "00:00:00.000001"),
        ("23:59:59.999999999", "23:59:59.999999"),
        ("10:15:30.000000999", "10:15:30"),
    ],
    "XML": [("<a b=''/>", "<a b=''/>"), ("", "")],
    "JSON": [('{"a": [1, null]}', '{"a": [1, null]}'), ("null", "null"), ("", "")],
}

REFUSALS = {
    "BOOLEAN": ["1", "0", "yes", "t", "truE?", "null", "true false", "\0"],
    "SHORT": ["32768", "-32769", "1.0"],
    "INT": ["2147483648", "-2147483649", "1e3"],
    "LONG": ["9223372036854775808", "-9223372036854775809", "1.5", "1e3", "x", "1_000", "1,000", "٥", "--5", "-", "NaN", "5\0", "true"],
    "FLOAT": ["1e39", "-1e39", "3.4028238E38", "1e400", "x", "1.5f", "1,5", "nan(1)"],
    "DOUBLE": ["1.8E308", "-1.8E308", "1e400", "x", "1.5d", "0x1p3", "1e", "1e+", "infinit", "nan(abc)", "1.2.3", "."],
    "DECIMAL(38,10)": [".", "-", "1e", "NaN", "Infinity", "x", "0x1", "1.0000000000x", "1E+28", "17014118346046923173168730371", "34028236692093846346337460744", "-1E+28", "1E+38", "1e1000000000000", "1,5"],
    "DECIMAL(28,10)": ["1000000000000000000", "-1000000000000000000"],
    "DECIMAL(36,2)": ["1" + "0" * 34, "9" * 36],
    "DECIMAL(19,19)": ["1", "-1"],
    "DECIMAL(38,37)": ["10", "-10", "17", "35", "-69", "9." + "9" * 37 + "5"],
    "DECIMAL(38,0)": ["1E38", "1" + "0" * 38, "9" * 38 + ".5"],
    "DECIMAL(5,2)": ["1000", "-1000", "999.995", "-999.9950", "9.99995E+2", "1E+3", "3402823669209384634633746074317682115"],
    "NAIVE_DATE": ["0000-01-01", "0000-12-31", "10000-01-01", "+10000-01-01", "-0001-01-01", "2023-02-29", "2007-13-01", "2007-12-00", "2007-1-3", "20071203", "2007-12-03T00:00:00", "x", "13874"],
    "NAIVE_DATETIME": ["0000-12-31T23:59:59", "10000-01-01T00:00:00", "2007-12-03T24:00:00", "2007-12-03T10:60:00", "2007-12-03T10:15:60", "2007-12-03T10:15:30.", "2007-12-03T10:15:30+01:00", "2023-02-29T00:00:00", "x", "1196676930"],
    "UTC_DATETIME": ["0000-12-31T23:59:59Z", "+10000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "2007-12-03T24:00:01Z", "2007-12-03T10:15:30+99:99", "2007-12-03T10:15:30 UTC", "2007-12-03T10:15:30[UTC]", "2023-02-29T00:00:00Z", "x", "1196676930"],
    "NAIVE_TIME": ["24:00:00", "10:60:00", "10:15:60", "1:15:30", "10:15:30Z", "10:15:30.", "10:15:30.1234567891", "10", "101530", "10:15:30\n", "٠١:15:30", "x"],
}  # fmt: skip

# A cell of the type that needs slower parsing.
SPECIAL = {
    "BOOLEAN": "tRuE",
    "FLOAT": "3.4028237E+38",
    "DECIMAL": "1." + "0" * 60,
    "NAIVE_DATETIME": "2007-12-03T10:15:30.123456789Z",
    "UTC_DATETIME": "2007-12-03T10:15:30.123456789",
}


def column(kind: str, *texts: str) -> object:
    """The column of a file with these cells, or REFUSED."""
    lines = "".join('1,"' + text.replace('"', '""') + '"\n' for text in texts)
    rows = outcome(f"id,v\n{lines}", {"id": "LONG", "v": kind})
    return rows if rows == REFUSED else [row["v"] for row in rows]


def cell(kind: str, text: str, *beside: str) -> object:
    """The value of the first cell, with these cells in later rows, or REFUSED."""
    values = column(kind, text, *beside)
    return values if values == REFUSED else values[0]


def special(kind: str) -> str:
    return SPECIAL.get(kind.partition("(")[0], "(same)")


def as_read(kind: str, expected: object) -> object:
    return Decimal(expected) if kind.startswith("DECIMAL") else expected


CELLS = [(kind, text, as_read(kind, value)) for kind in VALUES for text, value in VALUES[kind]]


@pytest.mark.parametrize(("kind", "text", "value"), CELLS, ids=[f"{k}-{t!a}" for k, t, _ in CELLS])
def test_a_cell_is_read_exactly(kind, text, value):
    """59: All digits are kept, alone and next to cells that need slower parsing."""
    expected = (type(value), str(value))
    for beside in ((), ("(null)",), ("(same)",), (special(kind),)):
        got = cell(kind, text, *beside)
        assert expected == (type(got), str(got)), f"beside {beside}"


NOT_CELLS = [(kind, text) for kind in REFUSALS for text in REFUSALS[kind]]


@pytest.mark.parametrize(("kind", "text"), NOT_CELLS, ids=[f"{k}-{t!a}" for k, t in NOT_CELLS])
def test_a_cell_of_another_type_is_refused(kind, text):
    """63: No value is truncated, wrapped or guessed, whatever is next to it, including after rounding."""
    for beside in ((), ("(same)",), (special(kind),)):
        assert REFUSED == cell(kind, text, *beside), f"beside {beside}"


@pytest.mark.parametrize("kind", VALUES)
def test_every_type_accepts_null_and_unmodified(kind):
    """55: This includes columns that contain nothing else."""
    assert cell(kind, "(null)") is None
    assert cell(kind, "(same)") is UNMODIFIED


@pytest.mark.parametrize("kind", VALUES)
def test_an_empty_cell_outside_text_and_bytes_is_null(kind):
    """O27: This holds with and without quotes. An empty text and empty bytes are values."""
    empty = {"BINARY": b"", "STRING": "", "XML": "", "JSON": ""}.get(kind)
    for beside in ((), ("(same)",), (special(kind),)):
        assert empty == cell(kind, "", *beside), f"beside {beside}"
    assert [{"id": 1, "v": empty}] == read("id,v\n1,\n", {"id": "LONG", "v": kind})


ODD = ["5", " 5", "5 ", "\t5", "+5", "05", "5.", "5.0", " true", "true ", " 2007-12-03", "2007-12-03 ",
       "2007-12-03", "2007-12-03T10", "2007-12-03T10:15", "2007-12-03 10:15:30", "2007-12-03T10:15Z",
       "2007-12-03T10:15:30+01", "2007-12-03T10:15:30z", "2007-12-03T10:15:30 Z", "2007-12-03T10:15:30,5",
       " 2007-12-03T10:15:30", "2007-12-03T10:15:30Z ", " 10:15:30", "0x10", "1e2", "nan", "+inf", "INF", "-NaN",
       "1e-400", "1E-50", "+1.5", " 1.5", ".5", "0E+100", "+.5E1", "5\n", ""]  # fmt: skip


@pytest.mark.parametrize("kind", ["BOOLEAN", "LONG", "DOUBLE", "DECIMAL(38,10)", "NAIVE_DATE",
                                  "NAIVE_DATETIME", "UTC_DATETIME", "NAIVE_TIME"])  # fmt: skip
def test_a_cell_reads_the_same_with_any_neighbours(kind):
    """E1: The result never depends on other cells of the column."""
    differing = {}
    for text in ODD:
        ways = [cell(kind, text), cell(kind, text, special(kind)), cell(kind, text, "(same)")]
        if len(set(map(repr, ways))) > 1:
            differing[text] = ways
    assert {} == differing


@given(st.sampled_from(sorted(set(VALUES) - {"XML", "JSON"})), st.text("0123456789+-.eE: TZ", max_size=14))
def test_any_text_reads_the_same_with_an_unmodified_neighbour(kind, text):
    """E1: Both ways of parsing agree on any text."""
    assert repr(cell(kind, text)) == repr(cell(kind, text, "(same)"))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**9), max_value=10**9))
def test_decimals_are_read_exactly(value):
    """59, F18: Every form in which Java writes a decimal is read exactly."""
    texts = [str(value), format(value, "f"), format(value, "E"), f"{value:f}000"]
    assert [value] * 4 == column("DECIMAL(14,4)", *texts)
    assert [*[value] * 4, UNMODIFIED] == column("DECIMAL(14,4)", *texts, "(same)")


@given(st.integers(-(10**42), 10**42), st.integers(0, 42), st.integers(1, 38), st.integers(0, 37))
def test_any_decimal_is_read_rounded_or_refused(digits, places, precision, scale):
    """59, F18: A fitting value is rounded half-even. Too many digits before the point, even after rounding,
    are refused."""
    precision = max(precision, scale)
    kind = f"DECIMAL({precision},{scale})"
    value = Decimal(f"{digits}E-{places}")
    unscaled = round(Fraction(value) * 10**scale)  # to even
    fits = abs(unscaled) < 10**precision
    expected = Decimal(f"{unscaled}E-{scale}") if fits else REFUSED
    assert expected == cell(kind, f"{value:f}") == cell(kind, f"{value:f}", "(same)")


@given(st.floats(allow_nan=False, width=32), st.floats(allow_nan=False))
def test_floats_are_read_exactly(single_value, double_value):
    """59: The shortest text of a number is read as that number."""
    texts = [repr(double_value), f"{double_value:.17E}"]
    assert repr([double_value] * 2) == repr(column("DOUBLE", *texts))
    assert repr([double_value] * 2) == repr(column("DOUBLE", *texts, "(same)")[:2])
    assert repr(single_value) == repr(cell("FLOAT", repr(single_value)))


@given(st.datetimes())
def test_times_are_read_exactly(value):
    """59: They are exact to the microsecond, from year 1 to 9999."""
    text = value.isoformat()
    assert value == cell("NAIVE_DATETIME", text) == cell("NAIVE_DATETIME", text, "(same)")
    assert value.replace(tzinfo=UTC) == cell("UTC_DATETIME", text + "Z")
