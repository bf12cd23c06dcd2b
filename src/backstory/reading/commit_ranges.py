"""The commits that a feed covers, named by version, snapshot id or time, or by the cursor of a consumer.

A cursor is a tag, which keeps its snapshot from expiring for as long as `backstory.cursor-max-age` allows. A
table property also records the cursor, to distinguish a cursor with an expired tag from a new one (native.md,
V103 and V108 to V113).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from backstory.engine.deliver import deliver_change
from backstory.errors import Refused, TryAgain, UsageError, bad_option, option
from backstory.model.change import CURSOR_MARK, CURSOR_TAG, Change, CommitName, Cursor, Note, Start, Tag
from backstory.model.instant import instant_of, milliseconds_of
from backstory.model.table import TableName
from backstory.model.versions_layout import CURSOR_MAX_AGE
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing
from backstory.stores.metadata.moves import GAP
from backstory.stores.metadata.table_metadata import CommitMetadata, TableMetadata, commit_of

BEFORE_ALL: Final = 0


@dataclass(frozen=True, slots=True)
class Lineage:
    """The commits that led to a table's current state, oldest first. `whole` is true if none has expired.

    `older` are snapshots that remain although later ones have expired.
    """

    table: TableName
    commits: Sequence[CommitMetadata]
    whole: bool
    older: Sequence[CommitMetadata] = ()

    @property
    def newest(self) -> int:
        """The version of the newest commit, or `BEFORE_ALL` without commits."""
        return self.commits[-1].version if self.commits else BEFORE_ALL

    def place_of(self, where: CommitName) -> int:
        """The number of commits up to and including a commit.

        Raises Refused if the commit has expired, and UsageError if it never existed or was rolled back.
        """
        if isinstance(where, str) and where.isdecimal():
            where = int(where)
        if not isinstance(where, int):
            until = instant_of(where)
            place = sum(commit.recorded_at <= until for commit in self.commits)
            if place or self.whole:
                return place
            raise expired_error(self.table)
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


@dataclass(frozen=True, slots=True)
class Range:
    """The commits after version `since`, up to and including version `until`.

    `before` is the id of the snapshot at `since`, or None before the first commit.
    """

    since: int
    until: int
    before: int | None
    commits: Sequence[CommitMetadata]


def lineage_of(table: TableMetadata) -> Lineage:
    """The commits that led to the current state of a table."""
    commits = [*table.lineage][::-1]
    whole = not commits or commits[0].parent is None
    every = [] if whole else map(commit_of, table.metadata["snapshots"])
    older = [each for each in every if each.version < commits[0].version]
    return Lineage(table.shape.table, commits, whole, older)


def range_of(
    commits: Lineage, since: CommitName | None, until: CommitName | None, *, net: bool = False
) -> Range:
    """The commits after `since` (by default, all), up to and including `until` (by default, the newest).

    With `net`, all commits count as one, so only `since` itself must not have expired. Raises Refused if a
    needed commit has expired, and UsageError if the two commits are not a range of the table.
    """
    every = commits.commits
    versions, ids = [BEFORE_ALL, *(each.version for each in every)], [None, *(each.id for each in every)]
    last = len(every) if until is None else commits.place_of(until)
    older = next((each for each in commits.older if str(since) in {str(each.version), str(each.id)}), None)
    if older is not None and net and last:
        gap = replace(every[0], operation=GAP)
        return Range(older.version, versions[last], older.id, [gap, *every[1:last]])
    first = commits.place_of(BEFORE_ALL if since is None else since)
    if last < first:
        raise bad_option("The range ends before it begins.", "Swap `since=` and `until=`.")
    return Range(versions[first], versions[last], ids[first], every[first:last])


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


def cursor_version(table: TableMetadata, commits: Lineage, cursor: str, start: Start | None) -> int:
    """The last version that was read through a cursor.

    If the cursor is new or its commit is lost, `start` determines the version. A new cursor without `start`
    begins before all versions. Without `start`, raises Refused if the tag of the cursor has expired, or its
    commit is no longer in the table.
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

    Raises TryAgain if another consumer has moved the cursor since then. Raises Refused if the table was
    created again or rolled back past the commit.
    """
    if version == BEFORE_ALL:
        return
    name, before = table.shape.table, table.tags.get(_tag(cursor))
    same, uuid = True, table.metadata["table-uuid"]

    def plan() -> tuple[IcebergTable, Change | None]:
        nonlocal same
        latest = existing(store, name)
        commits = lineage_of(latest)
        snapshot = next((each.id for each in commits.commits if each.version == version), None)
        if latest.metadata["table-uuid"] != uuid or (snapshot is None and commits.commits):
            raise _lost_error(name, cursor)
        same = latest.tags.get(_tag(cursor)) == before
        return latest, _change(latest, cursor, version, snapshot) if same and snapshot else None

    deliver_change(store, [name], _NOTE, plan)
    if not same:
        raise TryAgain(
            "cursor-moved",
            f"Another consumer has moved the cursor {cursor} of {name}.",
            "Nothing was changed; read again from where it is now.",
        )


def advance_or_drop(store: IcebergStore, name: TableName, cursor: str | None, version: int | None) -> Cursor:
    """Move a cursor to a commit, wherever it is, or create it there. Without a version, drop it.

    Raises UsageError if no cursor is named, or if the cursor to drop does not exist.
    """
    if cursor is None:
        raise bad_option("`advance=` and `drop=` need a cursor.", "Name it with `cursor=`.")
    reached = version

    def plan() -> tuple[IcebergTable, Change | None]:
        nonlocal reached
        table = existing(store, name)
        tag, mark = _tag(cursor), CURSOR_MARK + cursor
        if version is None:
            if tag not in table.tags and mark not in table.properties:
                known = sorted(
                    each.removeprefix(CURSOR_TAG) for each in table.tags if each.startswith(CURSOR_TAG)
                )
                remedy = f"Omit {option('drop', value=True)}; the table has no cursors."
                remedy = f"Use one of its cursors: {', '.join(known)}." if known else remedy
                raise UsageError("unknown-cursor", f"{name} has no cursor {cursor}.", remedy)
            tags: Mapping[str, Tag | None] = {tag: None} if tag in table.tags else {}
            return table, Change(properties={mark: None} if mark in table.properties else {}, tags=tags)
        commits = lineage_of(table)
        place = commits.place_of(version)
        if not place:
            raise bad_option(
                "A cursor cannot be moved to before the first commit.",
                f"Use {option('start', 'first')} to read from there, or {option('drop', value=True)}.",
            )
        commit = commits.commits[place - 1]
        reached = commit.version
        return table, _change(table, cursor, commit.version, commit.id)

    deliver_change(store, [name], _NOTE, plan)
    return Cursor(str(name), cursor, reached)


def _change(table: IcebergTable, cursor: str, version: int, snapshot: int) -> Change | None:
    """The change of the tag and of the table property, or None if the tag is already at this place."""
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


def _lost_error(table: TableName, cursor: str) -> Refused:
    return Refused(
        "cursor-lost",
        f"The commit up to which the cursor {cursor} has read no longer exists in {table}: "
        "the table was recreated or rolled back.",
        _BEGIN_AGAIN,
    )
