"""The rule for intervals, slow and obvious.

The tests compare the plan with it. Source: fivetran-destination.md section 5.2, decisions.md F4, F5, F7, F15
and F16. A version is a row with the address (key, start). Instants have the zone UTC, with microseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Final

from backstory.model.instant import TMAX
from backstory.model.layout import ACTIVE, END, PREFIX, START
from backstory.model.values import UNMODIFIED
from specification.live_rows import LiveOutcome, Row

__all__ = ["TMAX", "LiveOutcome", "Row", "apply"]

_MILLISECOND: Final = timedelta(milliseconds=1)

_Key = tuple[object, ...]


def apply(
    stored: Sequence[Row],
    key: Sequence[str],
    columns: Sequence[str],
    earliest: Sequence[Row] = (),
    replace: Sequence[Row] = (),
    update: Sequence[Row] = (),
    delete: Sequence[Row] = (),
) -> LiveOutcome:
    """The table after a history batch: the four steps of section 5.2.

    `columns` are the columns of the request. `_fivetran_start` is never compared as part of a key (F15).
    Update rows without a record or without a change are ignored. Delete rows that find no version, or only a
    version that was closed earlier, are also ignored (F7).

    Raises:
        ValueError: A row has no key, or lacks a start or end that its kind needs; an update
            without a start changes values; a replace row leaves a cell unmodified.
    """
    blank: Row = dict.fromkeys(chain(*stored, columns, *replace, *update))
    table = _Table(tuple(column for column in key if column != START), blank, {})
    for version in stored:
        table.versions_of(version).append(dict(version))
    changes, closings, idle = _split_updates(table, update)
    starts = _earliest_starts(table, earliest)
    removed = _make_room(table, starts)
    _put_replaced(table, replace)
    homeless = _put_updated(table, changes, starts, removed)
    missed = _close_deleted(table, [*delete, *closings])
    return LiveOutcome(table.rows(), idle + homeless + missed)


@dataclass(frozen=True, slots=True)
class _Table:
    """The table T of section 5.2: the versions of each key, and a row in which every column is NULL."""

    key: tuple[str, ...]
    blank: Row
    versions: dict[_Key, list[Row]]

    def key_of(self, row: Row) -> _Key:
        unnamed = [column for column in self.key if row.get(column, UNMODIFIED) is UNMODIFIED]
        if unnamed:
            raise ValueError(f"A row names no value for the key columns {unnamed}.")
        return tuple(row[column] for column in self.key)

    def versions_of(self, row: Row) -> list[Row]:
        return self.versions.setdefault(self.key_of(row), [])

    def put(self, row: Row) -> None:
        """Store a version at its (key, start), replacing any version there."""
        versions = self.versions_of(row)
        versions[:] = [old for old in versions if old[START] != row[START]]
        versions.append(self.blank | row)

    def rows(self) -> list[Row]:
        return [row for versions in self.versions.values() for row in sorted(versions, key=_place)]


def _split_updates(table: _Table, rows: Sequence[Row]) -> tuple[list[Row], list[Row], int]:
    """Split updates into rows that begin a version, rows that only close one, and the number of other rows.

    A soft delete may be sent as an update without a start that sets only an end. Section 7.11, last line on
    history rows, requires support for it. It is treated as a delete row.
    """
    changes, closings, idle = [], [], 0
    for row in rows:
        end = row.get(END)
        if isinstance(row.get(START), datetime):
            changes.append(row)
        elif _changes_values(table, row):
            raise ValueError(f"An update changes values but names no {START}.")
        elif isinstance(end, datetime) and end < TMAX:
            closings.append(row)
        else:
            idle += 1
    return changes, closings, idle


def _changes_values(table: _Table, row: Row) -> bool:
    return any(
        cell is not UNMODIFIED and column not in table.key and not column.startswith(PREFIX)
        for column, cell in row.items()
    )


def _earliest_starts(table: _Table, rows: Sequence[Row]) -> dict[_Key, datetime]:
    """Step 1, s0: the smallest start of each key in all earliest rows."""
    starts: dict[_Key, datetime] = {}
    for row in rows:
        key, start = table.key_of(row), _instant(row, START)
        starts[key] = min(start, starts.get(key, start))
    return starts


def _make_room(table: _Table, starts: Mapping[_Key, datetime]) -> dict[_Key, Row]:
    """Step 1: remove versions that start at s0 or later, and close versions that reach it.

    Returns the first removed version of each key.
    """
    removed: dict[_Key, Row] = {}
    for key, s0 in starts.items():
        versions = table.versions.get(key, [])
        gone = [version for version in versions if _is_at_or_after(version, START, s0)]
        remaining = [version for version in versions if not _is_at_or_after(version, START, s0)]
        for version in remaining:
            if version[ACTIVE] is True or _is_at_or_after(version, END, s0):
                version |= {ACTIVE: False, END: s0 - _MILLISECOND}
        if gone:
            removed[key] = min(reversed(gone), key=_place)
        table.versions[key] = remaining
    return removed


def _put_replaced(table: _Table, rows: Sequence[Row]) -> None:
    """Step 2: store whole rows as they are in the file.

    If several have the same (key, start), the last one stays.
    """
    for row in rows:
        _instant(row, START)
        if any(cell is UNMODIFIED for cell in row.values()):
            raise ValueError("A replace row leaves a cell unmodified; it must carry the whole row.")
        table.put(row)


def _put_updated(
    table: _Table,
    rows: Sequence[Row],
    starts: Mapping[_Key, datetime],
    removed: Mapping[_Key, Row],
) -> int:
    """Step 3: build versions from their base versions. Returns the number of rows without a base."""
    ignored = 0
    for row in sorted(rows, key=_place):
        key, start, changed = table.key_of(row), _instant(row, START), _changed_cells(row)
        base = _latest(table.versions.get(key, []), start)
        if base is None or not _is_alive(base, start, starts.get(key)):
            base = removed.get(key)
        if base is None:
            ignored += 1
        else:
            table.put(base | changed)
    return ignored


def _is_alive(version: Row, start: datetime, s0: datetime | None) -> bool:
    """Whether a version can be the base of an update (rule 1 of step 3, extended by F16)."""
    if version[START] == start or _reaches(version, start):
        return True
    return s0 is not None and _reaches(version, s0)


def _changed_cells(row: Row) -> Row:
    """The cells that an update sets, always including its end and its active flag."""
    changed = {column: cell for column, cell in row.items() if cell is not UNMODIFIED}
    end = _instant(row, END)
    active = changed.get(ACTIVE)
    return changed | {ACTIVE: end == TMAX if active is None else active}


def _close_deleted(table: _Table, rows: Sequence[Row]) -> int:
    """Step 4: end the version that is true at the delete's time. Returns the number of rows that end none."""
    ignored = 0
    for row in sorted(rows, key=lambda row: _instant(row, END)):
        end = _instant(row, END)
        target = _latest(table.versions.get(table.key_of(row), []), _last_of_millisecond(end))
        if target is not None and (target[ACTIVE] is True or _reaches(target, end)):
            target |= {ACTIVE: False, END: end}
        else:
            ignored += 1
    return ignored


def _latest(versions: Sequence[Row], limit: datetime) -> Row | None:
    """The version with the greatest start up to the limit. If starts are equal, it is the last one."""
    begun = [v for v in versions if (start := _instant_of(v, START)) is not None and start <= limit]
    return max(reversed(begun), key=_place, default=None)


def _last_of_millisecond(instant: datetime) -> datetime:
    """The last start that is not after `instant` if both are compared in milliseconds (step 4)."""
    return instant.replace(microsecond=instant.microsecond // 1000 * 1000 + 999)


def _reaches(version: Row, instant: datetime) -> bool:
    """Whether a version ends at most 1 ms before an instant, so that there is no gap between them (H18)."""
    end = _instant_of(version, END)
    # Use the difference, because an end plus 1 ms is outside the calendar at TMAX.
    return end is not None and instant - end <= _MILLISECOND


def _is_at_or_after(version: Row, column: str, instant: datetime) -> bool:
    known = _instant_of(version, column)
    return known is not None and known >= instant


def _place(version: Row) -> datetime:
    """The sort key of versions. A version without a start is first."""
    return _instant_of(version, START) or datetime.min.replace(tzinfo=UTC)


def _instant_of(row: Row, column: str) -> datetime | None:
    """The instant in a column, or None for NULL and for a cell that the row leaves unmodified."""
    instant = row.get(column)
    return instant if isinstance(instant, datetime) else None


def _instant(row: Row, column: str) -> datetime:
    instant = _instant_of(row, column)
    if instant is None:
        raise ValueError(f"A row carries no {column}.")
    return instant
