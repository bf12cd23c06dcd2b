"""Rows of a CSV as values of declared fields, or of what their cells are (section 1.6, B14, B16 to B20)."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.csv.inference import Guesses
from backstory.formats.csv.options import CsvOptions
from backstory.formats.csv.pieces import Piece
from backstory.formats.csv.source import file_source
from backstory.formats.csv.table import CsvTable, csv_table
from backstory.formats.expected import NULL, kind
from backstory.formats.kept_cells import kept_column
from backstory.formats.produced import (
    UNTOLD,
    ProducedRows,
    Told,
    in_batches,
    missing,
    refuse_repeated,
    typed_or_refused,
    unknown,
)
from backstory.formats.values.cells import null_where_empty
from backstory.formats.values.texts import parser


def csv_rows(
    path: Path, name: str, options: CsvOptions, schema: pa.Schema | None, told: Told = UNTOLD
) -> ProducedRows:
    """The file's rows, with the declared columns or with its own.

    With a header columns are found by name, without one by their place. Raises UsageError for a type
    that text has no form for, Refused for a header that lacks a column or names one twice; what
    is wrong with a row is refused when its batch is asked for.
    """
    for field in schema or ():
        parser(field, options.forms)  # told before the file is read
    source = file_source(path, name, options.encoding)
    table = csv_table(source, options, None if schema is None else schema.names)
    if table.empty:
        if options.header and schema is not None:
            raise source.broken("", "it is empty, without even its header")
        return ProducedRows(pa.schema([]) if schema is None else schema, iter(()))
    names = [""] if table.names is None else table.names
    if options.header:
        _refuse_names(table, names, needed=schema is None)
    if schema is None:
        schema = _own_schema(table, names, told)
    extra = [column for column in names if column not in schema.names]
    if extra and options.strict:
        raise unknown(name, extra)
    return ProducedRows(schema, _batches(table, schema, _places(table, names, schema)))


def _refuse_names(table: CsvTable, names: list[str], *, needed: bool) -> None:
    place = f"line {table.line}"
    if needed and not all(names):
        raise table.source.broken(place, f"column {names.index('') + 1} has no name")
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
            raise table.source.broken("", "it is empty, without even its header")
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
    columns = [kept_column(name) or name for name in schema.names]
    for column in columns:
        if column not in names:
            raise missing(table.source.name, column, names)
    return [names.index(column) for column in columns]


def _batches(table: CsvTable, schema: pa.Schema, places: Sequence[int]) -> Iterator[pa.RecordBatch]:
    parsers = [parser(field, table.options.forms) for field in schema]
    unmodified = table.options.unmodified
    for piece in table.pieces():
        cells = table.texts(piece, places)

        def line(row: int, piece: Piece = piece) -> str:
            return f"line {table.line_of(piece, row)}"

        columns = [
            _kept(texts, str(unmodified))
            if kept_column(field.name)
            else typed_or_refused(_valued(texts, field, unmodified), field, parse, table.source.name, line)
            for texts, field, parse in zip(map(_in_one, cells.columns), schema, parsers, strict=True)
        ]
        yield from in_batches(pa.Table.from_arrays(columns, schema=schema))


def _in_one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()


def _valued(cells: pa.Array, field: pa.Field, unmodified: str | None) -> pa.Array:
    """The cells; in a column that is not text, NULL for empty (O27) and for unmodified ones."""
    if field.type == pa.string() and kind(field) != NULL:
        return cells
    if unmodified is not None:
        cells = pc.if_else(_kept(cells, unmodified), pa.scalar(None, cells.type), cells)
    return null_where_empty(cells)


def _kept(cells: pa.Array, unmodified: str) -> pa.Array:
    """Which cells leave their column as it was."""
    return pc.fill_null(pc.equal(cells, unmodified), False)
