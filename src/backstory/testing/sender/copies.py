"""Full copies of a source, and the difference of two as the rows of one batch."""

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from backstory.errors import UsageError
from backstory.formats.file_columns import (
    as_files_of_a_user,
    columns_as_written,
    reader_options,
)
from backstory.formats.file_options import AS_EXPECTED, FileOptions
from backstory.formats.reading import rows_of
from backstory.formats.source_files import source_files, unpacked
from backstory.model.instant import TMAX
from backstory.model.layout import ACTIVE, END, START, SYNCED
from backstory.model.table import Column
from backstory.model.types import ColumnType, Kind
from backstory.strategies.actions import UNMODIFIED

Key = tuple[object, ...]
Row = dict[str, object]

_KINDS = {
    pa.bool_(): Kind.BOOLEAN,
    pa.int8(): Kind.SHORT,
    pa.int16(): Kind.SHORT,
    pa.int32(): Kind.INT,
    pa.int64(): Kind.LONG,
    pa.float32(): Kind.FLOAT,
    pa.float64(): Kind.DOUBLE,
    pa.date32(): Kind.NAIVE_DATE,
    pa.binary(): Kind.BINARY,
}


@dataclass(frozen=True, slots=True)
class SourceCopy:
    """All rows of a source at one time by key, and the keys that stood there more than once.

    Columns `with_commas` are texts that would be numbers if a comma were the decimal point.
    """

    key: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    rows: Mapping[Key, Row] = field(default_factory=dict)
    repeated: Sequence[Key] = ()
    with_commas: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Difference:
    """The rows of one batch; `earliest` is empty unless history is kept."""

    replace: Sequence[Row] = ()
    update: Sequence[Row] = ()
    delete: Sequence[Row] = ()
    earliest: Sequence[Row] = ()

    @property
    def empty(self) -> bool:
        """Whether the copies are the same."""
        return not (self.replace or self.update or self.delete)


def read_copy(
    path: Path, key: Sequence[str], texts: Collection[str] = (), written: FileOptions = AS_EXPECTED
) -> SourceCopy:
    """The copy in a CSV, Parquet or JSON file, packed or not; an empty file is a copy without rows.

    `written` says how the file is written. Types of columns are what all values of a text are, but for those
    in `texts`, which stay texts. Of the rows that share a key the last one counts. Raises UsageError for a
    file of another format or without a key column, Failed if there is none, Refused for what cannot be read.
    """
    source = source_files(str(path))
    written.refuse_misplaced(source.format)
    if path.is_file() and path.stat().st_size == 0:
        return SourceCopy(tuple(key))
    with tempfile.TemporaryDirectory(prefix="backstory-copy-") as folder, as_files_of_a_user():
        files = [unpacked(each, Path(folder)) for each in source.files]
        options = reader_options(source, files, written)
        known = {name: pa.field(name, pa.string()) for name in texts}
        schema, with_commas = columns_as_written(files, options, written, known)
        _refuse_lacking_key(path, key, schema.names)
        batches = [
            batch for each in files for batch in rows_of(each.path, each.name, options, schema).batches
        ]
    rows: dict[Key, Row] = {}
    repeated: list[Key] = []
    for row in pa.Table.from_batches(batches, schema).to_pylist():
        value = tuple(row[name] for name in key)
        if value in rows:
            repeated.append(value)
        rows[value] = row
    columns = tuple(Column(field.name, _type(field.type)) for field in schema)
    return SourceCopy(tuple(key), columns, rows, repeated, with_commas - set(texts))


def _refuse_lacking_key(path: Path, key: Sequence[str], names: Sequence[str]) -> None:
    if lacking := [name for name in key if name not in names]:
        raise UsageError(
            "no-key", f"{path} has no column {', '.join(lacking)}.", f"It has {', '.join(names)}.", lacking
        )


def _type(type_: pa.DataType) -> ColumnType:
    if pa.types.is_decimal(type_):
        return ColumnType.decimal(type_.precision, type_.scale)
    if pa.types.is_timestamp(type_):
        return ColumnType(Kind.UTC_DATETIME if type_.tz else Kind.NAIVE_DATETIME)
    return ColumnType(_KINDS.get(type_, Kind.STRING))


def difference(before: SourceCopy, after: SourceCopy, instant: datetime, *, history: bool) -> Difference:
    """What a source connector would send for the change from one copy to the next, made at `instant`.

    New keys are replaced, changed ones updated with the unmodified mark on what stayed, vanished
    ones deleted. With `history` the rows carry the columns of history mode.
    """
    stamp: Row = {SYNCED: instant}
    if history:
        stamp |= {START: instant, END: TMAX, ACTIVE: True}
    names = [column.name for column in after.columns if column.name not in after.key]
    replace, update = [], []
    for key, row in after.rows.items():
        old = before.rows.get(key)
        if old is None:
            replace.append(row | stamp)
        elif any(old.get(name) != row[name] for name in names):
            update.append({n: row[n] for n in after.key} | _changes(old, row, names) | stamp)
    gone = [row for key, row in before.rows.items() if key not in after.rows]
    delete = [row | {SYNCED: instant, END: instant} for row in gone]
    earliest = [row | {START: instant} for row in (*replace, *update)] if history else []
    return Difference(replace, update, delete, earliest)


def _changes(old: Row, new: Row, names: Sequence[str]) -> Row:
    return {name: UNMODIFIED if old.get(name) == new[name] else new[name] for name in names}
