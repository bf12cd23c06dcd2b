"""One file gives the same rows or the same refusal at every door (P3): inputs and answers as a table.

If the doors' specifications prescribe different answers, the row names the option of the one reader that
makes the difference:

* markers: a delivery's request defines texts for NULL and unmodified (section 3.2 of the Fivetran contract);
* empty: an empty cell without quotes is NULL, except in a delivery's texts (O21, O27);
* escape: a manifest's `escape` is a backslash by default (section 1.6);
* rounds, cuts: a delivery's decimals are rounded (F18), its instants and a source's instants are cut (F6);
* date alone: RFC 3339 by a manifest's formats also reads a day and small letters (D23);
* unit: a manifest's Time is an integer of its unit (section 1.9);
* columns: a delivery may not have unknown ones (section 2.8), and a file that needs columns needs a header;
* related: a manifest's types are compared before a row is read, and without guesses (B25);
* base64: in deliveries and stages, texts are bytes by base64 (F11); a manifest has no text form for bytes.
"""

import re
from datetime import UTC, date, datetime, time
from decimal import Decimal
from math import inf, nan

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from historizing import dataset, document, model_of
from odf_files import declared, optional, table_of

from backstory.doors.historize.model import user_columns
from backstory.doors.historize.stage import Stage, read_stage
from backstory.errors import BackstoryError
from backstory.formats.batch_file import BatchFile, Encoding, Format
from backstory.formats.delivered import read_files
from backstory.model.types import ColumnType

# The same type under each door's name.
TYPES = {
    "text": ("STRING", "String", "STRING"),
    "int": ("INT", "Int32", "INTEGER"),
    "long": ("LONG", "Int64", "BIGINT"),
    "decimal": ("DECIMAL(5,2)", {"kind": "Decimal", "precision": 5, "scale": 2}, "DECIMAL(5,2)"),
    "double": ("DOUBLE", "Float64", "FLOAT"),
    "bool": ("BOOLEAN", "Bool", "BOOLEAN"),
    "date": ("NAIVE_DATE", "Date", "DATE"),
    "instant": ("UTC_DATETIME", "Timestamp", "TIMESTAMP"),
    "time": ("NAIVE_TIME", {"kind": "Time", "unit": "Microsecond"}, "TIME"),
    "binary": ("BINARY", "Binary", "BINARY"),
}
REFUSED = "refused"
# The doors' codes for a value that is not of its column's type. Other codes stay.
SAME = dict.fromkeys(["unreadable-cell", "unreadable-value", "incompatible-type", "no-text-form"], REFUSED)


def delivered(path, type_, format_):
    """A Fivetran batch file."""
    columns = {"k": ColumnType.parse("STRING"), "a": ColumnType.parse(TYPES[type_][0])}
    files = read_files(
        [BatchFile(path)], Encoding(format_, null_string="(null)"), columns, frozenset(columns)
    )
    return [row for _, rows in files for row in rows.values["a"].to_pylist()]


def fetched(path, type_, format_):
    """A file of a manifest's source, with a schema."""
    read = {"kind": "Csv", "header": True} if format_ is Format.CSV else {"kind": "Parquet"}
    schema = declared(k=optional("String"), a=optional(TYPES[type_][1]))
    return table_of(path, schema, **read)["a"].to_pylist()


def staged(path, type_, _format):
    """The stage input of a model."""
    written = dataset(f"k* a:{TYPES[type_][2]}", input=path.name)
    for each in written["target_columns"]:
        each["hash"] = each["datatype"] != "FLOAT"
    (of_model,) = model_of(document(written)).target_datasets
    return read_stage(Stage(path.name, path), user_columns(of_model))["a"].to_pylist()


def answers(path, type_, format_=Format.CSV):
    """The answers of the three doors: values, or the refusal's code, with its line if there is one."""
    results = []
    for door in (delivered, fetched, staged):
        try:
            results.append(door(path, type_, format_))
        except BackstoryError as error:
            code = SAME.get(error.code, error.code)
            line = re.search(r"line \d+", error.message)
            results.append(f"{code} {line[0]}" if line and code != REFUSED else code)
    return results


def shown(values):
    """Values as texts, so that NaN equals itself, numbers are not flags, and zones are equal."""
    return [repr(each.astimezone(UTC) if isinstance(each, datetime) else each) for each in values]


# The content of a file, and the texts of column `a`; there are three answers if an option differs.
FILES = [
    (b'k,a\n1,"x,y"\n', ["x,y"]),
    (b'k,a\n1,"x""y"\n', ['x"y']),
    (b'k,a\n1,""""\n', ['"']),
    (b'k,a\n1,x"y\n', ['x"y']),
    (b'k,a\n1,x"y"\n', ['x"y"']),
    (b'k,a\n1, "x"\n', [' "x"']),
    (b'k,a\n1,"x\ny"\n', ["x\ny"]),
    (b'k,a\n1,"x\r\ny"\n', ["x\r\ny"]),
    (b"k,a\r\n1,x\r\n2,y\r\n", ["x", "y"]),
    (b"k,a\r1,x\r2,y\r", ["x", "y"]),
    (b"k,a\n1,x", ["x"]),
    (b"k,a\n", []),
    (b"\xef\xbb\xbfk,a\n1,x\n", ["x"]),
    (b'\xef\xbb\xbf"k","a"\n1,x\n', ["x"]),
    (b"k,a\n1,\xef\xbb\xbfx\n", ["\ufeffx"]),
    (b"a,k\n\xef\xbb\xbfx,1\n", ["\ufeffx"]),
    (b'k,a\n1,"x\n2,y\n', "broken-csv line 2"),
    (b'k,"a\n1,x\n', "broken-csv line 1"),
    (b'k,a\n1,"x"y\n', "broken-csv line 2"),
    (b'k,a\n1,"x" \n', "broken-csv line 2"),
    (b'k,a\n"1\n",x\n2,"x"y\n', "broken-csv line 4"),
    (b"k,a,a\n1,x,y\n", "repeated-column line 1"),
    (b"k,a,b,b\n1,x,y,z\n", "repeated-column line 1"),
    (b"k,a\n1\n", "broken-csv line 2"),
    (b"k,a\n1,x,y\n", "broken-csv line 2"),
    (b"k,a\n1,x,\n", "broken-csv line 2"),
    (b"k,a\n1,x\n \n2,y\n", "broken-csv line 3"),
    (b"\n\nk,a\n1,x\n", ["x"]),
    (b"k,a\n1,x\n\n2,y\n", ["x", "y"]),
    (b"k,a\n1,NULL\n", ["NULL"]),
    (b"k,a\n1,\\N\n", ["\\N"]),
    (b"k,a\n1,\\x\n", ["\\x"]),
    (b"k,a\n1,x\x00y\n", ["x\x00y"]),
    (b'k,a\n1,""\n', [""]),
    (b"k,a\n1,\xff\n", "unreadable-file line 2"),
    (b"k,\xff\n1,x\n", "unreadable-file line 1"),
    (b"k,a\n1,\xed\xa0\x80\n", "unreadable-file line 2"),
    ("k,a\n1,x\n".encode("utf-16"), "unreadable-file line 1"),
    (b"k,a\n1,\n", ("empty", [""], [None], [None])),
    (b"k,a\n1,(null)\n", ("markers", [None], ["(null)"], ["(null)"])),
    (b'k,a\n1,"(null)"\n', ("markers", [None], ["(null)"], ["(null)"])),
    (b'k,a\n1,"x\\"y"\n', ("escape", "broken-csv line 2", ['x"y'], "broken-csv line 2")),
    (b'k,a\n1,"x\\"\n', ("escape", ["x\\"], "broken-csv line 2", ["x\\"])),
    (b'k,a\n1,"x\\\\y"\n', ("escape", ["x\\\\y"], ["x\\y"], ["x\\\\y"])),
    (b"", ("columns", [], "broken-csv", "unreadable-file")),
    (b"\n", ("columns", "unreadable-file line 1", "missing-column", "unreadable-file line 1")),
    (b"k,b\n1,x\n", ("columns", "unknown-column line 1", "missing-column", "missing-column")),
    (b"k,A\n1,x\n", ("columns", "unknown-column line 1", "missing-column", "missing-column")),
    (b"k,a,b\n1,x,y\n", ("columns", "unknown-column line 1", ["x"], ["x"])),
]


@pytest.mark.parametrize(("content", "answer"), FILES, ids=[ascii(content)[2:] for content, _ in FILES])
def test_every_door_reads_or_refuses_the_same_files(tmp_path, content, answer):
    """P3, O26: Every door reads full RFC 4180, and refuses anything else with its line."""
    (tmp_path / "s.csv").write_bytes(content)
    expected = list(answer[1:]) if isinstance(answer, tuple) else [answer] * 3
    assert answers(tmp_path / "s.csv", "text") == expected


def utc(*parts):
    return datetime(*parts, tzinfo=UTC)


MICROS = 123456
# The valid cells of a column with their values, then the invalid ones.
CELLS = {
    "int": (
        {"1": 1, "-1": -1, "007": 7, "-0": 0, " 1": 1, "1 ": 1, "2147483647": 2147483647, "": None},
        ["+1", "1_000", "1.0", "1e3", "0x1F", "2147483648", "x", "\u0663"],
    ),
    "long": ({"9223372036854775807": 2**63 - 1}, ["9223372036854775808"]),
    "decimal": (
        {
            "1.5": "1.50", "+1.5": "1.50", "1": "1.00", "1e2": "100.00", "1.500": "1.50", "999.99": "999.99",
            ".5": "0.50", "5.": "5.00", " 1.5 ": "1.50", "007.5": "7.50",
        },
        ["999.995", "1000", "0x1", "1,5", "NaN"],
    ),
    "double": (
        {
            "1.5": 1.5, "1": 1.0, "1e3": 1000.0, "NaN": nan, "nan": nan, "Infinity": inf, "inf": inf,
            "-Infinity": -inf, "+1.5": 1.5, ".5": 0.5, "5.": 5.0, "1e-400": 0.0, " 1 ": 1.0,
        },
        ["1E400", "-1E400", "0x1p3", "1,5", "1_0"],
    ),
    "bool": (
        {"true": True, "false": False, "TRUE": True, "True": True, "tRuE": True, "": None},
        ["t", "1", "0", "yes", " true"],
    ),
    "date": (
        {
            "2024-02-29": date(2024, 2, 29), "0001-01-01": date.min, "9999-12-31": date.max,
            " 2024-01-01": date(2024, 1, 1),
        },
        ["2023-02-29", "2024-2-9", "0000-12-31", "10000-01-01", "2024-01-01T00:00:00", "24-01-01", "20240101"],
    ),
    "instant": (
        {
            "2024-01-02T03:04:05Z": utc(2024, 1, 2, 3, 4, 5),
            "2024-01-02 03:04:05": utc(2024, 1, 2, 3, 4, 5),
            "2024-01-02T03:04:05+02:00": utc(2024, 1, 2, 1, 4, 5),
            "2024-01-02T03:04:05+0200": utc(2024, 1, 2, 1, 4, 5),
            "2024-01-02T03:04:05+02": utc(2024, 1, 2, 1, 4, 5),
            "2024-01-02T03:04": utc(2024, 1, 2, 3, 4),
            "2024-01-02T03:04:05.123456000Z": utc(2024, 1, 2, 3, 4, 5, MICROS),
            " 2024-01-02T03:04:05Z": utc(2024, 1, 2, 3, 4, 5),
        },
        [
            "2024-01-02T24:00:00Z", "2024-01-02T23:59:60Z", "0000-01-01T00:00:00Z",
            "9999-12-31T23:59:59-05:00", "1704164645",
        ],
    ),
    "time": ({}, ["1:02:03", "24:00:00", "-1"]),
}  # fmt: skip
# The cells whose answers depend on an option.
DECIDED = [
    ("int", "(null)", "markers", None, REFUSED, REFUSED),
    ("decimal", "1.005", "rounds", Decimal("1.00"), REFUSED, REFUSED),
    ("decimal", "1.015", "rounds", Decimal("1.02"), REFUSED, REFUSED),
    ("decimal", "-0.001", "rounds", Decimal("0.00"), REFUSED, REFUSED),
    ("decimal", "1E-3", "rounds", Decimal("0.00"), REFUSED, REFUSED),
    ("instant", "2024-01-02t03:04:05z", "date alone", REFUSED, utc(2024, 1, 2, 3, 4, 5), REFUSED),
    ("instant", "2024-01-02", "date alone", REFUSED, utc(2024, 1, 2), REFUSED),
    ("instant", "1960-01-02T03:04:05.1234567Z", "cuts", *[utc(1960, 1, 2, 3, 4, 5, MICROS)] * 2, REFUSED),
    ("time", "01:02:03", "unit", "01:02:03", 3723000000, "01:02:03"),
    ("time", "01:02", "unit", "01:02:00", 3720000000, "01:02:00"),
    ("time", "01:02:03.500000", "unit", "01:02:03.5", 3723500000, "01:02:03.5"),
    ("time", "01:02:03.1234567", "cuts", "01:02:03.123456", REFUSED, REFUSED),
    ("time", "3723", "unit", REFUSED, 3723, REFUSED),
    ("binary", "aGk=", "base64", b"hi", REFUSED, b"hi"),
    ("binary", "hi!", "base64", b"hi!", REFUSED, b"hi!"),
]


def cell_of(tmp_path, type_, text):
    """The answers of the doors for one cell, quoted if necessary."""
    written = f'"{text}"' if "," in text else text
    path = tmp_path / "s.csv"
    path.write_text(f"k,a\n1,{written}\n")
    return [answer[0] if isinstance(answer, list) else answer for answer in answers(path, type_)]


@pytest.mark.parametrize("type_", CELLS)
def test_every_door_reads_or_refuses_the_same_cells(tmp_path, type_):
    """P3: A value of a type is the same value at every door."""
    good, bad = CELLS[type_]
    expected = {text: Decimal(value) if type_ == "decimal" else value for text, value in good.items()}
    for text, value in (expected | dict.fromkeys(bad, REFUSED)).items():
        assert shown(cell_of(tmp_path, type_, text)) == shown([value] * 3), text


@pytest.mark.parametrize(("type_", "text", "option", "delivery", "source", "stage"), DECIDED)
def test_cells_read_differently_have_an_option(tmp_path, type_, text, option, delivery, source, stage):
    """F6, F11, F18, O27: The difference has an option."""
    assert option in __doc__
    assert cell_of(tmp_path, type_, text) == [delivery, source, stage]


# A value as a Parquet file stores it, the column's type, and the value that is read.
STORED = [
    (1, pa.int8(), "int", 1),
    (1, pa.int64(), "int", 1),
    (1, pa.uint64(), "int", 1),
    (1.0, pa.float64(), "int", 1),
    (Decimal("1.00"), pa.decimal128(5, 2), "int", 1),
    ("1", pa.string(), "int", 1),
    (None, pa.null(), "int", None),
    (1 << 31, pa.int64(), "int", REFUSED),
    (1.5, pa.float64(), "int", REFUSED),
    (Decimal("1.50"), pa.decimal128(5, 2), "int", REFUSED),
    ("x", pa.string(), "int", REFUSED),
    ([1], pa.list_(pa.int32()), "int", REFUSED),
    (date(2024, 1, 1), pa.date32(), "int", REFUSED),
    (2.0**53 + 2, pa.float64(), "long", 2**53 + 2),
    (2.0**63, pa.float64(), "long", REFUSED),
    (1, pa.int32(), "text", "1"),
    (1.5, pa.float64(), "text", "1.5"),
    (True, pa.bool_(), "text", "true"),
    (b"x", pa.binary(), "text", "x"),
    (b"\xff", pa.binary(), "text", REFUSED),
    (date(2024, 1, 1), pa.date32(), "text", "2024-01-01"),
    ("x", pa.dictionary(pa.int32(), pa.string()), "text", "x"),
    ("x", pa.large_string(), "text", "x"),
    (time(1, 2), pa.time64("us"), "text", REFUSED),
    ({"x": 1}, pa.struct([("x", pa.int32())]), "text", REFUSED),
    (Decimal("1.5"), pa.decimal128(3, 1), "decimal", Decimal("1.50")),
    (Decimal("1.500"), pa.decimal128(10, 3), "decimal", Decimal("1.50")),
    (Decimal(1000), pa.decimal128(10, 0), "decimal", REFUSED),
    (1, pa.int64(), "decimal", Decimal("1.00")),
    (1000, pa.int64(), "decimal", REFUSED),
    (1.5, pa.float64(), "decimal", Decimal("1.50")),
    (1, pa.int32(), "double", 1.0),
    (2**53 + 1, pa.int64(), "double", REFUSED),
    (1.5, pa.float32(), "double", 1.5),
    (Decimal("0.1"), pa.decimal128(5, 2), "double", 0.1),
    (nan, pa.float32(), "double", nan),
    (True, pa.bool_(), "bool", True),
    ("TRUE", pa.string(), "bool", True),
    (2, pa.int32(), "bool", REFUSED),
    (date(2024, 1, 1), pa.date64(), "date", date(2024, 1, 1)),
    (datetime(2024, 1, 1), pa.timestamp("us"), "date", date(2024, 1, 1)),
    (datetime(2024, 1, 1, 1), pa.timestamp("us"), "date", REFUSED),
    ("2024-01-01", pa.string(), "date", date(2024, 1, 1)),
    (1, pa.int32(), "date", REFUSED),
    (datetime(2024, 1, 1), pa.timestamp("s"), "instant", utc(2024, 1, 1)),
    (datetime(2024, 1, 1), pa.timestamp("us", "Europe/Vienna"), "instant", utc(2024, 1, 1)),
    (1000, pa.timestamp("ns"), "instant", utc(1970, 1, 1, 0, 0, 0, 1)),
    (date(2024, 1, 1), pa.date32(), "instant", utc(2024, 1, 1)),
    ("2024-01-01T00:00:00Z", pa.string(), "instant", utc(2024, 1, 1)),
    (1, pa.int64(), "instant", REFUSED),
    (b"x", pa.binary(), "binary", b"x"),
    (b"xx", pa.binary(2), "binary", b"xx"),
    (1, pa.int32(), "binary", REFUSED),
]
DECIDED_STORED = [
    (True, pa.bool_(), "int", "related", 1, REFUSED, 1),
    (1, pa.int32(), "bool", "related", True, REFUSED, True),
    (datetime(2024, 1, 1), pa.timestamp("us"), "text", "related", "2024-01-01 00:00:00.000000", REFUSED, "2024-01-01 00:00:00.000000"),
    (Decimal("1.005"), pa.decimal128(10, 3), "decimal", "rounds", Decimal("1.00"), REFUSED, REFUSED),
    (1.005, pa.float64(), "decimal", "rounds", Decimal("1.00"), REFUSED, REFUSED),
    ("1.005", pa.string(), "decimal", "rounds", Decimal("1.00"), REFUSED, REFUSED),
    (1001, pa.timestamp("ns"), "instant", "cuts", *[utc(1970, 1, 1, 0, 0, 0, 1)] * 2, REFUSED),
    (-1, pa.timestamp("ns"), "instant", "cuts", *[utc(1969, 12, 31, 23, 59, 59, 999999)] * 2, REFUSED),
    (time(1, 2), pa.time32("s"), "time", "unit", "01:02:00", 3720000000, "01:02:00"),
    (1001, pa.time64("ns"), "time", "cuts", "00:00:00.000001", REFUSED, REFUSED),
    (1, pa.int64(), "time", "unit", REFUSED, 1, REFUSED),
    ("aGk=", pa.string(), "binary", "base64", b"hi", b"aGk=", b"hi"),
]  # fmt: skip


def stored_as(tmp_path, value, stored, type_):
    """The answers of the doors for one value of a Parquet file."""
    path = tmp_path / "s.parquet"
    pq.write_table(pa.table({"k": pa.array(["1"]), "a": pa.array([value], stored)}), path)
    return [
        answer[0] if isinstance(answer, list) else answer for answer in answers(path, type_, Format.PARQUET)
    ]


@pytest.mark.parametrize(("value", "stored", "type_", "answer"), STORED, ids=str)
def test_every_door_reads_or_refuses_the_same_stored_values(tmp_path, value, stored, type_, answer):
    """P3: A number is the same number or refused, and no type is guessed."""
    assert shown(stored_as(tmp_path, value, stored, type_)) == shown([answer] * 3)


@pytest.mark.parametrize(
    ("value", "stored", "type_", "option", "delivery", "source", "stage"), DECIDED_STORED, ids=str
)
def test_stored_values_read_differently_have_an_option(
    tmp_path, value, stored, type_, option, delivery, source, stage
):
    """F6, F18, B25: The difference has an option."""
    assert option in __doc__
    assert stored_as(tmp_path, value, stored, type_) == [delivery, source, stage]
