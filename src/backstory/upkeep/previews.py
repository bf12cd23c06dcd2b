"""Previews: deliveries to a branch of a table, which is then published to the table or discarded."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from backstory.engine.deliver import deliver_change
from backstory.model.change import COUNTS, Change, Note, Tag
from backstory.model.receipt import Receipt
from backstory.model.table import TableName
from backstory.stores import branches
from backstory.stores.branches import PENDING
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing, load

DOOR: Final = "native"


@dataclass(frozen=True, slots=True, repr=False)
class Published(Receipt):
    """A branch that was published to the table: its commits, their rows by outcome, and the table's snapshot.

    If `discarded` is true, the branch was removed instead.
    """

    table: str
    branch: str
    commits: int
    counts: Mapping[str, int] = field(default_factory=dict)
    snapshot_id: int | None = None
    discarded: bool = False
    error: None = None


def open_branch(store: IcebergStore, table: TableName, branch: str, *, dry_run: bool = False) -> IcebergStore:
    """A store in which the branch replaces the table. The branch is created if it does not exist.

    A dry run creates no branch. If the branch does not exist, a dry run gets a store with the table itself.
    Raises Refused for a table that does not exist or has no commits.
    """
    branches.require_branch_name(branch)
    stored = load(store, table)
    if stored is not None and branch_head(stored, branch) is not None:
        return replace(store, branch=branch)
    if stored is None or stored.newest is None:
        raise branches.refuse_on_branch(table, branch, "the table has no commits yet")
    if dry_run:
        return store

    def plan() -> tuple[IcebergTable, Change | None]:
        now = existing(store, table)
        if branch_head(now, branch) is not None or now.newest is None:
            return now, None
        return now, Change(tags={branch: Tag(now.newest.id)})

    deliver_change(store, [table], Note(DOOR, ""), plan)
    return replace(store, branch=branch)


def read_branch(store: IcebergStore, table: TableName, branch: str) -> IcebergStore:
    """A store in which the branch replaces the table. Raises UsageError if the branch does not exist."""
    on_branch = replace(store, branch=branch)
    existing(on_branch, table)
    return on_branch


def branch_head(stored: IcebergTable, branch: str) -> int | None:
    """The newest snapshot of a branch, or None if the branch does not exist."""
    return branches.head_of(stored.metadata, branch)


def publish(store: IcebergStore, table: TableName, branch: str) -> Published:
    """Publish a branch to the table in one step, and remove the branch.

    Each delivery keeps its own commit. Raises UsageError if the branch does not exist, and Refused if the
    table has changed since the branch began.
    """
    return _remove_branch(store, table, branch, published=True)


def discard(store: IcebergStore, table: TableName, branch: str) -> Published:
    """Remove a branch and its deliveries. Raises UsageError if the branch does not exist."""
    return _remove_branch(store, table, branch, published=False)


def _remove_branch(store: IcebergStore, table: TableName, branch: str, *, published: bool) -> Published:
    """Remove a branch. If `published` is true, its commits become the table's in the same step."""
    number = 0

    def plan() -> tuple[IcebergTable, Change]:
        nonlocal number
        stored = existing(store, table)
        find_commits = branches.require_current if published else branches.commits_of_branch
        commits = find_commits(stored.metadata, table, branch)
        number = len(commits)
        counts: Counter[str] = Counter()
        for commit in commits:
            counts.update(json.loads(commit["summary"].get(COUNTS) or "{}"))
        del counts["unchanged"]
        change = Change(dict(counts), tags={branch: None})
        if published and commits:
            pending = branches.pending_properties(commits[0]["summary"].get(PENDING))
            change = replace(change, properties=pending, back_to=branch_head(stored, branch))
        return stored, change

    committed = deliver_change(store, [table], Note(DOOR, ""), plan)
    assert committed is not None
    newest = existing(store, table).newest
    assert newest is not None
    return Published(str(table), branch, number, committed.counts, newest.id, discarded=not published)
