"""A CSV as a table: its columns, and the cells of its rows (section 1.6, B16 to B20).

Another separator that a CSV may have: where its header stays whole, and its rows would be even with it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.csv as pa_csv

from backstory.errors import BackstoryError, Refused
from backstory.formats.csv.grammar import Grammar, fields, grammar_of, rows, unquote
from backstory.formats.csv.row_blocks import RowBlock, row_blocks
from backstory.formats.csv.source import CsvSource
from backstory.formats.encoded import BOM, lines
from backstory.formats.options import CsvOptions

# The first line by which Excel is told what is between cells.
_SEPARATOR_LINE: Final = re.compile(rb'(?i)"?sep=[^\r\n]{1,2}"?[\r\n]*')


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A text and how its rows are laid out.

    `names` are its columns; None where there should be a header and are empty lines only. `line` is that
    of the first row, `empty` tells that there is not a byte.
    """

    source: CsvSource
    options: CsvOptions
    grammar: Grammar
    names: list[str] | None
    line: int
    empty: bool

    @property
    def width(self) -> int:
        """How many cells a row has."""
        return len(self.names or [""])

    def pieces(self) -> Iterator[RowBlock]:
        """The rows without the header, from the text's start."""
        parts = row_blocks(self.source, self.grammar)
        if self.options.header:
            first = _first_row(parts, self.grammar.clean)
            if first.end < len(first.piece.text):
                line = first.piece.line + lines(first.piece.text[: first.end])
                yield RowBlock(first.piece.text[first.end :], line)
        yield from parts

    def texts(self, piece: RowBlock, places: Sequence[int]) -> pa.Table:
        """The cells of some columns as text, in their order; Refused for a row of another length."""
        try:
            return self.parse_columns(piece, dict.fromkeys(places, pa.string())).select(
                list(map(str, places))
            )
        except pa.ArrowInvalid as stop:
            raise self._ragged_row(piece, str(stop)) from None

    def parse_columns(self, piece: RowBlock, types: Mapping[int, pa.DataType]) -> pa.Table:
        """The columns at some places, each under its place, as what Arrow's parser makes of them.

        Raises pa.ArrowInvalid for a cell that is none of its type, and a row of another length.
        """
        # The parser passes over a mark at its beginning, which here is one of a value.
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
                # In a file of one column an empty line is a value.
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
                check_utf8=False,  # done, for columns that nobody wants too
            ),
        )

    def line_of(self, piece: RowBlock, row: int) -> int:
        """The line on which a row of the piece begins, line breaks within values counted."""
        full = (
            line
            for line, _, empty in rows(piece.text, self.grammar.clean, piece.line)
            if not empty or self.width == 1
        )
        return next((line for place, line in enumerate(full) if place == row), piece.line)

    def _ragged_row(self, piece: RowBlock, why: str) -> Refused:
        """The error for the first row that has not as many fields as there are columns."""
        for line, count, empty in rows(piece.text, self.grammar.clean, piece.line):
            if count != self.width and not empty:
                one = "1 field" if count == 1 else f"{count} fields"
                than = "the header has" if self.options.header else "the first row or the schema has"
                return self.source.refusal(f"line {line}", f"{one} where {than} {self.width}")
        return self.source.refusal(f"after line {piece.line}", f"it is not CSV ({why})")


def csv_table(source: CsvSource, options: CsvOptions, names: Sequence[str] | None = None) -> CsvTable:
    """The table of a text; without a header its columns are those that are named, else `_c0`, `_c1`, ...

    Raises Refused for what `pieces` refuses in the first of them.
    """
    letters = grammar_of(options)
    first = _first_row(row_blocks(source, letters), letters.clean)
    if _SEPARATOR_LINE.fullmatch(first.piece.text[first.start : first.end]):
        raise Refused(
            "separator-line",
            f"{source.name}, line 1: it names a separator for spreadsheets, and is neither header nor row.",
            "Nothing was written; remove that line, and name the separator as an option of the file.",
        )
    found = first.cells
    if not options.header:
        found = [f"_c{place}" for place in range(len(found or [""]))] if names is None else list(names)
    line = first.piece.line + lines(first.piece.text[: first.start])
    return CsvTable(source, options, letters, found, line, not first.piece.text)


class _First(NamedTuple):
    """A row's cells, the piece that it is in, and where it starts and ends there."""

    piece: RowBlock
    cells: list[str] | None
    start: int
    end: int


def _first_row(parts: Iterator[RowBlock], letters: Grammar) -> _First:
    """The first row that is not an empty line; one without cells if there is no other."""
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
    """Raise Refused where the header is one column, and another separator splits header and rows evenly.

    `remedy` is what to do, by the option's value for that separator. Raises what the first piece is refused
    for, too.
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
    others = (each for each in SEPARATORS if each not in {options.separator, options.quote, options.escape})
    return next((each for each in others if _is_even(source, replace(options, separator=each))), None)


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
