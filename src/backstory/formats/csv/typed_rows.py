"""CSV batch files as rows: no escape character, markers by text, columns by name (section 3.2)."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.csv.header import chosen_columns
from backstory.formats.csv.text import BLOCK, CsvText, broken, by_growing_blocks, line_of, parse_csv
from backstory.formats.memory import Lease
from backstory.formats.rows import Rows
from backstory.formats.values.base64_cells import invalid_base64
from backstory.formats.values.cells import (
    UnreadableCell,
    finish,
    null_where_empty,
    parse_rounding,
    parser_type,
)
from backstory.formats.values.mended import RAW, ROUNDED, Mended
from backstory.formats.wrapping.batch_file import BatchFile, Encoding
from backstory.model.types import ColumnType, Kind

THREADS = 2
# An empty cell of any other type is NULL (O27).
EMPTY_IS_A_VALUE = {Kind.STRING, Kind.JSON, Kind.XML, Kind.BINARY}


def read_csv(
    file: BatchFile,
    encoding: Encoding,
    columns: Mapping[str, ColumnType],
    wanted: frozenset[str],
    lease: Lease | None = None,
) -> Iterator[Rows]:
    """The file's rows, with the columns of the header that are wanted; nothing for an empty file.

    Arrow's parser makes numbers and times of the text when all cells are as they should be. When
    some are not (unmodified, more digits than a microsecond has, a value of another type) each cell
    is looked at as text. Raises Refused with the file and line for broken CSV, an unreadable cell
    or an unknown column, TooLarge for more than the lease can hold.
    """
    text = _opened(file, encoding, lease)
    types = _chosen(file, text, columns, wanted)
    if not types:
        text.close()
        return
    found = _typed(file, encoding, types, text, lease)
    if found:
        yield found
    else:
        yield from _by_blocks(file, encoding, types, lease, typed=False)


def stream_csv(
    file: BatchFile,
    encoding: Encoding,
    columns: Mapping[str, ColumnType],
    wanted: frozenset[str],
) -> Iterator[Rows]:
    """The same rows, a block of text at a time, so that memory does not grow with the file."""
    with _opened(file, encoding) as text:
        types = _chosen(file, text, columns, wanted)
    return _by_blocks(file, encoding, types, None, typed=True) if types else iter(())


def _chosen(
    file: BatchFile, text: CsvText, columns: Mapping[str, ColumnType], wanted: frozenset[str]
) -> dict[str, ColumnType]:
    chosen = chosen_columns(file.name, text.header, columns, wanted)
    return {name: columns[name] for name in chosen}


def _opened(file: BatchFile, encoding: Encoding, lease: Lease | None = None) -> CsvText:
    try:
        return CsvText(file, encoding, lease)
    except OSError as stop:
        raise broken(file, encoding, stop) from None


def _typed(
    file: BatchFile,
    encoding: Encoding,
    types: Mapping[str, ColumnType],
    opened: CsvText,
    lease: Lease | None,
) -> Rows | None:
    """The rows as Arrow's parser reads them, or None if it cannot read them all."""
    texts = iter([opened])

    def parsed_with(block: int) -> pa.Table:
        with next(texts, None) or _opened(file, encoding, lease) as text:
            return parse_csv(text, text, _parser_types(types), block)

    return _finished(file, encoding, types, lambda: by_growing_blocks(file, encoding, parsed_with))


def _parser_types(types: Mapping[str, ColumnType]) -> dict[str, pa.DataType]:
    return {name: parser_type(type_) for name, type_ in types.items()}


def _finished(
    file: BatchFile,
    encoding: Encoding,
    types: Mapping[str, ColumnType],
    parse_all: Callable[[], pa.Table],
) -> Rows | None:
    """What the parser made, as values of the columns' types; None if some cell needs a look as text."""
    try:
        parsed = parse_all()
        if any(_marked(column, encoding) for column in parsed.columns):
            return None
        with ThreadPoolExecutor(THREADS) as pool:
            table = pa.table(list(pool.map(finish, parsed.columns, types.values())), names=list(types))
    except (pa.ArrowInvalid, UnreadableCell):
        return None
    mended = Mended()
    for name, type_ in types.items():
        if type_.kind is Kind.BINARY:
            mended[file.name, "", RAW] += sum(map(invalid_base64, parsed[name].chunks))
    yes = pa.repeat(pa.scalar(True), table.num_rows)
    return Rows(table, pa.table([yes] * len(types), names=list(types)), +mended)


def _marked(text: pa.ChunkedArray, encoding: Encoding) -> bool:
    marker = encoding.unmodified_string
    if not marker or not pa.types.is_string(text.type):
        return False
    return bool(pc.any(pc.equal(text, marker)).as_py())


def _by_blocks(
    file: BatchFile,
    encoding: Encoding,
    types: Mapping[str, ColumnType],
    lease: Lease | None,
    *,
    typed: bool,
) -> Iterator[Rows]:
    """The rows of a block of text at a time; as text from the first block on that is not all typed."""
    as_text, first = dict.fromkeys(types, pa.string()), 0
    try:
        with _opened(file, encoding, lease) as text:
            for block in text.blocks():

                def parsed(chosen: Mapping[str, pa.DataType], block: bytes = block) -> pa.Table:
                    return parse_csv(pa.BufferReader(block), text, chosen, max(len(block), BLOCK))

                found = (
                    _finished(file, encoding, types, lambda: parsed(_parser_types(types))) if typed else None
                )
                typed = found is not None
                rows = found or _cells(file, encoding, types, parsed(as_text), first)
                first += rows.count
                yield rows
    except (OSError, pa.ArrowInvalid) as stop:
        raise broken(file, encoding, stop) from None


def _cells(
    file: BatchFile, encoding: Encoding, types: Mapping[str, ColumnType], text: pa.Table, first: int
) -> Rows:
    """Text as values, from data row `first` on."""
    values, known, mended = {}, {}, Mended()
    for name, type_ in types.items():
        cells, known[name] = split_unmodified(text[name].combine_chunks(), encoding.unmodified_string)
        mended[file.name, "", RAW] += invalid_base64(cells) if type_.kind is Kind.BINARY else 0
        cells = cells if type_.kind in EMPTY_IS_A_VALUE else null_where_empty(cells)
        try:
            values[name], mended[file.name, name, ROUNDED] = parse_rounding(cells, type_)
        except UnreadableCell as cell:
            line = line_of(file, encoding, first + cell.row)
            raise file.unreadable_cell(f"line {line}", name, type_) from None
    return Rows(pa.table(values), pa.table(known), +mended)


def split_unmodified(cells: pa.Array, marker: str | bytes) -> tuple[pa.Array, pa.Array]:
    """The cells with NULL for each unmodified one, and whether each carries a value."""
    if not marker:
        return cells, pa.repeat(pa.scalar(True), len(cells))
    known = pc.fill_null(pc.not_equal(cells, marker), True)
    return pc.if_else(known, cells, pa.scalar(None, cells.type)), known
