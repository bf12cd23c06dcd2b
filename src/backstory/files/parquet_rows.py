"""Parquet batch files (section 3.4): typed columns, or text columns that may hold the markers."""

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backstory.errors import Refused
from backstory.files.batch_file import BatchFile, Encoding
from backstory.files.cells import UnreadableCell, parse
from backstory.files.csv_rows import split_unmodified
from backstory.files.header import chosen_columns
from backstory.files.rows import Rows, arrow_type
from backstory.model.column import TEXT_KINDS, ColumnType, Kind


def read_parquet(
    file: BatchFile,
    encoding: Encoding,
    columns: Mapping[str, ColumnType],
    wanted: frozenset[str],
) -> Iterator[Rows]:
    """The file's rows, a batch at a time, with the columns that are wanted.

    The clear file is held in memory as a whole, since Parquet is read from its end. Raises Refused
    with the file and row for an unreadable value, an unknown column or a file that is no Parquet.
    """
    try:
        with file.open(encoding) as stream:
            content = pa.BufferReader(stream.read())
        if not content.size():
            return
        parquet = pq.ParquetFile(content)
    except (pa.ArrowInvalid, OSError):
        raise file.unreadable("it is not Parquet; the key may be wrong") from None
    chosen = chosen_columns(file.name, parquet.schema_arrow.names, columns, wanted)
    first = 0
    for batch in parquet.iter_batches(columns=chosen):
        values, known = {}, {}
        for name in chosen:
            cells, known[name] = _without_markers(batch.column(name), encoding)
            try:
                values[name] = _typed(cells, columns[name])
            except UnreadableCell as cell:
                raise Refused(
                    "unreadable-cell",
                    f"{file.name}, row {first + cell.row + 1}, column {name}: the value is not of "
                    f"type {columns[name]}.",
                    "Nothing was written; mend the value at its source or change the column's type.",
                ) from None
        yield Rows(pa.table(values), pa.table(known))
        first += batch.num_rows


def _without_markers(cells: pa.Array, encoding: Encoding) -> tuple[pa.Array, pa.Array]:
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if pa.types.is_large_string(cells.type):
        cells = cells.cast(pa.string())
    if pa.types.is_string(cells.type):
        if encoding.null_string:
            is_null = pc.fill_null(pc.equal(cells, encoding.null_string), True)
            cells = pc.if_else(is_null, None, cells)
        return split_unmodified(cells, encoding.unmodified_string)
    if pa.types.is_binary(cells.type):
        return _without_binary_markers(cells, encoding)
    return cells, pa.repeat(pa.scalar(True), len(cells))


def _without_binary_markers(cells: pa.Array, encoding: Encoding) -> tuple[pa.Array, pa.Array]:
    null, unmodified = encoding.null_string.encode(), encoding.unmodified_string.encode()
    if null:
        cells = pc.if_else(pc.fill_null(pc.equal(cells, null), True), None, cells)
    if not unmodified:
        return cells, pa.repeat(pa.scalar(True), len(cells))
    known = pc.fill_null(pc.not_equal(cells, unmodified), True)
    return pc.if_else(known, cells, None), known


def _typed(cells: pa.Array, type_: ColumnType) -> pa.Array:
    if pa.types.is_string(cells.type) and type_.kind not in TEXT_KINDS:
        return parse(cells, type_)
    try:
        if type_.kind is Kind.NAIVE_TIME:
            return parse(cells.cast(pa.string()), type_)
        if type_.kind is Kind.SHORT:
            cells = cells.cast(pa.int16())
        return cells.cast(arrow_type(type_))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UnreadableCell(_first_unfit(cells, type_)) from None


def _first_unfit(cells: pa.Array, type_: ColumnType) -> int:
    low, high = 0, len(cells)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            cells[low:middle].cast(arrow_type(type_))
            low = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            high = middle
    return low
