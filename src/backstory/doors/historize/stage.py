"""The stage input of a base: a table, or a file whose rows this module reads (decision H7)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import pyarrow as pa

from backstory.doors.historize.model import ModelColumn, ModelDataset
from backstory.errors import Refused
from backstory.formats.batch_file import BatchFile, Encoding, Format, Stamp, stamp_of, while_unchanged
from backstory.formats.csv.rows import with_commas
from backstory.formats.csv.table import CsvTable, csv_table, file_source, refuse_whole_header
from backstory.formats.delivered import (
    WantedTable,
    arrow_schema,
    refuse_repeated,
    typed_csv_rows,
    typed_parquet_rows,
)
from backstory.formats.file_options import AS_EXPECTED, FileOptions
from backstory.formats.rows import Rows
from backstory.formats.values.texts import WITH_POINT
from backstory.model.types import ColumnType, Kind
from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.ddl import fits
from backstory.stores.sql.dialect import Dialect

# `data/customers.csv`, and `data/customers.csv.customer_id` with a column.
FILE = re.compile(r"(?P<file>.+\.(?:csv|parquet))(?:[.:#](?P<column>.+))?", re.IGNORECASE | re.DOTALL)
TABLE = re.compile(r"(?P<table>[^.]+\.[^.]+)(?:\.(?P<column>.+))?", re.DOTALL)


@dataclass(frozen=True)
class Stage:
    """The table `schema.table`, or a file and its options."""

    name: str
    path: Path | None = None
    written: FileOptions = AS_EXPECTED

    @property
    def format(self) -> Format:
        """The format of a file, by its extension."""
        return Format.PARQUET if self.name.lower().endswith(".parquet") else Format.CSV

    @cached_property
    def stamp(self) -> Stamp:
        """The state of the file at its first read. A load may read the file several times."""
        assert self.path is not None
        return stamp_of(self.path)

    @property
    def table(self) -> tuple[str, str]:
        """The schema and the name of a table."""
        schema, _, name = self.name.partition(".")
        return schema, name


def parse_input(text: str) -> tuple[str, str | None] | None:
    """The table or file that an `input` names, and the column, if any.

    Returns None if the string names neither.
    """
    if match := FILE.fullmatch(text):
        return match["file"], match["column"]
    if "/" not in text and (match := TABLE.fullmatch(text)):
        return match["table"], match["column"]
    return None


def stage_of(dataset: ModelDataset, folder: Path) -> Stage | None:
    """The stage input of a resolved dataset.

    A file's path is relative to the model's folder. Raises UsageError if the `read` options are invalid or do
    not apply to the input.
    """
    if dataset.input is None:
        return None
    is_file = FILE.fullmatch(dataset.input)
    stage = Stage(dataset.input, folder / dataset.input if is_file else None, dataset.read.options())
    if not is_file:
        stage.written.refuse_all("a table")
    elif stage.format is Format.PARQUET:
        stage.written.refuse_all("Parquet files")
    return stage


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
PLAIN: Final = Encoding()
FIX_FILE: Final = "Nothing was written; fix the file."
BELOW: Final = "below `input`"
ENCODED: Final = (
    f"Nothing was written; fix the file, or add `read: {{encoding: cp1252}}` or its like {BELOW}."
)
# The first bytes of archives.
_ARCHIVES: Final = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip"}
# Names of files that look like `schema.table`, in formats that no stage has.
_OTHER_FILE: Final = re.compile(
    r".+\.(?:json|jsonl|ndjson|tsv|txt|xlsx)(?:\.(?:gz|zip))?", re.IGNORECASE | re.DOTALL
)
# Types for which an empty string is a value.
_TEXTS: Final = {Datatype.STRING, Datatype.BINARY}


def column_type(column: ModelColumn) -> ColumnType:
    """The type of the column in a warehouse table."""
    if column.datatype is Datatype.DECIMAL:
        return ColumnType.decimal(column.decimal_precision or 0, column.decimal_scale or 0)
    return ColumnType(_KINDS[column.datatype])


def read_stage(stage: Stage, columns: Sequence[ModelColumn]) -> pa.Table:
    """The rows of a stage file, under the base's names and types.

    In CSV, an empty cell is NULL, but a quoted empty cell in a text column is an empty string. Columns are
    matched by the header, and other columns of the file are ignored. Raises Refused for a missing file or
    column. For broken CSV and unreadable cells, the error names the line.
    """
    types = arrow_schema({each.name: column_type(each) for each in columns})
    return pa.concat_tables([types.empty_table(), *stage_batches(stage, columns)]).combine_chunks()


def stage_batches(stage: Stage, columns: Sequence[ModelColumn]) -> Iterator[pa.Table]:
    """The same rows as `read_stage`, in batches."""
    assert stage.path is not None
    if not stage.path.is_file():
        missing = f"The stage input {stage.path} does not exist."
        raise Refused("no-stage", missing, "Provide the file, or fix the model.")
    wanted = _stage_types(stage, columns)
    file, stamp = BatchFile(stage.path), stage.stamp
    if stage.format is Format.PARQUET:
        parts = _parquet(file, wanted)
    else:
        texts = frozenset(column.source for column in columns if column.datatype in _TEXTS)
        parts = _csv(stage, file, wanted, texts)
    schema = arrow_schema(wanted)
    for part in while_unchanged(parts, stamp):
        rows = part.align(schema).values
        yield pa.table({each.name: rows[each.source] for each in columns})


def _stage_types(stage: Stage, columns: Sequence[ModelColumn]) -> dict[str, ColumnType]:
    wanted: dict[str, ColumnType] = {}
    for column in columns:
        source, type_ = column.source, column_type(column)
        if wanted.setdefault(source, type_) != type_:
            raise Refused(
                "STAGE_TYPE",
                f"{stage.name}.{source} feeds columns of two types.",
                "Add a column to the stage for each.",
                [source],
            )
    return wanted


def _csv(
    stage: Stage, file: BatchFile, wanted: Mapping[str, ColumnType], texts: frozenset[str]
) -> Iterator[Rows]:
    """The rows of a CSV file. Empty cells are NULL, except quoted cells of the columns in `texts` (O27)."""
    _refuse_packed(file)
    options = stage.written.csv()
    source = file_source(file.path, file.name, options.encoding, FIX_FILE, ENCODED)
    table = csv_table(source, options)
    if table.names is None:
        raise _unreadable(file, "it is empty" if table.empty else "line 1 is not a header")
    if stage.written.separator is None:
        refuse_whole_header(
            source, options, lambda separator: f"add `read: {{separator: {separator!r}}}` {BELOW}"
        )
    refuse_repeated(file.name, table.names, FIX_FILE)
    _refuse_missing(file, wanted, table.names)
    return _with_points(typed_csv_rows(table, WantedTable(wanted, texts, exact=True), file), table, wanted)


def _with_points(rows: Iterator[Rows], table: CsvTable, wanted: Mapping[str, ColumnType]) -> Iterator[Rows]:
    """The rows. If numbers have unexpected decimal commas, the error names the option to set."""
    try:
        yield from rows
    except Refused as stop:
        numbers = [name for name, type_ in wanted.items() if type_.kind in WITH_POINT]
        commas = with_commas(table, numbers) if stop.code == "unreadable-cell" else ()
        if not commas:
            raise
        message = f"{stop.message} Column {', '.join(commas)} has decimal commas."
        raise Refused(
            stop.code, message, f"Nothing was written; add `read: {{decimal: ','}}` {BELOW}."
        ) from None


def _refuse_packed(file: BatchFile) -> None:
    """Raise Refused for an archive, because a stage file is read as it is."""
    with file.path.open("rb") as stream:
        start = stream.read(4)
    for mark, program in _ARCHIVES.items():
        if start.startswith(mark):
            raise Refused(
                "unreadable-file",
                f"The stage input {file.name} is packed by {program}.",
                "Nothing was written; unpack the file, and name the unpacked one in `input`.",
            )


def _parquet(file: BatchFile, wanted: Mapping[str, ColumnType]) -> Iterator[Rows]:
    def choose_columns(names: Sequence[str]) -> Mapping[str, ColumnType]:
        _refuse_missing(file, wanted, names)
        return wanted

    if not file.size():
        raise _unreadable(file, "it is not Parquet")
    try:
        # The size of a stage file is not limited, because the file is the operator's own.
        yield from typed_parquet_rows(file, PLAIN, choose_columns, lambda _size: None, exact=True)
    except Refused as refused:
        if refused.code == "unreadable-file":  # a stage file has neither a sender nor a cipher
            raise _unreadable(file, "it is not Parquet") from None
        raise


def no_stage(dataset: ModelDataset) -> Refused:
    """The error for the load of a base without a stage input."""
    return Refused(
        "BASE_NOT_LOADED",
        f"{dataset.name} has no stage input.",
        "Set its input, or use `skip_base=True` to keep the base as it is.",
    )


def no_stage_table(stage: Stage) -> Refused:
    """The error for a missing stage table."""
    if _OTHER_FILE.fullmatch(stage.name):
        return Refused(
            "no-stage",
            f"There is no table {stage.name}, and a file must be CSV or Parquet.",
            "Convert the file, load the stage first, or fix the model.",
        )
    missing = f"There is no table {stage.name}."
    return Refused("no-stage", missing, "Load the stage first, or fix the model.")


def no_stage_column(stage: Stage, name: str) -> Refused:
    """The error for a column that a stage table lacks."""
    return Refused("missing-column", f"{stage.name} has no column {name}.", "Fix the model.", [name])


def refuse_stage_type(stage: Stage, source: str, stored: str, column: ModelColumn, dialect: Dialect) -> None:
    """Raise Refused if the column cannot hold all values of `source`, a stage column of the type `stored`."""
    if not fits(stored, column, dialect):
        raise Refused(
            "STAGE_TYPE",
            f"{stage.name}.{source} is {stored}, and {column.name} {dialect.type_of(column)} cannot hold all "
            "of its values.",
            "Cast it in the stage, or widen the column.",
            [column.name],
        )


def _unreadable(file: BatchFile, why: str) -> Refused:
    return Refused("unreadable-file", f"{file.name} cannot be read: {why}.", FIX_FILE)


def _refuse_missing(file: BatchFile, wanted: Mapping[str, ColumnType], header: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in header]
    if missing:
        raise Refused(
            "missing-column",
            f"{file.name} has no column {', '.join(missing)}.",
            f"Its columns are {', '.join(header[:20])}; fix the model or the file.",
            missing,
        )
