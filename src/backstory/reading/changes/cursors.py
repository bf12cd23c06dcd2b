"""Cursors: tags that name the commits up to which consumers have read a table (native.md, V108 to V113).

A tag keeps its snapshot from expiring, for as long as `backstory.cursor-max-age` says. A property beside it
remembers the cursor, so that one whose tag has expired is not taken for a new one.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from backstory.errors import Refused, TryAgain, UsageError, option
from backstory.model.change import Change, Note, Tag
from backstory.model.cursor import MARK, TAG, Cursor, Start
from backstory.model.instant import milliseconds_of
from backstory.model.remembered import CURSOR_MAX_AGE
from backstory.model.table import TableName
from backstory.reading.changes.commits import BEFORE_ALL, Lineage, bad_option, lineage_of
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.stores.port import ToldTable

MAX_AGE: Final = "30 days"
_NAME: Final = re.compile(r"[\w.-]{1,200}")
_BY: Final = Note("native", "")
_BEGIN_AGAIN: Final = f"Begin again with {option('start', 'now')} or {option('start', 'first')}."


class Tagged(ToldTable, Protocol):
    """A table with names for snapshots."""

    @property
    def tags(self) -> Mapping[str, int]:
        """Names for snapshots."""


def place_of(table: Tagged, commits: Lineage, cursor: str, start: Start | None) -> int:
    """The version up to which a cursor has read; of a new one, or with `start`, where it begins.

    Raises Refused for a cursor whose tag has expired, or whose commit is none of the table's any more.
    """
    tag = table.tags.get(_tag(cursor))
    version = next((each.version for each in (*commits.kept, *commits.commits) if each.id == tag), None)
    if version is not None:
        return version
    if start is not None:
        return commits.newest if start == "now" else BEFORE_ALL
    if tag is not None:
        raise _lost(table.shape.table, cursor)
    if MARK + cursor in table.properties:
        raise Refused(
            "cursor-expired",
            f"The cursor {cursor} of {table.shape.table} was not moved for so long that its tag has expired.",
            _BEGIN_AGAIN,
        )
    return BEFORE_ALL


def move(store: Store, table: StoredTable, cursor: str, version: int) -> None:
    """Move a cursor on from where it is in a table that was loaded.

    Raises TryAgain if another consumer moved it meanwhile, Refused if the table is another one by now, or
    was rolled back past the commit.
    """
    if version == BEFORE_ALL:
        return
    name, before = table.shape.table, table.tags.get(_tag(cursor))
    same, uuid = True, table.iceberg.uuid()

    def plan() -> tuple[StoredTable, Change | None]:
        nonlocal same
        latest = existing(store, name)
        commits = lineage_of(store, latest)
        snapshot = _snapshot(commits, version)
        if latest.iceberg.uuid() != uuid or (snapshot is None and commits.commits):
            raise _lost(name, cursor)
        same = latest.tags.get(_tag(cursor)) == before
        return latest, _change(latest, cursor, version, snapshot) if same and snapshot else None

    _commit(store, name, plan)
    if not same:
        raise TryAgain(
            "cursor-moved",
            f"Another consumer moved the cursor {cursor} of {name} meanwhile.",
            "Nothing was changed; read again from where it is now.",
        )


def advance(store: Store, name: TableName, cursor: str, version: int) -> Cursor:
    """Move a cursor to a commit, from wherever it is; a new one is made."""
    reached = version

    def plan() -> tuple[StoredTable, Change | None]:
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


def drop(store: Store, name: TableName, cursor: str) -> Cursor:
    """Take a cursor away; UsageError if there is none."""

    def plan() -> tuple[StoredTable, Change]:
        table = existing(store, name)
        tag, mark = _tag(cursor), MARK + cursor
        if tag not in table.tags and mark not in table.properties:
            raise UsageError("unknown-cursor", f"{name} has no cursor {cursor}.", _others(table.tags))
        gone: Mapping[str, Tag | None] = {tag: None} if tag in table.tags else {}
        return table, Change(properties={mark: None} if mark in table.properties else {}, tags=gone)

    _commit(store, name, plan)
    return Cursor(str(name), cursor, None)


def advance_or_drop(store: Store, name: TableName, cursor: str | None, version: int | None) -> Cursor:
    """Move a cursor to a version, or without one drop it; UsageError where none is named for that alone."""
    if cursor is None:
        raise bad_option("`advance=` and `drop=` need a cursor.", "Name it with `cursor=`.")
    return drop(store, name, cursor) if version is None else advance(store, name, cursor, version)


def _commit(store: Store, name: TableName, plan: Callable[[], tuple[StoredTable, Change | None]]) -> None:
    from backstory.engine.deliver import TableChange, deliver

    deliver(store, TableChange([name], _BY, plan))


def _snapshot(commits: Lineage, version: int) -> int | None:
    return next((each.id for each in commits.commits if each.version == version), None)


def _change(table: StoredTable, cursor: str, version: int, snapshot: int) -> Change | None:
    """The tag and its mark; None where it stands there already."""
    tag = _tag(cursor)
    if table.tags.get(tag) == snapshot:
        return None
    kept = milliseconds_of(table.properties.get(CURSOR_MAX_AGE) or MAX_AGE)
    return Change(properties={MARK + cursor: str(version)}, tags={tag: Tag(snapshot, kept)})


def _tag(cursor: str) -> str:
    if not _NAME.fullmatch(cursor):
        raise bad_option(
            f"A cursor cannot have the name {cursor!r}.",
            "Use up to 200 letters, digits, dots, dashes and underscores.",
        )
    return TAG + cursor


def _others(tags: Mapping[str, int]) -> str:
    """The remedy for a cursor that there is not."""
    known = sorted(tag.removeprefix(TAG) for tag in tags if tag.startswith(TAG))
    if not known:
        return f"Omit {option('drop', value=True)}; the table has no cursors."
    return f"Use one of its cursors: {', '.join(known)}."


def _lost(table: TableName, cursor: str) -> Refused:
    return Refused(
        "cursor-lost",
        f"The commit up to which the cursor {cursor} has read no longer exists in {table}: "
        "the table was recreated or rolled back.",
        _BEGIN_AGAIN,
    )
