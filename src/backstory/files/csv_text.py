"""The text of a CSV batch file on its way to Arrow's parser (section 3.2)."""

import csv
import io
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from backstory.errors import Refused
from backstory.files.batch_file import BatchFile, Encoding
from backstory.files.memory import Lease, Meter

BLOCK = 1 << 22
LONGEST_LINE = 1 << 28
LONGEST_NAME = 1 << 16
QUOTE, NEWLINE = b'"'[0], b"\n"[0]


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
        self._held = _first_block(self._inner)
        self._meter.add(len(self._held))
        self.header = _header(file, self._held)
        self.mark = encoding.null_string or secrets.token_hex(32)
        row = io.StringIO()
        csv.writer(row, lineterminator="\n").writerow([self.mark] * len(self.header))
        self._tail = row.getvalue().encode() if self.header else b""
        self._last = self._held[-1:]
        if len(self._held) < BLOCK:
            self._held += self._end()

    def readable(self) -> bool:
        """Always true."""
        return True

    def read(self, size: int = -1) -> Any:
        """`size` bytes, fewer only at the end: the parser takes what one call gives for a block.

        A block that comes whole from a decompressor is handed on as Arrow's own buffer, not copied.
        """
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

        A piece is about a block; Refused for one that would grow beyond `LONGEST_LINE`.
        """
        row = self._tail
        first = bytes(self.read(BLOCK))
        start, _, _ = _row_ends(first)
        head, data = first[:start], first[start:]
        held: list[bytes] = []
        inside = False
        while data:
            _, end, inside = _row_ends(data, inside=inside)
            if end and self._tail:
                yield b"".join([head, *held, data[:end], row])
                held = [data[end:]]
            else:
                held.append(data)
            if sum(map(len, held)) > LONGEST_LINE:
                raise self._file.unreadable(f"a line is longer than {LONGEST_LINE >> 20} MiB")
            data = bytes(self.read(BLOCK))
        yield b"".join([head, *held])

    def _end(self) -> bytes:
        tail, self._tail = self._tail, b""
        return tail if self._last == b"\n" or not tail else b"\n" + tail

    def close(self) -> None:
        """Close the stream below."""
        if not self.closed:
            self._inner.close()
        super().close()


def _row_ends(text: bytes, *, inside: bool = False) -> tuple[int, int, bool]:
    """Where the first and the last row of the text end, 0 if none does, and whether a quote is open.

    `inside` tells whether one was open before. Quotes come in pairs in whole rows.
    """
    letters = np.frombuffer(text, np.uint8)
    quotes = np.cumsum(letters == QUOTE, dtype=np.uint32) + inside
    ends = np.flatnonzero((letters == NEWLINE) & (quotes & 1 == 0)) + 1
    first, last = (int(ends[0]), int(ends[-1])) if len(ends) else (0, 0)
    return first, last, bool(quotes[-1] & 1) if len(quotes) else inside


def _first_block(stream: Any) -> bytes:
    """The first block; shorter only if the stream ends in it."""
    held = b""
    while len(held) < BLOCK and (more := stream.read(BLOCK - len(held))):
        held += more
    return held


def _header(file: BatchFile, start: bytes) -> list[str]:
    """The names in the first line, none for an empty file; Refused if there is no such line."""
    if not start:
        return []
    text = start.decode(errors="replace").removeprefix("\ufeff")
    try:
        header = next(csv.reader(io.StringIO(text, newline=""), strict=True), [])
    except csv.Error:
        header = []
    if not header or max(map(len, header)) > LONGEST_NAME:
        raise file.unreadable("it does not begin with a header; the key may be wrong")
    return header


def parse_csv(source: Any, text: CsvText, types: Mapping[str, pa.DataType], block: int) -> pa.Table:
    """The named columns as these types, without the extra row; `source` reads what `text` gives.

    Raises pa.ArrowInvalid for what is not CSV or not of the types, and for an unclosed quote.
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
            null_values=[text.mark],
            true_values=["true", "True", "TRUE"],
            false_values=["false", "False", "FALSE"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
        ),
    )
    rows = table.num_rows - 1
    if rows < 0 or any(not column.null_count for column in table.slice(rows).columns):
        raise pa.ArrowInvalid("a quoted value is not closed")
    return table.select(list(types)).slice(0, rows)


def broken(file: BatchFile, encoding: Encoding, stop: Exception) -> Refused:
    """The error for a file that is not CSV, with the line where that is known."""
    if isinstance(stop, OSError):
        return file.unreadable(f"it is not {encoding.compression}; the key may be wrong")
    if "UTF8" in str(stop):
        return file.unreadable("its text is not UTF-8; the key may be wrong")
    line = 1
    try:
        for line, fields, expected in _rows(file, encoding):
            if fields != expected:
                return _refused(file, line, f"{fields} fields where the header has {expected}")
    except csv.Error:
        return _refused(file, line, "a quoted value after it is not closed, or goes on")
    return file.unreadable("it is not CSV; the key may be wrong")


def line_of(file: BatchFile, encoding: Encoding, row: int) -> int:
    """The line on which data row `row` (from 0) begins, line breaks inside values counted."""
    return next((line for place, (line, *_) in enumerate(_rows(file, encoding)) if place == row), 0)


def _rows(file: BatchFile, encoding: Encoding) -> Iterator[tuple[int, int, int]]:
    """For each row its first line, its fields and those of the header: slow, to tell what is wrong."""
    csv.field_size_limit(LONGEST_LINE)
    with io.TextIOWrapper(
        io.BufferedReader(_Raw(file.open(encoding))), "utf-8", errors="replace", newline=""
    ) as text:
        reader = csv.reader(text, strict=True)
        expected, line = len(next(reader, [])), reader.line_num
        for fields in reader:
            if fields or expected == 1:
                yield line + 1, max(len(fields), 1), expected
            line = reader.line_num


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
