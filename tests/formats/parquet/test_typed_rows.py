"""Parquet files are read with their columns' types, or refused (section 3.4, E1)."""

from datetime import UTC, date, datetime, time
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog
from delivered_cells import CANARY, KEY, NAME, REFUSED, a_file, outcome, read, refusal

from backstory.errors import Refused
from backstory.formats.batch_file import Compression, Encoding, Format
from backstory.formats.delivered import read_files
from backstory.formats.rows import arrow_type
from backstory.model.types import ColumnType
from backstory.model.values import UNMODIFIED
from backstory.testing.sender import encrypt, seal

PARQUET = Encoding(Format.PARQUET, null_string="(null)", unmodified_string="(same)")
DAY = 86_400_000_000
FIRST = datetime.fromisoformat("0001-01-01T00:00:00")
LAST = datetime.fromisoformat("9999-12-31T23:59:59.999999")


def parquet(columns: dict[str, pa.Array], **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, **options)
    return sink.getvalue().to_pybytes()


def values(array: pa.Array, kind: str) -> object:
    """The values of a file's one column with this type, or REFUSED."""
    rows = outcome(parquet({"v": array}), {"v": kind}, PARQUET)
    return rows if rows == REFUSED else [row["v"] for row in rows]


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("encrypted", [True, False])
def test_every_compression_and_encryption_is_removed(tmp_path, compression, encrypted):
    """50: Parquet needs its exact last bytes, so padding and frames must be removed exactly."""
    encoding = Encoding(Format.PARQUET, compression, encrypted)
    file = seal(tmp_path, parquet({"v": pa.array([1, 2])}), encoding)
    [(_, rows)] = read_files([file], encoding, {"v": ColumnType.parse("LONG")}, frozenset({"v"}))
    assert [{"v": 1}, {"v": 2}] == rows.values.to_pylist()


MARKED_TEXT = [
    ("STRING", ["a", "", "NULL"], ["a", "", "NULL"]),
    ("LONG", ["5"], [5]),
    ("SHORT", ["-32768"], [-32768]),
    ("BOOLEAN", ["true", "FALSE"], [True, False]),
    ("FLOAT", ["3.4028237E+38"], [float(np.float32("3.4028235e38"))]),
    ("DECIMAL(5,2)", ["1.5000"], [Decimal("1.50")]),
    ("NAIVE_DATE", ["2007-12-03"], [date(2007, 12, 3)]),
    ("UTC_DATETIME", ["2007-12-03T10:15:30.1234567Z"], [datetime(2007, 12, 3, 10, 15, 30, 123456, UTC)]),
    ("NAIVE_TIME", ["10:15", "10:15:30.500"], ["10:15:00", "10:15:30.5"]),
    ("BINARY", ["QUI="], [b"AB"]),
    ("JSON", ["{}"], ["{}"]),
]


@pytest.mark.parametrize(("kind", "written", "expected"), MARKED_TEXT, ids=[k for k, *_ in MARKED_TEXT])
def test_text_columns_may_hold_markers(kind, written, expected):
    """3.4: Text columns of any type are read as in CSV, with both markers and native NULLs."""
    cells = [*written, "(null)", "(same)", None]
    assert [*expected, None, UNMODIFIED, None] == values(pa.array(cells), kind)


TYPED = [
    ("BOOLEAN", pa.array([True, None]), [True, None]),
    ("SHORT", pa.array([-32768, 32767], pa.int32()), [-32768, 32767]),
    ("INT", pa.array([-(2**31), None], pa.int32()), [-(2**31), None]),
    ("LONG", pa.array([2**63 - 1, -(2**63)]), [2**63 - 1, -(2**63)]),
    ("LONG", pa.array([7], pa.int32()), [7]),
    ("FLOAT", pa.array([1.4e-45, float("inf")], pa.float32()), [float(np.float32(1.4e-45)), float("inf")]),
    ("DOUBLE", pa.array([0.1, -0.0]), [0.1, -0.0]),
    ("DECIMAL(38,37)", pa.array([Decimal("9." + "9" * 37)]), [Decimal("9." + "9" * 37)]),
    ("DECIMAL(5,2)", pa.array([Decimal("1.5000"), None]), [Decimal("1.50"), None]),
    ("STRING", pa.array(["a"], pa.large_string()), ["a"]),
    ("STRING", pa.array(["a", "a", "(null)"]).dictionary_encode(), ["a", "a", None]),
    ("STRING", pa.array([b"\xc3\xa9"]), ["é"]),
    ("BINARY", pa.array([b"\x00\xff", b"QUI=", b"", None]), [b"\x00\xff", b"QUI=", b"", None]),
    ("BINARY", pa.array([b"(null)", b"(same)", b"(null"]), [None, UNMODIFIED, b"(null"]),
    ("NAIVE_DATE", pa.array([date.min, date.max]), [date.min, date.max]),
    ("NAIVE_DATETIME", pa.array([FIRST, LAST]), [FIRST, LAST]),
    ("UTC_DATETIME", pa.array([0], pa.timestamp("us", "UTC")), [datetime(1970, 1, 1, tzinfo=UTC)]),
    ("UTC_DATETIME", pa.array([-1], pa.timestamp("ms", "America/New_York")), [datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)]),
    ("NAIVE_TIME", pa.array([time(1, 2, 3, 120000), time(0)]), ["01:02:03.12", "00:00:00"]),
    ("LONG", pa.nulls(2), [None, None]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "array", "expected"), TYPED, ids=[f"{k}-{a.type}" for k, a, _ in TYPED])
def test_typed_columns_keep_their_values(kind, array, expected):
    """3.4: Numbers, decimals, instants and raw bytes are stored unchanged."""
    assert expected == values(array, kind)


ROUNDED = [
    (pa.array([Decimal("1.005"), Decimal("-1.015"), Decimal("2.000")]), ["1.00", "-1.02", "2.00"]),
    (pa.array([Decimal("1.0051"), None], pa.decimal256(76, 70)), ["1.01", None]),
    (pa.array([1.005, 2.675, 1e-9, 0.25]), ["1.00", "2.68", "0.00", "0.25"]),
    (pa.array([0.1, 1.005], pa.float32()), ["0.10", "1.00"]),
    (pa.array(["1.005", "(null)", "1.0151"]), ["1.00", None, "1.02"]),
]


@pytest.mark.parametrize(("array", "expected"), ROUNDED, ids=[str(array.type) for array, _ in ROUNDED])
def test_digits_beyond_a_decimals_scale_are_rounded(array, expected):
    """F18: Rounding is half-even on the decimal digits, for any numeric type of the file."""
    assert [each and Decimal(each) for each in expected] == values(array, "DECIMAL(5,2)")


@pytest.mark.parametrize("nanos", [1_999, -1, 1_000])
def test_digits_beyond_the_microsecond_are_cut_off(nanos):
    """F6: Typed instants are rounded down like text, including before 1970."""
    array = pa.array([nanos], pa.int64()).cast(pa.timestamp("ns", "UTC"))
    rows = read(parquet({"v": array}), {"v": "UTC_DATETIME"}, PARQUET)
    micros = (rows[0]["v"] - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6
    assert nanos // 1000 == round(micros)


UNFIT = [
    ("SHORT", pa.array([1, 32768], pa.int32())),
    ("INT", pa.array([1, 2**31])),
    ("LONG", pa.array([1.0, 1.5])),
    ("LONG", pa.array(["1", "x"])),
    ("LONG", pa.array([0, 2**63], pa.uint64())),
    ("FLOAT", pa.array([1.0, 1e39])),
    ("DECIMAL(5,2)", pa.array([Decimal("1.000"), Decimal("999.995")])),
    ("DECIMAL(5,2)", pa.array([Decimal("1.00"), Decimal("1000.00")])),
    ("DECIMAL(5,2)", pa.array([1.0, 999.995])),
    ("DECIMAL(5,2)", pa.array([1.0, float("nan")])),
    ("STRING", pa.array([b"ok", b"\xff"])),
    ("NAIVE_DATE", pa.array([0, -719163], pa.int32()).cast(pa.date32())),
    ("NAIVE_DATE", pa.array([0, 2932897], pa.int32()).cast(pa.date32())),
    ("NAIVE_DATETIME", pa.array([0, -719162 * DAY - 1]).cast(pa.timestamp("us"))),
    ("UTC_DATETIME", pa.array([0, 2932897 * DAY]).cast(pa.timestamp("us", "UTC"))),
    ("NAIVE_TIME", pa.array(["10:15", "24:00"])),
    ("BOOLEAN", pa.array([1, 7])),
]


@pytest.mark.parametrize(("kind", "array"), UNFIT, ids=[f"{k}-{a.type}" for k, a in UNFIT])
def test_a_value_that_does_not_fit_its_column_is_refused_with_its_row(kind, array):
    """63: No value wraps, becomes infinite, or is rounded up to too many digits."""
    text = refusal(parquet({"v": array}), {"v": kind}, PARQUET)
    assert f"row 2, column v: the value is not of type {ColumnType.parse(kind)}" in text


@pytest.mark.parametrize("kind", ["STRING", "LONG", "BINARY", "UTC_DATETIME", "NAIVE_TIME"])
@pytest.mark.parametrize("array", [pa.array([[1]]), pa.array([{"a": 1}])], ids=["list", "struct"])
def test_nested_columns_are_refused(array, kind):
    """3.4: The contract has no nested types."""
    assert REFUSED == values(array, kind)


def test_row_numbers_are_right_in_long_files():
    """63: This includes rows beyond the first batch and the first row group."""
    content = parquet({"v": pa.array(["1"] * 150_000 + ["x"])}, row_group_size=70_000)
    assert "row 150001, column v" in refusal(content, {"v": "LONG"}, PARQUET)


def test_binary_text_that_is_not_base64_is_stored_with_one_warning():
    """58, F11: Parquet behaves like CSV."""
    with structlog.testing.capture_logs() as logged:
        assert [b"[B@7", b"b&", None] == values(pa.array(["[B@7", "b&", "(null)"]), "BINARY")
    assert [("warning", NAME)] == [(line["log_level"], line["file"]) for line in logged]


def test_columns_are_found_by_name():
    """61: Columns may be in any order, with or without dots. Unwanted and unknown ones are skipped."""
    content = parquet({n: pa.array([i]) for i, n in enumerate(["a.b", "_fivetran_index", "a", "c"])})
    columns = {"a": "LONG", "a.b": "LONG", "c": "LONG"}
    assert [{"a.b": 0, "a": 2}] == read(content, columns, PARQUET, wanted={"a", "a.b"})


def test_an_unknown_column_is_refused():
    """2.8: As in CSV, this includes other cases and files without rows."""
    content = parquet({"id": pa.array([], pa.int64()), "V": pa.array([], pa.int64())})
    assert "no column V" in refusal(content, {"id": "LONG", "v": "LONG"}, PARQUET)


@pytest.mark.parametrize("content", [b"", parquet({"v": pa.array([], pa.int64())})])
def test_a_file_without_rows_loads(content):
    """61: The file may have no bytes, or only a footer."""
    assert [] == read(content, {"v": "LONG"}, PARQUET)


def test_a_cut_file_is_refused_wherever_it_was_cut():
    """52: Parquet ends with its footer, so a part of a file is invalid."""
    whole = parquet({"v": pa.array([CANARY])})
    for size in range(1, len(whole), 5):
        refusal(whole[:size], {"v": "STRING"}, PARQUET)


def test_a_damaged_file_is_refused_or_read():
    """52: Whatever byte is damaged, the result is rows or Refused."""
    whole = parquet({"v": pa.array([CANARY, "b"])})
    escaped = {}
    for place in range(4, len(whole) - 8, 3):
        hurt = whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]
        with a_file(hurt) as file:
            try:
                read_files([file], PARQUET, {"v": ColumnType.parse("STRING")}, frozenset({"v"}))
            except Refused:
                continue
            except Exception as other:  # noqa: BLE001
                escaped.setdefault(type(other).__name__, place)
    assert {} == escaped


@pytest.mark.parametrize("content", [b"PAR1", b"id,v\n1,2\n", bytes(100), b"PAR1" * 10])
def test_a_file_in_another_format_is_refused(content):
    """52: The error is short."""
    refusal(content, {"v": "LONG"}, PARQUET)


def test_a_wrong_key_is_refused():
    """52: As for any file, the key must match."""
    encoding = Encoding(Format.PARQUET, Compression.ZSTD, True)
    refusal(
        encrypt(parquet({"v": pa.array([CANARY])}), bytes(32), bytes(16)), {"v": "STRING"}, encoding, key=KEY
    )


@pytest.mark.parametrize("kind", ["LONG", "BOOLEAN", "DECIMAL(5,2)", "UTC_DATETIME", "FLOAT"])
@pytest.mark.parametrize(
    "array", [pa.array([CANARY]), pa.array([CANARY.encode()]), pa.array([[CANARY]])], ids=str
)
def test_errors_contain_no_values(array, kind):
    """63: This includes the message of the library."""
    refusal(parquet({"v": array}), {"v": kind}, PARQUET)


def test_values_have_the_stored_types():
    """3.3: Each column has exactly the Arrow type of its kind, whether typed or text in the file."""
    for array, text in ((pa.array([1], pa.int32()), "1"),):
        for kind in ("SHORT", "INT", "LONG", "DOUBLE", "FLOAT"):
            for cells in (array, pa.array([text])):
                with a_file(parquet({"v": cells})) as file:
                    type_ = ColumnType.parse(kind)
                    [(_, rows)] = read_files([file], PARQUET, {"v": type_}, frozenset({"v"}))
                assert arrow_type(type_) == rows.values.schema.field("v").type
