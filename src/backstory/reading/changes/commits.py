"""Which commits a range names: by version, snapshot id or time (native.md, V103 and V110)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from backstory.errors import Refused, UsageError, option
from backstory.model.instant import EPOCH, instant_of, parse_instant
from backstory.model.remembered import RECORDED
from backstory.model.table import TableName
from backstory.stores.iceberg.moved_rows import GAP
from backstory.stores.iceberg.scripts import SnapshotLine, commits_of
from backstory.stores.iceberg.store import Store, StoredTable

if TYPE_CHECKING:
    from backstory.stores.metadata.described import Described

# What names a commit: its version or snapshot id, or a time, whose commit is the newest not after it.
Where = int | str | date
BEFORE_ALL: Final = 0


@dataclass(frozen=True, slots=True)
class Lineage:
    """The commits that made a table what it is, oldest first; `whole` if none of them has expired.

    `kept` are snapshots older than those, which stayed when the ones between expired.
    """

    table: TableName
    commits: Sequence[SnapshotLine]
    whole: bool
    kept: Sequence[SnapshotLine] = ()

    @property
    def newest(self) -> int:
        """The version of the newest commit; `BEFORE_ALL` of a table that has none."""
        return self.commits[-1].version if self.commits else BEFORE_ALL

    def place_of(self, where: Where) -> int:
        """How many of the commits lie up to the one that is named, itself included.

        Raises Refused for one that has expired, UsageError for one that never was, or was rolled back.
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
            raise expired(self.table)
        raise bad_option(
            f"{self.table} has no commit {where}.", f"`backstory log {self.table}` lists its commits."
        )

    def _place_at(self, time: str | date) -> int:
        until = instant_of(time)
        place = sum(_commit_time(commit) <= until for commit in self.commits)
        if place or self.whole:
            return place
        raise expired(self.table)


def _commit_time(commit: SnapshotLine) -> datetime:
    """The recorded time of a commit, which its rows carry too; else when Iceberg committed it (V94, V111)."""
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


def lineage_of(store: Store, table: StoredTable) -> Lineage:
    """The commits behind the present state of the table, from Iceberg's Java."""
    return _lineage(table.shape.table, *commits_of(store.jvm, table.iceberg))


def lineage_of_metadata(table: "Described") -> Lineage:
    """The commits behind the present state of a table, from its metadata, without Spark."""
    ours = [_line(each) for each in table.ancestry]
    ids = {each.id for each in ours}
    others = [_line(each) for each in table.told.get("snapshots") or [] if each["snapshot-id"] not in ids]
    return _lineage(table.shape.table, ours, others)


def _line(snapshot: Mapping[str, Any]) -> SnapshotLine:
    summary, parent = snapshot.get("summary") or {}, snapshot.get("parent-snapshot-id")
    numbers = (snapshot["snapshot-id"], snapshot["sequence-number"], snapshot["timestamp-ms"])
    return SnapshotLine(*numbers, summary.get("operation", ""), parent, summary.get(RECORDED, ""))


def _lineage(table: TableName, ancestry: Sequence[SnapshotLine], others: Sequence[SnapshotLine]) -> Lineage:
    whole = not ancestry or ancestry[-1].parent is None
    kept = [] if whole else [each for each in others if each.version < ancestry[-1].version]
    return Lineage(table, ancestry[::-1], whole, kept)


def range_of(commits: Lineage, since: Where | None, until: Where | None, *, net: bool = False) -> Range:
    """The commits after `since`, by default all, up to `until`, by default the newest.

    With `net` those between may have expired, where `since` itself is still there: they are one then. Raises
    Refused where one of them is needed and gone, UsageError where they name no range of the table.
    """
    last = len(commits.commits) if until is None else commits.place_of(until)
    kept = next((each for each in commits.kept if str(since) in {str(each.version), str(each.id)}), None)
    if kept is not None and net and last:
        gap = replace(commits.commits[0], operation=GAP)
        return Range(
            kept.version, commits.commits[last - 1].version, kept.id, [gap, *commits.commits[1:last]]
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
    """The error for options that do not go together, or name nothing."""
    return UsageError("bad-option", message, remedy)


def expired(table: TableName) -> Refused:
    """The error for a range whose snapshots are gone."""
    return Refused(
        "snapshots-expired",
        f"The snapshots of {table} that show what changed in this range have expired.",
        f"Begin later, or begin a new cursor with {option('start', 'now')}; if the first snapshot of the "
        f"range still exists, {option('net', value=True)} shows the net change.",
    )
