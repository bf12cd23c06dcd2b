"""Files as stage input: rows of the declared types, or an error with file and line (decision H7)."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from backstory.doors.historize.model import Column, Datatype
from backstory.doors.historize.stage import Stage
from backstory.errors import Refused
from backstory.files.batch_file import BatchFile, Encoding, Format
from backstory.files.cells import UnreadableCell, parse
from backstory.files.csv_text import LONGEST_LINE, broken, line_of
from backstory.files.rows import arrow_type
from backstory.model.column import ColumnType, Kind

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
# Digits of a second that microseconds do not hold. A delivery's are cut off (F6); nobody said that of a
# stage, where two instants that become one would be silently wrong (E1).
FINER = r"\.\d{6}\d*[1-9]"
_TIMES = {Kind.NAIVE_TIME, Kind.UTC_DATETIME}
BLANK = b"\xef\xbb\xbf\r\n"


def column_type(column: Column) -> ColumnType:
    """The type that a table of ours has for the column."""
    if column.datatype is Datatype.DECIMAL:
        return ColumnType.decimal(column.decimal_precision or 0, column.decimal_scale or 0)
    return ColumnType(_KINDS[column.datatype])


def read_stage(stage: Stage, columns: Sequence[Column]) -> pa.Table:
    """The rows of a stage file, each column under its name in the file.

    In CSV an unquoted empty cell is NULL, a quoted one an empty text; the columns are found by the
    header, and others than those that the model names are passed over. Raises Refused for a
    missing file or column, broken CSV and an unreadable cell.
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
    return _csv(stage.path, wanted)


def _csv(path: Path, wanted: dict[str, ColumnType]) -> pa.Table:
    file = BatchFile(path)
    if not path.stat().st_size:
        raise _unreadable(file, "it is empty")
    try:
        header = _header(path)
    except UnicodeDecodeError:
        raise _unreadable(file, "its text is not UTF-8") from None
    except pa.ArrowInvalid as stop:
        raise _of_stage(broken(file, PLAIN, stop)) from None
    _refuse_missing(path, wanted, header)
    options = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()),
        include_columns=list(wanted),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    try:
        text = pa_csv.read_csv(
            path,
            read_options=_one_block(path.stat().st_size),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=options,
        )
    except pa.ArrowInvalid as stop:
        raise _of_stage(broken(file, PLAIN, stop)) from None
    values = {}
    for name, type_ in wanted.items():
        try:
            values[name] = _parsed(text[name].combine_chunks(), type_)
        except UnreadableCell as cell:
            line = line_of(file, PLAIN, cell.row)
            raise file.unreadable_cell(f"line {line}", name, type_) from None
    return pa.table(values)


def _header(path: Path) -> list[str]:
    """The names as the parser tells them, from the header's row alone: the rows are not read twice."""
    start = _through_header(path)
    # A quote inside an unquoted name looks open here, so a piece of a row may stand at the end.
    parsed = pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=lambda _: "skip")
    source = pa.BufferReader(start)
    with pa_csv.open_csv(source, read_options=_one_block(len(start)), parse_options=parsed) as opened:
        return list(opened.schema.names)


def _through_header(path: Path) -> bytes:
    """The file's bytes as far as the end of the first row that is not blank, whatever its length."""
    lines, quotes = [], 0
    with path.open("rb") as file:
        for line in file:
            lines.append(line)
            quotes += line.count(b'"')
            if quotes % 2 == 0 and line.strip(BLANK):
                break
    return b"".join(lines)


def _one_block(size: int) -> pa_csv.ReadOptions:
    """The parser holds no row that is longer than a block."""
    return pa_csv.ReadOptions(block_size=min(LONGEST_LINE, max(size, 1 << 20)))


def _parsed(text: pa.Array, type_: ColumnType) -> pa.Array:
    """The cells as values of the type; UnreadableCell for the first that is not, or is finer."""
    if type_.kind in _TIMES:
        row = pc.index(pc.match_substring_regex(text, FINER), pa.scalar(True)).as_py()
        if row >= 0:
            raise UnreadableCell(row)
    return parse(text, type_)


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


def _of_stage(error: Refused) -> Refused:
    """An error of a delivered file in the words of a stage: nobody sent it, and it has no key."""
    return Refused(error.code, error.message.replace("; the key may be wrong", ""), MEND)


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
    twice = [name for name in wanted if header.count(name) > 1]
    if twice:
        raise Refused(
            "repeated-column", f"{path.name} has {', '.join(twice)} twice.", "Name each column once.", twice
        )
    missing = [name for name in wanted if name not in header]
    if missing:
        raise Refused(
            "missing-column",
            f"{path.name} has no column {', '.join(missing)}.",
            f"Its columns are {', '.join(header[:20])}; mend the model or the file.",
            missing,
        )
