"""Commit actions: rows that go and rows that come, in one snapshot."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, cast

from backstory.errors import BackstoryError
from backstory.model.table import TableName
from backstory.observe.metrics import COMMITS
from backstory.stores.iceberg.data_files import delete_files
from backstory.stores.iceberg.faults import translated
from backstory.stores.iceberg.store import DISORDER, Store, StoredTable, settle
from backstory.stores.iceberg.vectors import Deletions


@dataclass(frozen=True, slots=True)
class Note:
    """What a commit says of itself in the snapshot's properties; `more` are a door's own."""

    door: str
    token: str
    counts: Mapping[str, int]
    more: Mapping[str, str] = field(default_factory=dict)

    def properties(self) -> dict[str, str]:
        """The four properties that every commit carries, and the door's own."""
        return {
            **self.more,
            "backstory.door": self.door,
            "backstory.token": self.token,
            "backstory.counts": json.dumps(self.counts),
            "backstory.version": version("backstory"),
        }


def commit(
    table: StoredTable,
    data_files: Sequence[Any],
    deletions: Deletions,
    note: Note,
    *,
    disorder: bool = False,
    staged: Any = None,
) -> int:
    """Make the one commit, and give its snapshot's id; with `disorder` it marks the table.

    `staged` is a transaction that changes the table's shape, which then becomes part of the commit.
    The commit holds only if nothing was written to the table since `table` was loaded: what was
    planned is then what is true. Raises TryAgain if another writer came first; the files of a
    commit that failed are taken away.
    """
    with discarding(table) as files, translated(table.shape.table):
        files.extend([*data_files, *deletions.added])
        transaction = staged or table.begin()
        if disorder:
            transaction.updateProperties().set(DISORDER, "true").commit()
        delta = transaction.newRowDelta()
        seen = transaction.startMetadata().currentSnapshot()
        if seen is not None:
            # Iceberg would take every deletion vector of the table's past for a concurrent one.
            delta.validateFromSnapshot(seen.snapshotId())
        for file in data_files:
            delta.addRows(file)
        for file in deletions.added:
            delta.addDeletes(file)
        for file in deletions.replaced:
            delta.removeDeletes(file)
    return finish(table.shape.table, transaction, delta, note, files)


def commit_all(
    store: Store, table: StoredTable, data_files: Sequence[Any], note: Note, *, staged: Any
) -> int:
    """Commit files that hold every row of the table, in its staged shape; else as `commit`."""
    with discarding(table) as files, translated(table.shape.table):
        files.extend(data_files)
        overwrite = staged.newOverwrite()
        overwrite.overwriteByRowFilter(store.jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue())
        for file in data_files:
            overwrite.addFile(file)
    return finish(table.shape.table, staged, overwrite, note, files)


@contextmanager
def discarding(table: StoredTable) -> Iterator[list[Any]]:
    """A list for files that are written beside the table; what fails in it takes them away."""
    files: list[Any] = []
    with ExitStack() as undo:
        undo.callback(lambda: discard(table.iceberg.io(), files))
        yield files
        undo.pop_all()


def finish(table: TableName, transaction: Any, change: Any, note: Note, files: Sequence[Any]) -> int:
    """Commit a transaction with its last change, and give the snapshot's id.

    If it fails, the files that were written for it are taken away, once the catalog says that it
    does not know them.
    """
    for name, value in note.properties().items():
        change.set(name, value)
    ours: int | None = None
    try:
        with translated(table):
            change.commit()
            ours = int(transaction.currentMetadata().currentSnapshot().snapshotId())
            settle(transaction)
    except BackstoryError:
        taken = _taken(transaction, ours)
        if taken is False:
            discard(transaction.table().io(), files)
        if not taken:
            raise
    COMMITS.inc()
    return cast("int", ours)


def _taken(transaction: Any, ours: int | None) -> bool | None:
    """Whether the catalog has the snapshot after all, None if it does not say.

    The answer to a commit can be lost, and another try of the catalog's then meets the commit itself.
    """
    from py4j.protocol import Py4JError

    if ours is None:
        return False
    try:
        snapshots = transaction.underlyingOps().refresh().snapshots()
        return any(int(snapshot.snapshotId()) == ours for snapshot in snapshots)
    except Py4JError:
        return None


def discard(io: Any, files: Sequence[Any]) -> None:
    """Delete data and delete files that no snapshot names."""
    delete_files(io, [file.location() for file in files])
