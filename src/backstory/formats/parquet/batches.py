"""Rows of a Parquet file in batches of bounded size, each measured before it is decoded.

Neither the file's size nor the footer bounds the decoded size, because a thousand rows may share one large
dictionary value. Page sizes are therefore read from the page headers, and texts stay in dictionaries.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

INT32 = 5
LARGEST = 1 << 31
# Headers are nested structs of numbers, flags and texts: for the page, its kind and the statistics.
DEPTH = 4
UNCOMPRESSED, COMPRESSED = 2, 3


def page_sizes(content: bytes, start: int, length: int) -> Iterator[int]:
    """The decompressed size in bytes of each page of a column chunk, including a dictionary page.

    Raises ValueError for an invalid page header.
    """
    place, end = start, start + length
    while place < end:
        try:
            header, place = _struct(content, place, DEPTH)
            size, packed = header[UNCOMPRESSED], header[COMPRESSED]
        except (IndexError, KeyError):
            raise ValueError("no page header") from None
        if not (0 <= size < LARGEST and 0 <= packed < LARGEST):
            raise ValueError("a page of no size")
        yield size
        place += packed


def _struct(content: bytes, place: int, depth: int) -> tuple[dict[int, int], int]:
    """The 32-bit numbers of a struct in Thrift's compact protocol, by field, and the index of its end."""
    if depth == 0:
        raise ValueError("structs in structs")
    numbers: dict[int, int] = {}
    field = 0
    while kind := content[place]:
        place += 1
        if kind >> 4:
            field += kind >> 4
        else:
            number, place = _number(content, place)
            field = _zigzag(number)
        if kind & 15 == INT32:
            number, place = _number(content, place)
            numbers[field] = _zigzag(number)
        else:
            place = _skip_value(content, place, kind & 15, depth)
    return numbers, place + 1


def _skip_value(content: bytes, place: int, kind: int, depth: int) -> int:
    """The index where a value of another kind ends."""
    match kind:
        case 1 | 2:  # a flag, whose kind is its value
            return place
        case 3:  # a byte
            return place + 1
        case 4 | 6:  # an integer
            return _number(content, place)[1]
        case 7:  # a double
            return place + 8
        case 8:  # bytes
            size, place = _number(content, place)
            return place + size
        case 12:
            return _struct(content, place, depth - 1)[1]
    raise ValueError("no field of a page header")


def _number(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:  # noqa: PLR2004 - the last byte
            return value, place
        if shift > 63:  # noqa: PLR2004 - the bits of the largest number
            raise ValueError("a number without an end")


def _zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


ROWS = 1 << 16
# The maximum bytes of a batch, if it has more than one row.
PIECE = 1 << 24
ENTRY = 8  # bytes for a string's index in its dictionary, or for its offset


def batches(
    content: bytes, metadata: pq.FileMetaData, chosen: Sequence[str], count: Callable[[int], None]
) -> Iterator[pa.RecordBatch]:
    """Batches of the chosen columns, which must not be nested. Strings may be dictionary arrays.

    `count` is called with the bytes of the pages that are open at the same time. Before a batch is decoded,
    it is also called with the batch's bytes. Raises ValueError or Arrow's errors for invalid Parquet, and the
    errors of `count`.
    """
    schema = metadata.schema.to_arrow_schema()
    types = {name: _storage(schema.field(name).type) for name in chosen}
    chunks = _chunks(metadata, chosen)
    pages = {name: _pages(content, chunks[name]) for name in chosen}
    count(sum(map(sum, pages.values())))
    grown = {name for name in chosen if _grows(chunks[name])}
    width = sum(_width(types[name], pages[name] if name in grown else ()) for name in chosen)
    as_stored = [name for name in chosen if _is_text(types[name]) and name not in grown]
    parquet = pq.ParquetFile(
        pa.BufferReader(content),
        metadata=metadata,
        read_dictionary=as_stored,
        coerce_int96_timestamp_unit="us",
    )
    for batch in parquet.iter_batches(max(1, min(ROWS, PIECE // width)), columns=list(chosen)):
        for piece, size in _row_slices(batch):
            count(size)
            yield piece


def _chunks(metadata: pq.FileMetaData, chosen: Sequence[str]) -> dict[str, list[pq.ColumnChunkMetaData]]:
    """The chunks of each chosen column, found in one pass over the footer."""
    chunks: dict[str, list[pq.ColumnChunkMetaData]] = {name: [] for name in chosen}
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            if (name := chunk.path_in_schema) in chunks:
                chunks[name].append(chunk)
    return chunks


def _pages(content: bytes, chunks: Sequence[pq.ColumnChunkMetaData]) -> list[int]:
    """The sizes of a column's two largest pages: at most two are open, one of them a dictionary."""
    largest: list[int] = []
    for chunk in chunks:
        starts = [chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset]
        for size in page_sizes(content, min(starts), chunk.total_compressed_size):
            largest = sorted([*largest, size])[-2:]
    return largest


def _grows(chunks: Sequence[pq.ColumnChunkMetaData]) -> bool:
    """Whether a column has delta encodings, whose decoded values may be larger than their encoding."""
    encodings = {encoding for chunk in chunks for encoding in chunk.encodings}
    return bool(encodings & {"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"})


def _width(type_: pa.DataType, pages: Sequence[int]) -> int:
    """The maximum size in bytes of a value in a batch. No value is longer than its page."""
    if pages:
        return ENTRY + max(pages)
    return ENTRY if _is_text(type_) or pa.types.is_null(type_) else 1 + type_.bit_width // 8


def _storage(type_: pa.DataType) -> pa.DataType:
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


def _is_text(type_: pa.DataType) -> bool:
    inner = type_.value_type if pa.types.is_dictionary(type_) else type_
    tests = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    return any(test(inner) for test in tests)


def _row_slices(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Slices of the batch with about `PIECE` decoded bytes each, and their sizes."""
    if not batch.num_rows:
        return
    ends = np.cumsum(sum((_sizes(column) for column in batch.columns), np.zeros(batch.num_rows)))
    borders = np.flatnonzero(np.diff(ends // PIECE)) + 1
    for first, after in pairwise([0, *borders.tolist(), batch.num_rows]):
        before = ends[first - 1] if first else 0
        yield batch.slice(first, after - first), int(ends[after - 1] - before)


def _sizes(column: pa.Array) -> np.ndarray:
    """The decoded size in bytes of each value of a column."""
    if not pa.types.is_dictionary(column.type) or not _is_text(column.type):
        return np.full(len(column), column.nbytes / max(len(column), 1))
    lengths = pc.fill_null(pc.binary_length(column.dictionary), 0)
    return np.asarray(pc.fill_null(lengths.take(column.indices), 0)).astype(np.float64) + ENTRY
