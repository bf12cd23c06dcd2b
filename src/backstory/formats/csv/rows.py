"""Rows of a CSV file with declared or inferred column types (section 1.6, B14, B16 to B20).

An inferred type holds every cell of its column without loss. For example, `007` and a number of twenty digits
stay strings.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.csv.table import CsvTable, RowBlock, csv_table, file_source
from backstory.formats.expected import NULL, kind_of
from backstory.formats.options import CsvOptions
from backstory.formats.produced import (
    BATCH,
    UNDECLARED,
    DeclaredFields,
    ProducedRows,
    refuse_repeated,
    require_columns,
    typed_or_refused,
)
from backstory.formats.rows import KEEPS, column_of_kept
from backstory.formats.values.cells import are_numbers, have_commas, null_where_empty
from backstory.formats.values.texts import (
    BOOL,
    DATE,
    FLOAT,
    INSTANT,
    INT,
    TextForms,
    all_are,
    exact_as_float,
    needs_typed_column,
    parser,
)

# A column has the first of these types that fits all its cells.
_TYPES = [INT, FLOAT, BOOL, DATE, INSTANT]


@dataclass(slots=True)
class _SeenCells:
    """A summary of a column's cells so far, without NULL cells.

    `types` are the types that fit all cells. `numbers` is true if all cells are numbers, with or without a
    decimal comma. `commas` is true if one of these numbers has a comma.
    """

    types: list[pa.DataType]
    numbers: bool
    commas: bool = False
    some: bool = False
    full: bool = False
    unmodified: bool = False

    def look(self, cells: pa.Array, forms: TextForms) -> None:
        """Rule out the types that do not fit these cells."""
        self.some |= len(cells) > 0
        full = cells.filter(pc.not_equal(cells, ""))
        if len(full):
            self.full = True
            self.types = _left(full, self.types, forms)
            self.numbers = self.numbers and are_numbers(full)
            self.commas |= self.numbers and have_commas(full)

    def type(self, known: pa.Field | None) -> pa.DataType:
        """The known type if it fits, else the first type that fits.

        A column without cells has the type null.
        """
        if not self.some:
            return pa.null()
        fitting = [*self.types, pa.string()] if self.full else [pa.string(), *self.types]
        return known.type if known is not None and known.type in fitting else fitting[0]


@dataclass(slots=True)
class Guesses:
    """The possible types of columns.

    Pass all tables to `look`, then call `schema`. A column has its `known` type if all its cells fit it.
    Cells that equal `unmodified` are ignored.
    """

    names: Sequence[str]
    forms: TextForms
    known: Mapping[str, pa.Field]
    unmodified: str | None = None
    _seen: list[_SeenCells] = field(init=False)

    def __post_init__(self) -> None:
        # A known type outside `_TYPES` is tried only for its own column.
        known = [self.known[name].type if name in self.known else pa.null() for name in self.names]
        others = ([type_] if needs_typed_column(type_) else [] for type_ in known)
        self._seen = [_SeenCells([*_TYPES, *other], self.forms.decimal == ".") for other in others]

    def look(self, table: CsvTable) -> None:
        """Rule out the types that do not fit a cell of the table, which has columns with these names."""
        names = table.names or [""]
        places = [names.index(name) for name in self.names]
        for cells in (table.texts(piece, places) for piece in table.pieces()):
            for seen, column in zip(self._seen, cells.columns, strict=True):
                some = column.combine_chunks().drop_null()
                if self.unmodified is not None:
                    every, some = len(some), some.filter(pc.not_equal(some, self.unmodified))
                    seen.unmodified |= len(some) < every
                seen.look(some, self.forms)

    def with_commas(self) -> frozenset[str]:
        """The columns that would be numbers if a comma were the decimal separator."""
        columns = zip(self.names, self._seen, strict=True)
        return frozenset(name for name, seen in columns if seen.numbers and seen.commas)

    def schema(self) -> pa.Schema:
        """The columns with their inferred types, all optional.

        A column without values has the type null; a column with only empty strings is text. In a column with
        other values, an empty string is NULL unless the column is text (O27). Each column with unmodified
        cells has an extra boolean column at the end that flags them.
        """
        columns = list(zip(self.names, self._seen, strict=True))
        fields = [pa.field(name, seen.type(self.known.get(name))) for name, seen in columns]
        flags = [pa.field(KEEPS.format(name), pa.bool_()) for name, seen in columns if seen.unmodified]
        return pa.schema([*fields, *flags])


def with_commas(table: CsvTable, columns: Sequence[str]) -> list[str]:
    """The columns that contain only numbers, at least one of them with a decimal comma."""
    guesses = Guesses(columns, table.options.forms, {})
    guesses.look(table)
    return [column for column in columns if column in guesses.with_commas()]


def _left(cells: pa.Array, types: Sequence[pa.DataType], forms: TextForms) -> list[pa.DataType]:
    """The candidate types that fit all cells."""
    for place, type_ in enumerate(types):
        if _all_are(cells, type_, forms):
            rest = types[place + 1 :]
            if type_ == INT:  # only FLOAT also accepts plain digits, unless there are too many
                exact = [FLOAT] if FLOAT in rest and exact_as_float(cells) else []
                rest = [other for other in rest if other not in _TYPES]
                return [INT, *exact, *(other for other in rest if _all_are(cells, other, forms))]
            return [type_, *(other for other in rest if _all_are(cells, other, forms))]
    return []


def _all_are(cells: pa.Array, type_: pa.DataType, forms: TextForms) -> bool:
    # The first cell rules out most types.
    return all_are(cells[:1], type_, forms) and all_are(cells, type_, forms)


def csv_rows(
    path: Path,
    name: str,
    options: CsvOptions,
    schema: pa.Schema | None,
    dataset_types: DeclaredFields = UNDECLARED,
) -> ProducedRows:
    """The rows of a CSV file, with the declared columns or else with the file's own columns.

    With a header, columns are matched by name, otherwise by position. Raises UsageError for a declared type
    that no text can represent. Raises Refused for a header that lacks or repeats a column. Errors in single
    rows are raised when their batch is read.
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
        schema = _own_schema(table, names, dataset_types)
    places = list(range(len(schema)))
    if options.header:  # a flag has the index of its data column
        columns = [column_of_kept(column) or column for column in schema.names]
        require_columns(name, columns, names, strict=options.strict)
        places = [names.index(column) for column in columns]
    return ProducedRows(schema, _batches(table, schema, places))


def _refuse_names(table: CsvTable, names: list[str], *, needed: bool) -> None:
    place = f"line {table.line}"
    if needed and not all(names):
        raise table.source.refusal(place, f"column {names.index('') + 1} has no name")
    refuse_repeated(table.source.name, [column for column in names if column], place)


def _own_schema(table: CsvTable, names: list[str], dataset_types: DeclaredFields) -> pa.Schema:
    """The file's columns.

    A column of the dataset keeps the dataset's type. Other columns have inferred types, or are text if
    `infer` is off.
    """
    schema = pa.schema([pa.field(name, pa.string()) for name in names])
    if table.options.infer:
        guesses = Guesses(names, table.options.forms, UNDECLARED)
        guesses.look(table)
        schema = guesses.schema()
    return pa.schema([dataset_types.get(field.name, field) for field in schema])


def csv_columns(
    files: Sequence[tuple[Path, str]], options: CsvOptions, known: DeclaredFields = UNDECLARED
) -> tuple[pa.Schema, frozenset[str]]:
    """The common columns of files with headers, and the names of columns with decimal commas.

    All cells are checked. A column has its `known` type if all its cells fit it. Raises Refused if the files
    have different columns, and for a file without a header.
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
        require_columns(name, guesses.names, names, strict=False)
        require_columns(files[0][1], names, list(guesses.names), strict=False)
        guesses.look(table)
    return (pa.schema([]), frozenset()) if guesses is None else (guesses.schema(), guesses.with_commas())


def _batches(table: CsvTable, schema: pa.Schema, places: Sequence[int]) -> Iterator[pa.RecordBatch]:
    parsers = [parser(field, table.options.forms) for field in schema]
    unmodified = table.options.unmodified
    for piece in table.pieces():
        cells = table.texts(piece, places)

        def line(row: int, piece: RowBlock = piece) -> str:
            return f"line {table.line_of(piece, row)}"

        arrays = [column.combine_chunks() for column in cells.columns]
        columns = [
            _is_unmodified(texts, str(unmodified))
            if column_of_kept(field.name)
            else typed_or_refused(
                _null_where_empty(texts, field, unmodified), field, parse, table.source.name, line
            )
            for texts, field, parse in zip(arrays, schema, parsers, strict=True)
        ]
        rows = pa.Table.from_arrays(columns, schema=schema)
        yield from rows.combine_chunks().to_batches(max_chunksize=BATCH)


def _null_where_empty(cells: pa.Array, field: pa.Field, unmodified: str | None) -> pa.Array:
    """The cells, with NULL for empty and unmodified cells. Cells of a text column are unchanged (O27)."""
    if field.type == pa.string() and kind_of(field) != NULL:
        return cells
    if unmodified is not None:
        cells = pc.if_else(_is_unmodified(cells, unmodified), pa.scalar(None, cells.type), cells)
    return null_where_empty(cells)


def _is_unmodified(cells: pa.Array, unmodified: str) -> pa.Array:
    """Whether each cell leaves its column unchanged."""
    return pc.fill_null(pc.equal(cells, unmodified), False)
