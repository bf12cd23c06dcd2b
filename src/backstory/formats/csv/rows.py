"""Rows of a CSV: its columns, then its cells as values of their types (section 1.6, B14, B16 to B20)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv as pa_csv

from backstory.errors import Refused
from backstory.formats.csv.grammar import Grammar, fields, grammar, plain, rows
from backstory.formats.csv.inference import Guesses
from backstory.formats.csv.options import CsvOptions
from backstory.formats.csv.pieces import Piece, pieces
from backstory.formats.encoded import lines
from backstory.formats.expected import NULL, kind
from backstory.formats.produced import (
    UNTOLD,
    Rows,
    Told,
    broken_csv,
    in_batches,
    missing,
    refuse_repeated,
    typed_or_refused,
    unknown,
)
from backstory.formats.values.cells import null_where_empty
from backstory.formats.values.texts import parser


@dataclass(frozen=True, slots=True)
class Table:
    """A file and how its rows are laid out; `names` are its columns, `data` where they begin."""

    path: Path
    name: str
    options: CsvOptions
    grammar: Grammar
    names: list[str]

    def pieces(self) -> Iterator[Piece]:
        """The rows without the header, from the file's start."""
        parts = pieces(self.path, self.name, self.options.encoding, self.grammar)
        if self.options.header:
            first = _first_row(parts, self.grammar.clean)
            if first.end < len(first.piece.text):
                line = first.piece.line + lines(first.piece.text[: first.end])
                yield Piece(first.piece.text[first.end :], line)
        yield from parts


class First(NamedTuple):
    """A row's cells, the piece that it is in, and where it starts and ends there."""

    piece: Piece
    cells: list[str]
    start: int
    end: int


def csv_rows(
    path: Path, name: str, options: CsvOptions, schema: pa.Schema | None, told: Told = UNTOLD
) -> Rows:
    """The file's rows, with the declared columns or with its own.

    With a header columns are found by name, without one by their place. Raises UsageError for a type
    that text has no form for, Refused for a header that lacks a column or names one twice; what
    is wrong with a row is refused when its batch is asked for.
    """
    table = _table(path, name, options, schema)
    if table is None:
        return Rows(pa.schema([]) if schema is None else schema, iter(()))
    if schema is None:
        schema = _own_schema(table, told, infer=options.infer)
    extra = [column for column in table.names if column not in schema.names]
    if extra and options.strict:
        raise unknown(name, extra)
    places = _places(table, schema)
    return Rows(schema, _batches(table, schema, places))


def _table(path: Path, name: str, options: CsvOptions, schema: pa.Schema | None) -> Table | None:
    """The file's layout; None for one without a byte, if nothing says what should be in it."""
    letters = grammar(options)
    for field in schema or ():
        parser(field, options.times)  # a type that text has no form for is told before the file is read
    first = _first_row(pieces(path, name, options.encoding, letters), letters.clean)
    names = first.cells
    if not first.piece.text:
        if options.header and schema is not None:
            raise broken_csv(name, "", "it is empty, without even its header")
        return None
    if options.header:
        place = f"line {first.piece.line + lines(first.piece.text[: first.start])}"
        if schema is None and not all(names):
            raise broken_csv(name, place, f"column {names.index('') + 1} has no name")
        refuse_repeated(name, [column for column in names if column], place)
    elif schema is not None:
        names = list(schema.names)
    else:
        names = [f"_c{place}" for place in range(len(names))]
    return Table(path, name, options, letters, names)


def _first_row(parts: Iterator[Piece], letters: Grammar) -> First:
    """The first row that is not an empty line; of a file that has no other, one without a name."""
    piece = Piece(b"", 1)
    for piece in parts:
        cells: list[str] = []
        start = 0
        for field in fields(piece.text, letters):
            cells.append(plain(field, letters).decode())
            if field["end"] != letters.separator:
                if len(cells) > 1 or field[0] != field["end"]:
                    return First(piece, cells, start, field.end())
                cells, start = [], field.end()
    return First(piece, [""], 0, len(piece.text))


def _own_schema(table: Table, told: Told, *, infer: bool) -> pa.Schema:
    """The file's columns of the types that are told, the others as texts, or as what all their cells are."""
    found = pa.schema([pa.field(name, pa.string()) for name in table.names])
    if infer:
        guesses = Guesses(table.names, table.options.times)
        for piece in table.pieces():
            guesses.look(_cells(table, piece, range(len(table.names))))
        found = guesses.schema()
    return pa.schema([told.get(field.name, field) for field in found])


def _places(table: Table, schema: pa.Schema) -> list[int]:
    """For each column of the schema its place in the file."""
    if not table.options.header:
        return list(range(len(schema)))
    for column in schema.names:
        if column not in table.names:
            raise missing(table.name, column, table.names)
    return [table.names.index(column) for column in schema.names]


def _batches(table: Table, schema: pa.Schema, places: Sequence[int]) -> Iterator[pa.RecordBatch]:
    parsers = [parser(field, table.options.times) for field in schema]
    for piece in table.pieces():
        cells = _cells(table, piece, places)

        def line(row: int, piece: Piece = piece) -> str:
            return f"line {_line_of(table, piece, row)}"

        columns = [
            typed_or_refused(_valued(cells[place].combine_chunks(), field), field, parse, table.name, line)
            for place, field, parse in zip(map(str, places), schema, parsers, strict=True)
        ]
        yield from in_batches(pa.Table.from_arrays(columns, schema=schema))


def _valued(cells: pa.Array, field: pa.Field) -> pa.Array:
    """The cells, of which an empty one is NULL where the column is not text, in quotes or not (O27)."""
    is_text = field.type == pa.string() and kind(field) != NULL
    return cells if is_text else null_where_empty(cells)


def _cells(table: Table, piece: Piece, places: Sequence[int]) -> pa.Table:
    """The cells of some columns as text, each under its place; Refused for a row of another length."""
    width = len(table.names)
    wanted = [str(place) for place in places]
    try:
        return pa_csv.read_csv(
            pa.BufferReader(piece.text),
            read_options=pa_csv.ReadOptions(
                column_names=[str(place) for place in range(width)], block_size=len(piece.text) + 1
            ),
            parse_options=pa_csv.ParseOptions(
                delimiter=table.options.separator,
                quote_char=table.options.quote or False,
                newlines_in_values=True,
                # In a file of one column an empty line is a value.
                ignore_empty_lines=width > 1,
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(wanted, pa.string()),
                include_columns=wanted,
                null_values=[table.options.null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                check_utf8=False,  # done, for columns that nobody wants too
            ),
        )
    except pa.ArrowInvalid as stop:
        raise _ragged(table, piece, str(stop)) from None


def _ragged(table: Table, piece: Piece, why: str) -> Refused:
    """The error for the first row that has not as many fields as there are columns."""
    width = len(table.names)
    for line, count, empty in rows(piece.text, table.grammar.clean, piece.line):
        if count != width and not empty:
            one = "1 field" if count == 1 else f"{count} fields"
            than = "the header has" if table.options.header else "the first row or the schema has"
            return broken_csv(table.name, f"line {line}", f"{one} where {than} {width}")
    return broken_csv(table.name, f"after line {piece.line}", f"it is not CSV ({why})")


def _line_of(table: Table, piece: Piece, row: int) -> int:
    """The line of a row of the piece, line breaks within values counted."""
    full = (
        line
        for line, _, empty in rows(piece.text, table.grammar.clean, piece.line)
        if not empty or len(table.names) == 1
    )
    return next((line for place, line in enumerate(full) if place == row), piece.line)
