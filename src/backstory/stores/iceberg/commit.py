"""The one way to change a table: a Change becomes one commit, and nothing else is written."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, cast

import pyarrow as pa

from backstory.errors import BackstoryError
from backstory.model.change import Change, Committed, Note, Pieces
from backstory.model.table import TableName
from backstory.observe.metrics import COMMITS, timed
from backstory.stores.iceberg.create import builder, drop, rename, sort_by_key
from backstory.stores.iceberg.data_files import delete_files, write_frame, write_rows
from backstory.stores.iceberg.evolve import stage
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.jvm import every_row
from backstory.stores.iceberg.lineage import without_row_ids
from backstory.stores.iceberg.positions import positions_of
from backstory.stores.iceberg.session_caches import announce
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.iceberg.vectors import Deletions, positions_by_file, write_deletions
from backstory.stores.read_ahead import read_ahead
from backstory.stores.refusals import conflict

# Threads that stay: each has a connection to the JVM of its own.
_BESIDE = ThreadPoolExecutor(8, thread_name_prefix="deletions")


def commit(store: Store, table: StoredTable | None, change: Change, note: Note) -> Committed:
    """Make the one commit; without a table the change makes it.

    It holds only if nothing was written to the table since it was loaded: what was planned is then what is
    true. Raises TryAgain if another writer came first, or if other rows come than were counted, and Refused
    for a name that no table can have. The files of a commit that failed are taken away.
    """
    made = _commit(store, table, change, note)
    announce(store, *{each.table for each in (table and table.shape, change.into) if each})
    return made


def _commit(store: Store, table: StoredTable | None, change: Change, note: Note) -> Committed:
    if table is None or change.anew:
        return _make(store, change, note)
    if change.dropped or (change.into and change.into.table != table.shape.table):
        return _move(store, table.shape.table, change)
    with translate_faults(table.shape.table):
        staged = stage(store, table, change)
        if not (_touches_rows(table, change) or _needs_snapshot(table, change)):
            settle(staged)
            return Committed(None, change.counts)
        with discarding(table.iceberg) as written:
            pending = StoredTable(change.into, staged.table()) if change.into else table
            with timed("write"):
                files, deletions = _write(store, table, pending, change, written)
            counts = _counts(change, files)
            adding = _put(store, staged, files, deletions, change)
            properties = {**note.properties(counts), **change.told(pending)}
    return Committed(finish(table.shape.table, staged, adding, properties, written), counts)


def _touches_rows(table: StoredTable, change: Change) -> bool:
    """Whether a snapshot comes of it; no row of a table without any is written anew."""
    if change.whole:
        return table.rows > 0 or change.snapshot
    return change.snapshot or change.come is not None or change.gone is not None


def _move(store: Store, table: TableName, change: Change) -> Committed:
    """Drop the table, or give it another name."""
    if change.into is None:
        drop(store, table)
    else:
        rename(store, table, change.into.table)
    return Committed(None, change.counts)


def _needs_snapshot(table: StoredTable, change: Change) -> bool:
    """Whether a snapshot without rows has to tell other writers of a change that they would not notice."""
    return change.back_to is None and not change.tags and not table.guards_properties


def _make(store: Store, change: Change, note: Note) -> Committed:
    """Create the table of the change's shape, with the rows that come; one that is there makes way.

    Or, where none was seen when the change was planned, another writer came first.
    """
    shape = change.into
    assert shape is not None
    with translate_faults(shape.table):
        building = builder(store, shape)
        for name, value in change.properties.items():
            building = building.withProperty(name, value)
        staged = building.createOrReplaceTransaction() if change.anew else building.createTransaction()
        sort_by_key(store, staged, shape)
        if change.come is None:
            settle(staged)
            return Committed(None, change.counts)
        with discarding(staged.table()) as written:
            pending = StoredTable(shape, staged.table())
            with timed("write"):
                # In a table that is made every row begins, also a copy of one that has an id elsewhere.
                files = _write_rows(store, pending, without_row_ids(change.come), written)
            counts = _counts(change, files)
            adding = staged.newAppend()
            for file in files:
                adding.appendFile(file)
            properties = {**note.properties(counts), **change.told(pending)}
    return Committed(finish(shape.table, staged, adding, properties, written), counts)


def _write(
    store: Store, table: StoredTable, pending: StoredTable, change: Change, written: list[Any]
) -> tuple[list[Any], Deletions]:
    """The files of the rows that come, and those that hide the rows that go; the small ones side by side."""
    hidden: Future[Deletions] | None = None
    if isinstance(change.gone, pa.Table | Mapping):
        gone = change.gone if isinstance(change.gone, Mapping) else positions_by_file(change.gone)
        hidden = _BESIDE.submit(write_deletions, store, table, gone)
    try:
        files = _write_rows(store, pending, change.come, written)
        if change.expected not in {None, sum(int(file.recordCount()) for file in files)}:
            raise conflict(table.shape.table)  # what they were made of is not what was counted
    finally:
        if hidden is not None:
            written.extend(hidden.result().added)
    if hidden is not None:
        return files, hidden.result()
    if change.gone is None:
        return files, Deletions([], [])
    deletions = write_deletions(store, table, positions_of(change.gone))
    written.extend(deletions.added)
    return files, deletions


def _write_rows(store: Store, pending: StoredTable, come: Any, written: list[Any]) -> list[Any]:
    """New files with the rows, which are added to those that are `written`."""
    if come is None:
        return []
    if isinstance(come, Pieces):
        with ThreadPoolExecutor(1) as pool:  # the next piece is made while one is written
            pieces = read_ahead(pool, [come.tables], 1)
            return [file for rows in pieces for file in _write_rows(store, pending, rows, written)]
    files = (write_rows if isinstance(come, pa.Table) else write_frame)(store, pending, come)
    written.extend(files)
    return files


def _counts(change: Change, files: Sequence[Any]) -> Mapping[str, int]:
    if not change.counted:
        return change.counts
    return {**change.counts, change.counted: sum(int(file.recordCount()) for file in files)}


def _put(store: Store, staged: Any, files: Sequence[Any], deletions: Deletions, change: Change) -> Any:
    """The operation of the transaction that adds the files."""
    if change.whole:
        overwrite = staged.newOverwrite()
        overwrite.overwriteByRowFilter(every_row(store.jvm))
        for file in files:
            overwrite.addFile(file)
        return overwrite
    if change.gone is None:
        append = staged.newAppend()
        for file in files:
            append.appendFile(file)
        return append
    delta = staged.newRowDelta()
    seen = staged.startMetadata().currentSnapshot()
    if seen is not None:
        # Iceberg would take every deletion vector of the table's past for a concurrent one.
        delta.validateFromSnapshot(seen.snapshotId())
    for file in files:
        delta.addRows(file)
    for file in deletions.added:
        delta.addDeletes(file)
    for file in deletions.replaced:
        delta.removeDeletes(file)
    return delta


@contextmanager
def discarding(iceberg: Any) -> Iterator[list[Any]]:
    """A list for files that are written beside the table; what fails in it takes them away."""
    files: list[Any] = []
    with ExitStack() as undo:
        undo.callback(lambda: _discard(iceberg, files))
        yield files
        undo.pop_all()


def settle(transaction: Any) -> None:
    """Commit what the transaction holds if the table is still the one that it began with, or still none.

    Its own `commitTransaction` would try again on a newer table, which nothing here was planned on,
    and take manifests away when the catalog's answer was lost.
    """
    before = transaction.startMetadata()
    if before is None:
        transaction.commitTransaction()
    else:
        transaction.underlyingOps().commit(before, transaction.currentMetadata())


def finish(
    table: TableName,
    transaction: Any,
    adding: Any,
    properties: Mapping[str, str],
    files: Sequence[Any],
    then: Callable[[], None] = lambda: None,
) -> int:
    """Commit a transaction with its last operation of rows, and give the snapshot's id.

    `then` adds to the transaction what needs that snapshot.

    If it fails, the files that were written for it are taken away, once the catalog says that it
    does not know them.
    """
    for name, value in properties.items():
        adding.set(name, value)
    ours: int | None = None
    try:
        with translate_faults(table), timed("commit"):
            adding.commit()
            ours = int(transaction.currentMetadata().currentSnapshot().snapshotId())
            then()
            settle(transaction)
    except BackstoryError:
        taken = _has_snapshot(transaction, ours)
        if taken is False:
            _discard(transaction.table(), files)
            _discard_metadata(transaction)
        if not taken:
            raise
    COMMITS.inc()
    return cast("int", ours)


def _has_snapshot(transaction: Any, ours: int | None) -> bool | None:
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


def manifests_of(transaction: Any) -> list[str]:
    """The manifests and their lists that a transaction wrote for the snapshots that it has now."""
    before, io, locations = transaction.startMetadata(), transaction.table().io(), list[str]()
    before_ids = set() if before is None else {int(each.snapshotId()) for each in before.snapshots()}
    for each in transaction.currentMetadata().snapshots():
        made = int(each.snapshotId())
        if made not in before_ids:
            own = [one for one in each.allManifests(io) if one.snapshotId() == made]
            locations += [str(each.manifestListLocation()), *(str(one.path()) for one in own)]
    return locations


def _discard_metadata(transaction: Any) -> None:
    """Delete the manifests of a transaction that failed; what failed is told, whatever becomes of them."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError):
        _discard(transaction.table(), manifests_of(transaction))


def _discard(iceberg: Any, files: Sequence[Any]) -> None:
    """Delete files that no snapshot names, by their places or as Iceberg knows them."""
    delete_files(iceberg, [each if isinstance(each, str) else each.location() for each in files])
