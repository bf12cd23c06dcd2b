"""A CSV source as a table of cells, and a check for a wrong separator (section 1.6, B16 to B20)."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.csv as pa_csv

from backstory.errors import BackstoryError, Refused
from backstory.formats.csv.grammar import Grammar, fields, grammar_of, rows, unquote
from backstory.formats.csv.row_blocks import CsvSource, RowBlock, row_blocks
from backstory.formats.encoded import BOM, lines
from backstory.formats.options import CsvOptions

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

        Raises Refused if a row has another number of cells.
        """
        try:
            return self.parse_columns(piece, dict.fromkeys(places, pa.string())).select(
                list(map(str, places))
            )
        except pa.ArrowInvalid as stop:
            raise self._ragged_row(piece, str(stop)) from None

    def parse_columns(self, piece: RowBlock, types: Mapping[int, pa.DataType]) -> pa.Table:
        """The columns at the given indexes as Arrow's parser reads them, named by their indexes.

        Raises pa.ArrowInvalid if a cell does not match its type or a row has a different length.
        """
        # The parser drops a byte order mark at the start, but here it is part of a value.
        text = BOM + piece.text if piece.text.startswith(BOM) else piece.text
        return pa_csv.read_csv(
            pa.BufferReader(text),
            read_options=pa_csv.ReadOptions(
                column_names=[str(place) for place in range(self.width)], block_size=len(text) + 1
            ),
            parse_options=pa_csv.ParseOptions(
                delimiter=self.options.separator,
                quote_char=self.options.quote or False,
                newlines_in_values=True,
                # In a file with one column, an empty line is a value.
                ignore_empty_lines=self.width > 1,
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types={str(place): type_ for place, type_ in types.items()},
                include_columns=list(map(str, types)),
                null_values=[] if self.options.null is None else [self.options.null],
                true_values=["true", "True", "TRUE"],
                false_values=["false", "False", "FALSE"],
                decimal_point=self.options.forms.decimal,
                strings_can_be_null=True,
                quoted_strings_can_be_null=self.options.quoted_null,
                check_utf8=False,  # already checked for all columns
            ),
        )

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
    """The first row that is not an empty line. If all lines are empty, it has no cells."""
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
    """Raise Refused for a one-column header, if another separator splits header and rows evenly.

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
