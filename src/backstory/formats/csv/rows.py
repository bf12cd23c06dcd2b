"""Rows of a CSV as values of declared fields, or of what their cells are (section 1.6, B14, B16 to B20).

The type of a column, from all of its cells (B18, B20).

A column is what every cell of it is without loss: `007` and a number of twenty digits stay texts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.csv.row_blocks import RowBlock
from backstory.formats.csv.source import file_source
from backstory.formats.csv.table import CsvTable, csv_table
from backstory.formats.expected import NULL, kind_of
from backstory.formats.options import CsvOptions
from backstory.formats.produced import (
    UNTOLD,
    ProducedRows,
    Told,
    in_batches,
    missing,
    refuse_repeated,
    typed_or_refused,
    unknown_columns,
)
from backstory.formats.rows import KEEPS, column_of_kept
from backstory.formats.values.cells import null_where_empty
from backstory.formats.values.digits import are_numbers, have_commas
from backstory.formats.values.fitting import (
    BOOL,
    DATE,
    FLOAT,
    INSTANT,
    INT,
    all_are,
    exact_as_float,
    needs_typed_column,
)
from backstory.formats.values.texts import TextForms, parser

# The first of these that all cells are is the column's type.
_TYPES = [INT, FLOAT, BOOL, DATE, INSTANT]


@dataclass(slots=True)
class Guesses:
    """What the columns may still be; `look` at all their cells, then ask for the `schema`.

    A column is of the type that is `known` of it if all its cells may be; those that are the `unmodified`
    text say nothing of it.
    """

    names: Sequence[str]
    forms: TextForms
    known: Mapping[str, pa.Field]
    unmodified: str | None = None
    _left: list[list[pa.DataType]] = field(init=False)
    _seen: list[bool] = field(init=False)
    _told: list[bool] = field(init=False)
    _numbers: list[bool] = field(init=False)
    _commas: list[bool] = field(init=False)
    _kept: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self._left = [[*_TYPES, *self._others(name)] for name in self.names]
        self._seen = [False for _ in self.names]
        self._told = [False for _ in self.names]
        self._numbers = [self.forms.decimal == "." for _ in self.names]
        self._commas = [False for _ in self.names]

    def look(self, cells: pa.Table) -> None:
        """Strike the types that a cell of the table is not; its columns are in the names' order."""
        for place, column in enumerate(cells.columns):
            some = self._telling_cells(place, column.combine_chunks().drop_null())
            full = some.filter(pc.not_equal(some, ""))
            self._seen[place] |= len(some) > 0
            if len(full):
                self._told[place] = True
                self._left[place] = _left(full, self._left[place], self.forms)
                self._numbers[place] = self._numbers[place] and are_numbers(full)
                self._commas[place] |= self._numbers[place] and have_commas(full)

    def _telling_cells(self, place: int, cells: pa.Array) -> pa.Array:
        """The cells of a column that say what it is."""
        if self.unmodified is None:
            return cells
        own = cells.filter(pc.not_equal(cells, self.unmodified))
        if len(own) < len(cells):
            self._kept.add(self.names[place])
        return own

    def with_commas(self) -> frozenset[str]:
        """The columns that would be numbers if a comma were the decimal point."""
        told = zip(self.names, self._numbers, self._commas, strict=True)
        return frozenset(name for name, numbers, commas in told if numbers and commas)

    def _others(self, name: str) -> list[pa.DataType]:
        """The type that is known of a column, where it is looked for because of that alone."""
        wanted = self.known[name].type if name in self.known else pa.null()
        return [wanted] if needs_typed_column(wanted) else []

    def schema(self) -> pa.Schema:
        """The columns, all optional: one without a single value is of type null, one of empty texts text.

        An empty text tells nothing beside values: it is their NULL, unless they are texts (O27). Behind the
        columns is one more for each that has unmodified cells: it says which these are.
        """
        fields = []
        for name, left, seen, told in zip(self.names, self._left, self._seen, self._told, strict=True):
            may_be = [*left, pa.string()] if told else [pa.string(), *left]
            wanted = self.known[name].type if name in self.known else None
            kept = wanted if wanted in may_be else may_be[0]
            fields.append(pa.field(name, kept if seen else pa.null()))
        kept_cells = (KEEPS.format(name) for name in self.names if name in self._kept)
        return pa.schema([*fields, *(pa.field(name, pa.bool_()) for name in kept_cells)])


def with_commas(table: CsvTable, columns: Sequence[str]) -> list[str]:
    """Those of a table's columns that are numbers if a comma is the decimal point, and have one somewhere."""
    names = table.names or []
    guesses = Guesses(columns, table.options.forms, {})
    for piece in table.pieces():
        guesses.look(table.texts(piece, [names.index(each) for each in columns]))
    return [each for each in columns if each in guesses.with_commas()]


def _left(cells: pa.Array, types: Sequence[pa.DataType], forms: TextForms) -> list[pa.DataType]:
    """Those of the types that all cells are."""
    for place, type_ in enumerate(types):
        if _all_are(cells, type_, forms):
            rest = types[place + 1 :]
            if type_ == INT:  # floats are told by the cells' lengths, and nothing else is digits alone
                exact = [FLOAT] if FLOAT in rest and exact_as_float(cells) else []
                rest = [other for other in rest if other not in _TYPES]
                return [INT, *exact, *(other for other in rest if _all_are(cells, other, forms))]
            return [type_, *(other for other in rest if _all_are(cells, other, forms))]
    return []


def _all_are(cells: pa.Array, type_: pa.DataType, forms: TextForms) -> bool:
    # One cell tells most of what a column is not.
    return all_are(cells[:1], type_, forms) and all_are(cells, type_, forms)


def csv_rows(
    path: Path, name: str, options: CsvOptions, schema: pa.Schema | None, told: Told = UNTOLD
) -> ProducedRows:
    """The file's rows, with the declared columns or with its own.

    With a header columns are found by name, without one by their place. Raises UsageError for a type
    that text has no form for, Refused for a header that lacks a column or names one twice; what
    is wrong with a row is refused when its batch is asked for.
    """
    for column in schema or ():
        parser(column, options.forms)  # refused before the file is read
    source = file_source(path, name, options.encoding)
    table = csv_table(source, options, None if schema is None else schema.names)
    if table.empty:
        if options.header and schema is not None:
            raise source.refusal("", "it is empty, without even its header")
        return ProducedRows(pa.schema([]) if schema is None else schema, iter(()))
    names = [""] if table.names is None else table.names
    if options.header:
        _refuse_names(table, names, needed=schema is None)
    if schema is None:
        schema = _own_schema(table, names, told)
    extra = [column for column in names if column not in schema.names]
    if extra and options.strict:
        raise unknown_columns(name, extra)
    return ProducedRows(schema, _batches(table, schema, _places(table, names, schema)))


def _refuse_names(table: CsvTable, names: list[str], *, needed: bool) -> None:
    place = f"line {table.line}"
    if needed and not all(names):
        raise table.source.refusal(place, f"column {names.index('') + 1} has no name")
    refuse_repeated(table.source.name, [column for column in names if column], place)


def _own_schema(table: CsvTable, names: list[str], told: Told) -> pa.Schema:
    """The file's columns of the types that are told, the others as texts, or as what all their cells are."""
    found = pa.schema([pa.field(name, pa.string()) for name in names])
    if table.options.infer:
        guesses = Guesses(names, table.options.forms, UNTOLD)
        for piece in table.pieces():
            guesses.look(table.texts(piece, range(len(names))))
        found = guesses.schema()
    return pa.schema([told.get(field.name, field) for field in found])


def csv_columns(
    files: Sequence[tuple[Path, str]], options: CsvOptions, known: Told = UNTOLD
) -> tuple[pa.Schema, frozenset[str]]:
    """The columns that files with a header have between them, and those that are numbers with decimal commas.

    All cells are checked. Of the types that the cells of a column may be, the `known` one counts. Raises
    Refused for files that do not have the same columns, and for one without a header.
    """
    guesses: Guesses | None = None
    for path, name in files:
        table = csv_table(file_source(path, name, options.encoding), options)
        names = table.names
        if names is None:
            raise table.source.refusal("", "it is empty, without even its header")
        _refuse_names(table, names, needed=True)
        if guesses is None:
            guesses = Guesses(names, options.forms, known, options.unmodified)
        for one, other in ((guesses.names, names), (names, guesses.names)):
            if lacking := [column for column in one if column not in other]:
                raise missing(name if other is names else files[0][1], lacking[0], list(other))
        places = [names.index(column) for column in guesses.names]
        for piece in table.pieces():
            guesses.look(table.texts(piece, places))
    return (pa.schema([]), frozenset()) if guesses is None else (guesses.schema(), guesses.with_commas())


def _places(table: CsvTable, names: list[str], schema: pa.Schema) -> list[int]:
    """For each column of the schema its place in the file; one of kept cells has that of its column."""
    if not table.options.header:
        return list(range(len(schema)))
    columns = [column_of_kept(name) or name for name in schema.names]
    for column in columns:
        if column not in names:
            raise missing(table.source.name, column, names)
    return [names.index(column) for column in columns]


def _batches(table: CsvTable, schema: pa.Schema, places: Sequence[int]) -> Iterator[pa.RecordBatch]:
    parsers = [parser(field, table.options.forms) for field in schema]
    unmodified = table.options.unmodified
    for piece in table.pieces():
        cells = table.texts(piece, places)

        def line(row: int, piece: RowBlock = piece) -> str:
            return f"line {table.line_of(piece, row)}"

        columns = [
            _is_unmodified(texts, str(unmodified))
            if column_of_kept(field.name)
            else typed_or_refused(
                _null_where_empty(texts, field, unmodified), field, parse, table.source.name, line
            )
            for texts, field, parse in zip(map(_joined_blocks, cells.columns), schema, parsers, strict=True)
        ]
        yield from in_batches(pa.Table.from_arrays(columns, schema=schema))


def _joined_blocks(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()


def _null_where_empty(cells: pa.Array, field: pa.Field, unmodified: str | None) -> pa.Array:
    """The cells; in a column that is not text, NULL for empty (O27) and for unmodified ones."""
    if field.type == pa.string() and kind_of(field) != NULL:
        return cells
    if unmodified is not None:
        cells = pc.if_else(_is_unmodified(cells, unmodified), pa.scalar(None, cells.type), cells)
    return null_where_empty(cells)


def _is_unmodified(cells: pa.Array, unmodified: str) -> pa.Array:
    """Which cells leave their column as it was."""
    return pc.fill_null(pc.equal(cells, unmodified), False)
