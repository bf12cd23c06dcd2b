"""A CSV source as blocks of whole rows (RFC 4180) and as a table of cells (section 1.6, B16 to B20).

A quote begins a value only at the start of a field. Later in an unquoted field, a quote is an ordinary
character. Characters between a closing quote and the end of the field are an error. Blocks contain doubled
quotes instead of escapes, as Arrow's parser requires.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from backstory.errors import BackstoryError, Refused
from backstory.formats.batch_file import BatchFile, Encoding
from backstory.formats.csv.grammar import (
    Grammar,
    NotScannable,
    fields,
    grammar_of,
    last_end,
    normalize_quotes,
    rows,
    unquote,
)
from backstory.formats.encoded import BOM, REMEDY, decode, lines, utf8_blocks
from backstory.formats.memory import MemoryLease, Meter
from backstory.formats.options import CsvOptions
from backstory.formats.produced import FIX_FILE

BLOCK = 1 << 22


@dataclass(frozen=True, slots=True)
class CsvSource:
    """A CSV source that can be read repeatedly from its start.

    Attributes:
        name: its name in messages.
        blocks: its bytes as UTF-8, without a byte order mark.
        remedy: the remedy in errors for broken CSV.
        text_remedy: the remedy in errors for bytes that are invalid in the encoding.
    """

    name: str
    blocks: Callable[[], Iterator[bytes]]
    remedy: str
    text_remedy: str

    def refusal(self, place: str, why: str) -> Refused:
        """The error for broken CSV. `place` is its line."""
        return Refused("broken-csv", f"{self.name}{place and f', {place}'}: {why}.", self.remedy)

    def no_text(self, _name: str, place: str, why: str, _remedy: str) -> Refused:
        """The error for bytes that are invalid in the encoding."""
        return Refused("unreadable-file", f"{self.name}, {place}: {why}.", self.text_remedy)


def file_source(
    path: Path, name: str, encoding: str, remedy: str = f"{FIX_FILE}.", text_remedy: str = REMEDY
) -> CsvSource:
    """The CSV source for a file of any encoding, with the remedies of its errors."""

    def blocks() -> Iterator[bytes]:
        return utf8_blocks(path, name, encoding, source.no_text)

    source = CsvSource(name, blocks, remedy, text_remedy)
    return source


def delivered_source(file: BatchFile, encoding: Encoding, lease: MemoryLease | None = None) -> CsvSource:
    """The CSV source for a delivered file, decrypted and decompressed.

    Reading counts the decoded bytes, and raises TooLarge if they exceed the lease. Reading raises Refused if
    the file is missing, cannot be unpacked or is a decompression bomb.
    """

    def blocks() -> Iterator[bytes]:
        meter = Meter(file, lease)
        try:
            with file.open(encoding) as stream:
                mark = BOM
                while block := stream.read(BLOCK):
                    meter.add(len(block))
                    yield block.removeprefix(mark)
                    mark = b""
        except OSError:
            raise file.unreadable(f"it is not {encoding.compression}; the key may be wrong") from None

    whole = "Nothing was written; send the batch again with complete files"
    return CsvSource(file.name, blocks, f"{whole}.", f"{whole} and their own keys.")


_Places = np.ndarray[Any, np.dtype[np.int64]]


class TextAfterQuote(ValueError):
    """A value continues after its closing quote."""


class Quotes:
    """The state of quoting between two blocks: whether a value is open, and whether one may start next."""

    def __init__(self, grammar: Grammar) -> None:
        self._quote = grammar.quote[0]
        self._edge, self._behind = _tables(grammar.separator, grammar.quote)
        self.inside = False
        self._may_open, self._closed = True, False

    def take(self, text: bytes) -> _Places:
        """The positions of the opening and closing quotes in the next block, alternating.

        A doubled quote counts as two quotes: the first closes the value, and the second opens it again.
        Raises TextAfterQuote if a value continues after its closing quote.
        """
        letters = np.frombuffer(text, np.uint8)
        if not len(letters):
            return np.empty(0, np.int64)
        if self._closed and not self._behind[letters[0]]:
            raise TextAfterQuote
        places = self._that_count(letters, np.flatnonzero(letters == self._quote))
        closing = places[1 - self.inside :: 2]
        at_end = bool(len(places)) and bool(places[-1] == len(letters) - 1)
        self.inside ^= bool(len(places) & 1)
        self._closed = at_end and not self.inside
        behind = closing[: len(closing) - self._closed] + 1
        if not self._behind[letters[behind]].all():
            raise TextAfterQuote
        self._may_open = self._closed or bool(self._edge[letters[-1]])
        return places

    def last_end(self, text: bytes) -> int:
        """The end of the last complete row in the next block, or 0. Raises TextAfterQuote."""
        inside = self.inside
        places = self.take(text)
        # A CR at the end of a block may be the first half of CR LF.
        feed = _last(text, b"\n", len(text), places, inside)
        return max(feed, _last(text, b"\r", len(text) - 1, places, inside))

    def _that_count(self, letters: Any, places: _Places) -> _Places:
        """The positions of the quotes that open or close a value.

        Any other quote is an ordinary character.
        """
        opening = places[int(self.inside) :: 2]
        opens = self._behind[letters[opening - 1]]
        if len(opening) and opening[0] == 0:
            opens[0] = self._may_open
        return places if opens.all() else self._one_by_one(letters, places)

    def _one_by_one(self, letters: Any, places: _Places) -> _Places:
        counted: list[int] = []
        inside, last = self.inside, -1
        for place in places.tolist():
            if not inside and not (
                self._may_open if place == 0 else self._edge[letters[place - 1]] or last == place - 1 >= 0
            ):
                continue
            counted.append(place)
            inside, last = not inside, place
        return np.array(counted, np.int64)


@lru_cache(maxsize=8)
def _tables(separator: bytes, quote: bytes) -> tuple[Any, Any]:
    """Flags for each byte: whether a value may start after it, and whether it may adjoin a quoted value."""
    edge = np.isin(np.arange(256), list(separator + b"\n\r"))
    return edge, edge | (np.arange(256) == quote[0])


def _last(text: bytes, letter: bytes, end: int, places: _Places, inside: bool) -> int:  # noqa: FBT001
    """The index after the last occurrence of a byte outside quoted values, or 0 without one."""
    place = text.rfind(letter, 0, end)
    if place < 0 or (int(np.searchsorted(places, place)) + inside) & 1 == 0:
        return place + 1
    # Within a long value the last bytes may all be quoted: check all of them at once.
    letters = np.flatnonzero(np.frombuffer(text, np.uint8, end) == letter[0])
    outside = letters[(np.searchsorted(places, letters) + inside) & 1 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


LONGEST_ROW = 1 << 28
NOT_CLOSED = "a quoted value is not closed"
GOES_ON = "a value continues after its closing quote"


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Whole rows of a CSV. `line` is the line of the first row, counted from 1."""

    text: bytes
    line: int


def row_blocks(source: CsvSource, grammar: Grammar) -> Iterator[RowBlock]:
    """The rows of a source in their order. Quoted values may contain line breaks (O26).

    Raises Refused, with the line, for invalid bytes and for a quote that is not closed. Also raises Refused
    for a value that continues after its closing quote.
    """
    line, pending = 1, _HeldText(grammar)
    for block in chain(source.blocks(), [b""]):
        try:
            end = pending.end_with(block)
        except TextAfterQuote:
            raise _broken_quote(source, RowBlock(pending.text, line), grammar) from None
        if end:
            escaped, text = pending.is_escaped, pending.take_rows(end)
            yield _strict(source, RowBlock(text, line), grammar, escaped=escaped)
            line += lines(text)
        elif pending.size > LONGEST_ROW:
            why = f"the row is longer than {LONGEST_ROW >> 20} MiB, or {NOT_CLOSED}"
            raise source.refusal(f"line {line}", why)
    if pending.size:
        last = RowBlock(pending.text, line)
        if pending.is_open:
            raise _broken_quote(source, last, grammar)
        if not last.text.endswith((b"\n", b"\r")):
            # Without a line break at the end, Arrow's parser treats an empty last cell as a quoted one.
            last = RowBlock(last.text + b"\n", line)
        yield _strict(source, last, grammar, escaped=pending.is_escaped)


class _HeldText:
    """The bytes of incomplete rows, and the state of their quotes."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._begin(b"")

    def _begin(self, rest: bytes) -> None:
        self._unseen, self._parts = rest, [rest]
        self.size = len(rest)
        self._quotes = Quotes(self.grammar) if self.grammar.quote else None
        self._quoted = self._escape_seen = False

    @property
    def is_escaped(self) -> bool:
        """Whether quotes may be escaped, so that each field must be parsed."""
        return self._quoted and self._escape_seen

    @property
    def is_open(self) -> bool:
        """Whether a quoted value is certainly open at the end."""
        return self._quotes is not None and not self.is_escaped and self._quotes.inside

    @property
    def text(self) -> bytes:
        """All pending bytes."""
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0]

    def end_with(self, block: bytes) -> int:
        """Add a block, and return the end of the last complete row, or 0. Raises TextAfterQuote."""
        before, grammar, unseen = self.size, self.grammar, self._unseen
        self._parts, self._unseen = [*self._parts, block], b""
        self.size += len(block)
        if self._quotes is None:
            # Each line is a row. A CR at the end of a block may be the first half of CR LF.
            end = max(block.rfind(b"\n"), block.rfind(b"\r", 0, -1)) + 1
            return before + end if end else 0
        for part in (unseen, block):
            self._quoted = self._quoted or grammar.quote in part
            self._escape_seen = self._escape_seen or (bool(grammar.escape) and grammar.escape in part)
        if self.is_escaped:
            return last_end(self.text, grammar)
        self._quotes.take(unseen)
        end = self._quotes.last_end(block)
        return before + end if end else 0

    def take_rows(self, end: int) -> bytes:
        """Remove and return the rows up to `end`. The rest stays pending."""
        *first, last = self._parts
        end -= self.size - len(last)
        text = b"".join([*first, memoryview(last)[:end]])
        self._begin(last[end:])
        return text


def _strict(source: CsvSource, piece: RowBlock, grammar: Grammar, *, escaped: bool) -> RowBlock:
    """The block with doubled quotes instead of escapes.

    Raises Refused if the block is not UTF-8 or violates the grammar.
    """
    _refuse_no_text(source, piece)
    if not escaped:
        return piece
    try:
        return RowBlock(normalize_quotes(piece.text, grammar), piece.line)
    except NotScannable:
        raise _broken_quote(source, piece, grammar) from None


def _refuse_no_text(source: CsvSource, piece: RowBlock) -> None:
    if not piece.text.isascii():
        decode(piece.text, source.name, piece.line, source.no_text)


def _broken_quote(source: CsvSource, piece: RowBlock, grammar: Grammar) -> Refused:
    """The error, with its line, for an unclosed quote or a value that continues after its closing quote."""
    _refuse_no_text(source, piece)
    try:
        for _ in fields(piece.text, grammar):
            pass
    except NotScannable as stop:
        why = GOES_ON if stop.closed else NOT_CLOSED
        return source.refusal(f"line {piece.line + lines(piece.text[: stop.at])}", why)
    return source.refusal(f"after line {piece.line}", GOES_ON)


# A first line that names the separator for Excel.
_SEPARATOR_LINE: Final = re.compile(rb'(?i)"?sep=[^\r\n]{1,2}"?[\r\n]*')


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A CSV source with its columns and layout.

    `names` are its columns, or None if a header is expected but all lines are empty. `line` is the line of
    the first row. `empty` is true if the source has no bytes.
    """

    source: CsvSource
    options: CsvOptions
    grammar: Grammar
    names: list[str] | None
    line: int
    empty: bool

    @property
    def width(self) -> int:
        """The number of cells in a row."""
        return len(self.names or [""])

    def pieces(self) -> Iterator[RowBlock]:
        """The rows from the start of the text, without the header."""
        parts = row_blocks(self.source, self.grammar)
        if self.options.header:
            first = _first_row(parts, self.grammar.clean)
            if first.end < len(first.piece.text):
                line = first.piece.line + lines(first.piece.text[: first.end])
                yield RowBlock(first.piece.text[first.end :], line)
        yield from parts

    def texts(self, piece: RowBlock, places: Sequence[int]) -> pa.Table:
        """The cells of the columns at `places` as strings.

        Raises Refused if a row has the wrong number of cells.
        """
        # The parser drops a byte order mark at the start, but here it is part of a value.
        text = BOM + piece.text if piece.text.startswith(BOM) else piece.text
        columns = [str(place) for place in places]
        parse_options = pa_csv.ParseOptions(
            delimiter=self.options.separator,
            quote_char=self.options.quote or False,
            newlines_in_values=True,
            # In a file with one column, an empty line is a value.
            ignore_empty_lines=self.width > 1,
        )
        convert_options = pa_csv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()),
            include_columns=[*dict.fromkeys(columns)],
            null_values=[] if self.options.null is None else [self.options.null],
            strings_can_be_null=True,
            quoted_strings_can_be_null=self.options.quoted_null,
            check_utf8=False,  # already checked for all columns
        )
        read_options = pa_csv.ReadOptions(
            column_names=[str(place) for place in range(self.width)], block_size=len(text) + 1
        )
        try:
            cells = pa_csv.read_csv(pa.BufferReader(text), read_options, parse_options, convert_options)
        except pa.ArrowInvalid as stop:
            raise self._ragged_row(piece, str(stop)) from None
        return cells.select(columns)

    def line_of(self, piece: RowBlock, row: int) -> int:
        """The line where a row of the block begins. Line breaks within values are counted."""
        full = (
            line
            for line, _, empty in rows(piece.text, self.grammar.clean, piece.line)
            if not empty or self.width == 1
        )
        return next((line for place, line in enumerate(full) if place == row), piece.line)

    def _ragged_row(self, piece: RowBlock, why: str) -> Refused:
        """The error for the first row with a wrong number of fields."""
        for line, count, empty in rows(piece.text, self.grammar.clean, piece.line):
            if count != self.width and not empty:
                one = "1 field" if count == 1 else f"{count} fields"
                than = "the header has" if self.options.header else "the first row or the schema has"
                return self.source.refusal(f"line {line}", f"{one} where {than} {self.width}")
        return self.source.refusal(f"after line {piece.line}", f"it is not CSV ({why})")


def csv_table(source: CsvSource, options: CsvOptions, names: Sequence[str] | None = None) -> CsvTable:
    """The table of a source. Without a header, the columns are `names`, or else `_c0`, `_c1`, ...

    Raises Refused for errors in the first block, and if the first line only names a separator.
    """
    letters = grammar_of(options)
    first = _first_row(row_blocks(source, letters), letters.clean)
    if _SEPARATOR_LINE.fullmatch(first.piece.text[first.start : first.end]):
        raise Refused(
            "separator-line",
            f"{source.name}, line 1: a separator for spreadsheets, which is neither a header nor a row.",
            "Nothing was written; remove that line, and name the separator as an option of the file.",
        )
    columns = first.cells
    if not options.header:
        columns = [f"_c{place}" for place in range(len(columns or [""]))] if names is None else list(names)
    line = first.piece.line + lines(first.piece.text[: first.start])
    return CsvTable(source, options, letters, columns, line, not first.piece.text)


class _First(NamedTuple):
    """The first row: its block, its cells, and its start and end in the block."""

    piece: RowBlock
    cells: list[str] | None
    start: int
    end: int


def _first_row(parts: Iterator[RowBlock], letters: Grammar) -> _First:
    """The first row that is not an empty line. It has no `cells` if all lines are empty."""
    piece = RowBlock(b"", 1)
    for piece in parts:
        cells: list[str] = []
        start = 0
        for field in fields(piece.text, letters):
            cells.append(unquote(field, letters).decode())
            if field["end"] != letters.separator:
                if len(cells) > 1 or field[0] != field["end"]:
                    return _First(piece, cells, start, field.end())
                cells, start = [], field.end()
    return _First(piece, None, 0, len(piece.text))


TAB: Final = "\t"
SEPARATORS: Final = (";", TAB, "|", ",")


def refuse_whole_header(source: CsvSource, options: CsvOptions, remedy: Callable[[str], str]) -> None:
    """Raise Refused for a one-column header if another separator splits all rows evenly.

    `remedy` returns the remedy for a given separator. Errors in the first block also raise Refused.
    """
    if (better := _better(source, options)) is not None:
        raise Refused(
            "wrong-separator",
            f"{source.name}, line 1: the header is one column, and another separator splits it.",
            f"Nothing was written; {remedy('tab' if better == TAB else better)}.",
        )


def _better(source: CsvSource, options: CsvOptions) -> str | None:
    if csv_table(source, options).width > 1:
        return None
    used = {options.separator, options.quote, options.escape}
    others = (separator for separator in SEPARATORS if separator not in used)
    return next((other for other in others if _is_even(source, replace(options, separator=other))), None)


def _is_even(source: CsvSource, options: CsvOptions) -> bool:
    table = csv_table(source, options)
    if table.width == 1:
        return False
    try:
        if (piece := next(table.pieces(), None)) is not None:
            table.texts(piece, [0])
    except BackstoryError:
        return False
    return True
