"""A file that is no honest delivery ends in a clear error, and memory stays within bounds."""

import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from files.reading import KEY, MARKED, NAME, refusal

from backstory.doors.fivetran.sender.batch_files import encrypt
from backstory.errors import Refused
from backstory.files import memory
from backstory.files.batch_file import BatchFile, Compression, Encoding, Format
from backstory.files.delivered import read_files, stream_file
from backstory.files.memory import Memory, TooLarge
from backstory.model.column import ColumnType

ZSTD = Encoding(Format.CSV, Compression.ZSTD, False, "(null)", "(same)")
TYPES = {"a": ColumnType.parse("STRING"), "b": ColumnType.parse("LONG")}
READ = """
import resource, sys
from pathlib import Path
from backstory.errors import Refused
from backstory.files.batch_file import BatchFile, Compression, Encoding, Format
from backstory.files.delivered import read_files, stream_file
from backstory.model.column import ColumnType
encoding = Encoding(Format(sys.argv[2]), Compression(sys.argv[3]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    for _ in stream_file(BatchFile(Path(sys.argv[1])), encoding, {"a": ColumnType.parse("STRING")}, frozenset("a")):
        pass
    print("read")
except Refused as refused:
    print(refused)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before >> 10)
"""


def compressed(parts, compression):
    """One frame of all the parts."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, compression) as stream:
        for part in parts:
            stream.write(part)
    return bytes(sink.getvalue())


def read_elsewhere(path, format_="csv", compression="zstd"):
    """How reading the file in a process of its own ends, and how many MiB that took."""
    told = subprocess.run(
        [sys.executable, "-c", READ, path, format_, compression], capture_output=True, text=True, check=True
    )
    *words, size = told.stdout.splitlines()
    return " ".join(words), int(size)


def rows_of_more_than_1_gib():
    yield b"a\n"
    block = (b"x" * 1023 + b"\n") * (1 << 11)
    for _ in range(600):
        yield block


def line_of_2_gib():
    yield b"a\n"
    block = b"x" * (1 << 21)
    for _ in range(1 << 10):
        yield block


@pytest.mark.parametrize(
    ("parts", "compression", "words", "most"),
    [
        (rows_of_more_than_1_gib, "zstd", "holds more than", 400),
        (rows_of_more_than_1_gib, "gzip", "holds more than", 400),
        (line_of_2_gib, "zstd", "longer than", 1200),
    ],
    ids=["zstd bomb", "gzip bomb", "one long line"],
)
def test_a_bomb_is_refused_within_bounded_memory(tmp_path, parts, compression, words, most):
    path = tmp_path / NAME
    path.write_bytes(compressed(parts(), compression))
    told, size = read_elsewhere(path, compression=compression)
    assert words in told
    assert NAME in told
    assert size < most


def test_a_parquet_bomb_is_refused_within_bounded_memory(tmp_path):
    """Rows that take no room in the file."""
    path = tmp_path / NAME
    text = pa.array(["x" * 1000]).dictionary_encode()
    part = pa.table(
        {"a": pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), 1 << 20), text.dictionary)}
    )
    with pq.ParquetWriter(path, part.schema, compression="zstd") as writer:
        for _ in range(2):
            writer.write_table(part)
    told, size = read_elsewhere(path, "parquet", "off")
    assert "holds more than" in told
    assert size < 1200


def test_a_million_columns_are_refused():
    """A header of names that the table has not."""
    header = ",".join(f"c{number}" for number in range(1_000_000))
    assert refusal(f"{header}\n", {"a": "STRING"})


def test_what_a_lease_cannot_hold_is_too_large(tmp_path):
    """And all of it is given back, so that the next delivery finds room."""
    path = tmp_path / NAME
    path.write_bytes(b"a,b\n" + b"text,1\n" * 10_000)
    room = Memory(100_000 * memory.CLEAR_TEXT_SHARE)
    file, wanted = BatchFile(path), frozenset(TYPES)
    for _ in range(3):
        with room.lease() as lease:
            [(_, rows)] = read_files([file], MARKED, TYPES, wanted, lease)
            assert rows.count == 10_000
            with pytest.raises(TooLarge), room.lease() as other:
                read_files([file], MARKED, TYPES, wanted, other)


@pytest.mark.parametrize("cells", ["text,1\n", "(same),1\n", 'text,"seven"\n'])
def test_a_streamed_file_reads_as_a_whole_one(tmp_path, monkeypatch, cells):
    """Whatever the cells; an error names the same line."""
    path = tmp_path / NAME
    path.write_bytes(
        encrypt(b"a,b\n" + b"line,7\n" * 500_000 + cells.encode() + b"last,9\n" * 500_000, KEY, b"i" * 16)
    )
    encoding = Encoding(Format.CSV, Compression.OFF, True, "(null)", "(same)")
    file, wanted = BatchFile(path, KEY), frozenset(TYPES)

    def read(reader):
        try:
            return [(rows.values, rows.known) for rows in reader()]
        except Refused as refused:
            return str(refused)

    whole = read(lambda: [rows for _, rows in read_files([file], encoding, TYPES, wanted)])
    parts = read(lambda: list(stream_file(file, encoding, TYPES, wanted)))
    if isinstance(whole, str):
        assert parts == whole
        assert "line 500002" in whole
    else:
        assert len(parts) > 1
        assert pa.concat_tables(values for values, _ in parts).equals(whole[0][0])
        assert pa.concat_tables(known for _, known in parts).equals(whole[0][1])
