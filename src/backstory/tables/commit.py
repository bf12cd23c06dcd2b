"""Commit actions: rows that go and rows that come, in one snapshot."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from backstory.errors import BackstoryError
from backstory.model.table import TableName
from backstory.observe.metrics import COMMITS
from backstory.tables.data_files import delete_files
from backstory.tables.faults import translated
from backstory.tables.store import DISORDER, Store, StoredTable
from backstory.tables.vectors import Deletions


@dataclass(frozen=True, slots=True)
class Note:
    """What a commit says of itself in the snapshot's properties."""

    door: str
    token: str
    counts: Mapping[str, int]

    def properties(self) -> dict[str, str]:
        """The four properties that every commit carries."""
        return {
            "backstory.door": self.door,
            "backstory.token": self.token,
            "backstory.counts": json.dumps(self.counts),
            "backstory.version": version("backstory"),
        }


def commit(
    store: Store,
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
    with translated(table.shape.table):
        transaction = staged or table.iceberg.newTransaction()
        if disorder:
            transaction.updateProperties().set(DISORDER, "true").commit()
        delta = transaction.newRowDelta()
        for file in data_files:
            delta.addRows(file)
        referenced = store.jvm.java.util.ArrayList()
        for file in deletions.added:
            delta.addDeletes(file)
            if file.referencedDataFile():
                referenced.add(file.referencedDataFile())
        for file in deletions.replaced:
            delta.removeDeletes(file)
        if table.snapshot_id is not None:
            delta.validateFromSnapshot(table.snapshot_id)
        delta.validateDataFilesExist(referenced).validateDeletedFiles()
        delta.validateNoConflictingDataFiles().validateNoConflictingDeleteFiles()
    return finish(table.shape.table, transaction, delta, note, [*data_files, *deletions.added])


def commit_all(
    store: Store, table: StoredTable, data_files: Sequence[Any], note: Note, *, staged: Any
) -> int:
    """Commit files that hold every row of the table, in its staged shape; else as `commit`."""
    with translated(table.shape.table):
        overwrite = staged.newOverwrite()
        overwrite.overwriteByRowFilter(store.jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue())
        for file in data_files:
            overwrite.addFile(file)
        if table.snapshot_id is not None:
            overwrite.validateFromSnapshot(table.snapshot_id)
        overwrite.validateNoConflictingData().validateNoConflictingDeletes()
    return finish(table.shape.table, staged, overwrite, note, data_files)


def finish(table: TableName, transaction: Any, change: Any, note: Note, files: Sequence[Any]) -> int:
    """Commit a transaction with its last change, and give the snapshot's id.

    If it fails, the files that were written for it are taken away.
    """
    for name, value in note.properties().items():
        change.set(name, value)
    try:
        with translated(table):
            change.commit()
            transaction.commitTransaction()
    except BackstoryError as failure:
        if not _unknown(failure):
            discard(transaction.table().io(), files)
        raise
    COMMITS.inc()
    return int(transaction.table().currentSnapshot().snapshotId())


def discard(io: Any, files: Sequence[Any]) -> None:
    """Delete data and delete files that no snapshot names."""
    delete_files(io, [file.location() for file in files])


def _unknown(failure: BackstoryError) -> bool:
    """Whether the catalog may have taken the commit although it did not say so."""
    cause = getattr(failure.__cause__, "java_exception", None)
    return cause is not None and cause.getClass().getSimpleName() == "CommitStateUnknownException"
