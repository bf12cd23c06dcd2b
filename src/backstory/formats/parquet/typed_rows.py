"""Parquet batch files (section 3.4): typed columns, or text columns that may hold the markers."""

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backstory.formats.csv.header import chosen_columns
from backstory.formats.csv.typed_rows import split_unmodified
from backstory.formats.memory import Lease, Meter
from backstory.formats.parquet.batches import batches
from backstory.formats.rows import Rows, arrow_type
from backstory.formats.values.base64_cells import invalid_base64
from backstory.formats.values.cells import (
    UnreadableCell,
    finish,
    first_failing,
    parse,
    parse_rounding,
    parser_type,
    rounded_to,
)
from backstory.formats.values.mended import RAW, ROUNDED, Mended
from backstory.formats.wrapping.batch_file import BatchFile, Encoding
from backstory.model.types import TEXT_KINDS, ColumnType, Kind

WINDOW = 1 << 20


def read_parquet(
    file: BatchFile,
    encoding: Encoding,
    columns: Mapping[str, ColumnType],
    wanted: frozenset[str],
    lease: Lease | None = None,
) -> Iterator[Rows]:
    """The file's rows, with the columns that are wanted, a bounded piece at a time.

    The clear file is held in memory as a whole, since Parquet is read from its end. Raises Refused
    with the file and row for an unreadable value, an unknown column or a file that is no Parquet,
    TooLarge for more than the lease can hold.
    """
    first, meter = 0, Meter(file, lease)
    for batch in _batches(file, encoding, columns, wanted, meter):
        rows = _cells(file, encoding, columns, batch, first)
        first += batch.num_rows
        yield rows


def _batches(
    file: BatchFile,
    encoding: Encoding,
    columns: Mapping[str, ColumnType],
    wanted: frozenset[str],
    meter: Meter,
) -> Iterator[pa.RecordBatch]:
    try:
        content = _content(file, encoding, meter)
        if not content:
            return
        metadata = pq.read_metadata(pa.BufferReader(content))
        schema = metadata.schema.to_arrow_schema()
        chosen = chosen_columns(file.name, schema.names, columns, wanted)
        nested = [name for name in chosen if pa.types.is_nested(schema.field(name).type)]
        if nested and metadata.num_rows:
            raise file.unreadable_cell("row 1", nested[0], columns[nested[0]])
        if chosen and metadata.num_rows:
            yield from batches(content, metadata, chosen, meter)
    except (pa.ArrowException, OSError, ValueError):
        raise file.unreadable("it is not Parquet; the key may be wrong") from None


def _content(file: BatchFile, encoding: Encoding, meter: Meter) -> bytes:
    parts = []
    with file.open(encoding) as stream:
        while part := stream.read(WINDOW):
            meter.add(len(part))
            parts.append(part)
    return b"".join(parts)


def _cells(
    file: BatchFile,
    encoding: Encoding,
    columns: Mapping[str, ColumnType],
    batch: pa.RecordBatch,
    first: int,
) -> Rows:
    """A batch as values, from row `first` on."""
    values, known, mended = {}, {}, Mended()
    for name in batch.schema.names:
        type_ = columns[name]
        cells, known[name] = _without_markers(_plain(batch[name]), encoding)
        if type_.kind is Kind.BINARY and pa.types.is_string(cells.type):
            mended[file.name, "", RAW] += invalid_base64(cells)
        try:
            values[name], mended[file.name, name, ROUNDED] = _typed(cells, type_)
        except UnreadableCell as cell:
            raise file.unreadable_cell(f"row {first + cell.row + 1}", name, type_) from None
    return Rows(pa.table(values), pa.table(known), +mended)


def _plain(cells: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if pa.types.is_large_string(cells.type):
        return cells.cast(pa.string())
    return cells.cast(pa.binary()) if pa.types.is_large_binary(cells.type) else cells


def _without_markers(cells: pa.Array, encoding: Encoding) -> tuple[pa.Array, pa.Array]:
    """The cells with NULL for markers, and whether each carries a value; binary ones hold bytes."""
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


def _typed(cells: pa.Array, type_: ColumnType) -> tuple[pa.Array, int]:
    """The cells as values of the type, and how many decimals among them were rounded (F18)."""
    if pa.types.is_string(cells.type):
        return parse_rounding(cells, type_)
    if pa.types.is_null(cells.type):
        return pa.nulls(len(cells), arrow_type(type_)), 0
    if not _fits(cells.type, type_):
        raise UnreadableCell(0)
    if type_.kind is Kind.DECIMAL and pa.types.is_floating(cells.type):
        # By the number's shortest text, which is what a CSV file would hold.
        return parse_rounding(cells.cast(pa.string()), type_)
    if type_.kind is Kind.DECIMAL and pa.types.is_decimal(cells.type):
        return rounded_to(cells, type_)
    return _as_they_are(cells, type_), 0


def _as_they_are(cells: pa.Array, type_: ColumnType) -> pa.Array:
    """The cells as values of the type; only from types whose values it can hold without a change."""
    if type_.kind in TEXT_KINDS:
        try:
            return parse(cells.cast(pa.string()), type_)
        except pa.ArrowInvalid:
            raise UnreadableCell(first_failing(cells, lambda part: part.cast(pa.string()))) from None
    if type_.kind is Kind.BINARY:
        return cells

    def converted(part: pa.Array) -> pa.Array:
        if pa.types.is_temporal(part.type):
            return _time(part, type_)
        return _number(part, type_)

    try:
        return converted(cells)
    except pa.ArrowInvalid:
        raise UnreadableCell(first_failing(cells, converted)) from None


def _time(cells: pa.Array, type_: ColumnType) -> pa.Array:
    if pa.types.is_timestamp(cells.type) and cells.type.unit == "ns":
        cells = pc.floor_temporal(cells, unit="microsecond")
    return finish(pa.chunked_array([cells.cast(parser_type(type_))]), type_).combine_chunks()


def _number(cells: pa.Array, type_: ColumnType) -> pa.Array:
    """The same numbers in another type; pa.ArrowInvalid where one would not be the same."""
    narrow = pa.int16() if type_.kind is Kind.SHORT else arrow_type(type_)
    if type_.kind is Kind.DECIMAL and pa.types.is_integer(cells.type):
        value = cells.cast(pa.decimal128(38, type_.scale)).cast(narrow)
    else:
        value = cells.cast(narrow).cast(arrow_type(type_))
    back = value.cast(cells.type)
    same = pc.equal(back, cells)
    if pa.types.is_floating(cells.type):
        same = pc.or_(same, pc.and_(pc.is_nan(back), pc.is_nan(cells)))
    if not pc.all(same, min_count=0).as_py():
        raise pa.ArrowInvalid("a number does not fit")
    return value


def _fits(stored: pa.DataType, type_: ColumnType) -> bool:
    """Whether the stored type is of the column's family: numbers, times of one sort, bytes."""
    match type_.kind:
        case Kind.NAIVE_DATE:
            return bool(pa.types.is_date(stored))
        case Kind.NAIVE_DATETIME:
            return bool(pa.types.is_timestamp(stored)) and stored.tz is None
        case Kind.UTC_DATETIME:
            return bool(pa.types.is_timestamp(stored))
        case Kind.NAIVE_TIME:
            return bool(pa.types.is_time(stored))
        case Kind.BINARY | Kind.STRING | Kind.JSON | Kind.XML:
            return bool(pa.types.is_binary(stored))
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(is_number(stored) for is_number in numbers)
