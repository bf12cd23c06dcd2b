"""CSV batch files (section 3.2): no escape character, markers by text, columns by name, in any order."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import structlog

from backstory.errors import Refused
from backstory.files.base64_cells import invalid_base64
from backstory.files.batch_file import BatchFile, Encoding
from backstory.files.cells import UnreadableCell, parse
from backstory.files.header import chosen_columns
from backstory.files.rows import Rows
from backstory.model.column import ColumnType, Kind

log = structlog.get_logger()

FIRST_BLOCK = 1 << 22
LONGEST_LINE = 1 << 28

Choice = Callable[[list[str]], list[str]]


def read_csv(
    file: BatchFile,
    encoding: Encoding,
    columns: Mapping[str, ColumnType],
    wanted: frozenset[str],
) -> Iterator[Rows]:
    """The file's rows, a block at a time, with the columns of the header that are wanted.

    Raises Refused with the file and line for broken CSV, an unreadable cell or an unknown column.
    """

    def choose(header: list[str]) -> list[str]:
        return chosen_columns(file.name, header, columns, wanted)

    first, raw_cells = 0, 0
    for batch in _text_batches(file, encoding, choose):
        for name in batch.schema.names:
            if columns[name].kind is Kind.BINARY:
                raw_cells += invalid_base64(batch.column(name))
        yield _typed(file, encoding, batch, columns, first)
        first += batch.num_rows
    if raw_cells:
        log.warning("binary values that are not base64 were stored as they are", file=file.name)


def _typed(
    file: BatchFile,
    encoding: Encoding,
    batch: pa.RecordBatch,
    columns: Mapping[str, ColumnType],
    first: int,
) -> Rows:
    values, known = {}, {}
    for name in batch.schema.names:
        type_ = columns[name]
        text, here = split_unmodified(batch.column(name), encoding.unmodified_string)
        try:
            values[name] = parse(text, type_)
        except UnreadableCell as cell:
            line = _line_of(file, encoding, first + cell.row)
            raise Refused(
                "unreadable-cell",
                f"{file.name}, line {line}, column {name}: the value is not of type {type_}.",
                "Nothing was written; mend the value at its source or change the column's type.",
            ) from None
        known[name] = here
    return Rows(pa.table(values), pa.table(known))


def split_unmodified(cells: pa.Array, marker: str) -> tuple[pa.Array, pa.Array]:
    """The cells with NULL for each unmodified one, and whether each carries a value."""
    if not marker:
        return cells, pa.repeat(pa.scalar(True), len(cells))
    known = pc.fill_null(pc.not_equal(cells, marker), True)
    if pc.all(known).as_py():
        return cells, known
    return pc.if_else(known, cells, None), known


def _text_batches(
    file: BatchFile, encoding: Encoding, choose: Choice
) -> Iterator[pa.RecordBatch]:
    """The chosen columns' cells as text, NULL where the null marker stands.

    A row that does not fit into a block makes Arrow stop; reading then starts anew with larger
    blocks and leaves out the rows already given.
    """
    block, given = FIRST_BLOCK, 0
    while True:
        skip = given
        try:
            for batch in _blocks(file, encoding, block, choose):
                fresh = batch.slice(min(skip, batch.num_rows))
                skip -= batch.num_rows - fresh.num_rows
                given += fresh.num_rows
                yield fresh
        except (pa.ArrowInvalid, OSError) as stop:
            if "straddl" not in str(stop):
                raise _broken(file, encoding, stop) from None
            if block >= LONGEST_LINE:
                raise file.unreadable(f"a line is longer than {LONGEST_LINE >> 20} MiB") from None
            block *= 8
        else:
            return


def _blocks(
    file: BatchFile, encoding: Encoding, block: int, choose: Choice = list, **parsing: Any
) -> Iterator[pa.RecordBatch]:
    with closing(_CheckedText(file, file.open(encoding))) as text:
        header = _header(text.peek())
        chosen = choose(header)
        if not chosen:
            return
        null = [encoding.null_string] if encoding.null_string else []
        reader = pa_csv.open_csv(
            text,
            read_options=pa_csv.ReadOptions(block_size=block, use_threads=not parsing),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True, **parsing),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()),
                include_columns=chosen,
                null_values=null,
                strings_can_be_null=bool(null),
                quoted_strings_can_be_null=True,
            ),
        )
        yield from reader


def _broken(file: BatchFile, encoding: Encoding, stop: Exception) -> Refused:
    """The error for a file that is not CSV, with the line when a row has too many or few fields."""
    rows: list[Any] = []

    def note(row: Any) -> str:
        rows.append(row)
        return "error"

    try:
        for _ in _blocks(file, encoding, LONGEST_LINE, invalid_row_handler=note):
            pass
    except (pa.ArrowInvalid, OSError):
        pass
    if rows and rows[0].number:
        line = _line_of(file, encoding, rows[0].number - 2)
        return Refused(
            "broken-csv",
            f"{file.name}, line {line}: {rows[0].actual_columns} fields where the header has "
            f"{rows[0].expected_columns}.",
            "Nothing was written; send the batch again with whole files.",
        )
    if isinstance(stop, OSError):
        return file.unreadable(f"it is not {encoding.compression}; the key may be wrong")
    if "UTF8" in str(stop):
        return file.unreadable("its text is not UTF-8; the key may be wrong")
    return file.unreadable("it is not CSV; the key may be wrong")


def _line_of(file: BatchFile, encoding: Encoding, row: int) -> int:
    """The line on which data row `row` (from 0) begins, line breaks inside values counted."""
    line, left = 2 + row, row
    for batch in _blocks(file, encoding, LONGEST_LINE, invalid_row_handler=lambda _: "skip"):
        before = batch.slice(0, min(left, batch.num_rows))
        for column in before.columns:
            line += pc.sum(pc.count_substring(column, "\n")).as_py() or 0
        left -= before.num_rows
        if left <= 0:
            break
    return line


def _header(start: bytes) -> list[str]:
    text = start.decode(errors="replace").removeprefix("\ufeff")
    return next(csv.reader(io.StringIO(text, newline="")), [])


class _CheckedText(io.RawIOBase):
    """Decompressed text on its way to the parser, its quotes counted.

    Arrow takes an unclosed quote at the end of a file for a value; here it is an error. A last
    line without its end gets one.
    """

    def __init__(self, file: BatchFile, inner: BinaryIO) -> None:
        super().__init__()
        self._file, self._inner = file, inner
        self._held = b""
        self._quotes = 0
        self._last = b"\n"

    def peek(self) -> bytes:
        """The first bytes, which the next read gives again."""
        while len(self._held) < FIRST_BLOCK and (more := self._next(FIRST_BLOCK)):
            self._held += more
        return self._held

    def readable(self) -> bool:
        """Always true."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes, empty at the end."""
        if self._held:
            taken, self._held = self._held[:size], self._held[size:]
            return taken
        return self._next(size)

    def _next(self, size: int) -> bytes:
        data = self._inner.read(size)
        self._quotes += data.count(b'"')
        if data:
            self._last = data[-1:]
            return bytes(data)
        if self._quotes % 2:
            raise self._file.unreadable("a quoted value is not closed")
        tail, self._last = (b"" if self._last == b"\n" else b"\n"), b"\n"
        return tail

    def close(self) -> None:
        """Close the stream below."""
        if not self.closed:
            self._inner.close()
        super().close()
