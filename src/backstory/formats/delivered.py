"""The batch files of a delivery as typed rows of a table (sections 2.8, 3.2 and 3.4, H7)."""

from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backstory.errors import MAX_KEYS, Refused
from backstory.formats.batch_file import BatchFile, Encoding, Format
from backstory.formats.csv.table import CsvTable, RowBlock, csv_table, delivered_source
from backstory.formats.memory import MemoryLease, Meter
from backstory.formats.options import CsvOptions
from backstory.formats.parquet import batches, legacy_columns, refuse_legacy
from backstory.formats.rows import RAW, ROUNDED, Mended, Rows, arrow_type
from backstory.formats.values.cells import (
    UnreadableCell,
    convert_cells,
    invalid_base64,
    null_where_empty,
    with_points,
)
from backstory.formats.values.exactly import as_type, bare, from_stored, parse_leniently
from backstory.formats.values.texts import WITH_POINT
from backstory.model.layout import ROW_ID, SYSTEM_COLUMNS
from backstory.model.table import Column
from backstory.model.types import ColumnType, Kind

LONGEST = 128


def chosen_columns(
    file: str, header: Sequence[str], columns: Container[str], wanted: Collection[str]
) -> list[str]:
    """The wanted columns in the header, in the header's order.

    A Fivetran system column that the table lacks is ignored. Raises Refused for any other column that the
    table lacks, and for a repeated name. Raises Refused for a header without any wanted column, because its
    rows would be silently skipped.
    """
    known = [name for name in header if name in columns or name in SYSTEM_COLUMNS]
    if header and not known:
        # This line may be a row of values, so the error does not show it.
        raise Refused(
            "no-header",
            f"{file}, line 1: the header names no column of the table.",
            "Nothing was written; send the batch again with a header, and with its own key.",
        )
    refuse_repeated(file, header, "Nothing was written; send the batch again with one column for each name.")
    unknown = [name for name in header if name not in known]
    if unknown:
        raise Refused(
            "unknown-column",
            f"{file}, line 1: the table has no column {_name_list(unknown)}.",
            "Nothing was written; add the column to the table first.",
        )
    chosen = [name for name in header if name in columns and name in wanted]
    if header and not chosen:
        raise Refused(
            "missing-column",
            f"{file}, line 1: the header lacks {_name_list(sorted(wanted))}.",
            "Nothing was written; send the batch again with the columns that its rows need.",
        )
    return chosen


def refuse_repeated(file: str, header: Sequence[str], remedy: str) -> None:
    """Raise Refused if a column name is repeated, because it would be ambiguous."""
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        message = f"{file}, line 1: the header names {_name_list(twice)} more than once."
        raise Refused("repeated-column", message, remedy)


def _name_list(names: Sequence[str]) -> str:
    shown = ", ".join(name[:LONGEST] for name in names[:MAX_KEYS])
    return shown if len(names) <= MAX_KEYS else f"{shown} and {len(names) - MAX_KEYS} more"


THREADS: Final = 2
# Types with a value for an empty cell; in any other type it is NULL (O27).
EMPTY_IS_A_VALUE: Final = {Kind.STRING, Kind.JSON, Kind.XML, Kind.BINARY}


def read_csv(
    file: BatchFile,
    encoding: Encoding,
    columns: Mapping[str, ColumnType],
    wanted: frozenset[str],
    lease: MemoryLease | None = None,
) -> Iterator[Rows]:
    """The rows of a delivered file, with the wanted columns of its header.

    An empty file has no rows. Raises Refused with the file and line for broken CSV, an unreadable cell or an
    unknown column. Raises TooLarge if the lease is exceeded.
    """
    source = delivered_source(file, encoding, lease)
    table = csv_table(source, CsvOptions(null=encoding.null_string or None, quoted_null=True))
    if table.empty:
        return
    if table.names is None:
        raise file.unreadable("line 1 is not a header; the key may be wrong")
    chosen = chosen_columns(file.name, table.names, columns, wanted)
    texts = frozenset(name for name in chosen if columns[name].kind in EMPTY_IS_A_VALUE)
    wanted_table = WantedTable({name: columns[name] for name in chosen}, texts, encoding.unmodified_string)
    yield from typed_csv_rows(table, wanted_table, file)


@dataclass(frozen=True, slots=True)
class WantedTable:
    """The wanted columns of a table and the rules for their cells.

    Attributes:
        types: the columns and their types.
        texts: the columns in which an empty string is a value; in other columns it is NULL (O27).
        unmodified: the content of an unmodified cell, or empty if no cell is unmodified.
        exact: whether any loss in a cell is refused.
    """

    types: Mapping[str, ColumnType]
    texts: frozenset[str]
    unmodified: str = ""
    exact: bool = False


def typed_csv_rows(table: CsvTable, wanted: WantedTable, file: BatchFile) -> Iterator[Rows]:
    """The rows in blocks, so that memory does not grow with the number of rows.

    Raises Refused for broken CSV and for an unreadable cell.
    """
    return _in_order(partial(_csv_cells, table, wanted, file), table.pieces())


def _in_order(work: Callable[[RowBlock], Rows], pieces: Iterator[RowBlock]) -> Iterator[Rows]:
    """The results of `work` in the order of the blocks. Parsing threads release the interpreter lock."""

    def submit_all(pool: ThreadPoolExecutor) -> Iterator[Future[Rows]]:
        try:
            for piece in pieces:
                yield pool.submit(work, piece)
        except Refused as refused:  # errors in earlier blocks are raised first
            stop = Future[Rows]()
            stop.set_exception(refused)
            yield stop

    waiting = deque[Future[Rows]]()
    with ThreadPoolExecutor(THREADS) as pool:
        for result in submit_all(pool):
            waiting.append(result)
            if len(waiting) > THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _csv_cells(table: CsvTable, wanted: WantedTable, file: BatchFile, piece: RowBlock) -> Rows:
    names = table.names or []
    text = table.texts(piece, [names.index(name) for name in wanted.types])
    marker, values, known, mended = wanted.unmodified, {}, {}, Mended()
    if '"' not in marker and marker.encode() not in piece.text:
        marker = ""  # no cell of the block is unmodified
    for (name, type_), column in zip(wanted.types.items(), text.columns, strict=True):
        cells, known[name] = split_unmodified(column.combine_chunks(), marker)
        mended[file.name, "", RAW] += invalid_base64(cells) if type_.kind is Kind.BINARY else 0
        cells = cells if name in wanted.texts else null_where_empty(cells)
        if table.options.forms.decimal == "," and type_.kind in WITH_POINT:
            cells = with_points(cells)
        try:
            values[name], mended[file.name, name, ROUNDED] = parse_leniently(cells, type_, exact=wanted.exact)
        except UnreadableCell as cell:
            line = table.line_of(piece, cell.row)
            raise file.unreadable_cell(f"line {line}", name, type_) from None
    return Rows(pa.table(values), pa.table(known), +mended)


def split_unmodified(cells: pa.Array, marker: str | bytes) -> tuple[pa.Array, pa.Array]:
    """The cells with NULL for unmodified cells, and a mask that is false for unmodified cells."""
    if not marker:
        return cells, pa.repeat(pa.scalar(True), len(cells))
    known = pc.fill_null(pc.not_equal(cells, marker), True)
    return pc.if_else(known, cells, pa.scalar(None, cells.type)), known


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

    return typed_parquet_rows(file, encoding, choose, Meter(file, lease).add)


def typed_parquet_rows(
    file: BatchFile,
    encoding: Encoding,
    chosen: Callable[[Sequence[str]], Mapping[str, ColumnType]],
    count: Count,
    *,
    exact: bool = False,
) -> Iterator[Rows]:
    """The rows of a Parquet file with the chosen columns, in batches of bounded size.

    The whole unpacked file is in memory, because Parquet is read from its end. `count` is called with the
    bytes of the file and of each batch. Raises Refused with the file and row for an unreadable value or a
    file that is not Parquet.
    """
    first = 0
    for batch, types in _parquet_batches(file, encoding, chosen, count):
        yield _parquet_cells(file, encoding, types, batch, first, exact=exact)
        first += batch.num_rows


def _parquet_batches(
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


def _parquet_cells(
    file: BatchFile,
    encoding: Encoding,
    types: Mapping[str, ColumnType],
    batch: pa.RecordBatch,
    first: int,
    *,
    exact: bool,
) -> Rows:
    """The rows of a batch that begins at row `first`."""
    values, known, mended = {}, {}, Mended()
    for name in batch.schema.names:
        type_ = types[name]
        try:
            cells, known[name] = _without_markers(convert_cells(batch[name], bare), encoding)
            if type_.kind is Kind.BINARY and pa.types.is_string(cells.type):
                mended[file.name, "", RAW] += invalid_base64(cells)
            values[name], mended[file.name, name, ROUNDED] = from_stored(cells, type_, exact=exact)
        except UnreadableCell as cell:
            raise file.unreadable_cell(f"row {first + cell.row + 1}", name, type_) from None
    return Rows(pa.table(values), pa.table(known), +mended)


def _without_markers(cells: pa.Array, encoding: Encoding) -> tuple[pa.Array, pa.Array]:
    """The cells with NULL for markers, and a mask that is false for unmodified cells.

    In a binary column, the markers are compared as bytes.
    """
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


_READERS = {Format.CSV: read_csv, Format.PARQUET: read_parquet}


def arrow_schema(columns: Mapping[str, ColumnType]) -> pa.Schema:
    """The Arrow schema of columns with these types."""
    return pa.schema([pa.field(name, arrow_type(type_)) for name, type_ in columns.items()])


def rows_as(columns: Iterable[Column], rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Convert a few rows to an Arrow table with these columns. Missing values are NULL."""
    schema = arrow_schema({column.name: column.type for column in columns})
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema)


def shape_rows(rows: pa.Table, columns: Iterable[Column], *, ids: bool = False) -> pa.Table:
    """The rows with exactly these columns, and with row ids if the rows have them or `ids` is set.

    Missing columns, and missing ids, are NULL.
    """
    row_id = [pa.field(ROW_ID, pa.int64())] if ids or ROW_ID in rows.column_names else []
    named = arrow_schema({column.name: column.type for column in columns})
    return in_schema(rows, pa.schema([*named, *row_id]))


def in_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with exactly these columns and types. Missing columns and struct fields are NULL."""
    present = set(rows.column_names)
    values = [
        _in_type(rows[field.name], field.type) if field.name in present else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(values, schema=schema)


def _in_type(values: pa.ChunkedArray, type_: pa.DataType) -> pa.Array | pa.ChunkedArray:
    is_other = pa.types.is_struct(type_) and values.type != type_
    return as_type(values.combine_chunks(), type_) if is_other else values.cast(type_)


def read_files(
    files: Sequence[BatchFile],
    encoding: Encoding,
    columns: Mapping[str, ColumnType],
    wanted: frozenset[str],
    lease: MemoryLease | None = None,
) -> list[tuple[BatchFile, Rows]]:
    """The files that have rows, in order, each with its rows.

    Files are read in parallel threads, because decryption, decompression and parsing release the interpreter
    lock. Raises Refused for the first file in order that cannot be read. Raises TooLarge if the rows exceed
    the lease.
    """

    def whole(file: BatchFile) -> Rows | None:
        parts: Iterator[Rows] = _READERS[encoding.format](file, encoding, columns, wanted, lease)
        collected = list(parts)
        return Rows.join(collected) if collected else None

    with ThreadPoolExecutor(THREADS) as pool:
        read = zip(files, pool.map(whole, files), strict=True)
        return [(file, rows) for file, rows in read if rows is not None and rows.count]


def stream_file(
    file: BatchFile, encoding: Encoding, columns: Mapping[str, ColumnType], wanted: frozenset[str]
) -> Iterator[Rows]:
    """The rows of one file in order, in parts. Memory does not grow with the number of rows."""
    return _READERS[encoding.format](file, encoding, columns, wanted)
