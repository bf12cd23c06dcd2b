"""The origin of a value in a record: when it began, which commit wrote it, and the value before it."""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import PurePath
from typing import Any, Final

from backstory.engine.run_context import AUTHOR, FILES, NOTE, RUN
from backstory.errors import UsageError
from backstory.model.change import COUNTS, DOOR, TOKEN
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.reading.files import table_in_files
from backstory.reading.options import ReadRequest, TimelineRequest, shown_key_of
from backstory.reading.questions import HISTORIES, life, state_after
from backstory.reading.timelines import SNAPSHOT, VersionRow, differ
from backstory.stores.metadata.table_metadata import CommitMetadata
from backstory.stores.metadata.table_rows import TableReader
from backstory.stores.metadata.values import rows_of

# The most commits that are searched in a table without a history.
MOST_COMMITS: Final = 200
SnapshotFields = Mapping[str, Any]
# The commit that wrote a value. If it has expired, the second part is the time of the oldest kept commit,
# which already has the value.
Origin = tuple[CommitMetadata | None, datetime | None]


def commit_summary(commit: CommitMetadata) -> dict[str, Any]:
    """A commit as a mapping: time, door, token, run, note, author, names of files, and rows by outcome."""
    properties = commit.properties
    files = json.loads(properties.get(FILES) or "[]")
    return {
        "committed_at": commit.committed_at,
        "snapshot_id": commit.id,
        "door": properties.get(DOOR),
        "token": properties.get(TOKEN) or None,
        "run": properties.get(RUN),
        "note": properties.get(NOTE),
        "author": properties.get(AUTHOR),
        "files": [PurePath(str(each[0])).name for each in files],
        "counts": json.loads(properties.get(COUNTS) or "{}"),
    }


def blame(
    files: TableReader, key: object, column: str, at: datetime | None = None, known_at: datetime | None = None
) -> dict[str, Any]:
    """The origin of a column's value in one record, at a time or by default in the record's last version.

    The result has the `value`, its `valid_from` and `valid_to`, the value `before`, and whether the record
    did not exist just before (`gone_before`). It also has the `commit` that wrote the value. If that commit
    has expired, `by` is the time of the oldest kept commit, which already has the value. Raises UsageError
    for another key or an unknown column, and if the record did not exist at that time.
    """
    if files.table.shape.layout not in HISTORIES:
        return _blame_live_row(files, key, column)
    timeline = life(table_in_files(files), TimelineRequest(key, known_at=known_at))
    versions = timeline.versions
    places = [
        place
        for place, each in enumerate(versions)
        if at is None or (each[VALID_FROM] <= at and (each[VALID_TO] is None or each[VALID_TO] > at))
    ]
    if not places:
        raise UsageError(
            "no-record",
            f"There is no record with {timeline.title} at that time.",
            "Check its timeline for other times.",
        )
    _require_column(files, column, timeline.columns)
    first = last = places[-1 if at is None else 0]
    while first and _goes_on(versions[first - 1], versions[first], column):
        first -= 1
    while last + 1 < len(versions) and _goes_on(versions[last], versions[last + 1], column):
        last += 1
    start, before = versions[first], versions[first - 1] if first else None
    gone = before is None or before[VALID_TO] != start[VALID_FROM]
    origin = _commit_of_version(files, key, column, start)
    span = start[VALID_FROM], versions[last][VALID_TO]
    return _story(start[column], before and before[column], origin, gone=gone, span=span)


def _story(
    value: object, before: object, origin: Origin, *, gone: bool, span: tuple[object, object] = (None, None)
) -> dict[str, Any]:
    commit, by = origin
    return {
        "value": value,
        **dict(zip((VALID_FROM, VALID_TO), span, strict=True)),
        "before": before,
        "gone_before": gone,
        "commit": None if commit is None else commit_summary(commit),
        "by": by,
    }


def _require_column(files: TableReader, column: str, columns: Sequence[str]) -> None:
    if column not in columns:
        raise UsageError(
            "unknown-column",
            f"{files.table.shape.table} has no column {column} outside its key.",
            f"Its columns are {', '.join(columns)}.",
        )


def _goes_on(one: VersionRow, following: VersionRow, column: str) -> bool:
    return one[VALID_TO] == following[VALID_FROM] and not differ(column, one, following)


def _commit_of_version(files: TableReader, key: object, column: str, version: VersionRow) -> Origin:
    """The commit that wrote a version, or else the time of the oldest kept commit, which already has it."""
    commits = {each.id: each for each in files.table.commits}
    if version[SNAPSHOT] is not None:
        return commits.get(version[SNAPSHOT]), None

    def has_it(snapshot: SnapshotFields) -> bool:
        try:
            known = table_in_files(files, state_after(files.table, snapshot))
            rows = rows_of(known.of(ReadRequest(key=key)).versions())
        except UsageError:  # the table had another key or no history then
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
    commit = commits[history[place]["snapshot-id"]]
    whole = history[0].get("parent-snapshot-id") is None
    return (commit, None) if place or whole else (None, commit.committed_at)


def _blame_live_row(files: TableReader, key: object, column: str) -> dict[str, Any]:
    """The origin of a value in a table without a history, from its commits, newest first."""
    shown_key = shown_key_of(files.table.shape, key)
    commits = {each.id: each for each in files.table.commits}
    now: VersionRow | None = None
    since, by = None, None
    for number, snapshot in enumerate(files.table.ancestry):
        known = table_in_files(files, state_after(files.table, snapshot))
        row: VersionRow | None = next(iter(rows_of(known.of(ReadRequest(key=key)).rows_at())), None)
        if now is None:
            if row is None:
                raise UsageError(
                    "no-record", f"There is no record with {shown_key}.", "Look for another key."
                )
            _require_column(files, column, [name for name in row if name not in shown_key])
            now = row
        elif row is None or column not in row or differ(column, row, now):
            return _story(now[column], row and row.get(column), (since, None), gone=row is None)
        since = commits[snapshot["snapshot-id"]]
        if number == MOST_COMMITS or (snapshot.get("parent-snapshot-id") not in commits):
            by = None if snapshot.get("parent-snapshot-id") is None else since.committed_at
            break
    assert now is not None
    return _story(now[column], None, (None if by else since, by), gone=by is None)
