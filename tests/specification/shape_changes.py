"""The rule for migrations, slow and obvious.

The tests compare the plan with it. Source: fivetran-destination.md sections 6.2 to 6.9, decisions.md F9 and
F10. The door refuses invalid requests, such as an unknown column or a system column as the target, before
this rule applies.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from backstory.model.instant import EPOCH, MILLISECOND, TMAX
from backstory.model.layout import ACTIVE, DELETED, END, HISTORY_COLUMNS, START, SYNCED
from backstory.strategies.shape_changes import (
    Add,
    AddInHistory,
    DeleteBefore,
    DropInHistory,
    EndBefore,
    FillFlag,
    FlagBefore,
    HistoryToLive,
    LiveToHistory,
    Rewriting,
    SetValue,
    SoftDeleteToLive,
    ToHistory,
    TooEarly,
    ToSoftDelete,
    Touching,
    Value,
    ValuesOf,
)

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a table: its columns, its key (always without `_fivetran_start`) and its rows."""

    columns: tuple[str, ...]
    key: tuple[str, ...]
    rows: tuple[Row, ...]

    def mapped(self, change: Callable[[Row], Sequence[Row]]) -> "Content":
        """The table with each row replaced by the rows that `change` returns for it."""
        return replace(self, rows=tuple(new for row in self.rows for new in change(dict(row))))

    def having(self, *columns: str) -> "Content":
        """The table with these columns added. The new columns are NULL in every row."""
        new = tuple(name for name in columns if name not in self.columns)
        blank = dict.fromkeys(new)
        return replace(self, columns=self.columns + new).mapped(lambda row: [blank | row])

    def without(self, *columns: str) -> "Content":
        """The table without these columns."""
        names = tuple(name for name in self.columns if name not in columns)
        return replace(self, columns=names).mapped(lambda row: [{name: row[name] for name in names}])


def _synced_before(row: Row, synced: str, before: datetime) -> bool:
    """Whether a row was synced before a time. A row that was never synced was not."""
    return row[synced] is not None and _instant(row[synced]) < before


def delete_before(table: Content, synced: str, before: datetime) -> Content:
    """Remove rows that were synced before an instant (2.7)."""
    return table.mapped(lambda row: [] if _synced_before(row, synced, before) else [row])


def flag_before(table: Content, synced: str, before: datetime, flag: str) -> Content:
    """Flag rows that were synced before an instant (2.7)."""
    flagged = {flag: True}
    return table.mapped(lambda row: [row | flagged if _synced_before(row, synced, before) else row])


def end_before(table: Content, synced: str, before: datetime) -> Content:
    """End open versions that were synced before an instant at this instant (2.7)."""

    def change(row: Row) -> list[Row]:
        ends = row[ACTIVE] and _synced_before(row, synced, before)
        return [row | {ACTIVE: False, END: before} if ends else row]

    return table.mapped(change)


def set_value(table: Content, column: str, value: object) -> Content:
    """Set the value in every row. A missing column is added (6.2 and 6.5)."""
    return table.having(column).mapped(lambda row: [row | {column: value}])


def copy_column(table: Content, source: str, target: str) -> Content:
    """Copy the source column's values to the target column, which is added if it is missing (6.6)."""
    return table.having(target).mapped(lambda row: [row | {target: row[source]}])


def add_in_history(table: Content, column: str, value: object, instant: datetime) -> Content:
    """Give each open version a successor that starts at `instant` with the value (6.3).

    Raises:
        TooEarly: An open version starts after `instant`.
    """
    table = table.having(column)
    if not _open_at(table, instant):
        return table

    def change(row: Row) -> list[Row]:
        if row[START] == instant:
            return [row | {column: value}]
        if not row[ACTIVE] or row[START] is None:
            return [row]
        return [_closed(row, instant), row | {column: value, START: instant, END: TMAX, ACTIVE: True}]

    return table.mapped(change)


def drop_in_history(table: Content, column: str, instant: datetime) -> Content:
    """Give each open version with a value a successor that starts at `instant` without it (6.4).

    The column and its earlier values stay. Raises TooEarly as `add_in_history` does.
    """
    if column not in table.columns or not _open_at(table, instant):
        return table

    def change(row: Row) -> list[Row]:
        if row[START] == instant:
            return [row | {column: None}]
        if not row[ACTIVE] or row[START] is None or row[column] is None:
            return [row]
        return [_closed(row, instant), row | {column: None, START: instant, END: TMAX, ACTIVE: True}]

    return table.mapped(change)


def _open_at(table: Content, instant: datetime) -> bool:
    """Whether there are open versions. All of them must have started by the instant."""
    open_versions = [row for row in table.rows if row[ACTIVE]]
    if any(_instant(row[START]) > instant for row in open_versions):
        raise TooEarly
    return bool(open_versions)


def _instant(value: object) -> datetime:
    """The instant, or the earliest possible instant for NULL."""
    return value if isinstance(value, datetime) else datetime.min.replace(tzinfo=EPOCH.tzinfo)


def _closed(row: Row, instant: datetime) -> Row:
    return row | {ACTIVE: False, END: instant - timedelta(microseconds=MILLISECOND)}


def to_history(table: Content, flag: str, now: datetime) -> Content:
    """Turn a live or soft-delete table into a history table (6.8, type 1; 6.7).

    `flag` is the column that flags deleted rows. If it is missing, no row is deleted. Rows that are not
    deleted start with the table's newest sync, or with `now` if no row was ever synced.
    """
    if set(HISTORY_COLUMNS) <= set(table.columns):
        return table
    synced = [_instant(row[SYNCED]) for row in table.rows if row.get(SYNCED) is not None]
    start = max(synced, default=now)

    def change(row: Row) -> list[Row]:
        if row.get(flag):
            return [row | {START: EPOCH, END: EPOCH, ACTIVE: False}]
        return [row | {START: start, END: TMAX, ACTIVE: True}]

    return table.mapped(change).having(*HISTORY_COLUMNS).without(DELETED)


def to_soft_delete(table: Content, flag: str) -> Content:
    """Keep the newest version of each key of a history table, flagged if it is closed (6.8, type 2)."""
    if not set(HISTORY_COLUMNS) <= set(table.columns):
        return table if flag in table.columns else set_value(table, flag, False)
    newest = _newest_versions(table)
    flagged = newest.mapped(lambda row: [row | {DELETED: False} | {flag: not row[ACTIVE]}])
    return flagged.having(flag, DELETED).without(*HISTORY_COLUMNS)


def _newest_versions(table: Content) -> Content:
    """For each key, the version with the greatest start. NULL is the smallest start."""
    newest: dict[tuple[object, ...], Row] = {}
    for row in sorted(table.rows, key=_age):
        newest[tuple(_comparable(row[name]) for name in table.key)] = row
    return replace(table, rows=tuple(newest.values()))


def _comparable(value: object) -> object:
    """A key's value in a form that equals exactly the same values: 0.0 and -0.0 differ, NaN is NaN."""
    return value.hex() if isinstance(value, float) else value


def _age(row: Row) -> tuple[datetime, bool, datetime]:
    return _instant(row[START]), bool(row[ACTIVE]), _instant(row[END])


def soft_delete_to_live(table: Content, flag: str) -> Content:
    """Remove flagged rows (6.9, type 0)."""
    content = table.mapped(lambda row: [] if row.get(flag) else [row])
    return content.without(DELETED) if flag == DELETED else content


def live_to_soft_delete(table: Content, flag: str) -> Content:
    """Add the flag, and set it to FALSE where it is NULL (6.9, type 4)."""
    return table.having(flag).mapped(lambda row: [row | {flag: row[flag] or False}])


def history_to_live(table: Content, *, keep_deleted: bool) -> Content:
    """Keep the newest version of each key, if it is open or deleted rows are kept (6.9, type 3)."""
    content = _newest_versions(table).mapped(lambda row: [row] if row[ACTIVE] or keep_deleted else [])
    return content.without(*HISTORY_COLUMNS)


def live_to_history(table: Content, now: datetime) -> Content:
    """Turn every row into an open version that starts now (6.9, type 5)."""
    if set(HISTORY_COLUMNS) <= set(table.columns):
        return table
    begun: Row = {START: now, END: TMAX, ACTIVE: True}
    return table.mapped(lambda row: [row | begun]).having(*HISTORY_COLUMNS)


def _with_value(table: Content, column: str, value: Value) -> Content:
    if isinstance(value, ValuesOf):
        return copy_column(table, value.column, column)
    return set_value(table, column, value.value)


_MEANINGS: Mapping[type, Callable[[Content, Any], Content]] = {
    Add: lambda table, operation: _with_value(table, operation.column.name, operation.value),
    SetValue: lambda table, operation: _with_value(table, operation.column.name, operation.value),
    AddInHistory: lambda table, operation: add_in_history(
        table, operation.column.name, operation.value.value, operation.time
    ),
    DropInHistory: lambda table, operation: drop_in_history(table, operation.column.name, operation.time),
    DeleteBefore: lambda table, operation: delete_before(table, operation.synced, operation.before),
    FlagBefore: lambda table, operation: flag_before(
        table, operation.synced, operation.before, operation.flag
    ),
    EndBefore: lambda table, operation: end_before(table, operation.synced, operation.before),
    FillFlag: lambda table, operation: live_to_soft_delete(table, operation.flag),
    ToHistory: lambda table, operation: to_history(table, operation.flag, operation.now),
    ToSoftDelete: lambda table, operation: to_soft_delete(table, operation.flag),
    SoftDeleteToLive: lambda table, operation: soft_delete_to_live(table, operation.flag),
    HistoryToLive: lambda table, operation: history_to_live(table, keep_deleted=operation.keep_deleted),
    LiveToHistory: lambda table, operation: live_to_history(table, operation.now),
}


def apply(table: Content, operation: Rewriting | Touching) -> Content:
    """Apply the operation to the table. Raises TooEarly if an open version starts after the change."""
    return _MEANINGS[type(operation)](table, operation)
