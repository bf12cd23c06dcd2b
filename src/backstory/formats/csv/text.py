"""The text of a CSV batch file on its way to Arrow's parser (section 3.2)."""

import csv
import io
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from backstory.errors import Refused
from backstory.formats.csv.quotes import BYTE_ORDER_MARK, Quotes
from backstory.formats.memory import Lease, Meter
from backstory.formats.wrapping.batch_file import BatchFile, Encoding

BLOCK = 1 << 22
LONGEST_LINE = 1 << 28
BLANK_LINES = b"\r\n"
# What a byte that is no UTF-8 becomes in a text that is decoded to find it.
NO_TEXT = re.compile("[\udc80-\udcff]")


class CsvText(io.RawIOBase):
    """Decompressed text with one row more: every field of it is the null marker.

    The parser takes an unclosed quote at the end of a file for a value. With the extra row it
    swallows that instead, so that a last row of anything but NULL tells that the file is broken.
    """

    def __init__(self, file: BatchFile, encoding: Encoding, lease: Lease | None = None) -> None:
        super().__init__()
        self._file = file
        self._meter = Meter(file, lease)
        self._inner = file.open(encoding)
        start = _first_block(self._inner)
        self._meter.add(len(start))
        self._held = _without_blank_lines(start)
        self._quotes = Quotes()
        self.header = _header(file, self._held) if start else []
        self.mark = encoding.null_string or secrets.token_hex(32)
        row = io.StringIO()
        csv.writer(row, lineterminator="\n").writerow([self.mark] * len(self.header))
        self._tail = row.getvalue().encode() if self.header else b""
        self._last = self._held[-1:]
        if len(start) < BLOCK:
            self._held += self._end()

    def readable(self) -> bool:
        """Always true."""
        return True

    def read(self, size: int = -1) -> Any:
        """`size` bytes, fewer only at the end: the parser takes what one call gives for a block.

        A block that comes whole from a decompressor is handed on as Arrow's own buffer, not copied.
        Raises pa.ArrowInvalid for text behind a closing quote, which the parser would add to the value.
        """
        data = self._next(size)
        self._quotes.take(data)
        return data

    def _next(self, size: int) -> Any:
        data, self._held = self._held, b""
        if not data and hasattr(self._inner, "read_buffer"):
            buffer = self._inner.read_buffer(size)
            self._meter.add(buffer.size)
            self._last = buffer[-1:].to_pybytes() if buffer.size else self._last
            if buffer.size == size:
                return buffer
            data = buffer.to_pybytes()
        while len(data) < size and (more := self._inner.read(size - len(data))):
            self._meter.add(len(more))
            data += more
            self._last = more[-1:]
        if len(data) < size:
            data += self._end()
        if len(data) > size:
            data, self._held = data[:size], data[size:]
        return data

    def blocks(self) -> Iterator[bytes]:
        """The text in pieces of whole rows, each with the header and the row more.

        A piece is about a block; Refused for one that would grow beyond `LONGEST_LINE`, pa.ArrowInvalid
        for text behind a closing quote.
        """
        row = self._tail
        first = bytes(self._next(BLOCK))
        start, end = self._quotes.row_ends(first)
        head, data, end = first[:start], first[start:], end - start
        held: list[bytes] = []
        while data:
            if end and self._tail:
                yield b"".join([head, *held, data[:end], row])
                held = [data[end:]]
            else:
                held.append(data)
            if sum(map(len, held)) > LONGEST_LINE:
                raise self._file.unreadable(f"a line is longer than {LONGEST_LINE >> 20} MiB")
            data = bytes(self._next(BLOCK))
            _, end = self._quotes.row_ends(data)
        yield b"".join([head, *held])

    def _end(self) -> bytes:
        tail, self._tail = self._tail, b""
        return tail if self._last == b"\n" or not tail else b"\n" + tail

    def close(self) -> None:
        """Close the stream below."""
        if not self.closed:
            self._inner.close()
        super().close()


def _first_block(stream: Any) -> bytes:
    """The first block; shorter only if the stream ends in it."""
    held = b""
    while len(held) < BLOCK and (more := stream.read(BLOCK - len(held))):
        held += more
    return held


def _without_blank_lines(start: bytes) -> bytes:
    """The beginning of a text from its header on: blank lines before it are none of its rows."""
    mark = BYTE_ORDER_MARK if start.startswith(BYTE_ORDER_MARK) else b""
    return mark + start[len(mark) :].lstrip(BLANK_LINES)


def _header(file: BatchFile, start: bytes) -> list[str]:
    """The names in the first row; Refused if there is no such row."""
    csv.field_size_limit(LONGEST_LINE)
    text = start.decode(errors="surrogateescape").removeprefix("\ufeff")
    try:
        header = next(csv.reader(io.StringIO(text, newline=""), strict=True), [])
    except csv.Error:
        if NO_TEXT.search(text):
            header = []
        else:
            raise _refused(file, 1, "a quoted name is not closed, or goes on behind its quote") from None
    if not header:
        raise file.unreadable("line 1 is no header; the key may be wrong")
    if any(map(NO_TEXT.search, header)):
        raise file.unreadable("line 1 is not UTF-8; the key may be wrong")
    return header


def parse_csv(
    source: Any,
    text: CsvText,
    types: Mapping[str, pa.DataType],
    block: int,
    *,
    unquoted_empty_is_null: bool = False,
) -> pa.Table:
    """The named columns as these types, without the extra row; `source` reads what `text` gives.

    Raises pa.ArrowInvalid for what is not CSV or not of the types, and for a quote that is not closed,
    or not at the end of its value.
    """
    last_column = text.header[-1]  # an unclosed quote swallows the extra row into this one
    table = pa_csv.read_csv(
        source,
        read_options=pa_csv.ReadOptions(block_size=block),
        parse_options=pa_csv.ParseOptions(
            # In a file of one column an empty line is an empty value.
            newlines_in_values=True,
            ignore_empty_lines=len(text.header) > 1,
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types={last_column: pa.string()} | dict(types),
            include_columns=list(dict.fromkeys([*types, last_column])),
            null_values=[text.mark, *([""] if unquoted_empty_is_null else [])],
            true_values=["true", "True", "TRUE"],
            false_values=["false", "False", "FALSE"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=not unquoted_empty_is_null,
        ),
    )
    rows = table.num_rows - 1
    if rows < 0 or any(not column.null_count for column in table.slice(rows).columns):
        raise pa.ArrowInvalid("a quoted value is not closed")
    return table.select(list(types)).slice(0, rows)


def by_growing_blocks(
    file: BatchFile, encoding: Encoding, parsed_with: Callable[[int], pa.Table]
) -> pa.Table:
    """What a parser gives of a file; a row that does not fit a block needs larger ones.

    Raises Refused for a file that cannot be read, and pa.ArrowInvalid as the parser does.
    """
    block = BLOCK
    while True:
        try:
            return parsed_with(block)
        except OSError as stop:
            raise broken(file, encoding, stop) from None
        except pa.ArrowInvalid as stop:
            if "straddl" not in str(stop):
                raise
        if block >= LONGEST_LINE:
            raise file.unreadable(f"a line is longer than {LONGEST_LINE >> 20} MiB")
        block *= 8


def broken(file: BatchFile, encoding: Encoding, stop: Exception) -> Refused:
    """The error for a file that is not CSV, with the line where that is known."""
    if isinstance(stop, OSError):
        return file.unreadable(f"it is not {encoding.compression}; the key may be wrong")
    if "UTF8" in str(stop):
        return file.unreadable(f"line {_not_text(file, encoding)} is not UTF-8; the key may be wrong")
    try:
        for line, fields, expected in _rows(file, encoding):
            if fields != expected:
                return _refused(file, line, f"{fields} fields where the header has {expected}")
    except _BrokenQuote as quote:
        return _refused(file, quote.line, quote.why)
    return file.unreadable("it is not CSV; the key may be wrong")


def line_of(file: BatchFile, encoding: Encoding, row: int) -> int:
    """The line on which data row `row` (from 0) begins, line breaks inside values counted."""
    return next((line for place, (line, *_) in enumerate(_rows(file, encoding)) if place == row), 0)


class _BrokenQuote(Exception):
    """A quote is not closed, or not at the end of its value."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line, self.why = line, why


def _rows(file: BatchFile, encoding: Encoding) -> Iterator[tuple[int, int, int]]:
    """For each row its first line, its fields and those of the header: slow, to tell what is wrong."""
    csv.field_size_limit(LONGEST_LINE)
    with _decoded(file, encoding, "replace") as text:
        reader, expected, line = csv.reader(text, strict=True), 0, 0
        try:
            for fields in reader:
                if expected == 0:
                    expected = len(fields)
                elif fields or expected == 1:
                    yield line + 1, max(len(fields), 1), expected
                line = reader.line_num
        except csv.Error as stop:
            if "end of data" in str(stop):
                raise _BrokenQuote(line + 1, "a quoted value is not closed") from None
            raise _BrokenQuote(reader.line_num, "a value goes on behind its closing quote") from None


def _not_text(file: BatchFile, encoding: Encoding) -> int:
    """The line of the first byte that is no UTF-8."""
    with _decoded(file, encoding, "surrogateescape") as text:
        return next((line for line, found in enumerate(text, start=1) if NO_TEXT.search(found)), 0)


def _decoded(file: BatchFile, encoding: Encoding, errors: str) -> io.TextIOWrapper:
    raw = io.BufferedReader(_Raw(file.open(encoding)))
    return io.TextIOWrapper(raw, "utf-8-sig", errors=errors, newline="")


def _refused(file: BatchFile, line: int, why: str) -> Refused:
    return Refused(
        "broken-csv",
        f"{file.name}, line {line}: {why}.",
        "Nothing was written; send the batch again with whole files.",
    )


class _Raw(io.RawIOBase):
    """A stream that only reads, as Python's text layer wants it."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = inner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
