"""Full copies of a source, and the difference of two as the rows of one batch."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from backstory.errors import UsageError
from backstory.model.instant import TMAX
from backstory.model.layout import ACTIVE, END, START, SYNCED
from backstory.model.schema import Column
from backstory.model.types import ColumnType, Kind
from backstory.strategies.unmodified import UNMODIFIED

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
    """All rows of a source at one time by key, and the keys that stood there more than once."""

    key: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    rows: Mapping[Key, Row] = field(default_factory=dict)
    repeated: Sequence[Key] = ()


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


def read_copy(path: Path, key: Sequence[str], texts: Collection[str] = ()) -> SourceCopy:
    """The copy in a CSV or Parquet file; an empty file is a copy without rows.

    Types of a CSV file's columns are inferred, but for those named in `texts`, which are text.

    An empty CSV field is NULL, a quoted empty one is an empty text. Of the rows that share a key the
    last one counts. Raises UsageError if the file cannot be read or lacks a key column.
    """
    try:
        if path.stat().st_size == 0:
            return SourceCopy(tuple(key))
        table = pq.read_table(path) if path.suffix == ".parquet" else _read_csv(path, texts)
    except (OSError, pa.ArrowInvalid):
        raise UsageError(
            "unreadable-copy",
            f"{path} is not a readable CSV or Parquet file.",
            "Name another file.",
        ) from None
    for name in key:
        if name not in table.column_names:
            raise UsageError(
                "no-key",
                f"{path} has no column {name}.",
                f"It has {', '.join(table.column_names)}.",
            )
    rows: dict[Key, Row] = {}
    repeated: list[Key] = []
    for row in table.to_pylist():
        instant = tuple(row[name] for name in key)
        if instant in rows:
            repeated.append(instant)
        rows[instant] = row
    columns = tuple(Column(field.name, _type(field.type)) for field in table.schema)
    return SourceCopy(tuple(key), columns, rows, repeated)


def _read_csv(path: Path, texts: Collection[str]) -> pa.Table:
    return pa_csv.read_csv(
        path,
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(texts, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _type(type_: pa.DataType) -> ColumnType:
    if pa.types.is_decimal(type_):
        return ColumnType.decimal(type_.precision, type_.scale)
    if pa.types.is_timestamp(type_):
        return ColumnType(Kind.UTC_DATETIME if type_.tz else Kind.NAIVE_DATETIME)
    return ColumnType(_KINDS.get(type_, Kind.STRING))


def difference(before: SourceCopy, after: SourceCopy, instant: datetime, *, history: bool) -> Difference:
    """What a source connector would send for the change from one copy to the next, made at `at`.

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
