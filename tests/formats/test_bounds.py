"""A malicious file ends in a clear error, and memory stays within bounds."""

import subprocess
import sys
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delivered_cells import KEY, MARKED, NAME, refusal

from backstory.errors import Refused
from backstory.formats import memory
from backstory.formats import parquet as parquet_batches
from backstory.formats.batch_file import BatchFile, Compression, Encoding, Format
from backstory.formats.delivered import read_files, stream_file
from backstory.formats.memory import Memory, TooLarge
from backstory.formats.parquet import page_sizes
from backstory.model.types import ColumnType
from backstory.testing.sender import encrypt

ZSTD = Encoding(Format.CSV, Compression.ZSTD, False, "(null)", "(same)")
TYPES = {"a": ColumnType.parse("STRING"), "b": ColumnType.parse("LONG")}
READ = """
import resource, sys
from pathlib import Path
from backstory.errors import Refused
from backstory.formats.batch_file import BatchFile, Compression, Encoding, Format
from backstory.formats.delivered import read_files, stream_file
from backstory.model.types import ColumnType
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
    """One frame of all parts. A gzip has no end, because it is never reached."""
    if compression == "gzip":
        return _gzip(list(parts))
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, compression) as stream:
        for part in parts:
            stream.write(part)
    return bytes(sink.getvalue())


def _gzip(parts):
    """After a full flush, a block compresses as before, so each part is compressed once."""
    stream, blocks = zlib.compressobj(wbits=31), {}
    for part in dict.fromkeys(parts):
        blocks[part] = stream.compress(part) + stream.flush(zlib.Z_FULL_FLUSH)
    return b"".join(blocks[part] for part in parts)


def read_elsewhere(path, format_="csv", compression="zstd"):
    """The result of reading the file in a separate process, and the MiB that this took."""
    process = subprocess.run(
        [sys.executable, "-c", READ, path, format_, compression], capture_output=True, text=True, check=True
    )
    *words, size = process.stdout.splitlines()
    return " ".join(words), int(size)


IN_A_LEASE = """
import resource, sys
from pathlib import Path
from backstory.formats.batch_file import BatchFile, Encoding, Format
from backstory.formats.delivered import read_files
from backstory.formats.memory import CLEAR_TEXT_SHARE, Memory, TooLarge
from backstory.model.types import ColumnType
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
columns = {"a": ColumnType.parse("BINARY")}
for path in sys.argv[1:]:
    with Memory(CLEAR_TEXT_SHARE * (16 << 20)).lease() as lease:
        try:
            read_files([BatchFile(Path(path))], Encoding(Format.PARQUET), columns, frozenset("a"), lease)
            print("read")
        except TooLarge:
            print("too large")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before >> 10)
"""


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


@pytest.mark.process
@pytest.mark.parametrize(
    ("parts", "compression", "words", "most"),
    [
        (rows_of_more_than_1_gib, "zstd", "contains more than", 400),
        (rows_of_more_than_1_gib, "gzip", "contains more than", 400),
        (line_of_2_gib, "zstd", "longer than", 1200),
    ],
    ids=["zstd bomb", "gzip bomb", "one long line"],
)
def test_a_bomb_is_refused_within_bounded_memory(tmp_path, parts, compression, words, most):
    path = tmp_path / NAME
    path.write_bytes(compressed(parts(), compression))
    result, size = read_elsewhere(path, compression=compression)
    assert words in result
    assert NAME in result
    assert size < most


@pytest.mark.process
def test_a_parquet_bomb_is_refused_within_bounded_memory(tmp_path):
    """Its rows take almost no space in the file."""
    path = tmp_path / NAME
    text = pa.array(["x" * 1000]).dictionary_encode()
    part = pa.table(
        {"a": pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), 1 << 20), text.dictionary)}
    )
    with pq.ParquetWriter(path, part.schema, compression="zstd") as writer:
        for _ in range(2):
            writer.write_table(part)
    result, size = read_elsewhere(path, "parquet", "off")
    assert "contains more than" in result
    assert size < 1200


@pytest.mark.process
@pytest.mark.parametrize(
    ("type_", "writing"),
    [
        (pa.binary(), {"use_dictionary": True}),
        (pa.binary(1 << 18), {"use_dictionary": True}),
        (pa.binary(), {"use_dictionary": False, "column_encoding": {"a": "DELTA_BYTE_ARRAY"}}),
        (pa.binary(), {"use_dictionary": False, "data_page_size": 1 << 30}),
    ],
    ids=["dictionary", "fixed length", "shared beginnings", "one page"],
)
def test_parquet_is_not_decoded_beyond_the_lease(tmp_path, type_, writing):
    """160 MiB in a few kB, in each encoding of Parquet, exceed a lease of 16 MiB before rows are decoded,
    whatever the footer."""
    path = tmp_path / NAME
    rows = pa.table({"a": pa.array([b"x" * (1 << 18)] * 640, type_)})
    pq.write_table(rows, path, compression="zstd", store_schema=False, **writing)
    assert path.stat().st_size < 1 << 20
    del rows
    process = subprocess.run(
        [sys.executable, "-c", IN_A_LEASE, path], capture_output=True, text=True, check=True
    )
    word, size = process.stdout.splitlines()
    assert word == "too large"
    assert int(size) < 100


@pytest.mark.parametrize(
    "encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "RLE_DICTIONARY"]
)
def test_parquet_reads_the_same_in_pieces_of_any_size(tmp_path, monkeypatch, encoding):
    """This holds for any encoding, and any end of dictionaries and row groups."""
    path = tmp_path / NAME
    rows = pa.table(
        {"a": [None if i % 7 == 0 else f"text {i % 11}" * (i % 13) for i in range(500)], "b": range(500)}
    )
    how = (
        {"use_dictionary": True}
        if encoding == "RLE_DICTIONARY"
        else {"use_dictionary": False, "column_encoding": {"a": encoding}}
    )
    pq.write_table(rows, path, row_group_size=150, data_page_version="2.0", **how)
    for size in (1, 100, 5_000, 1 << 24):
        monkeypatch.setattr(parquet_batches, "PIECE", size)
        parts = list(stream_file(BatchFile(path), Encoding(Format.PARQUET), TYPES, frozenset(TYPES)))
        assert pa.concat_tables(part.values for part in parts).to_pydict() == rows.to_pydict()


def test_page_sizes_agree_with_the_footer(tmp_path):
    """The headers in the file and a correct footer have the same size, whatever is in the pages."""
    path = tmp_path / NAME
    rows = pa.table({"a": [f"text {i}" for i in range(40_000)]})
    for version in ("1.0", "2.0"):
        pq.write_table(rows, path, data_page_version=version, data_page_size=1 << 14)
        chunk = pq.read_metadata(path).row_group(0).column(0)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        sizes = list(page_sizes(path.read_bytes(), start, chunk.total_compressed_size))
        assert len(sizes) > 3
        assert 0 <= chunk.total_uncompressed_size - sum(sizes) < 100 * len(sizes)
        with pytest.raises(ValueError, match=r"."):
            list(page_sizes(path.read_bytes(), start + 1, chunk.total_compressed_size))


def test_a_million_columns_are_refused():
    """The header has names that the table lacks."""
    header = ",".join(f"c{number}" for number in range(1_000_000))
    assert refusal(f"{header}\n", {"a": "STRING"})


def test_a_file_larger_than_the_lease_is_refused(tmp_path):
    """The lease is released completely, so the next delivery fits."""
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
def test_a_streamed_file_has_the_rows_of_a_whole_read(tmp_path, monkeypatch, cells):
    """This holds for any cells, and errors have the same line."""
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
