"""Rows of a Parquet file as typed values of a table's columns (section 3.4, decision H7)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backstory.formats.csv.typed_rows import chosen_columns, split_unmodified
from backstory.formats.memory import MemoryLease, Meter
from backstory.formats.parquet.batches import batches
from backstory.formats.parquet.calendars import legacy_columns, refuse_legacy
from backstory.formats.rows import RAW, ROUNDED, Mended, Rows
from backstory.formats.values.base64_cells import invalid_base64
from backstory.formats.values.cells import UnreadableCell
from backstory.formats.values.stored import DELIVERED, Leniency, bare, from_stored
from backstory.formats.wrapping.batch_file import BatchFile, Encoding
from backstory.model.types import ColumnType, Kind

WINDOW: Final = 1 << 20
Count = Callable[[int], None]


def read_parquet(
    file: BatchFile,
    encoding: Encoding,
    columns: Mapping[str, ColumnType],
    wanted: frozenset[str],
    lease: MemoryLease | None = None,
) -> Iterator[Rows]:
    """The rows of a delivered file, with the wanted columns.

    Raises Refused with the file and row for an unreadable value, an unknown column or a file that is not
    Parquet. Raises TooLarge if the lease is exceeded.
    """

    def choose(names: Sequence[str]) -> Mapping[str, ColumnType]:
        return {name: columns[name] for name in chosen_columns(file.name, names, columns, wanted)}

    return typed_rows(file, encoding, choose, DELIVERED, Meter(file, lease).add)


def typed_rows(
    file: BatchFile,
    encoding: Encoding,
    chosen: Callable[[Sequence[str]], Mapping[str, ColumnType]],
    leniency: Leniency,
    count: Count,
) -> Iterator[Rows]:
    """The rows as values of the chosen columns, in batches of bounded size.

    The whole unpacked file is in memory, because Parquet is read from its end. `count` is called with the
    bytes of the file and of each batch. Raises Refused with the file and row for an unreadable value or a
    file that is not Parquet.
    """
    first = 0
    for batch, types in _batches(file, encoding, chosen, count):
        yield _cells(file, encoding, types, batch, first, leniency)
        first += batch.num_rows


def _batches(
    file: BatchFile,
    encoding: Encoding,
    chosen: Callable[[Sequence[str]], Mapping[str, ColumnType]],
    count: Count,
) -> Iterator[tuple[pa.RecordBatch, Mapping[str, ColumnType]]]:
    try:
        content = _content(file, encoding, count)
        if not content:
            return
        metadata = pq.read_metadata(pa.BufferReader(content))
        schema = metadata.schema.to_arrow_schema()
        types = chosen(schema.names)
        nested = [name for name in types if pa.types.is_nested(schema.field(name).type)]
        if nested and metadata.num_rows:
            raise file.unreadable_cell("row 1", nested[0], types[nested[0]])
        if types and metadata.num_rows:
            legacy = legacy_columns(pq.ParquetFile(pa.BufferReader(content), metadata=metadata))
            for batch in batches(content, metadata, list(types), count):
                for name in legacy & types.keys():
                    refuse_legacy(batch[name], name, file.name, metadata.metadata)
                yield batch, types
    except (pa.ArrowException, OSError, ValueError):
        raise file.unreadable("it is not Parquet; the key may be wrong") from None


def _content(file: BatchFile, encoding: Encoding, count: Count) -> bytes:
    parts = []
    with file.open(encoding) as stream:
        while part := stream.read(WINDOW):
            count(len(part))
            parts.append(part)
    return b"".join(parts)


def _cells(
    file: BatchFile,
    encoding: Encoding,
    types: Mapping[str, ColumnType],
    batch: pa.RecordBatch,
    first: int,
    leniency: Leniency,
) -> Rows:
    """The rows of a batch that begins at row `first`."""
    values, known, mended = {}, {}, Mended()
    for name in batch.schema.names:
        type_ = types[name]
        cells, known[name] = _without_markers(bare(batch[name]), encoding)
        if type_.kind is Kind.BINARY and pa.types.is_string(cells.type):
            mended[file.name, "", RAW] += invalid_base64(cells)
        try:
            values[name], mended[file.name, name, ROUNDED] = from_stored(cells, type_, leniency)
        except UnreadableCell as cell:
            raise file.unreadable_cell(f"row {first + cell.row + 1}", name, type_) from None
    return Rows(pa.table(values), pa.table(known), +mended)


def _without_markers(cells: pa.Array, encoding: Encoding) -> tuple[pa.Array, pa.Array]:
    """The cells with NULL for markers, and whether each cell has a value. Markers may be bytes."""
    null: str | bytes = encoding.null_string
    unmodified: str | bytes = encoding.unmodified_string
    if pa.types.is_binary(cells.type):
        null, unmodified = encoding.null_string.encode(), encoding.unmodified_string.encode()
    elif not pa.types.is_string(cells.type):
        return cells, pa.repeat(pa.scalar(True), len(cells))
    if null:
        is_null = pc.fill_null(pc.equal(cells, null), True)
        cells = pc.if_else(is_null, pa.scalar(None, cells.type), cells)
    return split_unmodified(cells, unmodified)
