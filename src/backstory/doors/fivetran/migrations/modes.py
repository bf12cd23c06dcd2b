"""Migrations between sync modes: live, soft delete, history (sections 6.8 and 6.9)."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from backstory.doors.fivetran.migrations.subject import Subject, refused, rewritten
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.model.change import Change
from backstory.model.instant import MILLISECOND
from backstory.model.layout import ACTIVE, DELETED, HISTORY_COLUMNS, SYNCED, Layout
from backstory.model.schema import Column, Shape
from backstory.model.types import ColumnType, Kind
from backstory.stores.iceberg.conditions import update_where
from backstory.stores.iceberg.frames import rows_of
from backstory.stores.iceberg.literals import column, micros_of
from backstory.strategies.shape_changes import plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Asked = sdk.TableSyncModeMigrationOperation
ModeChange = Callable[[Subject, Asked], Change | None]
_BOOLEAN, _INSTANT = ColumnType(Kind.BOOLEAN), ColumnType(Kind.UTC_DATETIME)
_DELETED = Column(DELETED, _BOOLEAN)


def change(asked: Asked, *, live_modes: bool) -> ModeChange | None:
    """What the migration type means; None for one that is not offered."""
    types = sdk.TableSyncModeMigrationType
    offered: dict[int, ModeChange] = {
        types.SOFT_DELETE_TO_HISTORY: soft_delete_to_history,
        types.HISTORY_TO_SOFT_DELETE: history_to_soft_delete,
    }
    if live_modes:
        offered |= {
            types.SOFT_DELETE_TO_LIVE: soft_delete_to_live,
            types.HISTORY_TO_LIVE: history_to_live,
            types.LIVE_TO_SOFT_DELETE: live_to_soft_delete,
            types.LIVE_TO_HISTORY: live_to_history,
        }
    return offered.get(asked.type)


def soft_delete_to_history(subject: Subject, asked: Asked) -> Change | None:
    """Rows become open versions that start with the newest sync, flagged ones closed versions."""
    if subject.shape.layout is Layout.FIVETRAN_HISTORY:
        return None
    return rewritten(*as_history(subject, asked.soft_deleted_column or DELETED))


def as_history(subject: Subject, flag: str) -> "tuple[Shape, DataFrame]":
    """The table's shape and rows as a history table's; no row is deleted if there is no such flag."""
    deleted = _flag(subject, flag)
    shape, rows = subject.shape, rows_of(subject.store, subject.table)
    newest = plan.newest_sync(rows).collect()[0].newest if shape.column(SYNCED) else None
    start = _now() if newest is None else newest
    return _history(shape, without=DELETED), plan.to_history(rows, deleted.name, start)


def history_to_soft_delete(subject: Subject, asked: Asked) -> Change | None:
    """The newest version of each key stays, flagged if it is closed."""
    flag = _flag(subject, asked.soft_deleted_column or DELETED)
    shape = subject.shape
    rows = rows_of(subject.store, subject.table)
    if shape.layout is Layout.FIVETRAN_HISTORY:
        kept = plan.to_soft_delete(rows, _key(shape), flag.name)
        return rewritten(_live(shape, flag, _DELETED), kept)
    return _add_flag(subject, flag) if shape.column(flag.name) is None else None


def soft_delete_to_live(subject: Subject, asked: Asked) -> Change | None:
    """Flagged rows go."""
    flag = _flag(subject, asked.soft_deleted_column or DELETED).name
    if subject.shape.layout is Layout.FIVETRAN_HISTORY or subject.shape.column(flag) is None:
        return None
    kept = [c for c in subject.shape.columns if c.name != DELETED or flag != DELETED]
    rows = plan.soft_delete_to_live(rows_of(subject.store, subject.table), flag)
    return rewritten(replace(subject.shape, columns=tuple(kept)), rows)


def history_to_live(subject: Subject, asked: Asked) -> Change | None:
    """The newest version of each key stays if it is open, or if deleted rows are kept."""
    shape = subject.shape
    if shape.layout is not Layout.FIVETRAN_HISTORY:
        return None
    rows = rows_of(subject.store, subject.table)
    kept = plan.history_to_live(rows, _key(shape), keep_deleted=asked.keep_deleted_rows)
    return rewritten(_live(shape), kept)


def live_to_soft_delete(subject: Subject, asked: Asked) -> Change | None:
    """The flag is there, and FALSE where it was NULL."""
    from pyspark.sql.functions import lit

    flag = _flag(subject, asked.soft_deleted_column or DELETED)
    if subject.shape.column(flag.name) is None:
        return _add_flag(subject, flag)
    values = {flag.name: lit(False)}
    return update_where(subject.store, subject.table, column(flag.name).isNull(), values)


def live_to_history(subject: Subject, _asked: Asked) -> Change | None:
    """Every row becomes an open version that starts now."""
    if subject.shape.layout is Layout.FIVETRAN_HISTORY:
        return None
    rows = plan.live_to_history(rows_of(subject.store, subject.table), _now())
    return rewritten(_history(subject.shape), rows)


def _add_flag(subject: Subject, flag: Column) -> Change | None:
    from pyspark.sql.functions import lit

    rows = rows_of(subject.store, subject.table).withColumn(flag.name, lit(False))
    return rewritten(subject.having(flag), rows)


def _history(shape: Shape, without: str = "") -> Shape:
    _key(shape)
    kept = [c for c in shape.columns if c.name not in {without, *HISTORY_COLUMNS}]
    new = [Column(name, _BOOLEAN if name == ACTIVE else _INSTANT) for name in HISTORY_COLUMNS]
    return replace(shape, columns=(*kept, *new), layout=Layout.FIVETRAN_HISTORY)


def _live(shape: Shape, *flags: Column) -> Shape:
    kept = [c for c in shape.columns if c.name not in HISTORY_COLUMNS]
    new = [flag for flag in dict.fromkeys(flags) if shape.column(flag.name) is None]
    return replace(shape, columns=(*kept, *new), layout=Layout.FIVETRAN_LIVE)


def _key(shape: Shape) -> tuple[str, ...]:
    if not shape.key:
        raise refused(f"{shape.table} has no key.", "Alter the table's key first.")
    return shape.key


def _flag(subject: Subject, name: str) -> Column:
    """The column that the source calls so, there or not; Refused if it is there and cannot be a flag."""
    flag = subject.becoming(name, _BOOLEAN)
    if flag.type.kind is not Kind.BOOLEAN:
        raise refused(f"The column {name} of {subject.shape.table} is not BOOLEAN.", "Name another.")
    return flag


def _now() -> int:
    return micros_of(datetime.now(UTC)) // MILLISECOND * MILLISECOND
