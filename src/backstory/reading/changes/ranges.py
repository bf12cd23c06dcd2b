"""The commits that a feed covers: named by version, snapshot id or time, or by the cursor of a consumer.

A cursor is a tag, which keeps its snapshot from expiring for as long as `backstory.cursor-max-age` allows. A
table property records the cursor too, which distinguishes a cursor with an expired tag from a new one
(native.md, V103 and V108 to V113).
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from backstory.errors import Refused, TryAgain, UsageError, option
from backstory.model.change import Change, Note, Tag
from backstory.model.change_feed import CURSOR_MARK, CURSOR_TAG, CommitName, Cursor, Start
from backstory.model.instant import EPOCH, instant_of, milliseconds_of, parse_instant
from backstory.model.table import TableName
from backstory.model.versions_layout import CURSOR_MAX_AGE, RECORDED
from backstory.stores.branches import ancestors
from backstory.stores.iceberg.jvm import metadata_json
from backstory.stores.iceberg.moved_rows import GAP
from backstory.stores.iceberg.scripts import SnapshotLine, commits_of
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing
from backstory.stores.port import TableLike

if TYPE_CHECKING:
    from backstory.stores.metadata.table_metadata import TableMetadata

BEFORE_ALL: Final = 0


@dataclass(frozen=True, slots=True)
class Lineage:
    """The commits behind the present state of a table, oldest first; `whole` if none of them has expired.

    `older` are snapshots that stayed when the snapshots after them expired.
    """

    table: TableName
    commits: Sequence[SnapshotLine]
    whole: bool
    older: Sequence[SnapshotLine] = ()

    @property
    def newest(self) -> int:
        """The version of the newest commit; `BEFORE_ALL` if there is none."""
        return self.commits[-1].version if self.commits else BEFORE_ALL

    def place_of(self, where: CommitName) -> int:
        """The number of commits up to a commit, including it.

        Raises Refused if the commit has expired, UsageError if it never existed or was rolled back.
        """
        if isinstance(where, str) and where.isdecimal():
            where = int(where)
        if not isinstance(where, int):
            return self._place_at(where)
        for place, commit in enumerate(self.commits, 1):
            if where in {commit.version, commit.id}:
                return place
        if where == BEFORE_ALL and self.whole:
            return 0
        if not self.whole and where < self.commits[0].version:
            raise expired_error(self.table)
        raise bad_option(
            f"{self.table} has no commit {where}.", f"`backstory log {self.table}` lists its commits."
        )

    def _place_at(self, time: str | date) -> int:
        until = instant_of(time)
        place = sum(_commit_time(commit) <= until for commit in self.commits)
        if place or self.whole:
            return place
        raise expired_error(self.table)


def _commit_time(commit: SnapshotLine) -> datetime:
    """The recorded time of a commit, which its rows contain too, or else Iceberg's time (V94, V111)."""
    if commit.recorded:
        return parse_instant(commit.recorded)
    return EPOCH + timedelta(milliseconds=commit.millis)


@dataclass(frozen=True, slots=True)
class Range:
    """The commits after `since` up to `until`, both versions; `before` is the snapshot at `since`."""

    since: int
    until: int
    before: int | None
    commits: Sequence[SnapshotLine]


def lineage_of(store: IcebergStore, table: IcebergTable) -> Lineage:
    """The commits behind the present state of the table, from Iceberg's Java if there is any."""
    name = table.shape.table
    if store.has_java:
        return _lineage(name, *commits_of(store.jvm, table.iceberg))
    return _lineage_of_json(name, json.loads(metadata_json(store.jvm, table.iceberg)))


def lineage_of_metadata(table: "TableMetadata") -> Lineage:
    """The commits behind the present state of a table, from its metadata, without Spark."""
    return _lineage_of_json(table.shape.table, table.metadata)


def _lineage_of_json(table: TableName, metadata: Mapping[str, Any]) -> Lineage:
    ours = [*map(_line, ancestors(metadata, metadata.get("current-snapshot-id")))]
    ids = {each.id for each in ours}
    others = [_line(each) for each in metadata.get("snapshots") or [] if each["snapshot-id"] not in ids]
    return _lineage(table, ours, others)


def _line(snapshot: Mapping[str, Any]) -> SnapshotLine:
    summary, parent = snapshot.get("summary") or {}, snapshot.get("parent-snapshot-id")
    numbers = (snapshot["snapshot-id"], snapshot["sequence-number"], snapshot["timestamp-ms"])
    return SnapshotLine(*numbers, summary.get("operation", ""), parent, summary.get(RECORDED, ""))


def _lineage(table: TableName, ancestry: Sequence[SnapshotLine], others: Sequence[SnapshotLine]) -> Lineage:
    whole = not ancestry or ancestry[-1].parent is None
    older = [] if whole else [each for each in others if each.version < ancestry[-1].version]
    return Lineage(table, ancestry[::-1], whole, older)


def range_of(
    commits: Lineage, since: CommitName | None, until: CommitName | None, *, net: bool = False
) -> Range:
    """The commits after `since`, by default all, up to `until`, by default the newest.

    With `net`, commits after `since` may have expired if `since` has not; they count as one commit. Raises
    Refused if a needed commit has expired, UsageError if the two commits do not make a range of the table.
    """
    last = len(commits.commits) if until is None else commits.place_of(until)
    older = next((each for each in commits.older if str(since) in {str(each.version), str(each.id)}), None)
    if older is not None and net and last:
        gap = replace(commits.commits[0], operation=GAP)
        return Range(
            older.version, commits.commits[last - 1].version, older.id, [gap, *commits.commits[1:last]]
        )
    first = commits.place_of(BEFORE_ALL if since is None else since)
    if last < first:
        raise bad_option("The range ends before it begins.", "Swap `since=` and `until=`.")
    before = commits.commits[first - 1] if first else None
    end = commits.commits[last - 1].version if last else BEFORE_ALL
    if before is None:
        return Range(BEFORE_ALL, end, None, commits.commits[:last])
    return Range(before.version, end, before.id, commits.commits[first:last])


def bad_option(message: str, remedy: str) -> UsageError:
    """The error for options that exclude each other or name nothing."""
    return UsageError("bad-option", message, remedy)


def expired_error(table: TableName) -> Refused:
    """The error for a range whose snapshots have expired."""
    return Refused(
        "snapshots-expired",
        f"The snapshots of {table} that show what changed in this range have expired.",
        f"Begin later, or begin a new cursor with {option('start', 'now')}; if the first snapshot of the "
        f"range still exists, {option('net', value=True)} shows the net change.",
    )


MAX_AGE: Final = "30 days"
_NAME: Final = re.compile(r"[\w.-]{1,200}")
_NOTE: Final = Note("native", "")
_BEGIN_AGAIN: Final = f"Begin again with {option('start', 'now')} or {option('start', 'first')}."


class TaggedTable(TableLike, Protocol):
    """A table with names for snapshots."""

    @property
    def tags(self) -> Mapping[str, int]:
        """Names for snapshots."""


def cursor_version(table: TaggedTable, commits: Lineage, cursor: str, start: Start | None) -> int:
    """The version up to which a cursor has read; for a new cursor, or with `start`, where it begins.

    Raises Refused if the tag of the cursor has expired, or its commit is no longer in the table.
    """
    tag = table.tags.get(_tag(cursor))
    version = next((each.version for each in (*commits.older, *commits.commits) if each.id == tag), None)
    if version is not None:
        return version
    if start is not None:
        return commits.newest if start == "now" else BEFORE_ALL
    if tag is not None:
        raise _lost_error(table.shape.table, cursor)
    if CURSOR_MARK + cursor in table.properties:
        raise Refused(
            "cursor-expired",
            f"The cursor {cursor} of {table.shape.table} was not moved for so long that its tag has expired.",
            _BEGIN_AGAIN,
        )
    return BEFORE_ALL


def move_cursor(store: IcebergStore, table: IcebergTable, cursor: str, version: int) -> None:
    """Move a cursor to a commit, from its place in the loaded table.

    Raises TryAgain if another consumer has moved it since, Refused if the table was created again or rolled
    back past the commit.
    """
    if version == BEFORE_ALL:
        return
    name, before = table.shape.table, table.tags.get(_tag(cursor))
    same, uuid = True, table.iceberg.uuid()

    def plan() -> tuple[IcebergTable, Change | None]:
        nonlocal same
        latest = existing(store, name)
        commits = lineage_of(store, latest)
        snapshot = _snapshot(commits, version)
        if latest.iceberg.uuid() != uuid or (snapshot is None and commits.commits):
            raise _lost_error(name, cursor)
        same = latest.tags.get(_tag(cursor)) == before
        return latest, _change(latest, cursor, version, snapshot) if same and snapshot else None

    _commit(store, name, plan)
    if not same:
        raise TryAgain(
            "cursor-moved",
            f"Another consumer moved the cursor {cursor} of {name} meanwhile.",
            "Nothing was changed; read again from where it is now.",
        )


def advance_cursor(store: IcebergStore, name: TableName, cursor: str, version: int) -> Cursor:
    """Move a cursor to a commit, from any place, or create it there."""
    reached = version

    def plan() -> tuple[IcebergTable, Change | None]:
        nonlocal reached
        table = existing(store, name)
        commits = lineage_of(store, table)
        place = commits.place_of(version)
        if not place:
            raise bad_option(
                "A cursor cannot be moved to before the first commit.",
                f"Use {option('start', 'first')} to read from there, or {option('drop', value=True)}.",
            )
        commit = commits.commits[place - 1]
        reached = commit.version
        return table, _change(table, cursor, commit.version, commit.id)

    _commit(store, name, plan)
    return Cursor(str(name), cursor, reached)


def drop_cursor(store: IcebergStore, name: TableName, cursor: str) -> Cursor:
    """Remove a cursor; UsageError if it does not exist."""

    def plan() -> tuple[IcebergTable, Change]:
        table = existing(store, name)
        tag, mark = _tag(cursor), CURSOR_MARK + cursor
        if tag not in table.tags and mark not in table.properties:
            raise UsageError("unknown-cursor", f"{name} has no cursor {cursor}.", _cursors_remedy(table.tags))
        tags: Mapping[str, Tag | None] = {tag: None} if tag in table.tags else {}
        return table, Change(properties={mark: None} if mark in table.properties else {}, tags=tags)

    _commit(store, name, plan)
    return Cursor(str(name), cursor, None)


def advance_or_drop(store: IcebergStore, name: TableName, cursor: str | None, version: int | None) -> Cursor:
    """Move a cursor to a version, or drop it without one; UsageError if no cursor is named."""
    if cursor is None:
        raise bad_option("`advance=` and `drop=` need a cursor.", "Name it with `cursor=`.")
    return (
        drop_cursor(store, name, cursor) if version is None else advance_cursor(store, name, cursor, version)
    )


def _commit(
    store: IcebergStore, name: TableName, plan: Callable[[], tuple[IcebergTable, Change | None]]
) -> None:
    from backstory.engine.deliver import TableChange, deliver

    deliver(store, TableChange([name], _NOTE, plan))


def _snapshot(commits: Lineage, version: int) -> int | None:
    return next((each.id for each in commits.commits if each.version == version), None)


def _change(table: IcebergTable, cursor: str, version: int, snapshot: int) -> Change | None:
    """The change of the tag and of the table property; None if the tag is there already."""
    tag = _tag(cursor)
    if table.tags.get(tag) == snapshot:
        return None
    age = milliseconds_of(table.properties.get(CURSOR_MAX_AGE) or MAX_AGE)
    return Change(properties={CURSOR_MARK + cursor: str(version)}, tags={tag: Tag(snapshot, age)})


def _tag(cursor: str) -> str:
    if not _NAME.fullmatch(cursor):
        raise bad_option(
            f"A cursor cannot have the name {cursor!r}.",
            "Use up to 200 letters, digits, dots, dashes and underscores.",
        )
    return CURSOR_TAG + cursor


def _cursors_remedy(tags: Mapping[str, int]) -> str:
    """The remedy for an unknown cursor."""
    known = sorted(tag.removeprefix(CURSOR_TAG) for tag in tags if tag.startswith(CURSOR_TAG))
    if not known:
        return f"Omit {option('drop', value=True)}; the table has no cursors."
    return f"Use one of its cursors: {', '.join(known)}."


def _lost_error(table: TableName, cursor: str) -> Refused:
    return Refused(
        "cursor-lost",
        f"The commit up to which the cursor {cursor} has read no longer exists in {table}: "
        "the table was recreated or rolled back.",
        _BEGIN_AGAIN,
    )
