"""Commit actions: rows that go and rows that come, in one snapshot."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from backstory.errors import BackstoryError
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
) -> int:
    """Make the one commit, and give its snapshot's id; with `disorder` it marks the table.

    The commit holds only if nothing was written to the table since `table` was loaded: what was
    planned is then what is true. Raises TryAgain if another writer came first; the files of a
    commit that failed are taken away.
    """
    with translated(table.shape.table):
        transaction = table.iceberg.newTransaction()
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
        for name, value in note.properties().items():
            delta.set(name, value)
    try:
        with translated(table.shape.table):
            delta.commit()
            transaction.commitTransaction()
    except BackstoryError as failure:
        if not _unknown(failure):
            discard(table, [*data_files, *deletions.added])
        raise
    table.iceberg.refresh()
    return int(table.iceberg.currentSnapshot().snapshotId())


def discard(table: StoredTable, files: Sequence[Any]) -> None:
    """Delete files that no snapshot names; one that cannot be deleted is left as an orphan."""
    from py4j.protocol import Py4JJavaError

    for file in files:
        try:
            table.iceberg.io().deleteFile(file.location())
        except Py4JJavaError:
            continue


def _unknown(failure: BackstoryError) -> bool:
    """Whether the catalog may have taken the commit although it did not say so."""
    cause = getattr(failure.__cause__, "java_exception", None)
    return cause is not None and cause.getClass().getSimpleName() == "CommitStateUnknownException"
