"""CSV: values that are read correctly (section 1.6, B14 to B20, O21)."""

import csv
import io
import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from depth import deep
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from odf_files import ddl, declared, optional, table_of

ABC = "city,population\nA,1000\nB,2000\nC,3000\n"
CITIES = [("A", 1000), ("B", 2000), ("C", 3000)]


@pytest.fixture
def read(tmp_path):
    def read(text, schema=None, **options):
        path = tmp_path / "cities.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return table_of(path, schema, kind="Csv", **options)

    return read


def rows(table):
    return [tuple(row.values()) for row in table.to_pylist()]


def only(table):
    return table.column(0).to_pylist()


def test_b16_a_schema_sets_types_and_required_columns(read):
    """B16: both columns are required."""
    table = read(ABC, ddl("city STRING NOT NULL", "population INT NOT NULL"), header=True)

    assert CITIES == rows(table)
    assert [("city", pa.string(), False), ("population", pa.int32(), False)] == [
        (field.name, field.type, field.nullable) for field in table.schema
    ]


def test_every_column_without_a_schema_is_text(read):
    assert [("A", "1000"), ("B", "2000"), ("C", "3000")] == rows(read(ABC, header=True))


def test_columns_without_a_header_are_numbered(read):
    table = read("A,1000\nB,2000\n")

    assert ["_c0", "_c1"] == table.column_names
    assert [("A", "1000"), ("B", "2000")] == rows(table)


def test_a_schema_matches_columns_by_position_without_a_header(read):
    assert CITIES == rows(read(ABC.split("\n", 1)[1], ddl("x STRING", "y BIGINT")))


def test_a_schema_matches_columns_by_name_with_a_header(read):
    """O21: Columns match in any order, and columns outside the schema are ignored."""
    table = read("extra,population,city\n?,1000,A\n", ddl("city STRING", "population INT"), header=True)

    assert [("A", 1000)] == rows(table)


def test_b18_b20_whole_numbers_are_inferred_as_int64(read):
    """B18, B20: The type is an optional int64, including with a NULL."""
    table = read(ABC + "B,\n", header=True, inferSchema=True)

    assert [*CITIES, ("B", None)] == rows(table)
    assert pa.schema([("city", pa.string()), ("population", pa.int64())]) == table.schema


@pytest.mark.parametrize(
    ("cells", "type_"),
    [
        (["1", "-2", "", "9223372036854775807"], pa.int64()),
        (["2019", "2020"], pa.int64()),
        (["1", "2.5", "-.5", "1e-5", "1.5E10", "NaN", "-Inf", "Infinity"], pa.float64()),
        (["007", "008"], pa.string()),
        (["1", "007.5"], pa.string()),
        (["+1"], pa.string()),
        (["12E3"], pa.string()),
        (["1,5"], pa.string()),
        (["9223372036854775808"], pa.string()),
        (["0.5", "9007199254740993"], pa.string()),
        (["12345678901234567.89"], pa.string()),
        (["0.5", "0.1234567890123456789"], pa.string()),
        (["1.2345678901234567e+5", "1.23456789012345678901e+5"], pa.string()),
        (["1e-400"], pa.string()),
        (["1.234567890123456e-320"], pa.string()),
        (["0.30000000000000004", "-49.28272900000001", "1.7976931348623157e+308", "5e-324"], pa.float64()),
        (["0.10000000000000001", "1.000000000000000056e-01", "0.100000000000000000000"], pa.float64()),
        (["1e+400"], pa.string()),
        (["true", "FALSE", ""], pa.bool_()),
        (["true", "yes"], pa.string()),
        (["true", "1"], pa.string()),
        (["2023-02-28"], pa.date32()),
        (["2023-02-28", "2023-02-28T10:00:00Z"], pa.timestamp("us", "UTC")),
        (["2023-02-28 10:00:00.5+02:00"], pa.timestamp("us", "UTC")),
        (["2023-02-30"], pa.string()),
        ([" 1"], pa.string()),
        (["", ""], pa.null()),
    ],
)
def test_inference_loses_nothing(read, cells, type_):
    text = "id;x\n" + "".join(f"{number};{cell}\n" for number, cell in enumerate(cells))
    table = read(text, header=True, inferSchema=True, separator=";")

    assert type_ == table.schema.field("x").type
    assert len(cells) == len(table)


def test_inference_reads_the_whole_file(read):
    text = "id,x\n" + "".join(f"{number},{number}\n" for number in range(700_000)) + "0,text\n"
    table = read(text, header=True, inferSchema=True)

    assert [pa.int64(), pa.string()] == table.schema.types
    assert ("0", "text") == (table["x"][0].as_py(), table["x"][-1].as_py())


def test_batches_are_bounded_and_in_order(read):
    text = "id,x\n" + "".join(f"{number},{number}\n" for number in range(700_000))
    table = read(text, ddl("id BIGINT"), header=True)

    assert max(map(len, table.to_batches())) <= 1 << 16
    assert list(range(700_000)) == only(table)


def test_an_empty_cell_is_null_and_empty_quotes_are_text(read):
    """O21: An empty cell is NULL, and a quoted one is an empty text."""
    assert [("a", None), ("b", ""), (None, "x")] == rows(read('a,\nb,""\n,x\n'))


@pytest.mark.parametrize("type_", ["Int64", "Float64", "Bool", "Date", "Timestamp", "Time", "UInt8", "Null"])
def test_o27_an_empty_cell_of_a_column_other_than_text_is_null(read, type_):
    """O27: This holds with and without quotes. A quoted text stays an empty text (O21)."""
    schema = declared(x=optional(type_), y="String")

    assert [(None, ""), (None, "a")] == rows(read('"",""\n,a\n', schema))
    assert [(None, ""), (None, "a")] == rows(read('"",""\n,a\n', schema, nullValue="NA"))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (['"2017-01-04"', '""'], [date(2017, 1, 4), None]),
        (['""', "1"], [None, 1]),
        (['""', "0.5", ""], [None, 0.5, None]),
        (['""', "a"], ["", "a"]),
        (['""', ""], ["", None]),
    ],
)
def test_o27_empty_quotes_do_not_make_an_inferred_column_text(read, cells, expected):
    text = "id,x\n" + "".join(f"{number},{cell}\n" for number, cell in enumerate(cells))

    assert expected == read(text, header=True, inferSchema=True)["x"].to_pylist()


def test_the_null_value_is_null_unless_quoted(read):
    table = read('NA,1\n"NA",\nx,NA\n', ddl("a STRING", "b STRING"), nullValue="NA")

    assert [(None, "1"), ("NA", ""), ("x", None)] == rows(table)


def test_an_empty_line_in_a_file_of_one_column_is_null(read):
    assert ["a", None, ""] == only(read('a\n\n""\n'))


def test_empty_lines_are_skipped(read):
    assert [("a", "b"), ("c", "d")] == rows(read("\n\na,b\r\n\r\n\nc,d\n\n"))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_may_end_with_lf_crlf_or_cr(read, end):
    table = read(f"a,b{end}1,2{end}3,4", ddl("a INT", "b INT"), header=True)

    assert [(1, 2), (3, 4)] == rows(table)


@pytest.mark.parametrize("separator", [";", "\t", "\\t", "|", "^", "]", " "])
def test_any_separator_divides_cells(read, separator):
    between = "\t" if separator == "\\t" else separator
    assert [("a", "b")] == rows(read(f"a{between}b\n", separator=separator))


@pytest.mark.parametrize(
    ("encoding", "codec"),
    [
        ("utf8", "utf-8-sig"),
        ("UTF-8", "utf-8"),
        ("utf-16", "utf-16"),
        ("latin1", "latin-1"),
        ("ISO-8859-1", "latin-1"),
        ("windows-1252", "cp1252"),
        ("UTF-16LE", "utf-16-le"),
        ("utf-16-le", "utf-16-le"),
    ],
)
def test_header_and_cells_are_decoded_from_the_declared_encoding(read, encoding, codec):
    table = read("größe,é\n1,ü\n".encode(codec), header=True, encoding=encoding)

    assert ["größe", "é"] == table.column_names
    assert [("1", "ü")] == rows(table)


def test_a_byte_order_mark_is_skipped(read):
    assert ["a"] == read("\ufeffa\n1\n".encode("utf-16-le"), header=True, encoding="utf-16-le").column_names


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ('"a""b"', 'a"b'),
        (r'"a\"b"', 'a"b'),
        (r'"a\\b"', r"a\b"),
        (r'"a\\"', "a\\"),
        (r'"C:\new"', r"C:\new"),
        (r"C:\new", r"C:\new"),
        (r'"\"a"""', '"a"'),
        ('5" disk', '5" disk'),
        ('a"', 'a"'),
        ('""""', '"'),
        ('"a,b"', "a,b"),
        ("'a'", "'a'"),
        (r"a\"b", r"a\"b"),
    ],
)
def test_cells_are_read_with_quotes_and_escapes(read, cell, value):
    """Both ways of writing a quote work with the default escape. Elsewhere a backslash is ordinary."""
    assert [("1", value, "2")] == rows(read(f"1,{cell},2\n"))


def test_an_empty_quote_option_makes_quotes_ordinary_characters(read):
    assert [('"a', 'b"', "'c'")] == rows(read("\"a,b\",'c'\n", quote=""))


def test_the_quote_option_sets_another_quote(read):
    assert [("a,b", "it's", '"c"')] == rows(read("'a,b','it''s',\"c\"\n", quote="'"))


@pytest.mark.parametrize("escape", ["", '"'])
def test_a_backslash_is_ordinary_if_it_is_not_the_escape(read, escape):
    """The Vancouver schools use the quote itself as the escape."""
    assert [("a\\", 'b"c')] == rows(read('"a\\","b""c"\n', escape=escape))


def test_the_escape_option_sets_another_escape(read):
    assert [('a"b', "c\\")] == rows(read('"a^"b","c\\"\n', escape="^"))


@pytest.mark.parametrize("option", [{}, {"multiLine": False}, {"multiLine": True}])
def test_o26_quoted_values_may_have_line_breaks(read, option):
    """O26, D22: This holds whatever the option."""
    table = read('a,"b\nc\r\nd"\ne,f\n', **option)

    assert [("a", "b\nc\r\nd"), ("e", "f")] == rows(table)


@pytest.mark.parametrize("value", ["b\n\n", 'b""\n', 'b\\"\n', '"",""\n', "\n,\n"])
def test_long_files_with_line_breaks_are_read_completely(read, value):
    """Rows with line breaks, quotes and escapes cross the blocks of a file."""
    text = "".join(f'{number},"{value}","{"x" * 90}"\n' for number in range(60_000))
    table = read(text)

    assert 60_000 == len(table)
    assert [str(number) for number in range(60_000)] == only(table)
    assert {value.replace('""', '"').replace('\\"', '"')} == set(table.column(1).to_pylist())


INSTANT = datetime(2020, 1, 1, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2020-01-01T10:00:00Z", INSTANT),
        ("2020-01-01t10:00:00z", INSTANT),
        ("2020-01-01 10:00:00", INSTANT),
        ("2020-01-01T12:00:00+02:00", INSTANT),
        ("2020-01-01T04:30:00-05:30", INSTANT),
        ("2020-01-01T12:00:00+0200", INSTANT),
        ("2020-01-01T10:00:00.5Z", INSTANT.replace(microsecond=500_000)),
        ("2020-01-01T10:00:00.123456999Z", INSTANT.replace(microsecond=123_456)),
        ("2020-01-01 10:00:00.1234567899", INSTANT.replace(microsecond=123_456)),
        ("1969-12-31T23:59:59.9999999Z", datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)),
        ("2020-01-01", datetime(2020, 1, 1, tzinfo=UTC)),
        ("0001-01-01", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999Z", datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)),
    ],
)
def test_b14_timestamps_are_read_as_utc_instants(read, text, instant):
    """B14: A time without a zone is UTC. Others are converted, with or without other forms next to them."""
    schema = ddl("t TIMESTAMP")

    assert [instant] == only(read(f"{text}\n", schema))
    assert [instant, INSTANT, INSTANT] == only(
        read(f"{text}\n2020-01-01T10:00:00Z\n2020-01-01 10:00:00\n", schema)
    )


@pytest.mark.parametrize(
    ("pattern", "text", "instant"),
    [
        ("%m/%d/%Y %H:%M:%S", "9/25/2022 1:02:03", datetime(2022, 9, 25, 1, 2, 3, tzinfo=UTC)),
        ("%m/%d/%Y %I:%M:%S %p", "09/25/2022 12:02:03 AM", datetime(2022, 9, 25, 0, 2, 3, tzinfo=UTC)),
        ("%m/%d/%Y %I:%M:%S %p", "09/25/2022 12:02:03 pm", datetime(2022, 9, 25, 12, 2, 3, tzinfo=UTC)),
        ("%m/%d/%Y %I:%M:%S %p", "09/25/2022 01:02:03 PM", datetime(2022, 9, 25, 13, 2, 3, tzinfo=UTC)),
        ("%d %b %y %T", "25 SEP 22 01:02:03", datetime(2022, 9, 25, 1, 2, 3, tzinfo=UTC)),
        ("%A, %d %B %Y", "Sunday, 25 September 2022", datetime(2022, 9, 25, tzinfo=UTC)),
        ("%F %R%z", "2022-09-25 01:02+0200", datetime(2022, 9, 24, 23, 2, tzinfo=UTC)),
        ("%Y%m%d%H%M%S%f", "20220925010203123456789", datetime(2022, 9, 25, 1, 2, 3, 123456, UTC)),
        ("%Y-%m-%d %H:%M:%S%.f", "2022-09-25 01:02:03", datetime(2022, 9, 25, 1, 2, 3, tzinfo=UTC)),
        ("%Y-%m-%d %H:%M:%S%.f", "2022-09-25 01:02:03.5", datetime(2022, 9, 25, 1, 2, 3, 500_000, UTC)),
        ("%D", "09/25/68", datetime(2068, 9, 25, tzinfo=UTC)),
        ("%D", "09/25/69", datetime(1969, 9, 25, tzinfo=UTC)),
        ("dd.MM.yyyy HH:mm", "25.09.2022 01:02", datetime(2022, 9, 25, 1, 2, tzinfo=UTC)),
        ("d.M.yyyy H:m:s", "5.9.2022 1:2:3", datetime(2022, 9, 5, 1, 2, 3, tzinfo=UTC)),
        (
            "yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
            "2022-09-25T01:02:03.250+01:00",
            datetime(2022, 9, 25, 0, 2, 3, 250_000, UTC),
        ),
        (
            "EEE, dd MMM yyyy hh 'o''clock' a",
            "Sun, 25 Sep 2022 01 o'clock PM",
            datetime(2022, 9, 25, 13, tzinfo=UTC),
        ),
    ],
)
def test_the_timestamp_format_parses_timestamps(read, pattern, text, instant):
    """D23, D27: The format uses strftime codes or Java's letters."""
    assert [instant, None] == only(
        read(f"{text}|\n|\n", ddl("t TIMESTAMP", "e STRING"), timestampFormat=pattern, separator="|")
    )


@pytest.mark.parametrize(
    ("pattern", "text"), [("%d.%m.%Y", "25.09.2022"), ("yyyyMMdd", "20220925"), ("rfc3339", "2022-09-25")]
)
def test_the_date_format_parses_dates(read, pattern, text):
    assert [date(2022, 9, 25)] == only(read(f"{text}\n", ddl("d DATE"), dateFormat=pattern))
    assert [date(2022, 9, 25)] == only(
        read(f"{text}\n", inferSchema=True, dateFormat=pattern)
    ) or pattern == "yyyyMMdd"


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("Bool", "TRUE", True),
        ("Bool", "False", False),
        ("Time", "12:30:00", 45_000_000),
        ("Time", "23:59", 86_340_000),
        ("Time", "00:00:00.001", 1),
        ("Time", "45000001", 45_000_001),
        ({"kind": "Time", "unit": "Second"}, "12:30:00.000", 45_000),
        ({"kind": "Time", "unit": "Nanosecond"}, "00:00:01.123456789", 1_123_456_789),
        ("Duration", "-90000000", -90_000_000),
        ("Int8", "-128", -128),
        ("UInt8", "255", 255),
        ("Int16", "32767", 32767),
        ("UInt16", "65535", 65535),
        ("Int32", "-2147483648", -(1 << 31)),
        ("UInt32", "4294967295", (1 << 32) - 1),
        ("Int64", "007", 7),
        ("UInt64", "18446744073709551615", Decimal((1 << 64) - 1)),
        ("Float64", "0.1", 0.1),
        ("Float64", "-Inf", float("-inf")),
        ("Float64", "Infinity", float("inf")),
        ("Float32", "0.5", 0.5),
        ({"kind": "Decimal", "precision": 5, "scale": 2}, "123.450", Decimal("123.45")),
        ("String", "", None),
    ],
)
def test_texts_are_read_as_declared_types(read, type_, text, value):
    assert [(value, "x")] == rows(read(f"{text},x\n", declared(a=optional(type_), b="String")))


def test_nan_is_read_as_a_double(read):
    (value,) = only(read("NaN\n", ddl("a DOUBLE")))
    assert math.isnan(value)


NAMES = ["with space", "a.b", "a[0]", 'quo"te', "UPPER", "upper", "größe", "`tick`", "x,y", "日本"]


def test_r67_unusual_column_names_are_kept(read):
    """R67: Names of all kinds match exactly."""
    text = io.StringIO()
    csv.writer(text).writerows([NAMES, range(len(NAMES))])
    schema = declared(**dict.fromkeys(reversed(NAMES), "Int32"))

    assert NAMES == read(text.getvalue(), header=True).column_names
    assert (
        dict(zip(NAMES, range(len(NAMES)), strict=True))
        == read(text.getvalue(), schema, header=True).to_pylist()[0]
    )


@pytest.mark.parametrize("text", ["", "\ufeff"])
def test_b34_an_empty_file_has_no_rows(read, text):
    """B34: Without a schema, even its columns are unknown."""
    assert pa.schema([]) == read(text, header=True).schema
    assert 0 == len(read(text, ddl("a INT")))


def test_a_file_with_only_a_header_has_no_rows(read):
    assert (0, ["a", "b"]) == (len(read("a,b", header=True)), read("a,b\n", header=True).column_names)
    assert [pa.null(), pa.null()] == read("a,b\n", header=True, inferSchema=True).schema.types


@pytest.mark.parametrize(
    "option",
    [
        {"enforceSchema": True},
        {"nanValue": "NaN"},
        {"ignoreLeadingWhiteSpace": False},
        {"positiveInf": "Inf"},
    ],
)
def test_a_removed_option_is_accepted_with_its_default_value(read, option):
    assert [("a",)] == rows(read("a\n", **option))


LETTERS = st.text(
    st.one_of(st.sampled_from(" ,;\"\\\r\n\tNA'aä"), st.characters(codec="utf-8", exclude_characters="\0")),
    max_size=8,
)


@settings(
    max_examples=deep(150, 40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(
    table=st.integers(1, 4).flatmap(
        lambda width: st.lists(st.lists(LETTERS, min_size=width, max_size=width), min_size=1, max_size=6)
    ),
    separator=st.sampled_from(",;\t"),
    end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    escape=st.sampled_from(["", "\\"]),
)
def test_tables_written_by_pythons_csv_module_are_read_back(read, table, separator, end, quoting, escape):
    """The output of Python's writer is read back, with either way of writing a quote."""
    # It treats a lone CR like any other letter, if its lines do not end with one.
    assume(
        escape
        or quoting == csv.QUOTE_ALL
        or "\r" in end
        or not any("\r" in cell for row in table for cell in row)
    )
    text = io.StringIO(newline="")
    writer = csv.writer(
        text,
        delimiter=separator,
        lineterminator=end,
        quoting=quoting,
        doublequote=not escape,
        escapechar="\\" if escape else None,
    )
    if escape:  # the writer would also escape outside quotes, which Spark's CSV does not have
        for row in table:
            cells = ['"' + cell.replace("\\", "\\\\").replace('"', '\\"') + '"' for cell in row]
            text.write(separator.join(cells) + end)
    else:
        writer.writerows(table)
    result = read(text.getvalue(), separator=separator, escape=escape, multiLine=True)

    expected = [
        [
            cell or (None if quoting == csv.QUOTE_MINIMAL and not escape and len(row) > 1 else "")
            for cell in row
        ]
        for row in table
    ]
    if text.getvalue().startswith("\ufeff"):
        return
    assert expected == [list(row.values()) for row in result.to_pylist()]
