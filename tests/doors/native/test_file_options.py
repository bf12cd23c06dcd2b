"""Files in common forms: separators, encodings, decimal commas, NULL texts and types, with their refusals."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backstory.doors.native.options import ApplyRequest, SnapshotRequest, source_of
from backstory.doors.native.refusals import SMALL, refuse_files
from backstory.errors import BackstoryError
from backstory.formats.reading import as_files_of_a_user, open_files
from backstory.warehouse import Warehouse

# A spreadsheet's export in Germany.
GERMAN = 'kunde;name;plz;umsatz\r\n1;"Müller; GmbH";01067;1234,50\r\n2;Größe;50667;0,5\r\n'
ROWS = [(1, "Müller; GmbH", "01067", 1234.5), (2, "Größe", "50667", 0.5)]


@pytest.fixture
def ahead(tmp_path):
    """The early error for a file, before any table is read, or None."""

    def ahead(content, name="a.csv", of=SnapshotRequest, **options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        try:
            request = of(into="s.t", **options)
            refuse_files(source_of(path, request), request)
        except BackstoryError as stop:
            return stop
        return None

    return ahead


@pytest.fixture
def copied(store, tmp_path):
    """The rows of the table after a copy of a file, and the receipt."""
    warehouse = Warehouse(store, embedded=False)

    def copied(into, content, name="a.csv", **options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        receipt = warehouse.snapshot(path, into=into, **options)
        names = [each.name for each in warehouse.spark.table(f"backstory.{into}").schema]
        columns = names[: names.index("valid_from")]
        rows = warehouse.table(into).current().select(*columns).orderBy(columns[0]).collect()
        return [tuple(row) for row in rows], receipt

    return copied


@pytest.mark.parametrize(
    ("encoding", "mark"), [("cp1252", ""), ("utf-16", ""), ("utf-8", ""), ("utf-8", "\ufeff")]
)
def test_a_german_spreadsheet_export_is_read(copied, encoding, mark):
    options = {"encoding": encoding, "separator": ";", "decimal": ",", "key": "kunde"}
    into = f"file_options.german_{encoding.replace('-', '')}_{len(mark)}"
    rows, receipt = copied(into, (mark + GERMAN).encode(encoding), **options)
    assert rows == ROWS
    assert receipt.schema_changes == ["new table: kunde BIGINT, name STRING, plz STRING, umsatz DOUBLE"]
    again, receipt = copied(into, (mark + GERMAN).encode(encoding), **options)
    assert (again, receipt.snapshot_id) == (ROWS, None)


def test_decimal_commas_are_reported_with_the_decimal_option(copied):
    """The first load's receipt, and later refusals, suggest the option. Nothing is guessed."""
    _, receipt = copied("file_options.first", GERMAN, separator=";", key="kunde")
    assert receipt.schema_changes[1:] == [
        "column umsatz is text with decimal commas; read as numbers with `decimal=','`"
    ]
    copied("file_options.later", "k,v\na,1.5\n", key="k")
    with pytest.raises(BackstoryError) as stop:
        copied("file_options.later", "k;v\na;1,5\n", separator=";")
    assert (stop.value.code, stop.value.keys) == ("type-changed", ["v"])
    assert stop.value.remedy == "Nothing was written; use `decimal=','`."
    rows, _ = copied("file_options.later", "k;v\na;2,5\nb;3\n", separator=";", decimal=",")
    assert rows == [("a", 2.5), ("b", 3.0)]
    for cell in ("1.5", "1.234,5"):
        with pytest.raises(BackstoryError, match="DOUBLE in the table and STRING"):
            copied("file_options.later", f"k;v\na;{cell}\n", separator=";", decimal=",")


def test_types_are_declared_and_then_kept(copied):
    """The first copy fixes a declared type, and another type is refused later."""
    types = {"zip": "STRING", "amount": "DECIMAL(9,2)", "n": "INT"}
    rows, receipt = copied("file_options.types", "k,zip,amount,n\na,1067,1.5,007\n", key="k", type=types)
    assert [(k, zip_, str(amount), n) for k, zip_, amount, n in rows] == [("a", "1067", "1.50", 7)]
    assert receipt.schema_changes == ["new table: k STRING, zip STRING, amount DECIMAL(9,2), n INT"]
    rows, _ = copied("file_options.types", "k,zip,amount,n\na,1068,1.5,7\n")
    assert rows[0][1] == "1068"
    with pytest.raises(BackstoryError) as stop:
        copied("file_options.types", "k,zip,amount,n\na,1068,1.5,7\n", type={"zip": "BIGINT"})
    assert stop.value.code == "type-changed"
    rows, _ = copied("file_options.json", '{"k": "a", "v": 1}', "a.json", key="k", type={"v": "DOUBLE"})
    assert rows == [("a", 1.0)]


def test_an_unreadable_value_is_reported_with_the_type_of_the_option(ahead):
    """The caller wrote no manifest, whose types have other names."""
    for name in ("BIGINT", "DECIMAL(9,2)", "TIMESTAMP_NTZ", "BOOLEAN"):
        stop = ahead("a,b\n1,x\n", key="a", type={"b": name})
        assert stop.message == f"a.csv, line 2, column `b`: `x` is not of type {name}."


def test_null_texts_and_other_quotes_are_supported(copied):
    rows, _ = copied("file_options.nulls", "k,v,t\n'a,b',NA,NA\nc,5,'x'\n", key="k", null="NA", quote="'")
    assert rows == [("a,b", None, None), ("c", 5, "x")]
    rows, _ = copied(
        "file_options.tabs", 'k\tv\na"b\t1\n', "a.tsv", format="csv", key="k", separator="tab", quote=""
    )
    assert rows == [('a"b', 1)]


@pytest.mark.parametrize("more", ["", "x" * SMALL], ids=["small", "large"])
@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_header_with_another_separator_is_refused_with_the_option(ahead, separator, more):
    stop = ahead(f"a{separator}b\n1,5{separator}2\n{more}{separator}1\n", key="a")
    assert stop.code == "wrong-separator"
    assert (
        f"`separator={'tab' if separator == chr(9) else separator!r}`".replace("=tab", "='tab'")
        in stop.remedy
    )
    assert ahead(f"a{separator}b\n1{separator}2\n", key="a", separator=separator) is None


def test_a_file_with_one_column_may_contain_any_separator(ahead):
    """A single column may contain any separator, unless rows become even or the separator is named."""
    assert ahead("a\nx;y\n", key="a") is None
    assert ahead("a;b\nx\n", key="a;b") is None
    assert ahead("a;b\nx;y\n", key="a;b", separator=",") is None


@pytest.mark.parametrize("size", [1, SMALL])
def test_a_file_that_is_not_utf_8_is_refused_with_the_encoding_option(ahead, size):
    stop = ahead(f"a,b\nGröße,1\n{'x' * size},1\n".encode("cp1252"), key="a")
    assert (stop.code, "`encoding='cp1252'`" in stop.remedy) == ("unreadable-file", True)


@pytest.mark.parametrize("text", ["a,b\nä,1\n", '{"a": "ä"}\n'])
def test_the_remedy_for_another_encoding_names_that_encoding(ahead, text):
    ending = "csv" if text[0] == "a" else "jsonl"
    for codec in ("utf-16", "cp1252"):
        stop = ahead(text.encode(codec), f"a.{ending}", key="a")
        assert f"`encoding='{codec}'`" in stop.remedy
        assert ahead(text.encode(codec), f"a.{ending}", key="a", encoding=codec) is None
    assert ".gz" in ahead(gzip.compress(text.encode()), f"a.{ending}", key="a").message


@pytest.mark.parametrize("value", ['"x"', "1e400", "18446744073709551616", "{}", f"{'[' * 30}{']' * 30}"])
def test_the_remedy_for_values_without_a_type_stores_their_text(ahead, tmp_path, value):
    """Whole numbers next to such values stay exact, at any depth. A table's type may hold mixed values."""
    text = f'{{"a": 1, "b.c": 9007199254740993}}\n{{"a": 2, "b.c": {value}}}\n'
    early = ahead(text, "a.jsonl", key="a")
    with pytest.raises(BackstoryError) as stop, as_files_of_a_user():
        open_files(source_of(tmp_path / "a.jsonl", SnapshotRequest(into="s.t")), tmp_path).columns()
    assert "`type={'b.c': 'STRING'}`" in stop.value.remedy
    assert early is None if stop.value.code == "mixed-types" else early.code == stop.value.code
    assert ahead(text, "a.jsonl", key="a", type={"b.c": "STRING"}) is None


@pytest.mark.parametrize(
    ("content", "options", "code"),
    [
        ("a,b\n1,2\n", {"key": "x"}, "missing-column"),
        ("a,a\n1,2\n", {"key": "a"}, "repeated-column"),
        ("a,valid_from\n1,2\n", {"key": "a"}, "reserved-column"),
        ("a,b\n1\n", {"key": "a"}, "broken-csv"),
        ("", {"key": "a"}, "broken-csv"),
        ("a,b\n1,x\n", {"key": "a", "type": {"b": "BIGINT"}}, "unreadable-value"),
        ("a,b\n1,2\n", {"key": "a", "type": {"c": "BIGINT"}}, "bad-option"),
    ],
)
def test_errors_that_need_no_table_are_found_early(ahead, content, options, code):
    assert ahead(content, **options).code == code


@pytest.mark.parametrize("more", ["", "3,4,5\n" * (SMALL // 6)], ids=["small", "large"])
def test_feeds_that_stored_options_may_allow_are_not_refused_early(ahead, more):
    """The stored envelope, the dropped columns and the placeholder decide which names and values are right."""
    reserved = f"k,_change_type,valid_from\n1,insert,2\n{more}"
    assert ahead(reserved, of=ApplyRequest) is None
    assert ahead(reserved, of=ApplyRequest, key="k", drop=["valid_from"]) is None
    assert ahead("k,v\n1,unchanged\n", of=ApplyRequest, type={"v": "INT"}) is None
    messages = '{"op": "c", "after": {"v": 1}}\n{"op": "d", "after": {"v": "x"}}\nnull\n'
    assert ahead(messages, "a.jsonl", of=ApplyRequest) is None
    assert ahead("k,k\n1,2\n", of=ApplyRequest).code == "repeated-column"


def test_a_later_feed_may_drop_reserved_columns(store, tmp_path):
    """An export is a feed whose own columns are dropped, in every delivery."""
    warehouse, path = Warehouse(store, embedded=False), tmp_path / "out.csv"
    options = {"key": "id", "sequence_by": "valid_from", "drop": ["valid_from", "valid_to"]}
    for number, more in enumerate([options, options, {}], 1):
        path.write_text(f"id,v,valid_from,valid_to\n{number},a,2026-01-01,\n")
        assert warehouse.apply(path, into="file_options.dropped", **more).counts["began"] == 1


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_is_recognized_in_its_encoding(ahead, tmp_path, codec, indent):
    """An array of JSON objects is one document, whichever encoding the caller names."""
    content = json.dumps([{"a": 1, "b": "ä"}, {"a": 2, "b": "x"}], indent=indent, ensure_ascii=False)
    named = {} if codec.startswith("utf-8") else {"encoding": codec}
    assert ahead(content.encode(codec), "a.json", key="a", **named) is None
    request = SnapshotRequest(into="s.t", **named)
    files = open_files(source_of(tmp_path / "a.json", request), tmp_path, request)
    assert sum(map(len, files.batches(files.columns()[0]))) == 2


@pytest.mark.parametrize("more", ["", "3,4\n" * (SMALL // 4)], ids=["small", "large"])
def test_a_rename_does_not_apply_to_the_columns_of_the_file(ahead, more):
    """Whether a file may have the former name depends on the table, which early checks do not read."""
    renamed = {"key": "k", "rename": {"id": "k"}}
    for names in ("id,k", "id,v"):
        assert ahead(f"{names}\n1,2\n{more}", "a.csv", **renamed) is None
    assert ahead(f"k,k\n1,2\n{more}", "a.csv", **renamed).code == "repeated-column"


def test_options_that_do_not_fit_the_format_are_refused(ahead, copied, tmp_path):
    """An invalid option is refused with its format, and none is ignored."""
    pq.write_table(pa.table({"a": [1]}), tmp_path / "b.parquet")
    parquet = (tmp_path / "b.parquet").read_bytes()
    for options in ({"separator": ";"}, {"encoding": "latin-1"}, {"type": {"a": "INT"}}):
        assert "does not apply to Parquet files" in ahead(parquet, "a.parquet", key="a", **options).message
    for options in ({"separator": ";"}, {"decimal": ","}, {"null": "NA"}, {"quote": "'"}):
        stop = ahead(json.dumps({"a": 1}), "a.jsonl", key="a", **options)
        assert (stop.code, "does not apply to JSON files" in stop.message) == ("bad-option", True)
    for options in ({"decimal": ";"}, {"separator": ""}, {"encoding": "klingon"}, {"type": {"a": "BLOB"}}):
        assert ahead("a,b\n", **options).exit_code == 2


def test_frames_have_no_file_options(store):
    warehouse = Warehouse(store, embedded=False)
    for source in (pa.table({"k": [1]}), "table:file_options.none"):
        with pytest.raises(BackstoryError, match="does not apply to a "):
            warehouse.snapshot(source, into="file_options.frames", key="k", separator=";")
