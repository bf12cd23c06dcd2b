"""The rows that changed between two commits, and the cursor that moves once they are read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from backstory.errors import Refused, option
from backstory.model.cursor import Start
from backstory.model.instant import instant_of
from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.reading.changes import cursors
from backstory.reading.changes.commits import Lineage, Range, Where, bad_option, lineage_of, range_of
from backstory.reading.changes.frames import fed
from backstory.reading.changes.recorded import recorded_changes
from backstory.reading.changes.rows import feed_rows
from backstory.stores.iceberg.moved_rows import moved_rows
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.stores.port import ToldTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Feed:
    """The rows that changed after commit `since` up to commit `until`, both versions, None where expired.

    `frame` has the rows' columns, then `_change_type`, `_commit_version` and `_commit_timestamp`. Commits
    are in their order, each preimage before its postimage; of more than half a million rows they are so in
    each partition, which has all rows of an identity. Used in a `with` block, the cursor that was named moves
    to `until` when the block ends well; `frame` can be read within the block alone then.
    """

    frame: "DataFrame"
    since: int | None
    until: int | None
    move: Callable[[], None]
    release: Callable[[], None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.release()
        if kind is None:
            self.move()


@dataclass(frozen=True, slots=True)
class FeedRequest:
    """What a feed shall tell: see `backstory changes`."""

    since: Where | None = None
    until: Where | None = None
    net: bool = False
    current: bool = False
    cursor: str | None = None
    start: Start | None = None


def changes(store: Store, table: TableName, request: FeedRequest) -> Feed:
    """The rows that changed in a range of commits, or since a cursor (native.md, V101 to V113).

    Raises Refused for a range whose snapshots have expired and for a cursor that is lost or expired,
    UsageError for options that do not go together.
    """
    stored = existing(store, table)
    rows, lineage = feed_rows(stored, current=request.current), lineage_of(store, stored)
    try:
        commits = commit_range(stored, lineage, request)
    except Refused:
        if not rows_cover_range(stored, request):
            raise
        return _recorded(store, stored, lineage, request)
    moved = moved_rows(store, stored, commits.before, commits.commits)
    frame = fed(moved.frame(store), rows, moved.rows, net=request.net, only_come=moved.only_come)

    def move() -> None:
        if request.cursor is not None:
            cursors.move(store, stored, request.cursor, commits.until)

    return Feed(frame, commits.since, commits.until, move, lambda: moved.release(store))


def commit_range(table: cursors.Tagged, lineage: Lineage, request: FeedRequest) -> Range:
    """The commits that a feed reports on; raises what `changes` raises."""
    if request.cursor is None and request.start is not None:
        raise bad_option(f"{option('start', request.start)} needs a cursor.", "Name it with `cursor=`.")
    if request.cursor is not None and request.since is not None:
        raise bad_option("Both `since=` and `cursor=` say where to begin.", "Omit one of them.")
    since = request.since
    if request.cursor is not None:
        since = cursors.place_of(table, lineage, request.cursor, request.start)
    return range_of(lineage, since, request.until, net=request.net)


def rows_cover_range(table: ToldTable, request: FeedRequest) -> bool:
    """Whether the table's rows alone answer for an expired range: one by time, on layout `versions`."""
    ends = (request.since, request.until)
    timely = not any(isinstance(end, int) or (isinstance(end, str) and end.isdecimal()) for end in ends)
    return table.shape.layout is Layout.VERSIONS and request.cursor is None and timely


def _recorded(store: Store, table: StoredTable, lineage: Lineage, request: FeedRequest) -> Feed:
    since, until = (
        None if isinstance(end, int | None) else instant_of(end) for end in (request.since, request.until)
    )
    frame = recorded_changes(store, table, since, until, net=request.net, current=request.current)
    newest = lineage.newest if until is None else None
    return Feed(frame, None, newest, lambda: None, lambda: None)
