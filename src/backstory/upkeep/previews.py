"""Previews: deliveries to a branch of a table, which is published as the table, or discarded."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from backstory.engine.deliver import TableChange, deliver
from backstory.model.change import COUNTS, Change, Note, Tag
from backstory.model.receipt import Receipt
from backstory.model.table import TableName
from backstory.stores.branches import (
    BRANCH,
    PENDING,
    branch_behind,
    no_branch,
    refuse_on_branch,
    require_branch_name,
)
from backstory.stores.iceberg.snapshots import IcebergSnapshot, ancestry, newest_snapshot
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing, load

DOOR: Final = "native"


@dataclass(frozen=True, slots=True, repr=False)
class Published(Receipt):
    """A branch that has become the table: its commits, their rows by outcome, and the table's snapshot.

    With `discarded` the branch was removed instead.
    """

    table: str
    branch: str
    commits: int
    counts: Mapping[str, int] = field(default_factory=dict)
    snapshot_id: int | None = None
    discarded: bool = False
    error: None = None


def open_branch(store: IcebergStore, table: TableName, branch: str, *, dry_run: bool = False) -> IcebergStore:
    """The store in which the table is its branch; the branch is created if it does not exist.

    A dry run creates no branch: without one it gets the table itself. Raises Refused for a table that does
    not exist or has no commits.
    """
    require_branch_name(branch)
    stored = load(store, table)
    if stored is not None and branch_head(stored, branch) is not None:
        return replace(store, branch=branch)
    if stored is None or newest_snapshot(stored) is None:
        raise refuse_on_branch(table, branch, "the table has no commits yet")
    if dry_run:
        return store

    def plan() -> tuple[IcebergTable, Change | None]:
        now = existing(store, table)
        newest = newest_snapshot(now)
        if branch_head(now, branch) is not None or newest is None:
            return now, None
        return now, Change(tags={branch: Tag(newest.id)})

    deliver(store, TableChange((table,), Note(DOOR, ""), plan))
    return replace(store, branch=branch)


def read_branch(store: IcebergStore, table: TableName, branch: str) -> IcebergStore:
    """The store in which the table is its branch; UsageError if there is no such branch."""
    if branch_head(existing(store, table), branch) is None:
        raise no_branch(table, branch)
    return replace(store, branch=branch)


def branch_head(stored: IcebergTable, branch: str) -> int | None:
    """The newest snapshot of a branch; None if there is no such branch."""
    ref = dict(stored.iceberg.refs()).get(branch)
    return int(ref.snapshotId()) if ref is not None and ref.isBranch() else None


def publish(store: IcebergStore, table: TableName, branch: str) -> Published:
    """Make a branch the table, by one commit, and remove the branch.

    Raises UsageError if there is no such branch, and Refused if the table has changed since it began.
    """

    def make_current(stored: IcebergTable, commits: Sequence[IcebergSnapshot]) -> Change:
        newest, head = newest_snapshot(stored), branch_head(stored, branch)
        if newest is None or newest.id != (commits[-1].parent if commits else head):
            raise branch_behind(table, branch)
        if not commits:
            return Change(tags={branch: None})
        pending = json.loads(commits[0].get_property(PENDING) or "{}")
        return Change(_sum_counts(commits), properties=pending, tags={branch: None}, back_to=head)

    return _remove_branch(store, table, branch, make_current)


def discard(store: IcebergStore, table: TableName, branch: str) -> Published:
    """Remove a branch and what was delivered to it; UsageError if there is no such branch."""

    def forget(_: IcebergTable, commits: Sequence[IcebergSnapshot]) -> Change:
        return Change(_sum_counts(commits), tags={branch: None})

    return replace(_remove_branch(store, table, branch, forget), discarded=True)


def _remove_branch(
    store: IcebergStore,
    table: TableName,
    branch: str,
    change_of: Callable[[IcebergTable, Sequence[IcebergSnapshot]], Change],
) -> Published:
    """Commit the change for the commits of a branch, newest first."""
    number = 0

    def plan() -> tuple[IcebergTable, Change]:
        nonlocal number
        stored, commits = _commits_of_branch(store, table, branch)
        number = len(commits)
        return stored, change_of(stored, commits)

    committed = deliver(store, TableChange((table,), Note(DOOR, ""), plan))
    assert committed is not None
    newest = newest_snapshot(existing(store, table))
    assert newest is not None
    return Published(str(table), branch, number, committed.counts, newest.id)


def _commits_of_branch(
    store: IcebergStore, table: TableName, branch: str
) -> tuple[IcebergTable, list[IcebergSnapshot]]:
    """The table, and the commits that its branch has more, newest first; UsageError without the branch."""
    stored = existing(store, table)
    if branch_head(stored, branch) is None:
        raise no_branch(table, branch)
    on_branch = existing(replace(store, branch=branch), table)
    ours = {snapshot.id for snapshot in ancestry(stored)}
    own = []
    for snapshot in ancestry(on_branch):
        if snapshot.id in ours or snapshot.get_property(BRANCH) != branch:
            break
        own.append(snapshot)
    return stored, own


def _sum_counts(commits: Sequence[IcebergSnapshot]) -> Mapping[str, int]:
    """The rows of several commits by outcome; rows that one of them left unchanged are not counted."""
    counts: Counter[str] = Counter()
    for commit in commits:
        counts.update(json.loads(commit.get_property(COUNTS) or "{}"))
    return {name: count for name, count in counts.items() if name != "unchanged"}
