"""The unpacked contents of all files below a folder: rows of Parquet, blocks of Avro, and raw bytes."""

import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def holding(folder, *texts):
    """The files below a folder that contain one of the strings."""
    paths = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            content = b"\n".join(unpacked(path))
            paths |= dict.fromkeys([path] * any(text.encode() in content for text in texts))
    return paths


def unpacked(path):
    content = path.read_bytes()
    yield content
    if path.suffix == ".parquet":
        file = pq.ParquetFile(path)
        yield repr(file.read().to_pylist()).encode()
        yield repr(file.metadata.to_dict()).encode()
    if path.suffix == ".avro":
        yield from blocks(content)
    if path.name.endswith(".gz.metadata.json"):
        yield zlib.decompress(content, 31)


def blocks(content):
    """The blocks of an Avro file after its header, which markers of 16 bytes separate."""
    marker = content[-16:]
    place = content.index(marker) + len(marker)
    while place < len(content):
        _, place = number(content, place)
        size, place = number(content, place)
        block = content[place : place + size]
        if b"zstandard" in content[:place]:
            yield pa.CompressedInputStream(pa.BufferReader(block), "zstd").read()
        else:
            yield zlib.decompressobj(-15).decompress(block)
        place += size + len(marker)


def number(content, place):
    value = shift = 0
    while True:
        byte = content[place]
        value, place = value | (byte & 127) << shift, place + 1
        if byte < 128:
            return (value >> 1) ^ -(value & 1), place
        shift += 7
