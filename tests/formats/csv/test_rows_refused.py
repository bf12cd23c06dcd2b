"""CSV: An invalid value is refused with file, line, column and type, and never becomes NULL (R68, R69)."""

import gzip

import pytest
from odf_files import ddl, declared, optional, refusal

from backstory.errors import Refused, UsageError
from backstory.formats.csv import table as csv_pieces
from backstory.formats.csv.table import csv_table, file_source
from backstory.formats.options import CsvOptions


@pytest.fixture
def refused(tmp_path):
    def refused(text, schema=None, **options):
        path = tmp_path / "cities.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return refusal(path, schema, kind="Csv", **options)

    return refused


@pytest.mark.parametrize(
    ("type_", "text", "type_name"),
    [
        ("Bool", "1", "Bool"),
        ("Bool", "yes", "Bool"),
        ("Int32", "abc", "Int32"),
        ("Int32", "1.0", "Int32"),
        ("Int32", "0x1F", "Int32"),
        ("Int32", "1 000", "Int32"),
        ("Int32", "2147483648", "Int32"),
        ("Int8", "128", "Int8"),
        ("Int16", "-32769", "Int16"),
        ("UInt8", "256", "UInt8"),
        ("UInt8", "-1", "UInt8"),
        ("UInt16", "65536", "UInt16"),
        ("UInt32", "-1", "UInt32"),
        ("UInt64", "-1", "UInt64"),
        ("UInt64", "18446744073709551616", "UInt64"),
        ("Int64", "9223372036854775808", "Int64"),
        ("Float64", "1,5", "Float64"),
        ("Float64", "1e400", "Float64"),
        ("Float32", "1e39", "Float32"),
        ("Float64", "nothing", "Float64"),
        ({"kind": "Decimal", "precision": 5, "scale": 2}, "1.234", "Decimal(5, 2)"),
        ({"kind": "Decimal", "precision": 5, "scale": 2}, "1234.5", "Decimal(5, 2)"),
        ("Date", "2023-02-30", "Date"),
        ("Date", "2023-2-3", "Date"),
        ("Date", "2023-02-03T00:00:00Z", "Date"),
        ("Timestamp", "2023-02-30T00:00:00Z", "Timestamp"),
        ("Timestamp", "2023-02-03T24:00:00Z", "Timestamp"),
        ("Timestamp", "9/25/2022 1:02:03", "Timestamp"),
        ("Timestamp", "0000-01-01", "Timestamp"),
        ("Timestamp", "2019", "Timestamp"),
        ("Timestamp", "9999-12-31T23:59:59-05:00", "Timestamp"),
        ("Timestamp", "0001-01-01T00:00:00+00:01", "Timestamp"),
        ("Time", "24:00:00", "Time(Millisecond)"),
        ("Time", "1:30:00", "Time(Millisecond)"),
        ("Time", "-1", "Time(Millisecond)"),
        ("Time", "12:30:00.0001", "Time(Millisecond)"),
        ({"kind": "Time", "unit": "Second"}, "86400", "Time(Second)"),
        ({"kind": "Duration", "unit": "Second"}, "12:30:00", "Duration(Second)"),
        ("Null", "x", "Null"),
    ],
)
def test_an_unreadable_value_is_refused_with_line_and_column(refused, type_, text, type_name):
    schema = declared(name="String", x=optional(type_))
    error = refused(f'name;x\na;\n\n"b";{text}\nc;\n', schema, header=True, separator=";")

    assert "unreadable-value" == error.code
    assert 3 == error.exit_code
    assert (
        f"cities.csv, line 4, column `x`: `{text.strip(chr(34))}` is not of type {type_name}."
        in error.message
    )
    assert "preprocess" in error.remedy


def test_errors_show_forty_characters_of_a_value(refused):
    error = refused("1\n" + "x" * 1000 + "\n", ddl("a INT"))

    assert f"line 2, column `a`: `{'x' * 40}...`" in error.message


def test_line_numbers_count_line_breaks_inside_values(refused):
    error = refused('"a\nb\r\nc",1\nd,1\ne,x\n', ddl("a STRING", "b INT"))

    assert "line 5, column `b`" in error.message


def test_line_numbers_are_right_in_long_files(refused):
    text = "".join(f"{number},{'x' * 80}\n" for number in range(200_000)) + "far,down\n"

    assert "line 200001, column `a`: `far`" in refused(text, ddl("a INT", "b STRING")).message


def test_nulls_in_a_required_column_are_refused(refused):
    """Section 2.8: The message is the reference's."""
    error = refused("a\n1\n\n\n", ddl("a INT NOT NULL"), header=True)

    assert "cities.csv, line 3: Column `a` contains 2 null values while none were expected" in error.message
    assert "Option" in error.remedy


@pytest.mark.parametrize(
    ("row", "count"), [("1", "1 field"), ("1,2,3", "3 fields"), ("1,2,", "3 fields"), (" ", "1 field")]
)
@pytest.mark.parametrize("schema", [None, ddl("a STRING", "b STRING")])
def test_a_row_with_another_number_of_fields_is_refused(refused, row, count, schema):
    error = refused(f"a,b\n1,2\n\n{row}\n3,4\n", schema, header=True)

    assert "broken-csv" == error.code
    assert f"cities.csv, line 4: {count} where the header has 2." in error.message


def test_the_published_ledger_file_with_a_short_header_is_refused(refused):
    """O23: The header lacks `Year`, and the error has the line of the first row."""
    text = "Country,City,Population\n2019,CA,Vancouver,2581000\n2019,US,Seattle,3433000\n2020,CA,Vancouver,2606000\n"
    for options in ({}, {"inferSchema": True}):
        error = refused(text, header=True, **options)
        assert "cities.csv, line 2: 4 fields where the header has 3." in error.message


def test_the_first_row_or_the_schema_sets_the_width_without_a_header(refused):
    assert "line 2: 1 field where the first row or the schema has 2" in refused("1,2\n3\n").message
    assert (
        "line 1: 2 fields where the first row or the schema has 3"
        in refused("1,2\n", ddl("a INT", "b INT", "c INT")).message
    )


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ('1,2\n3,"4\n5,6\n', 2, "a quoted value is not closed."),
        ('1,2\n3,"4"x\n5,6\n', 2, "a value continues after its closing quote."),
        ('1,2\n3,4\n"5,6', 3, "a quoted value is not closed."),
        ('1,2\n"3" ,4\n', 2, "a value continues after its closing quote."),
        ('1,2\n"a\\",4\n', 2, "a quoted value is not closed."),
        ('1,2\n"3\n4"x,5\n', 3, "a value continues after its closing quote."),
    ],
)
def test_a_broken_quote_is_refused_with_line_and_reason(refused, text, line, why):
    error = refused(text)

    assert "broken-csv" == error.code
    assert f"cities.csv, line {line}: {why}" == error.message


def test_an_unclosed_quote_in_a_long_file_is_refused_with_its_line(refused, monkeypatch):
    """The rest of the file is not read before the error."""
    monkeypatch.setattr(csv_pieces, "LONGEST_ROW", 1 << 16)
    text = '1,Oslo\n2,"Rome\n' + "3,Graz\n" * 1_000_000
    error = refused(text.encode() + b"\xff")  # not UTF-8, and not read

    assert ("broken-csv", True) == (error.code, "line 2: " in error.message)
    assert "a quoted value is not closed" in error.message


def test_text_in_another_encoding_than_utf8_is_refused(refused):
    error = refused("a,b\nc,d\ne,ü\n".encode("latin-1"))

    assert ("unreadable-file", True) == (
        error.code,
        "line 3: the text from here on is not UTF-8" in error.message,
    )
    assert "encoding" in error.remedy


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("a.csv", "its name must end with .gz"), ("a.csv.gz", "{kind: Decompress, format: Gzip}")],
)
def test_packed_text_is_refused_with_the_missing_step(tmp_path, name, remedy):
    (tmp_path / name).write_bytes(gzip.compress(b"city\nA\n"))
    assert remedy in refusal(tmp_path / name, kind="Csv").message


def test_bytes_in_skipped_columns_must_be_utf8_too(refused):
    assert "line 2" in refused("a,b\n1,ü\n".encode("latin-1"), ddl("a INT"), header=True).message


@pytest.mark.parametrize(
    ("content", "encoding"), [(b"a\xff\n", "ascii"), ("a\nb".encode("utf-16")[:-1], "utf-16")]
)
def test_text_outside_the_declared_encoding_is_refused(refused, content, encoding):
    assert f"is not {encoding}" in refused(content, encoding=encoding).message


@pytest.mark.parametrize(("before", "line"), [("", 1), ("\n\r\n", 3)])
@pytest.mark.parametrize("schema", [None, ddl("a INT")])
def test_a_repeated_column_name_is_refused(refused, schema, before, line):
    error = refused(f"{before}a,b,a\n1,2,3\n", schema, header=True)

    assert ("repeated-column", ["a"]) == (error.code, error.keys)
    assert f"cities.csv, line {line}: the header names `a` more than once." == error.message


def test_a_column_without_a_name_is_refused(refused):
    assert "column 1 has no name" in refused(",b\n1,2\n", header=True).message


@pytest.mark.parametrize("column", ["City STRING", "city STRING NOT NULL", "City STRING NOT NULL"])
def test_a_missing_column_is_refused(refused, column):
    error = refused("CITY,population\nA,1\n", ddl(column, "population INT"), header=True)

    assert "missing-column" == error.code
    assert (
        f"cities.csv has no column `{column.split()[0]}`; its columns are `CITY`, `population`."
        in error.message
    )


def test_unknown_columns_are_refused_with_the_option(refused):
    error = refused("a,b,c\n1,2,3\n", ddl("b INT"), header=True, unknownFields="error")

    assert ("unknown-fields", ["a", "c"]) == (error.code, error.keys)


def test_an_empty_file_without_the_required_header_is_refused(refused):
    assert "without even its header" in refused("", ddl("a INT"), header=True).message


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("separator", "ab"),
        ("separator", ""),
        ("separator", "§"),
        ("separator", '"'),
        ("separator", "\n"),
        ("quote", "''"),
        ("quote", "»"),
        ("escape", "ab"),
        ("encoding", "klingon"),
        ("encoding", "hex"),
        ("dateFormat", "%Y-%m"),
        ("dateFormat", "%Q"),
        ("dateFormat", "yyyy-MM-dd QQ"),
        ("dateFormat", "dd dd yyyy"),
        ("dateFormat", "iso"),
        ("timestampFormat", "%Y-%m-%d %I:%M"),
        ("timestampFormat", "%Y-%m-%d %"),
        ("timestampFormat", "yyyy-MM-dd'T"),
        ("timestampFormat", "[yyyy-MM-dd]"),
        ("comment", "#"),
        ("enforceSchema", False),
        ("ignoreLeadingWhiteSpace", True),
        ("ignoreTrailingWhiteSpace", True),
        ("emptyValue", "-"),
        ("nanValue", "nan"),
        ("positiveInf", "+inf"),
        ("negativeInf", "-inf"),
    ],
)
def test_r68_an_unsupported_option_is_named(tmp_path, option, value):
    """R68: The error is raised before the file is opened."""
    error = refusal(tmp_path / "missing.csv", kind="Csv", **{option: value})

    assert isinstance(error, UsageError)
    assert f"`{option}`" in error.message


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("%d.%m.%Y", "31.02.2022"),
        ("%d.%m.%Y", "2022-02-01"),
        ("%d.%m.%Y", "01.02.2022 10:00"),
        ("dd.MM.yyyy", "1.2.2022"),
        ("%d.%m.%Y %I %p", "01.02.2022 13 PM"),
        ("%d %b %Y", "01 Foo 2022"),
    ],
)
def test_a_time_in_another_format_is_refused(refused, pattern, text):
    error = refused(f"{text}\n", ddl("t TIMESTAMP"), timestampFormat=pattern)

    assert f"line 1, column `t`: `{text}` is not of type Timestamp" in error.message


@pytest.mark.parametrize("type_", ["Binary", {"kind": "List", "itemType": "String"}])
def test_types_without_a_text_form_are_refused(refused, type_):
    error = refused("a\n", declared(x=type_))

    assert isinstance(error, UsageError)
    assert "`x`" in error.message


def test_rows_are_read_only_when_requested(tmp_path):
    """B15: The error is raised when rows are read, not when they are planned."""
    from backstory.formats.options import CsvOptions
    from backstory.formats.reading import rows_of

    path = tmp_path / "a.csv"
    path.write_text("x\n")
    rows = rows_of(path, "a.csv", CsvOptions(header=False), ddl("a INT"))

    with pytest.raises(Refused):
        next(rows.batches)


@pytest.mark.parametrize("line", ["sep=;", "SEP=,", '"sep=;"', "sep=\t"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_separator_line_is_refused_as_a_header(tmp_path, line, separator):
    """Spreadsheets write it. As a header, it would be the only column."""
    path = tmp_path / "f.csv"
    path.write_text(f"{line}\r\na;b\r\n1;2\r\n")
    options = CsvOptions(separator=separator)
    with pytest.raises(Refused) as stop:
        csv_table(file_source(path, "f.csv", "utf-8"), options)
    assert stop.value.code == "separator-line"
