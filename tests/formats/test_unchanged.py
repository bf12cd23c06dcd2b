"""A file that is written while it is read never gives a mixture of two states (law 8)."""

import gzip
import os
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backstory.errors import Failed
from backstory.formats.batch_file import require_unchanged, stamp_of
from backstory.formats.options import CsvOptions, JsonOptions, ParquetOptions
from backstory.formats.reading import rows_of
from backstory.formats.source_files import source_files, unpack


def csv(path, value):
    path.write_text("id,v\n" + "".join(f"{number},{value}\n" for number in range(100)))


def json(path, value):
    path.write_text("".join(f'{{"id": {number}, "v": "{value}"}}\n' for number in range(100)))


def parquet(path, value):
    pq.write_table(pa.table({"id": range(100), "v": [value] * 100}), path)


FORMATS = {
    "csv": (csv, CsvOptions(header=True)),
    "jsonl": (json, JsonOptions(lines=True)),
    "parquet": (parquet, ParquetOptions()),
}


def grown(path, write):
    with path.open("ab") as file:
        file.write(b"\n")


def rewritten(path, write):
    before = path.stat()
    write(path, "y")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def replaced(path, write):
    """Replace the file with another one of the same size and time."""
    before, other = path.stat(), path.with_suffix(".new")
    write(other, "y")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def removed(path, write):
    path.unlink()


CHANGES = [grown, rewritten, replaced, removed]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("format_", FORMATS)
def test_rows_of_a_changing_file_are_refused(tmp_path, format_, change):
    """In any format, the error is raised at the last row. An unchanged file is read."""
    (write, options), path = FORMATS[format_], tmp_path / f"a.{format_}"
    write(path, "x")
    assert sum(len(each) for each in rows_of(path, "a", options, None).batches) == 100
    rows = rows_of(path, "a", options, None)
    change(path, write)
    with pytest.raises(Failed) as refused:
        list(rows.batches)
    assert refused.value.code == "source-changed"


@pytest.mark.parametrize("change", CHANGES[:3])
@pytest.mark.parametrize("ending", ["csv", "csv.gz", "csv.zip"])
def test_a_file_changed_after_unpacking_is_refused(tmp_path, ending, change):
    """The source's file counts, not its unpacked content."""
    path = tmp_path / f"a.{ending}"

    def write(target, value):
        if ending.endswith("gz"):
            target.write_bytes(gzip.compress(f"id\n{value}\n".encode()))
        elif ending.endswith("zip"):
            with zipfile.ZipFile(target, "w") as archive:
                archive.writestr("a.csv", f"id\n{value}\n")
        else:
            target.write_text(f"id\n{value}\n")

    write(path, "x")
    (file,) = source_files(str(path)).files
    ready = unpack(file, tmp_path)
    require_unchanged([ready.stamp])
    change(path, write)
    with pytest.raises(Failed, match=r"a\.csv.* changed while it was read"):
        require_unchanged([ready.stamp])
    assert stamp_of(path) != ready.stamp
