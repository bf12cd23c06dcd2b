"""Rows of stage files: read exactly, or refused."""

import gzip
import io
import uuid
import zipfile
from datetime import UTC, datetime, time
from decimal import Decimal
from functools import partial
from math import isnan, nan

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from historizing import dataset, document, model_of

from backstory.doors.historize.model import user_columns
from backstory.doors.historize.stage import no_stage_table, read_stage, stage_batches, stage_of
from backstory.errors import Failed, Refused, UsageError
from backstory.formats.batch_file import BatchFile, Encoding
from backstory.formats.delivered import read_csv
from backstory.model.types import ColumnType, Kind

ID = uuid.UUID("0A1B2C3D-0000-4000-8000-AABBCCDDEEFF")
TYPES = "STRING INTEGER BIGINT DECIMAL(10,2) FLOAT BOOLEAN DATE TIME TIMESTAMP BINARY UUID JSON"
MIB = 1 << 20


def rows(folder, columns, name="s.csv", **read):
    """The rows of the stage file for a model with these columns and this `read` block."""
    written = dataset(columns, input=name, **({"read": read} if read else {}))
    for each in written["target_columns"]:
        each["hash"] = each["datatype"] != "FLOAT"
    (the,) = model_of(document(written)).target_datasets
    return read_stage(stage_of(the, folder), user_columns(the)).to_pylist()


def of_csv(folder, text, columns="k* a", **read):
    """The rows of a CSV file."""
    (folder / "s.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return rows(folder, columns, **read)


def of_parquet(folder, type_, values):
    """The values of a Parquet column, in a model's column of the type."""
    numbered = pa.table({"k": [str(row) for row in range(len(values))], "a": values})
    pq.write_table(numbered, folder / "s.parquet")
    return [row["a"] for row in rows(folder, f"a:{type_} k*", "s.parquet")]


def _zip(content):
    """An archive with one CSV file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("s.csv", content)
    return packed.getvalue()


def refusal(read, *arguments):
    """The error for a refused file."""
    with pytest.raises(Refused) as error:
        read(*arguments)
    return error.value


@pytest.mark.parametrize("long", ["x" * (MIB + 1), "x\n" * MIB], ids=["one line", "many lines"])
def test_a_row_may_be_larger_than_a_mebibyte(tmp_path, long):
    """H7: A CSV row may be larger than a mebibyte, and contain line breaks."""
    assert of_csv(tmp_path, f'k,a\n1,"{long}"\n2,b\n') == [{"k": "1", "a": long}, {"k": "2", "a": "b"}]


def test_a_name_may_be_larger_than_a_mebibyte(tmp_path):
    """H7: A header may be larger than a mebibyte, even if most of it is ignored."""
    assert of_csv(tmp_path, f"k,{'x' * (MIB + 1)},a\n1,2,3\n") == [{"k": "1", "a": "3"}]


@pytest.mark.parametrize(
    "text",
    [
        b"k,a\n1,b\n",
        b"\xef\xbb\xbfk,a\r\n1,b\r\n",
        b'\xef\xbb\xbf\n\r\n"k","a"\n1,b',
        b"k,a\r1,b\r",
        b'k,"x\n""y",a\n1,2,b\n',
        b'k,x",a\n1,"2\n3",b\n',
        b'k,a,x"\n1,b,"2\n3"\n',
        b"\nk,x,a\n1,\xc3\xa4,b\n",
    ],
)
def test_the_header_is_parsed_like_the_rows(tmp_path, text):
    """H7: Byte order marks, blank lines, line ends and quotes have the same meaning in header and rows."""
    assert of_csv(tmp_path, text) == [{"k": "1", "a": "b"}]


def test_no_rows(tmp_path):
    """H7: A file with only a header is an input without rows."""
    assert of_csv(tmp_path, "k,a\n") == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "unreadable-file"),
        (b"\n\n", "unreadable-file"),
        (b"k\xff,a\n1,2\n", "unreadable-file"),
        (b"k,a\n1,\xff\n", "unreadable-file"),
        (b'k,"a\n1,2\n', "broken-csv"),
        (b"k,a\n1\n", "broken-csv"),
        (b"k,b\n1,2\n", "missing-column"),
        (b"k,a,a\n1,2,3\n", "repeated-column"),
        (b"k,a,x,x\n1,2,3,4\n", "repeated-column"),
        (b'k,a\n1,2\n3,"Rome\n4,Oslo\n5,Graz\n', "broken-csv"),
        (b'k,a\n1,"Ada"x\n', "broken-csv"),
        (b'k,a,x\n1,Ada,"y"z\n', "broken-csv"),
    ],
)
def test_a_file_that_is_not_csv(tmp_path, text, code):
    """R19: A file that is not CSV is refused with its actual kind."""
    assert refusal(of_csv, tmp_path, text).code == code


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (1, b"k,a,a\n1,2,3\n"),
        (1, b"k,\xff\n1,2\n"),
        (3, b"k,a\n1,2\n3,\xff\n"),
        (3, b'k,a\n1,2\n3,"Rome\n4,Oslo\n5,Graz\n'),
        (4, b'k,a\n"1\n",2"\n3,"Ada"x\n'),
        (2, b'k,a\n1,"Ada" \n'),
        (3, b"k,a\n1,2\n3\n"),
    ],
)
def test_csv_errors_are_reported_with_their_line(tmp_path, line, text):
    """E1: A refusal names the file and the line, but no key."""
    error = refusal(of_csv, tmp_path, text)
    assert f"line {line}" in error.message
    assert "s.csv" in error.message
    assert "key may be" not in error.message
    assert "batch" not in error.remedy


@pytest.mark.parametrize("text", ["1,a", '1,""', "1,", '1,"a\n""b"', '1,a"b', " 1, a ", "1,a\n\n2,b"])
def test_stages_and_deliveries_read_equal_rows(tmp_path, text):
    """E1: A stage reads a file as a delivery does, except for unquoted empty cells."""
    stage = of_csv(tmp_path, f"k,a\n{text}\n")
    columns = dict.fromkeys(("k", "a"), ColumnType(Kind.STRING))
    (delivered,) = read_csv(BatchFile(tmp_path / "s.csv"), Encoding(), columns, frozenset(columns))
    empty = text == "1,"
    assert [row | ({"a": ""} if empty else {}) for row in stage] == delivered.values.to_pylist()


@pytest.mark.parametrize("type_", TYPES.split())
def test_an_empty_cell(tmp_path, type_):
    """O27: An empty cell is NULL for any type. In quotes, it is an empty text in a text column."""
    quoted = {"STRING": "", "BINARY": b""}.get(type_)
    assert of_csv(tmp_path, 'k,a\n1,\n2,""\n', f"k* a:{type_}") == [
        {"k": "1", "a": None},
        {"k": "2", "a": quoted},
    ]


@pytest.mark.parametrize("digits", ["1234567", "123456001", "0000001"])
@pytest.mark.parametrize(
    ("type_", "before", "after"),
    [
        ("TIME", "01:02:03.", ""),
        ("TIMESTAMP", "2025-01-02 01:02:03.", ""),
        ("TIMESTAMP", "2025-01-02T01:02:03.", "+02:00"),
    ],
)
def test_finer_than_microseconds(tmp_path, digits, type_, before, after):
    """E1: An instant with nanoseconds is refused with its line, not rounded."""
    text = f"k,a\n1,{before}5{after}\n2,{before}{digits}{after}\n"
    error = refusal(of_csv, tmp_path, text, f"k* a:{type_}")

    assert (error.code, "line 3, column a" in error.message) == ("unreadable-cell", True)


def test_zeros_beyond_microseconds(tmp_path):
    """H7: Zeros beyond microseconds are accepted."""
    text = "k,t,s\n1,01:02:03.500000000,2025-01-02 01:02:03.500000000\n"

    assert of_csv(tmp_path, text, "k* t:TIME s:TIMESTAMP") == [
        {"k": "1", "t": "01:02:03.5", "s": datetime(2025, 1, 2, 1, 2, 3, 500000, UTC)}
    ]


@pytest.mark.parametrize("type_", TYPES.split())
@pytest.mark.parametrize("count", [0, 2])
def test_an_untyped_parquet_column_is_null_in_any_type(tmp_path, type_, count):
    """H7: A Parquet column with only NULL has no type, and fits any column."""
    assert of_parquet(tmp_path, type_, pa.nulls(count)) == [None] * count


@pytest.mark.parametrize("stored", [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")])
def test_times(tmp_path, stored):
    """H7: Times of any unit equal the text in CSV."""
    values = pa.array([time(0), None, time(23, 59, 59)], stored)

    assert of_parquet(tmp_path, "TIME", values) == ["00:00:00", None, "23:59:59"]


def test_times_to_the_microsecond(tmp_path):
    """H7: Times have only the digits that they need."""
    values = pa.array([time(1, 2, 3, 500000), time(23, 59, 59, 999999)], pa.time64("ns"))

    assert of_parquet(tmp_path, "TIME", values) == ["01:02:03.5", "23:59:59.999999"]


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("TIME", pa.array([1000, 1001], pa.time64("ns"))),
        ("TIME", pa.array([0, 86400], pa.time32("s"))),
        ("TIME", pa.array(["01:02:03", "01:02:03.1234567"])),
        ("TIMESTAMP", pa.array([1000, 1001], pa.timestamp("ns"))),
        ("TIMESTAMP", pa.array(["2025-01-02 01:02:03.1234567"])),
        ("INTEGER", pa.array([1, nan], pa.float32())),
        ("INTEGER", pa.array([1 << 31])),
        ("FLOAT", pa.array([2**53 + 1])),
        ("BINARY", pa.array([ID.bytes], pa.uuid())),
    ],
)
def test_a_value_that_does_not_fit(tmp_path, type_, values):
    """E1: A value that would change is refused."""
    assert refusal(of_parquet, tmp_path, type_, values).code == "unreadable-cell"


@pytest.mark.parametrize("type_", ["UUID", "STRING"])
def test_ids(tmp_path, type_):
    """H7: An id has its canonical text, in lower case."""
    assert of_parquet(tmp_path, type_, pa.array([ID.bytes, None], pa.uuid())) == [str(ID), None]


@pytest.mark.parametrize("stored", [pa.float16(), pa.float32(), pa.float64()])
def test_floats(tmp_path, stored):
    """H7: A wider float contains every value of a narrower one, including NaN."""
    first, second, third, fourth = of_parquet(tmp_path, "FLOAT", pa.array([1.5, nan, None, -0.0], stored))

    assert (first, isnan(second), third, fourth) == (1.5, True, None, 0)


def test_parquet_files_of_duckdb_are_read(tmp_path):
    """H7: Columns are read as DuckDB's COPY writes them."""
    duckdb.sql(
        f"COPY (SELECT 1 AS k, UUID '{ID}' AS u, TIME '01:02:03.5' AS t, NULL AS n, JSON '[1]' AS j,"
        f" 1.5::DECIMAL(4,1) AS d) TO '{tmp_path / 's.parquet'}'"
    )

    assert rows(tmp_path, "k:INTEGER* u:UUID t:TIME n:DATE j:JSON d:DECIMAL(10,2)", "s.parquet") == [
        {"k": 1, "u": str(ID), "t": "01:02:03.5", "n": None, "j": "[1]", "d": Decimal("1.50")}
    ]


def test_parquet_values_reach_the_tables(place, engine):
    """H7: Ids, times, NaN and columns without a type reach the tables, and a repeated load changes nothing."""
    written = dataset("k* u:UUID t:TIME n:DATE f:FLOAT", input="s.parquet", historization={"engine": engine})
    written["target_columns"][-1]["hash"] = False
    place.use(document(written))
    stored = {
        "k": ["1"],
        "u": pa.array([ID.bytes], pa.uuid()),
        "t": pa.array([time(1, 2, 3, 500000)], pa.time64("us")),
        "n": pa.nulls(1),
        "f": pa.array([nan], pa.float32()),
    }
    pq.write_table(pa.table(stored), place.folder / "s.parquet")

    assert [place.loads(f"r{number}", number)[0].status for number in (1, 2)] == ["success", "unchanged"]
    ((u, t, n, f),) = place.rows("SELECT u, t, n, f FROM rawcore.rc_c_hist")
    assert (u, t, n, isnan(f)) == (ID, time(1, 2, 3, 500000), None, True)


def test_a_csv_file_is_read_with_its_options(tmp_path):
    """The result is the same if Arrow's parser reads all cells or each is parsed as text."""
    text = "k;a;b;c\nä;1,5;NA;'x;y'\nö;;2,25;''\n".encode("cp1252")
    read = {"separator": ";", "encoding": "cp1252", "decimal": ",", "null": "NA", "quote": "'"}
    columns = "k* a:DECIMAL(9,2) b:FLOAT c"
    expected = [
        {"k": "ä", "a": Decimal("1.50"), "b": None, "c": "x;y"},
        {"k": "ö", "a": None, "b": 2.25, "c": ""},
    ]
    assert of_csv(tmp_path, text, columns, **read) == expected
    full = text.replace(b";;", b";0;")
    assert of_csv(tmp_path, full, columns, **read)[1]["a"] == 0
    assert (
        refusal(partial(of_csv, **read), tmp_path, text.replace(b"2,25", b"2.25"), columns).code
        == "unreadable-cell"
    )


@pytest.mark.parametrize(
    ("text", "code", "word"),
    [
        ("k;a\n1;2\n", "wrong-separator", "read: {separator: ';'}"),
        ("k\ta\n1\t2\n", "wrong-separator", "read: {separator: 'tab'}"),
        (b"k,a\n1,2\n\xe4,3\n", "unreadable-file", "read: {encoding: cp1252}"),
        ('k,a\n1,"2,5"\n2,3\n', "unreadable-cell", "read: {decimal: ','}"),
    ],
)
def test_a_refused_file_names_the_missing_read_option(tmp_path, text, code, word):
    stop = refusal(of_csv, tmp_path, text, "k* a:FLOAT")
    assert (stop.code, word in stop.remedy) == (code, True)


def test_read_options_that_do_not_fit_the_input_are_refused(tmp_path):
    pq.write_table(pa.table({"k": ["1"]}), tmp_path / "s.parquet")
    for name, read in (
        ("s.parquet", {"separator": ";"}),
        ("s.csv", {"decimal": "x"}),
        ("a.b", {"null": "-"}),
    ):
        with pytest.raises(UsageError):
            rows(tmp_path, "k*", name, **read)


@pytest.mark.parametrize(("pack", "program"), [(gzip.compress, "gzip"), (_zip, "zip")])
@pytest.mark.parametrize("name", ["s.csv", "s.csv.gz"])
def test_an_archive_is_refused_with_the_advice_to_unpack_it(tmp_path, name, pack, program):
    """H7: A stage file is CSV or Parquet as it is, so the remedy for an archive is to unpack it."""
    (tmp_path / name).write_bytes(pack(b"k,a\n1,x\n"))
    error = refusal(rows, tmp_path, "k* a", name)
    assert error.message == f"The stage input {name} is packed by {program}."
    assert "unpack the file" in error.remedy


@pytest.mark.parametrize("name", ["s.jsonl", "S.JSON", "s.tsv.gz"])
def test_an_unsupported_file_name_is_refused_with_the_supported_formats(tmp_path, name):
    """H7: A name like s.jsonl is a table's, and the error also says which files a stage may be."""
    (the,) = model_of(document(dataset("k*", input=name))).target_datasets
    error = no_stage_table(stage_of(the, tmp_path))
    assert (error.code, "a file must be CSV or Parquet" in error.message) == ("no-stage", True)
    assert error.remedy.startswith("Convert the file")


@pytest.mark.parametrize("name", ["s.csv", "s.parquet"])
@pytest.mark.parametrize("passes", [0, 1], ids=["in a pass", "between two"])
def test_a_stage_that_changes_during_a_load_is_refused(tmp_path, name, passes):
    """Law 8: If a load reads its stage twice, both reads must see one state. The next load reads the next
    one."""
    path, (the,) = tmp_path / name, model_of(document(dataset(input=name))).target_datasets

    def write(value):
        table = pa.table({"k": ["1", "2"], "a": [value, value]})
        pq.write_table(table, path) if name == "s.parquet" else path.write_text(
            f"k,a\n1,{value}\n2,{value}\n"
        )

    def read(stage):
        return partial(stage_batches, stage, user_columns(the))

    write("x")
    stage = stage_of(the, tmp_path)
    for _ in range(passes):
        assert [row["a"] for rows in read(stage)() for row in rows.to_pylist()] == ["x", "x"]
    coming = read(stage)()
    if not passes:
        next(coming)
    write("longer")
    with pytest.raises(Failed) as refused:
        list(coming)
    assert refused.value.code == "source-changed"
    assert read_stage(stage_of(the, tmp_path), user_columns(the))["a"].to_pylist() == ["longer", "longer"]
