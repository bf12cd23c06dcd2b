"""Migrations between sync modes: live, soft delete, history (sections 6.8 and 6.9)."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from backstory.doors.fivetran.definitions import can_flag
from backstory.doors.fivetran.migrations.subject import Subject, refused
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.model.change import Change
from backstory.model.instant import MILLISECOND
from backstory.model.layout import ACTIVE, DELETED, HISTORY_COLUMNS, Layout
from backstory.model.schema import Column, Shape
from backstory.model.types import ColumnType, Kind
from backstory.strategies.shape_changes.operations import (
    Add,
    FillFlag,
    Given,
    HistoryToLive,
    LiveToHistory,
    SoftDeleteToLive,
    ToHistory,
    ToSoftDelete,
)

Operation = sdk.TableSyncModeMigrationOperation
ModeChange = Callable[[Subject, Operation], Change | None]
_BOOLEAN, _INSTANT = ColumnType(Kind.BOOLEAN), ColumnType(Kind.UTC_DATETIME)
_DELETED = Column(DELETED, _BOOLEAN)


def change(asked: Operation, *, live_modes: bool) -> ModeChange | None:
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


def soft_delete_to_history(subject: Subject, asked: Operation) -> Change | None:
    """Rows become open versions that start with the newest sync, flagged ones closed versions."""
    if subject.shape.layout is Layout.FIVETRAN_HISTORY:
        return None
    return as_history(subject, asked.soft_deleted_column or DELETED)


def as_history(subject: Subject, flag: str) -> Change | None:
    """The table's rows as a history table's; no row is deleted if there is no such flag."""
    deleted = _flag(subject, flag)
    return subject.change(ToHistory(_history(subject.shape, without=DELETED), deleted.name, _now()))


def history_to_soft_delete(subject: Subject, asked: Operation) -> Change | None:
    """The newest version of each key stays, flagged if it is closed."""
    flag = _flag(subject, asked.soft_deleted_column or DELETED)
    shape = subject.shape
    if shape.layout is Layout.FIVETRAN_HISTORY:
        return subject.change(ToSoftDelete(_live(shape, flag, _DELETED), flag.name))
    return _add_flag(subject, flag) if shape.column(flag.name) is None else None


def soft_delete_to_live(subject: Subject, asked: Operation) -> Change | None:
    """Flagged rows go."""
    flag = _flag(subject, asked.soft_deleted_column or DELETED).name
    if subject.shape.layout is Layout.FIVETRAN_HISTORY or subject.shape.column(flag) is None:
        return None
    kept = [c for c in subject.shape.columns if c.name != DELETED or flag != DELETED]
    return subject.change(SoftDeleteToLive(replace(subject.shape, columns=tuple(kept)), flag))


def history_to_live(subject: Subject, asked: Operation) -> Change | None:
    """The newest version of each key stays if it is open, or if deleted rows are kept."""
    shape = subject.shape
    if shape.layout is not Layout.FIVETRAN_HISTORY:
        return None
    return subject.change(HistoryToLive(_live(shape), asked.keep_deleted_rows))


def live_to_soft_delete(subject: Subject, asked: Operation) -> Change | None:
    """The flag is there, and FALSE where it was NULL."""
    flag = _flag(subject, asked.soft_deleted_column or DELETED)
    if subject.shape.column(flag.name) is None:
        return _add_flag(subject, flag)
    return subject.change(FillFlag(flag.name))


def live_to_history(subject: Subject, _asked: Operation) -> Change | None:
    """Every row becomes an open version that starts now."""
    if subject.shape.layout is Layout.FIVETRAN_HISTORY:
        return None
    return subject.change(LiveToHistory(_history(subject.shape), _now()))


def _add_flag(subject: Subject, flag: Column) -> Change | None:
    return subject.change(Add(subject.having(flag), flag, Given(False)))


def _history(shape: Shape, without: str = "") -> Shape:
    _require_key(shape)
    kept = [c for c in shape.columns if c.name not in {without, *HISTORY_COLUMNS}]
    new = [Column(name, _BOOLEAN if name == ACTIVE else _INSTANT) for name in HISTORY_COLUMNS]
    return replace(shape, columns=(*kept, *new), layout=Layout.FIVETRAN_HISTORY)


def _live(shape: Shape, *flags: Column) -> Shape:
    _require_key(shape)
    kept = [c for c in shape.columns if c.name not in HISTORY_COLUMNS]
    new = [flag for flag in dict.fromkeys(flags) if shape.column(flag.name) is None]
    return replace(shape, columns=(*kept, *new), layout=Layout.FIVETRAN_LIVE)


def _require_key(shape: Shape) -> None:
    if not shape.key:
        raise refused(f"{shape.table} has no key.", "Alter the table's key first.")


def _flag(subject: Subject, name: str) -> Column:
    """The column that the source calls so, there or not; Refused if it is there and cannot be a flag."""
    flag = subject.becoming(name, _BOOLEAN)
    if not can_flag(subject.shape, flag):
        raise refused(
            f"The column {name} of {subject.shape.table} cannot flag deleted rows: it is not BOOLEAN, or it "
            "belongs to the key or the history.",
            "Name another.",
        )
    return flag


def _now() -> datetime:
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // MILLISECOND * MILLISECOND)
