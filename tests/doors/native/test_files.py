"""The files of a source, and their common types, without Spark."""

import errno
import gzip
import io
import os
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backstory.errors import BackstoryError, Refused, TryAgain
from backstory.formats.batch_file import stamp_of
from backstory.formats.encoded import utf8_blocks
from backstory.formats.file_options import FileOptions
from backstory.formats.reading import columns_of, open_files
from backstory.formats.source_files import SourceFile, source_files, unpack
from backstory.model.types import ColumnType, Kind


@pytest.fixture
def folder(tmp_path):
    for name in (
        "b.csv",
        "a.csv.gz",
        "_SUCCESS",
        ".hidden.csv",
        "c.jsonl",
        "sub/d.csv",
        "mixed/a.csv",
        "mixed/b.json",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("id\n1\n")
    return tmp_path


def named(source):
    return [file.name for file in source.files], source.format


def test_a_source_is_a_file_a_glob_or_a_folder(folder):
    assert named(source_files(str(folder / "b.csv"))) == (["b.csv"], "csv")
    assert named(source_files(f"{folder}/*.csv*")) == (["a.csv.gz", "b.csv"], "csv")
    assert named(source_files(f"{folder}/**/*.csv")) == (["b.csv", "a.csv", "d.csv"], "csv")
    assert named(source_files(str(folder / "sub"))) == (["d.csv"], "csv")
    assert named(source_files(str(folder / "mixed"), "csv")) == (["a.csv", "b.json"], "csv")


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("none.csv", "not-found"),
        ("*.txt", "not-found"),
        ("", "nested-folder"),
        ("mixed", "mixed-formats"),
        ("_SUCCESS", "unknown-format"),
    ],
)
def test_sources_without_files_of_one_format_are_refused(folder, source, code):
    with pytest.raises(BackstoryError) as error:
        source_files(str(folder / source))
    assert error.value.code == code


def test_a_tilde_is_expanded_to_the_home_folder(folder, tmp_path, monkeypatch):
    """A shell expands it, but not in quotes, in a file or in Python. A folder of that name is taken first."""
    monkeypatch.setenv("HOME", str(folder))
    assert named(source_files("~/b.csv")) == (["b.csv"], "csv")
    assert named(source_files("~/*.csv*")) == (["a.csv.gz", "b.csv"], "csv")
    own = tmp_path / "~"
    own.mkdir()
    (own / "b.csv").touch()
    assert [file.path for file in source_files("~/b.csv", folder=tmp_path).files] == [own / "b.csv"]


@pytest.mark.parametrize("source", ["s3://bucket/k3y/x.csv", "https://u:k3y@host/*.csv", "gs://k3y"])
def test_an_address_is_refused_without_its_secrets(source):
    """It would be a missing file, which a run waits for."""
    with pytest.raises(BackstoryError, match="begins an address") as error:
        source_files(source)
    assert (error.value.code, "k3y" in str(error.value)) == ("unsupported-source", False)


@pytest.mark.parametrize(
    ("file", "remedy"),
    [
        ("a.csv.zst", "gzip or zip"),
        ("a.XLSX", "as CSV"),
        ("a.orc", "with Spark"),
        ("a.feather", "with pyarrow"),
        ("a.dat", "`format=`"),
    ],
)
def test_the_remedy_for_a_file_fits_its_ending(tmp_path, file, remedy):
    """`format=` helps only for files of a format that is read."""
    (tmp_path / file).touch()
    with pytest.raises(BackstoryError, match="ending") as error:
        source_files(str(tmp_path / file))
    assert remedy in error.value.remedy


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_binary_files_are_not_read_as_text_in_any_encoding(tmp_path, encoding):
    """A workbook may have a name that ends in .csv."""
    with zipfile.ZipFile(tmp_path / "a.csv", "w") as archive:
        archive.writestr("xl/workbook.xml", "<a/>")
    with pytest.raises(Refused, match="a zip archive or a workbook, not text"):
        [*utf8_blocks(tmp_path / "a.csv", "a.csv", encoding)]


def test_the_remedy_for_folders_in_a_folder_matches_their_files(tmp_path):
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "a.parquet").touch()
    with pytest.raises(BackstoryError, match="day=1") as error:
        source_files(str(tmp_path))
    assert f"'{tmp_path}/**/*.parquet'" in error.value.remedy
    assert "no columns" in error.value.remedy
    assert [file.name for file in source_files(f"{tmp_path}/**/*.parquet").files] == ["a.parquet"]


@pytest.mark.parametrize("glob", ["*/*.csv", "**/*.csv", "*/sub/*.csv", "*/sub/d.csv"])
def test_a_folder_that_cannot_be_listed_is_not_empty(tmp_path, monkeypatch, glob):
    """Its records would be closed."""
    for name in ("a.csv", "there/c.csv", "there/sub/d.csv", "away/c.csv", "away/sub/d.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("id\n1\n")
    assert source_files(glob, folder=tmp_path).files

    def lock(call, locked):
        def refuse(path, *args, **options):
            if not isinstance(path, int) and locked(Path(path)):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return call(path, *args, **options)

        return refuse

    away = tmp_path / "away"
    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, lock(getattr(os, name), lambda path: away in (path, path.parent)))
    for name in ("stat", "lstat"):
        monkeypatch.setattr(os, name, lock(getattr(os, name), lambda path: away in path.parents))
    with pytest.raises(PermissionError, match="away"):
        source_files(glob, folder=tmp_path)


@pytest.mark.parametrize(
    ("link", "source"),
    [
        ("in/d.csv", "in"),
        ("in/d.csv", "in/*.csv"),
        ("in/d.csv", "in/**/*.csv"),
        ("in/d.csv", "**/d.csv"),
        ("in/south", "in"),
        ("in/south", "in/*/*.csv"),
        ("in/south", "in/**/*.csv"),
        ("in/south", "*/south/*.csv"),
        ("in/sub/d.csv", "in/*/*.csv"),
        ("in/sub/d.csv", "in/*/d.csv"),
    ],
)
@pytest.mark.parametrize("target", ["nowhere", "d.csv"])
def test_a_link_without_its_target_is_refused(tmp_path, link, source, target):
    """Its target may be on a share that is not mounted. The records there would be closed."""
    for name in ("a.csv", "in/a.csv", link):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("id\n1\n")
    (tmp_path / link).unlink()
    (tmp_path / link).symlink_to(target)
    for name in ("in/.hidden.csv", "in/.hidden") if source != "in" else ("in/.hidden.csv", "in/_hidden.csv"):
        (tmp_path / name).symlink_to("nowhere")
    with pytest.raises(Refused, match=f"{link} is a link") as refusal:
        source_files(source, folder=tmp_path)
    assert refusal.value.code == "not-found"


@pytest.mark.parametrize("source", ["", "*.csv", "**/*.csv"])
def test_special_files_are_refused(tmp_path, source):
    (tmp_path / "a.csv").write_text("id\n1\n")
    os.mkfifo(tmp_path / "b.csv")
    with pytest.raises(Refused, match=r"b\.csv is neither") as refusal:
        source_files(source, folder=tmp_path)
    assert refusal.value.code == "not-found"


@pytest.mark.parametrize(
    ("kind", "file", "source"),
    [
        ("t/_delta_log/0.json", "t/a.parquet", "t"),
        ("t/_delta_log/0.json", "t/a.parquet", "t/*.parquet"),
        ("t/_delta_log/0.json", "t/day=1/a.parquet", "t"),
        ("t/_delta_log/0.json", "t/day=1/a.parquet", "t/**/*.parquet"),
        ("t/.hoodie/hoodie.properties", "t/day=1/a.parquet", "t/day=1"),
        ("t/metadata/v1.metadata.json", "t/data/a.parquet", "t"),
        ("t/metadata/v1.metadata.json", "t/data/a.parquet", "t/data"),
        ("t/metadata/v1.metadata.json", "t/data/day=1/a.parquet", "t/**/*.parquet"),
    ],
)
def test_files_of_a_lake_table_are_refused(tmp_path, kind, file, source):
    """Some of its files were deleted from it, and their rows would open again."""
    for name in (kind, file):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(Refused, match=r"t is a table of") as refusal:
        source_files(source, folder=tmp_path)
    assert (refusal.value.code, refusal.value.exit_code) == ("unsupported-source", 3)
    assert ("`table:NAME`" in refusal.value.remedy) == ("metadata" in kind)
    assert named(source_files(file, folder=tmp_path)) == (["a.parquet"], "parquet")


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("a.csv", ""),
        ("a.csv", "*.csv"),
        ("d=1/a.csv", "*/*.csv"),
        ("_temporary/0/task/a.csv", "**/*.csv"),
    ],
)
def test_unfinished_spark_files_are_refused_temporarily(tmp_path, file, source):
    for folder in ((tmp_path / file).parent, tmp_path / "_temporary/0"):
        folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("id\n1\n")
    with pytest.raises(TryAgain) as error:
        source_files(source, folder=tmp_path)
    assert error.value.code == "source-changed"


def test_archives_are_unpacked(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"id\n1\n"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("inner.csv", "id\n1\n")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"id\n1\n")[:-4])
    for name in ("a.csv.gz", "a.zip"):
        assert (
            unpack(SourceFile(tmp_path / name, name, stamp_of(tmp_path / name)), tmp_path).path.read_bytes()
            == b"id\n1\n"
        )
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.csv.gz").write_bytes(gzip.compress(b"id\n2\n"))
    both = source_files(f"{tmp_path}/**/a.csv.gz")
    assert {unpack(file, tmp_path).path.read_bytes() for file in both.files} == {b"id\n1\n", b"id\n2\n"}
    with pytest.raises(Refused, match="not a complete gzip"):
        unpack(SourceFile(tmp_path / "b.csv.gz", "b.csv.gz", stamp_of(tmp_path / "b.csv.gz")), tmp_path)


def between(tmp_path, ending, *contents, **known):
    for number, content in enumerate(contents):
        path = tmp_path / f"{number}.{ending}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    fields = {name: pa.field(name, type_) for name, type_ in known.items()}
    source = source_files(f"{tmp_path}/*.{ending}")
    columns, _ = columns_of(source.files, open_files(source, tmp_path).options, fields)
    return {field.name: str(field.type) for field in columns}


def test_several_files_have_the_types_of_their_combined_rows(tmp_path):
    """Law 4: The number of files does not affect the types."""
    assert between(tmp_path, "csv", "a,b,c\n1,1,\n", "c,b,a\n,x,1.5\n") == {
        "a": "double",
        "b": "string",
        "c": "null",
    }
    types = between(tmp_path, "jsonl", '{"a": 1}\n', '{"b": [1], "a": 2.5}\n')
    assert types == {"a": "double", "b": "list<item: int64>"}
    assert between(tmp_path, "json", '[{"a": 1}]', '[{"a": 2}]') == {"a": "int64"}


def test_a_file_column_gets_the_type_of_the_table_if_its_values_fit(tmp_path):
    known = {"a": pa.float64(), "b": pa.string(), "c": pa.timestamp("us", "UTC"), "d": pa.int64()}
    types = between(tmp_path, "csv", "a,b,c,d\n1,1,2026-01-01,x\n", **known)
    assert types == {"a": "double", "b": "string", "c": "timestamp[us, tz=UTC]", "d": "string"}
    types = between(tmp_path, "jsonl", '{"a": 1, "c": "2026-01-01T00:00:00Z", "d": "x"}\n', **known)
    assert types == {"a": "double", "c": "timestamp[us, tz=UTC]", "d": "string"}


@pytest.mark.parametrize(
    ("type_", "cell", "other"),
    [
        (pa.int32(), "7", "3000000000"),
        (pa.float32(), "0.1", "0.123456789012"),
        (pa.decimal128(5, 2), "1.5", "1.125"),
        (pa.decimal128(38, 0), "12345678901234567890", "012"),
        (pa.decimal128(38, 38), "0.5", "1"),
        (pa.timestamp("us"), "2026-01-01T10:00:00", "2026-01-01T10:00:00Z"),
    ],
)
def test_csv_cells_get_the_type_of_the_table_if_they_fit_exactly(tmp_path, type_, cell, other):
    (alone,) = between(tmp_path, "csv", f"a\n{cell}\n", a=type_).values()
    (together,) = between(tmp_path, "csv", f"a\n{cell}\n{other}\n", a=type_).values()
    assert alone == str(type_) != together


@pytest.mark.parametrize(
    ("type_", "number", "other"),
    [
        (pa.int32(), "7.0", "3000000000"),
        (pa.float32(), '"NaN"', "16777217"),
        (pa.float64(), '"-Infinity"', "9007199254740993"),
        (pa.decimal128(5, 2), "1.5", "1.125"),
        (pa.decimal128(38, 10), "12345678901234567890.1234567890", "0.00000000001"),
    ],
)
def test_json_numbers_get_the_type_of_the_table_if_they_fit_exactly(tmp_path, type_, number, other):
    (alone,) = between(tmp_path, "jsonl", f'{{"a": 1}}\n{{"a": {number}}}\n', a=type_).values()
    (together,) = between(tmp_path, "jsonl", f'{{"a": 1}}\n{{"a": {other}}}\n', a=type_).values()
    assert alone == str(type_) != together


def test_quoted_empty_cells_fit_a_number_column(tmp_path):
    """O27: A quoted empty cell fits a number column, but a column of only such cells does not become binary."""
    assert between(tmp_path, "csv", 'a,b\n"",""\n', a=pa.int64(), b=pa.binary()) == {
        "a": "int64",
        "b": "string",
    }


def test_times_without_a_zone_remain_naive(tmp_path):
    """Interface, section 1: Instants are `timestamptz`, and date-times without a zone `timestamp`."""
    naive, instant = pa.timestamp("ns"), pa.timestamp("ms", "Asia/Tokyo")
    inside = pa.struct([("at", pa.timestamp("us"))])
    rows = parquet(a=pa.array([0], naive), b=pa.array([0], instant), c=pa.array([{"at": 0}], inside))
    types = between(tmp_path, "parquet", rows)
    assert types == {"a": "timestamp[us]", "b": "timestamp[us, tz=UTC]", "c": "struct<at: timestamp[us]>"}


def parquet(**columns):
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def test_parquet_files_widen_or_are_refused_by_name(tmp_path):
    small, large = pa.array([1], pa.int32()), pa.array([1], pa.int64())
    assert between(tmp_path, "parquet", parquet(a=small), parquet(a=large)) == {"a": "int64"}
    with pytest.raises(Refused, match=r"0\.parquet and 1\.parquet") as refusal:
        between(tmp_path, "parquet", parquet(a=small), parquet(a=pa.array(["x"])))
    assert (refusal.value.code, refusal.value.keys) == ("type-changed", ["a"])
    with pytest.raises(Refused) as refusal:
        between(tmp_path, "parquet", parquet(a=small), parquet(b=small))
    assert refusal.value.code == "missing-column"
    with pytest.raises(Refused) as refusal:
        between(tmp_path, "csv", "a,b\n1,2\n", "a\n1\n")
    assert (refusal.value.code, refusal.value.keys) == ("missing-column", ["b"])


def test_a_declared_type_replaces_type_inference(tmp_path):
    """`--type` in JSON sets the type for numbers beyond a float, and for mixed values."""
    (tmp_path / "a.jsonl").write_text('{"i": 12345678901234567.89, "t": 1}\n{"i": 1, "t": "x"}\n')
    source = source_files(f"{tmp_path}/a.jsonl")
    written = FileOptions(type={"i": ColumnType.parse("DECIMAL(38,2)"), "t": ColumnType(Kind.STRING)})
    schema, _ = open_files(source, tmp_path, written).columns()
    assert {each.name: str(each.type) for each in schema} == {"i": "decimal128(38, 2)", "t": "string"}


def test_json_objects_get_the_struct_type_of_the_table(tmp_path):
    """JSON objects may lack or reorder fields. Fields that the table lacks are added last."""
    stored = pa.struct(
        {"a": pa.int64(), "n": pa.float64(), "l": pa.list_(pa.struct({"d": pa.decimal128(5, 2)}))}
    )
    rows = ('{"v": {"l": [{"d": 1}], "n": 2}}', '{"v": {"c": "x", "a": null}}', '{"v": {"a": "x"}}')
    types = [between(tmp_path, "jsonl", each + "\n", v=stored)["v"] for each in rows]
    whole = "a: int64, n: double, l: list<item: struct<d: decimal128(5, 2)>>"
    assert types == [
        f"struct<{whole}>",
        f"struct<{whole}, c: string>",
        f"struct<{whole.replace('int64', 'string')}>",
    ]
    assert between(tmp_path, "jsonl", '{"v": null}\n', v=stored) == {"v": "null"}
