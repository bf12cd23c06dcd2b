"""Files as stage input: rows of the declared types, or an error with file and line (decision H7)."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backstory.doors.historize.model import Column
from backstory.doors.historize.stage import Stage
from backstory.errors import Refused
from backstory.formats.csv.header import refuse_repeated
from backstory.formats.csv.options import CsvOptions
from backstory.formats.csv.source import delivered_source
from backstory.formats.csv.table import csv_table
from backstory.formats.csv.typed_rows import Asked, typed_rows
from backstory.formats.rows import Rows, arrow_type
from backstory.formats.values.cells import UnreadableCell
from backstory.formats.values.leniency import EXACT, parsed
from backstory.formats.wrapping.batch_file import BatchFile, Encoding, Format
from backstory.model.types import ColumnType, Kind
from backstory.stores.sql.columns import Datatype

_KINDS = {
    Datatype.STRING: Kind.STRING,
    Datatype.INTEGER: Kind.INT,
    Datatype.BIGINT: Kind.LONG,
    Datatype.FLOAT: Kind.DOUBLE,
    Datatype.BOOLEAN: Kind.BOOLEAN,
    Datatype.DATE: Kind.NAIVE_DATE,
    Datatype.TIME: Kind.NAIVE_TIME,
    Datatype.TIMESTAMP: Kind.UTC_DATETIME,
    Datatype.BINARY: Kind.BINARY,
    Datatype.UUID: Kind.STRING,
    Datatype.JSON: Kind.JSON,
}
PLAIN = Encoding()
MEND = "Nothing was written; mend the file."
# Types of which an empty text is a value.
_TEXTS = {Datatype.STRING, Datatype.BINARY}


def column_type(column: Column) -> ColumnType:
    """The type that a table of ours has for the column."""
    if column.datatype is Datatype.DECIMAL:
        return ColumnType.decimal(column.decimal_precision or 0, column.decimal_scale or 0)
    return ColumnType(_KINDS[column.datatype])


def read_stage(stage: Stage, columns: Sequence[Column]) -> pa.Table:
    """The rows of a stage file, each column under its name in the file.

    In CSV an empty cell is NULL; quoted, in a column of text, it is an empty text. The columns are found
    by the header, and others than those that the model names are passed over. Raises Refused for a
    missing file or column, broken CSV and an unreadable cell, with the line.
    """
    assert stage.path is not None
    if not stage.path.is_file():
        told = f"The stage input {stage.path} is not there."
        raise Refused("no-stage", told, "Bring the file, or mend the model.")
    wanted: dict[str, ColumnType] = {}
    for column in columns:
        source, type_ = column.input or column.name, column_type(column)
        if wanted.setdefault(source, type_) != type_:
            raise Refused(
                "STAGE_TYPE",
                f"{stage.name}.{source} feeds columns of two types.",
                "Give the stage a column for each.",
                [source],
            )
    if stage.format is Format.PARQUET:
        return _parquet(stage.path, wanted)
    texts = frozenset(column.input or column.name for column in columns if column.datatype in _TEXTS)
    return _csv(stage.path, wanted, texts)


def _csv(path: Path, wanted: dict[str, ColumnType], texts: frozenset[str]) -> pa.Table:
    """The rows of a CSV file; in a column that is none of the `texts` an empty cell is NULL (O27)."""
    file = BatchFile(path)
    table = csv_table(delivered_source(file, PLAIN, mend=MEND), CsvOptions())
    if table.names is None:
        raise _unreadable(file, "it is empty" if table.empty else "line 1 is no header")
    refuse_repeated(file.name, table.names, MEND)
    _refuse_missing(path, wanted, table.names)
    parts = list(typed_rows(table, Asked(wanted, texts, leniency=EXACT), file))
    if not parts:
        return pa.schema([pa.field(name, arrow_type(type_)) for name, type_ in wanted.items()]).empty_table()
    return Rows.joined(parts).values.combine_chunks()


def _parsed(text: pa.Array, type_: ColumnType) -> pa.Array:
    return parsed(text, type_, EXACT)[0]


def _parquet(path: Path, wanted: dict[str, ColumnType]) -> pa.Table:
    try:
        stored = pq.read_schema(path)
        _refuse_missing(path, wanted, stored.names)
        rows = pq.read_table(path, columns=list(wanted))
    except (pa.ArrowInvalid, OSError):
        raise _unreadable(BatchFile(path), "it is not Parquet") from None
    values = {}
    for name, type_ in wanted.items():
        column = rows[name].combine_chunks()
        try:
            values[name] = _converted(column, type_)
        except UnreadableCell as cell:
            raise BatchFile(path).unreadable_cell(f"row {cell.row + 1}", name, type_) from None
        except pa.ArrowException:
            raise BatchFile(path).unreadable_cell("some row", name, type_) from None
    return pa.table(values)


def _unreadable(file: BatchFile, why: str) -> Refused:
    return Refused("unreadable-file", f"{file.name} cannot be read: {why}.", MEND)


def _converted(values: pa.Array, type_: ColumnType) -> pa.Array:
    """Stored values as those of the type; UnreadableCell or pa.ArrowException if they are none."""
    stored = values.type
    if pa.types.is_null(stored):
        return pa.nulls(len(values), arrow_type(type_))
    if isinstance(stored, pa.UuidType) and type_.kind is Kind.STRING:
        values = pa.array([value and str(value) for value in values.to_pylist()], pa.string())
    elif pa.types.is_time(stored) and type_.kind is Kind.NAIVE_TIME:
        values = values.cast(pa.string())
    elif isinstance(stored, pa.JsonType):
        values = values.storage
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return _parsed(values.cast(pa.string()), type_)
    return _exactly(values, arrow_type(type_))


def _exactly(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """The values as another type; pa.ArrowInvalid if one of them is another value then."""
    made = values.cast(type_)
    floats = pa.types.is_floating(values.type)
    if values.type == type_ or (floats and pa.types.is_float64(type_)):
        return made
    back = made.cast(values.type)
    same = pc.equal(back, values)
    if floats:
        same = pc.or_(same, pc.and_(pc.is_nan(back), pc.is_nan(values)))
    if not pc.all(same, min_count=0).as_py():
        raise pa.ArrowInvalid("a value does not fit")
    return made


def _refuse_missing(path: Path, wanted: dict[str, ColumnType], header: list[str]) -> None:
    missing = [name for name in wanted if name not in header]
    if missing:
        raise Refused(
            "missing-column",
            f"{path.name} has no column {', '.join(missing)}.",
            f"Its columns are {', '.join(header[:20])}; mend the model or the file.",
            missing,
        )
