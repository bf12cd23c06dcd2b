"""CSV batch files as rows: no escape character, markers by text, columns by name (section 3.2)."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from backstory.files.base64_cells import invalid_base64
from backstory.files.batch_file import BatchFile, Encoding
from backstory.files.cells import UnreadableCell, finish, parse, parser_type
from backstory.files.csv_text import BLOCK, LONGEST_LINE, CsvText, broken, line_of, parse_csv
from backstory.files.header import chosen_columns
from backstory.files.rows import Rows
from backstory.model.column import ColumnType, Kind

THREADS = 2

log = structlog.get_logger()


def read_csv(
    file: BatchFile,
    encoding: Encoding,
    columns: Mapping[str, ColumnType],
    wanted: frozenset[str],
) -> Iterator[Rows]:
    """The file's rows, with the columns of the header that are wanted; nothing for an empty file.

    Arrow's parser makes numbers and times of the text when all cells are as they should be. When
    some are not (unmodified, more digits than a microsecond has, a value of another type) each cell
    is looked at as text. Raises Refused with the file and line for broken CSV, an unreadable cell
    or an unknown column.
    """
    try:
        text = CsvText(file, encoding)
    except OSError as stop:
        raise broken(file, encoding, stop) from None
    with text:
        chosen = chosen_columns(file.name, text.header, columns, wanted)
        if not chosen:
            return
        types = {name: columns[name] for name in chosen}
        rows = _typed(file, encoding, types, text)
    yield rows or _from_text(file, encoding, types)


def _typed(
    file: BatchFile, encoding: Encoding, types: Mapping[str, ColumnType], text: CsvText
) -> Rows | None:
    """The rows as Arrow's parser reads them, or None if it cannot read them all."""
    try:
        parsed = _parsed(file, encoding, {name: parser_type(t) for name, t in types.items()}, text)
        if any(_marked(column, encoding) for column in parsed.columns):
            return None
        with ThreadPoolExecutor(THREADS) as pool:
            table = pa.table(list(pool.map(finish, parsed.columns, types.values())), names=list(types))
    except (pa.ArrowInvalid, UnreadableCell):
        return None
    warn_of_raw_binary(file, {name: parsed[name] for name in types}, types)
    yes = pa.repeat(pa.scalar(True), table.num_rows)
    return Rows(table, pa.table([yes] * len(types), names=list(types)))


def _marked(text: pa.ChunkedArray, encoding: Encoding) -> bool:
    marker = encoding.unmodified_string
    if not marker or not pa.types.is_string(text.type):
        return False
    return bool(pc.any(pc.equal(text, marker)).as_py())


def _from_text(file: BatchFile, encoding: Encoding, types: Mapping[str, ColumnType]) -> Rows:
    try:
        text = _parsed(file, encoding, dict.fromkeys(types, pa.string()))
    except pa.ArrowInvalid as stop:
        raise broken(file, encoding, stop) from None
    values, known, cleared = {}, {}, {}
    for name, type_ in types.items():
        column = text[name].combine_chunks()
        cells, known[name] = split_unmodified(column, encoding.unmodified_string)
        cleared[name] = pa.chunked_array([cells])
        try:
            values[name] = parse(cells, type_)
        except UnreadableCell as cell:
            line = line_of(file, encoding, cell.row)
            raise file.unreadable_cell(f"line {line}", name, type_) from None
    warn_of_raw_binary(file, cleared, types)
    return Rows(pa.table(values), pa.table(known))


def split_unmodified(cells: pa.Array, marker: str | bytes) -> tuple[pa.Array, pa.Array]:
    """The cells with NULL for each unmodified one, and whether each carries a value."""
    if not marker:
        return cells, pa.repeat(pa.scalar(True), len(cells))
    known = pc.fill_null(pc.not_equal(cells, marker), True)
    return pc.if_else(known, cells, pa.scalar(None, cells.type)), known


def _parsed(
    file: BatchFile,
    encoding: Encoding,
    types: Mapping[str, pa.DataType],
    text: CsvText | None = None,
) -> pa.Table:
    """The columns as Arrow's parser reads them; a row that does not fit a block needs larger ones."""
    block = BLOCK
    while True:
        try:
            with text or CsvText(file, encoding) as opened:
                return parse_csv(opened, types, block)
        except OSError as stop:
            raise broken(file, encoding, stop) from None
        except pa.ArrowInvalid as stop:
            if "straddl" not in str(stop):
                raise
        if block >= LONGEST_LINE:
            raise file.unreadable(f"a line is longer than {LONGEST_LINE >> 20} MiB")
        block, text = block * 8, None


def warn_of_raw_binary(
    file: BatchFile, text: Mapping[str, pa.ChunkedArray], types: Mapping[str, ColumnType]
) -> None:
    """Log once for a file that some values of BINARY columns are not base64 (F11)."""
    binary = [text[name] for name, type_ in types.items() if type_.kind is Kind.BINARY]
    cells = sum(invalid_base64(chunk) for column in binary for chunk in column.chunks)
    if cells:
        log.warning("values that are not base64 were stored as they are", file=file.name, cells=cells)
