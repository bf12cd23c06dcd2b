"""The effect of a rewind on the rows of a table of layout `versions` (native.md V6 to V9, V84, V85).

A row is a mapping of its columns; `_memory` is a mapping, or None if all its fields are NULL. The rule reads
all rows, and is slow. The plan reads only rows that changed after the time, with the same result.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from backstory.model.layout import IS_CURRENT, MEMORY, RECORDED_AT, VALID_FROM, VALID_TO, VERSIONS_OWN
from backstory.model.versions_layout import (
    COLUMNS,
    END_BEFORE,
    ENDED_AT,
    KIND,
    OWN_TIME,
    ROLE,
    SCOPE,
    SEQUENCE,
    Role,
)
from specification.values import equal_in

Row = Mapping[str, Any]
# The fields that distinguish facts of a record at the same instant (V9).
FACT_FIELDS = (KIND, SEQUENCE, SCOPE, OWN_TIME)


def rewound(
    rows: Sequence[Row], known: datetime, now: datetime, key: Sequence[str], untold: Collection[str] = ()
) -> list[Row]:
    """The table with the state that was known at `known`, after a commit at the recorded time `now`.

    Columns in `untold` have no history (V18): values that differ only in these columns are the same.
    """
    touched = [row for row in rows if learnt_after(row, known)]
    wanted = [undo_last_move(row) for row in touched if row[RECORDED_AT] <= known]
    return [*(row for row in rows if row not in touched), *recorded(touched, wanted, now, key, untold)]


def learnt_after(row: Row, known: datetime) -> bool:
    """Whether a row states something that the table did not state at this time (V85)."""
    ended = field(row, ENDED_AT)
    return row[RECORDED_AT] > known or (ended is not None and ended > known)


def undo_last_move(row: Row) -> Row:
    """The live row as it was before its end was last moved. The end must have been moved (V6)."""
    role = Role.FACT if field(row, ROLE) == Role.FACT else None
    end = row[VALID_TO] if role else field(row, END_BEFORE)
    fields = {name: field(row, name) for name in (*FACT_FIELDS, COLUMNS)}
    return {**row, VALID_TO: end, IS_CURRENT: end is None, MEMORY: _memory({**fields, ROLE: role})}


def live_rows_at(rows: Sequence[Row], known: datetime) -> list[Row]:
    """The live rows of the table at a recorded time: versions, stored facts and marks."""
    rows_then = []
    for row in rows:
        if row[RECORDED_AT] > known:
            continue
        if learnt_after(row, known):
            rows_then.append(undo_last_move(row))
        elif is_live(row):
            fields = {name: field(row, name) for name in (*FACT_FIELDS, COLUMNS, ROLE)}
            rows_then.append({**row, MEMORY: _memory(fields)})
    return rows_then


def is_live(row: Row) -> bool:
    """Whether a row is a version, or a fact that was not withdrawn."""
    role = field(row, ROLE)
    return role is None or (role == Role.FACT and field(row, ENDED_AT) is None)


def field(row: Row, name: str) -> Any:
    """A field of the row's `_memory`, or None if `_memory` is NULL."""
    return (row[MEMORY] or {}).get(name)


def recorded(
    stored: Sequence[Row], wanted: Sequence[Row], now: datetime, key: Sequence[str], untold: Collection[str]
) -> list[Row]:
    """The stored rows after a commit that replaces the live rows among them by the wanted ones (V9)."""
    pending, after = list(wanted), list[Row]()
    for row in stored:
        if not is_live(row):
            after.append(row)
            continue
        place = next((n for n, each in enumerate(pending) if _same(row, each, key, untold)), None)
        if place is None:
            after += _withdraw(row, now)
        else:
            after += _moved(row, pending.pop(place)[VALID_TO], now)
    return [*after, *({**each, RECORDED_AT: now} for each in pending)]


def _same(row: Row, other: Row, key: Sequence[str], untold: Collection[str]) -> bool:
    """Whether two rows store the same fact with the same content."""
    told_of = [name for name in row if name not in VERSIONS_OWN and (name in key or name not in untold)]
    return equal_in((*told_of, VALID_FROM), row, other) and all(
        field(row, name) == field(other, name) for name in (*FACT_FIELDS, COLUMNS, ROLE)
    )


def _moved(row: Row, end: datetime | None, now: datetime) -> list[Row]:
    """The row with another end. A row that already records a move leaves a copy of itself (V7)."""
    if end == row[VALID_TO]:
        return [row]
    ended = field(row, ENDED_AT)
    memory = {**(row[MEMORY] or {}), ENDED_AT: now, END_BEFORE: row[VALID_TO]}
    since = row[RECORDED_AT] if ended is None else ended
    moved = {**row, VALID_TO: end, IS_CURRENT: end is None, RECORDED_AT: since, MEMORY: memory}
    return [moved] if ended is None else [_past(row), moved]


def _withdraw(row: Row, now: datetime) -> list[Row]:
    """The rows that remain after a row is withdrawn (V8)."""
    if field(row, ROLE) == Role.FACT:
        return [{**row, MEMORY: {**row[MEMORY], ENDED_AT: now}}]
    *left, moved = _moved(row, row[VALID_FROM], now)
    return [*left, _past(moved)]


def _past(row: Row) -> Row:
    memory = {**(row[MEMORY] or {}), ROLE: Role.PAST}
    return {**row, VALID_TO: row[VALID_FROM], IS_CURRENT: False, MEMORY: memory}


def _memory(fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
    values = {name: value for name, value in fields.items() if value is not None}
    return values or None
