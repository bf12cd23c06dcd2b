"""One record's life, from files.

Since when a record has a value, which commit said so, and what was there before.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath
from typing import Any, Final

from backstory.engine.run_context import AUTHOR, FILES, NOTE, RUN
from backstory.errors import UsageError
from backstory.model.change import COUNTS, DOOR, TOKEN
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.reading.arrow.knowledge import KnownTable, table_after, table_at
from backstory.reading.arrow.point_in_time import current_rows, select_versions
from backstory.reading.arrow.versions import is_record, read_statements, read_versions
from backstory.reading.frames.point_in_time import commits_by_recorded_time
from backstory.reading.frames.versions import HISTORIES, RECORDING
from backstory.reading.histories import require_knowledge
from backstory.reading.lives import SNAPSHOT, VersionRow, differ
from backstory.reading.selection import Selection, shown_key_of
from backstory.reading.timelines import Axis, Timeline, timeline_of
from backstory.stores.metadata.table_metadata import CommitMetadata
from backstory.stores.metadata.table_rows import TableReader
from backstory.stores.metadata.values import rows_of


def life(
    files: TableReader,
    key: object,
    axis: Axis = "valid",
    known_at: datetime | None = None,
    columns: Sequence[str] = (),
) -> Timeline:
    """One record's life, as `life` of frames tells it; Unreadable for what Spark alone reads."""
    table = files.table.shape.table
    told = files.table.shape.layout in RECORDING
    if told and known_at is not None:
        require_knowledge(files.table, known_at)
    then = table_at(files, None if told else known_at)
    Selection(key, columns).require(then.shape)
    then = then.of_record(key)
    found = read_statements(then) if told else read_versions(then)
    wanted = shown_key_of(then.shape, key)
    rows = found.of_places(is_record(found.users, then.shape, key)).rows
    names = Selection(columns=columns).select(table, list(wanted), rows.column_names)
    return timeline_of(
        table, wanted, rows_of(rows.select(names)), commits_by_recorded_time(files.table), axis, known_at
    )


# Of a table without a history so many commits are looked at, one after the other.
MOST_COMMITS: Final = 200
SnapshotFields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Blame:
    """A value of a record at a time, from when to when it has been so, and what was there before.

    `commit` made it so; None where that has expired: then `by` is the oldest commit that is kept, which has
    it already. `gone_before` says that the record was not there before.
    """

    value: Any
    valid_from: datetime | None
    valid_to: datetime | None
    before: Any
    gone_before: bool
    commit: CommitMetadata | None
    by: datetime | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON has them; the commit with its door, run, files and counts."""
        commit = self.commit
        return {
            "value": self.value,
            VALID_FROM: self.valid_from,
            VALID_TO: self.valid_to,
            "before": self.before,
            "gone_before": self.gone_before,
            "commit": None if commit is None else commit_summary(commit),
            "by": self.by,
        }


def commit_summary(commit: CommitMetadata) -> dict[str, Any]:
    """A commit: its time, door, token, run, note, author, files (only names) and rows by outcome."""
    told = commit.properties
    taken = json.loads(told.get(FILES) or "[]")
    return {
        "committed_at": commit.committed_at,
        "snapshot_id": commit.id,
        "door": told.get(DOOR),
        "token": told.get(TOKEN) or None,
        "run": told.get(RUN),
        "note": told.get(NOTE),
        "author": told.get(AUTHOR),
        "files": [PurePath(str(each[0])).name for each in taken],
        "counts": json.loads(told.get(COUNTS) or "{}"),
    }


def blame(
    files: TableReader, key: object, column: str, at: datetime | None = None, known_at: datetime | None = None
) -> Blame:
    """What is to say of a column of the record that was true at a time, by default the last one.

    Raises UsageError for what is no key or column of the table, and where there was no record.
    """
    if files.table.shape.layout not in HISTORIES:
        return _blame_live_row(files, key, column)
    told = life(files, key, known_at=known_at)
    held = told.versions
    place = _place(held, at)
    if place is None:
        raise UsageError(
            "no-record", f"There is no record with {told.title} then.", "Look at its life for other times."
        )
    _require_column(files, column, told.columns)
    first, last = _stretch(held, place, column)
    start, before = held[first], held[first - 1] if first else None
    adjoins = before is not None and before[VALID_TO] == start[VALID_FROM]
    commit, by = _commit_of_version(files, key, column, start)
    return Blame(
        start[column],
        start[VALID_FROM],
        held[last][VALID_TO],
        before[column] if before is not None else None,
        not adjoins,
        commit,
        by,
    )


def _require_column(files: TableReader, column: str, columns: Sequence[str]) -> None:
    if column not in columns:
        raise UsageError(
            "unknown-column",
            f"{files.table.shape.table} has no column {column} beside its key.",
            f"Its columns are {', '.join(columns)}.",
        )


def _place(held: Sequence[VersionRow], at: datetime | None) -> int | None:
    """Which of the versions was true at a time; the last one for None."""
    if at is None:
        return len(held) - 1 if held else None
    for place, each in enumerate(held):
        if each[VALID_FROM] <= at and (each[VALID_TO] is None or each[VALID_TO] > at):
            return place
    return None


def _stretch(held: Sequence[VersionRow], place: int, column: str) -> tuple[int, int]:
    """The first and the last of the versions around one that have its value without a break."""
    first = last = place
    while first and _goes_on(held[first - 1], held[first], column):
        first -= 1
    while last + 1 < len(held) and _goes_on(held[last], held[last + 1], column):
        last += 1
    return first, last


def _goes_on(one: VersionRow, following: VersionRow, column: str) -> bool:
    return one[VALID_TO] == following[VALID_FROM] and not differ(column, one, following)


def _commit_of_version(
    files: TableReader, key: object, column: str, version: VersionRow
) -> tuple[CommitMetadata | None, datetime | None]:
    """The commit that told a version; else when the oldest that is kept was made, which has it already."""
    commits = {each.id: each for each in files.table.commits}
    if version[SNAPSHOT] is not None:
        return commits.get(version[SNAPSHOT]), None

    def has_it(snapshot: SnapshotFields) -> bool:
        try:
            rows = _versions_after(table_after(files, snapshot), key)
        except UsageError:  # the table had another key then, or no history
            return False
        return any(
            each[VALID_FROM] == version[VALID_FROM]
            and (column not in each or not differ(column, each, version))
            for each in rows
        )

    history = list(files.table.ancestry)[::-1]
    place = bisect_left(history, x=True, key=has_it)
    if place == len(history):
        return None, None
    found = commits[history[place]["snapshot-id"]]
    whole = history[0].get("parent-snapshot-id") is None
    return (found, None) if place or whole else (None, found.committed_at)


def _versions_after(known: KnownTable, key: object) -> list[dict[str, Any]]:
    part = known.of_record(key)
    return rows_of(select_versions(read_versions(part), part.shape, Selection(key)))


def _blame_live_row(files: TableReader, key: object, column: str) -> Blame:
    """The same of a table without a history: its commits are gone through, newest first."""
    wanted = shown_key_of(files.table.shape, key)
    commits = {each.id: each for each in files.table.commits}
    now, since, by = None, None, None
    for number, snapshot in enumerate(files.table.ancestry):
        row = _row_after(table_after(files, snapshot), key)
        if now is None:
            if row is None:
                raise UsageError("no-record", f"There is no record with {wanted}.", "Look for another key.")
            _require_column(files, column, [name for name in row if name not in wanted])
            now = row
        elif row is None or column not in row or differ(column, row, now):
            before = None if row is None else row.get(column)
            return Blame(now[column], None, None, before, row is None, since)
        since = commits[snapshot["snapshot-id"]]
        if number == MOST_COMMITS or (snapshot.get("parent-snapshot-id") not in commits):
            by = None if snapshot.get("parent-snapshot-id") is None else since.committed_at
            break
    assert now is not None
    return Blame(now[column], None, None, None, by is None, None if by else since, by)


def _row_after(known: KnownTable, key: object) -> dict[str, Any] | None:
    return next(iter(rows_of(current_rows(Selection(key), known.of_record(key)))), None)
