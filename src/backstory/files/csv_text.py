"""The text of a CSV batch file on its way to Arrow's parser (section 3.2)."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from backstory.errors import Refused
from backstory.files.batch_file import BatchFile, Encoding

BLOCK = 1 << 22
LONGEST_LINE = 1 << 28
MARK = "\x1fend of file\x1f"


class CsvText(io.RawIOBase):
    """Decompressed text with one row more: every field of it is the null marker.

    The parser takes an unclosed quote at the end of a file for a value. With the extra row it
    swallows that instead, so that a last row of anything but NULL tells that the file is broken.
    """

    def __init__(self, file: BatchFile, encoding: Encoding) -> None:
        super().__init__()
        self._inner = file.open(encoding)
        self._held = _first_block(self._inner)
        text = self._held.decode(errors="replace").removeprefix("\ufeff")
        self.header: list[str] = next(csv.reader(io.StringIO(text, newline="")), [])
        self.mark = encoding.null_string or MARK
        row = io.StringIO()
        csv.writer(row, lineterminator="\n").writerow([self.mark] * len(self.header))
        self._tail: bytes = row.getvalue().encode()
        self._last = self._held[-1:]
        if self._held and len(self._held) < BLOCK:
            self._held += self._end()

    def readable(self) -> bool:
        """Always true."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes, empty at the end."""
        if self._held:
            taken, self._held = self._held[:size], self._held[size:]
            return bytes(taken)
        data = self._inner.read(size)
        if data:
            self._last = data[-1:]
            return bytes(data)
        return self._end()

    def _end(self) -> bytes:
        tail, self._tail = self._tail, b""
        return tail if self._last == b"\n" or not tail else b"\n" + tail

    def close(self) -> None:
        """Close the stream below."""
        if not self.closed:
            self._inner.close()
        super().close()


def _first_block(stream: BinaryIO) -> bytes:
    """The first block; shorter only if the stream ends in it."""
    held = b""
    while len(held) < BLOCK and (more := stream.read(BLOCK - len(held))):
        held += more
    return held


def parse_csv(text: CsvText, types: Mapping[str, pa.DataType], block: int, **parsing: Any) -> pa.Table:
    """The named columns as these types, without the extra row.

    Raises pa.ArrowInvalid for what is not CSV or not of the types, and for an unclosed quote.
    """
    table = pa_csv.read_csv(
        text,
        read_options=pa_csv.ReadOptions(block_size=block, use_threads=not parsing),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True, **parsing),
        convert_options=pa_csv.ConvertOptions(
            column_types={name: pa.string() for name in text.header} | dict(types),
            include_columns=list(types),
            null_values=[text.mark],
            true_values=["true", "True", "TRUE"],
            false_values=["false", "False", "FALSE"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
        ),
    )
    last = table.slice(max(table.num_rows - 1, 0))
    if any(not column.null_count for column in last.columns):
        raise pa.ArrowInvalid("a quoted value is not closed")
    return table.slice(0, table.num_rows - 1)


def broken(file: BatchFile, encoding: Encoding, stop: Exception) -> Refused:
    """The error for a file that is not CSV, with the line if a row has too many or few fields."""
    rows: list[Any] = []

    def note(row: Any) -> str:
        rows.append(row)
        return "error"

    try:
        with CsvText(file, encoding) as text:
            parse_csv(text, _as_text(text.header), LONGEST_LINE, invalid_row_handler=note)
    except (pa.ArrowInvalid, OSError):
        pass
    if rows and rows[0].number:
        line = line_of(file, encoding, rows[0].number - 2)
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
    return file.unreadable("it is not CSV, or a quoted value is not closed")


def line_of(file: BatchFile, encoding: Encoding, row: int) -> int:
    """The line on which data row `row` (from 0) begins, line breaks inside values counted."""
    with CsvText(file, encoding) as text:
        table = parse_csv(text, _as_text(text.header), LONGEST_LINE, invalid_row_handler=lambda _: "skip")
    before = table.slice(0, row)
    breaks = [pc.sum(pc.count_substring(column, "\n")).as_py() or 0 for column in before.columns]
    return 2 + row + sum(breaks)


def _as_text(header: Sequence[str]) -> dict[str, pa.DataType]:
    return dict.fromkeys(header, pa.string())
