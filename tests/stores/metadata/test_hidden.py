"""The rows that delete files hide, and deletes that are not supported."""

import struct

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent, FileFormat
from pyroaring import BitMap64

from backstory.stores.metadata.moves import deleted_positions
from backstory.stores.metadata.table_metadata import (
    PATH_FIELD,
    Unreadable,
    may_delete_from,
    vector_bytes,
)
from backstory.stores.table_files import TableFiles

MARKED = BitMap64([1, 1 << 40])


def file(path, format_=FileFormat.PUFFIN, content=DataFileContent.POSITION_DELETES, **more):
    """A file in a manifest of format version 3."""
    values = {"content": content, "file_path": path, "file_format": format_, **more}
    data_file = DataFile.from_args(3)
    data_file._data = [values.get(each.name) for each in DATA_FILE_TYPE[3].fields]
    return data_file


def vector(path, content, of="data"):
    return file(path, referenced_data_file=of, content_offset=4, content_size_in_bytes=len(content))


@pytest.fixture
def hidden(tmp_path, monkeypatch):
    """The rows hidden by delete files of this content in the working folder."""
    monkeypatch.chdir(tmp_path)

    def read(contents, *files):
        for path, content in contents.items():
            (tmp_path / path).write_bytes(content)
        rows = deleted_positions(files, TableFiles().read)
        return {name: list(positions) for name, positions in rows.items()}

    return read


def test_vectors_and_position_deletes_give_the_hidden_rows(hidden):
    blob = vector_bytes(MARKED)
    older = pa.BufferOutputStream()
    pq.write_table(pa.table({"file_path": ["data", "other", "other"], "pos": [7, 2, 3]}), older)
    contents = {"v": b"PFA1" + blob + b"of another file", "p": older.getvalue().to_pybytes()}
    assert hidden(contents, vector("v", blob), file("p", FileFormat.PARQUET)) == {
        "data": list(MARKED),
        "other": [2, 3],
    }


def test_damaged_and_unsupported_delete_files_are_left_to_spark(hidden):
    blob = vector_bytes(MARKED)
    spoilt = blob[:-4] + struct.pack(">I", 1)
    for contents, delete_file in (
        ({"v": b"PFA1" + spoilt}, vector("v", spoilt)),
        ({"v": b""}, file("v")),
        ({"e": b""}, file("e", FileFormat.PARQUET, DataFileContent.EQUALITY_DELETES)),
        ({"a": b""}, file("a", FileFormat.AVRO)),
        ({"c": b""}, file("c", FileFormat.PARQUET, key_metadata=b"key")),
    ):
        with pytest.raises(Unreadable):
            hidden(contents, delete_file)


def test_deletes_of_other_files_are_excluded_by_the_manifest():
    """A delete file applies to the file that its manifest names, to files in its bounds, or to any file."""
    within = {"lower_bounds": {PATH_FIELD: b"c"}, "upper_bounds": {PATH_FIELD: b"e"}}
    files = [
        vector("vector", b""),
        vector("vector of another file", b"", of="other"),
        file("any", FileFormat.PARQUET),
        file("some", FileFormat.PARQUET, **within),
        file("another", FileFormat.PARQUET, referenced_data_file="other", **within),
    ]
    assert [each.file_path for each in files if may_delete_from(each, [b"data"])] == ["vector", "any", "some"]
    assert not any(may_delete_from(each, [b"b", b"f"]) for each in files if each.file_path != "any")
