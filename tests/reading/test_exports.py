"""The whole history as one file: every version on either axis, in the file's types, complete or absent."""

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from remembering import E13, remembered

from backstory.cli.app import run
from backstory.errors import TryAgain, UsageError
from backstory.formats.memory import Memory
from backstory.model.table import TableName
from backstory.reading.exports import export as export_small
from backstory.reading.exports import write
from backstory.reading.files import table_in_files
from backstory.reading.options import ExportRequest
from backstory.stores.iceberg.create import drop
from backstory.stores.metadata.catalogs import EmbeddedCatalog
from backstory.stores.metadata.table_rows import TableReader
from backstory.table import Table

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.decimal128(9, 2))])


def place(file, axis="valid", *, overwrite=False):
    return ExportRequest(file, axis=axis, overwrite=overwrite)


def files_of(warehouse, name):
    catalog = EmbeddedCatalog(warehouse)
    with Memory(1 << 30).lease() as lease:
        return TableReader(catalog.describe(name), catalog, lease)


def test_an_export_on_either_axis_equals_the_readers_rows(store, warehouse, tmp_path):
    """Spark and files produce the same file, with the rows of `timeline`, in order of key and times."""
    history = remembered(store, "exported", E13, value="known_from")
    for axis, rows in (("valid", 3), ("both", 5)):
        large, small = tmp_path / f"{axis}.parquet", tmp_path / f"{axis}-small.parquet"
        assert history.export(large, axis=axis).rows == rows
        assert (
            export_small(table_in_files(files_of(warehouse, history.name)), place(small, axis)).rows == rows
        )
        assert pq.read_table(large).equals(pq.read_table(small))
        versions = history.timeline("k", axis=axis).versions
        names = ["valid_from", "valid_to", *(["known_from", "known_to"] if axis == "both" else [])]
        value = "known_from_src" if axis == "both" else "known_from"
        assert [
            (each[value], *(each[name] for name in names)) for each in pq.read_table(large).to_pylist()
        ] == [(each["known_from_src"], *(each[name] for name in names)) for each in versions]
    assert pq.read_schema(large).field("valid_from").type == pa.timestamp("us", "UTC")


def test_a_table_without_a_history_exports_only_its_current_rows(store, warehouse, tmp_path, capsys):
    """Values of every kind are exported. CSV has cells that the readers of files accept."""
    name = TableName("reading", "exported_live")
    drop(store, name)
    store.spark.sql("CREATE NAMESPACE IF NOT EXISTS backstory.reading")
    columns = "k STRING, raw BINARY, s STRUCT<x: INT, m: MAP<STRING, DOUBLE>>, f DOUBLE, at TIMESTAMP, d DATE"
    store.spark.sql(f"CREATE TABLE backstory.{name} ({columns}) USING iceberg")
    store.spark.sql(
        f"INSERT INTO backstory.{name} VALUES ('a \"q\", b', X'FF00', named_struct('x', 1, 'm', map('y', double('NaN'))),"
        " 0.5, TIMESTAMP '1500-01-01 00:00:00.000001Z', DATE '0001-01-01'), ('', null, null, null, null, null)"
    )
    large, small = tmp_path / "large.csv", tmp_path / "small.csv"
    assert Table(store, name).export(large).rows == 2
    assert run(["export", str(name), str(small), "--warehouse", str(warehouse), "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "table": str(name), "file": str(small), "axis": "valid", "rows": 2,
    }  # fmt: skip
    assert sorted(large.read_text().splitlines()) == sorted(small.read_text().splitlines())
    lines = sorted(csv.reader(small.open()))
    assert lines[0] == ["", "", "", "", "", ""]
    assert lines[1] == [
        'a "q", b', "/wA=", '{"x": 1, "m": {"y": "NaN"}}', "0.5", "1500-01-01 00:00:00.000001Z", "0001-01-01",
    ]  # fmt: skip
    with pytest.raises(UsageError) as caught:
        Table(store, name).export(tmp_path / "both.csv", axis="both")
    assert caught.value.code == "no-history"
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".") or "both" in each.name]


@pytest.mark.parametrize(
    ("file", "axis", "code"),
    [
        ("there.csv", "valid", "file-exists"),
        ("no/folder.csv", "valid", "no-file"),
        ("history.json", "valid", "bad-option"),
        ("history.csv", "sideways", "bad-option"),
    ],
)
def test_an_invalid_export_target_is_wrong_usage(tmp_path, file, axis, code):
    """The error is raised before anything is read."""
    (tmp_path / "there.csv").write_text("mine")
    with pytest.raises(UsageError) as caught:
        place(tmp_path / file, axis)
    assert caught.value.code == code
    assert (tmp_path / "there.csv").read_text() == "mine"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_an_export_file_is_complete_or_unchanged(tmp_path, ending):
    """This holds if the rows end with an error halfway, and if the file replaces another."""
    file, batch = tmp_path / f"x.{ending}", pa.RecordBatch.from_pylist([{"k": "a", "n": None}], SCHEMA)
    file.write_text("mine")

    def broken():
        yield batch
        raise ValueError

    with pytest.raises(ValueError):
        write(file, SCHEMA, broken())
    assert [file.read_text(), *tmp_path.iterdir()] == ["mine", file]
    assert write(file, SCHEMA, [batch] * 3) == 3
    assert [*tmp_path.iterdir()] == [file]
    assert write(tmp_path / f"none.{ending}", SCHEMA, []) == 0


def test_a_full_disk_is_reported(tmp_path):
    """The kernel reports a device that is always full."""

    def full():
        with Path("/dev/full").open("wb", buffering=0) as device:
            yield device.write(b"x")

    with pytest.raises(TryAgain, match="disk is full"):
        write(tmp_path / "t.csv", SCHEMA, full())
