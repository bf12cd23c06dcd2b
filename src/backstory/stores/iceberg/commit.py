"""The only way to change a table: a Change of rows, shape, properties and tags becomes one commit.

Only the engine may use this module.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import singledispatch
from typing import Any, cast

import pyarrow as pa

from backstory.errors import BackstoryError
from backstory.model.change import COLUMNS_STATE, NOTHING, Change, Commit, Note, RowBatches, Tag
from backstory.model.layout import ACTIVE, Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import AddedField, added_fields, widens
from backstory.observe import COMMITS, time_stage
from backstory.spark.connect import Py4JError
from backstory.stores.branches import MAIN, preview_notes, refuse_on_branch
from backstory.stores.iceberg.create import builder, drop, rename, sort_by_key
from backstory.stores.iceberg.data_files import (
    Deletions,
    delete_files,
    write_deletions,
    write_frame,
    write_rows,
)
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import without_row_ids
from backstory.stores.iceberg.jvm import every_row, set_properties
from backstory.stores.iceberg.positions import positions_of
from backstory.stores.iceberg.schema import KEY, LAYOUT, SOURCE_NAMES, iceberg_name, iceberg_type
from backstory.stores.iceberg.sessions import announce
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, source_names, table_in
from backstory.stores.metadata.table_metadata import positions_by_file
from backstory.stores.port import DISORDER, Store, StoredTable, conflict, refuse_names
from backstory.stores.table_files import read_ahead

# A permanent pool, since each thread has its own connection to the JVM.
_DELETION_WRITERS = ThreadPoolExecutor(8, thread_name_prefix="deletions")


@singledispatch
def commit(store: Store, table: StoredTable | None, change: Change, note: Note) -> Commit:
    """Commit a change to a table of any store once. Without a table, the change creates it.

    Succeeds only if the table has not changed since it was loaded, so that the plan still holds.
    Raises TryAgain if another writer committed first, or if the number of added rows differs from the
    expected one. Raises Refused for a name that no table can have. The files of a failed commit are deleted.
    """
    raise NotImplementedError(store)


@commit.register
def _(store: IcebergStore, table: IcebergTable | None, change: Change, note: Note) -> Commit:
    committed = _commit(store, table, change, note)
    announce(store, *{shape.table for shape in (table and table.shape, change.into) if shape})
    return committed


def _commit(store: IcebergStore, table: IcebergTable | None, change: Change, note: Note) -> Commit:
    if store.branch is not None:
        return _commit_to_branch(store, store.branch, table, change, note)
    if table is None or change.recreate:
        return _create_table(store, change, note)
    if change.dropped or (change.into and change.into.table != table.shape.table):
        if change.into is None:
            drop(store, table.shape.table)
        else:
            rename(store, table.shape.table, change.into.table)
        return Commit(None, change.counts)
    with translate_faults(table.shape.table):
        staged = stage(store, table, change)
        # A commit without rows makes a snapshot too, if other writers would not notice the change otherwise.
        if not _touches_rows(table, change) and (
            change.back_to is not None or change.tags or table.guards_properties
        ):
            settle(staged)
            return Commit(None, change.counts)
    return _commit_rows(store, table, staged, change, note)


def _commit_rows(
    store: IcebergStore,
    table: IcebergTable,
    staged: Any,
    change: Change,
    note: Note,
    *,
    branch: str = MAIN,
    more: Mapping[str, str] = NOTHING,
) -> Commit:
    """Write the change's rows and commit the transaction. The snapshot gets `more` properties too."""
    with translate_faults(table.shape.table), discarding(table.iceberg) as written:
        into = change.into
        pending = table if into is None or into == table.shape else table_in(store, into, staged)
        with time_stage("write"):
            files, deletions = _write(store, table, pending, change, written)
        counts = _counts(change, files)
        adding = _add_files(store, staged, files, deletions, change, branch)
        if branch != MAIN:
            adding = adding.toBranch(branch)
        properties = {**note.properties(counts), **change.late_properties(pending), **more}
    return Commit(finish(table.shape.table, staged, adding, properties, written, branch=branch), counts)


def _commit_to_branch(
    store: IcebergStore, branch: str, table: IcebergTable | None, change: Change, note: Note
) -> Commit:
    """Commit a change of rows to a branch. Its properties are pending until the branch is published.

    Raises Refused for any other change.
    """
    table = require_for_branch(branch, table, change)
    more = preview_notes(branch, {**table.pending, **change.properties}, table.stored)
    rows = replace(change, into=None)
    with translate_faults(table.shape.table):
        transaction = table.begin()
    return _commit_rows(store, table, transaction, rows, note, branch=branch, more=more)


def require_for_branch(branch: str, table: IcebergTable | None, change: Change) -> IcebergTable:
    """The table. Raises Refused unless it exists and the change only affects rows and properties."""
    if table is None:
        into = change.into
        assert into is not None
        raise refuse_on_branch(into.table, branch, "the table does not exist yet")
    if change.into is not None and change.into != table.shape:
        lines = change.lines(table.shape) or ["its columns change"]
        raise refuse_on_branch(table.shape.table, branch, "; ".join(lines))
    if change.whole or change.recreate or change.dropped or change.tags or change.back_to is not None:
        raise refuse_on_branch(table.shape.table, branch, "the whole table changes")
    return table


def _touches_rows(table: IcebergTable, change: Change) -> bool:
    """Whether the change makes a snapshot. An empty table has no rows to rewrite."""
    if change.whole:
        return table.rows > 0 or change.snapshot
    return change.snapshot or change.added is not None or change.removed is not None


def _create_table(store: IcebergStore, change: Change, note: Note) -> Commit:
    """Create a table of the change's shape with its added rows. `change.recreate` replaces an existing table.

    Without `change.recreate`, an existing table means that another writer committed first.
    """
    shape = change.into
    assert shape is not None
    with translate_faults(shape.table):
        building = builder(store, shape, recreate=change.recreate)
        for name, value in change.properties.items():
            building = building.withProperty(name, value)
        staged = building.createOrReplaceTransaction() if change.recreate else building.createTransaction()
        sort_by_key(store, staged, shape)
        if change.added is None:
            settle(staged)
            return Commit(None, change.counts)
    # In a created table every row is new, including copies of rows with ids in other tables.
    rows = replace(change, added=without_row_ids(change.added), removed=None, whole=False)
    return _commit_rows(store, table_in(store, shape, staged), staged, rows, note)


def _write(
    store: IcebergStore, table: IcebergTable, pending: IcebergTable, change: Change, written: list[Any]
) -> tuple[list[Any], Deletions]:
    """Write the data files of added rows and the delete files of removed rows, small files concurrently."""
    pending_deletions: Future[Deletions] | None = None
    if isinstance(change.removed, pa.Table | Mapping):
        positions = (
            change.removed if isinstance(change.removed, Mapping) else positions_by_file(change.removed)
        )
        pending_deletions = _DELETION_WRITERS.submit(write_deletions, store, table, positions)
    try:
        files = _write_rows(store, pending, change.added, written)
        if change.expected not in {None, sum(int(file.recordCount()) for file in files)}:
            raise conflict(table.shape.table)  # the source of the rows has changed since it was counted
    finally:
        if pending_deletions is not None:
            written.extend(pending_deletions.result().added)
    if pending_deletions is not None:
        return files, pending_deletions.result()
    if change.removed is None:
        return files, Deletions()
    deletions = write_deletions(store, table, positions_of(change.removed))
    written.extend(deletions.added)
    return files, deletions


def _write_rows(store: IcebergStore, pending: IcebergTable, rows: Any, written: list[Any]) -> list[Any]:
    """Write data files with the rows. The new files are also appended to `written`."""
    if rows is None:
        return []
    if isinstance(rows, RowBatches):
        with ThreadPoolExecutor(1) as pool:  # prepares the next piece while one is written
            pieces = read_ahead(pool, [rows.tables], 1)
            return [file for piece in pieces for file in _write_rows(store, pending, piece, written)]
    files = (write_rows if isinstance(rows, pa.Table) else write_frame)(store, pending, rows)
    written.extend(files)
    return files


def _counts(change: Change, files: Sequence[Any]) -> Mapping[str, int]:
    if not change.count_as:
        return change.counts
    return {**change.counts, change.count_as: sum(int(file.recordCount()) for file in files)}


def _add_files(
    store: IcebergStore,
    staged: Any,
    files: Sequence[Any],
    deletions: Deletions,
    change: Change,
    branch: str,
) -> Any:
    """The transaction's operation that adds the files. The operation is not yet committed."""
    if change.whole:
        overwrite = staged.newOverwrite()
        overwrite.overwriteByRowFilter(every_row(store.jvm))
        for file in files:
            overwrite.addFile(file)
        return overwrite
    if change.removed is None:
        append = staged.newAppend()
        for file in files:
            append.appendFile(file)
        return append
    delta = staged.newRowDelta()
    seen = staged.startMetadata().ref(branch)
    if seen is not None:
        # Without this call, Iceberg would regard every earlier deletion vector as a concurrent one.
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
    """A list of files written for a commit. The files are deleted if the block raises an exception."""
    files: list[Any] = []
    with ExitStack() as undo:
        undo.callback(lambda: _discard(iceberg, files))
        yield files
        undo.pop_all()


def settle(transaction: Any) -> None:
    """Commit a transaction unless the table has been changed or created since the transaction began.

    Iceberg's `commitTransaction` would retry on a newer table, for which nothing was planned.
    `commitTransaction` would also delete manifests if the catalog's response was lost.
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
    *,
    branch: str = MAIN,
) -> int:
    """Add the operation on rows to a transaction, and commit it to a branch. Returns the snapshot's id.

    `then` adds operations to the transaction that need the snapshot. After a failure the written files are
    deleted, once the catalog has confirmed that it does not have the snapshot.
    """
    for name, value in properties.items():
        adding.set(name, value)
    ours: int | None = None
    try:
        with translate_faults(table), time_stage("commit"):
            adding.commit()
            ours = int(transaction.currentMetadata().ref(branch).snapshotId())
            then()
            settle(transaction)
    except BackstoryError:
        is_committed = _has_snapshot(transaction, ours)
        if is_committed is False:
            _discard(transaction.table(), files)
            # An error here does not hide the transaction's error.
            with suppress(Py4JError):
                _discard(transaction.table(), manifests_of(transaction))
        if not is_committed:
            raise
    COMMITS.inc()
    return cast("int", ours)


def _has_snapshot(transaction: Any, ours: int | None) -> bool | None:
    """Whether the catalog has the snapshot after all, or None if the catalog does not respond.

    The response to a commit can be lost, and the catalog's own retry then conflicts with the commit itself.
    """
    if ours is None:
        return False
    try:
        snapshots = transaction.underlyingOps().refresh().snapshots()
        return any(int(snapshot.snapshotId()) == ours for snapshot in snapshots)
    except Py4JError:
        return None


def manifests_of(transaction: Any) -> list[str]:
    """The manifests and manifest lists that a transaction wrote for its snapshots."""
    before, io, locations = transaction.startMetadata(), transaction.table().io(), list[str]()
    before_ids = set() if before is None else {int(snapshot.snapshotId()) for snapshot in before.snapshots()}
    for snapshot in transaction.currentMetadata().snapshots():
        snapshot_id = int(snapshot.snapshotId())
        if snapshot_id not in before_ids:
            own = [manifest for manifest in snapshot.allManifests(io) if manifest.snapshotId() == snapshot_id]
            locations += [str(snapshot.manifestListLocation()), *(str(manifest.path()) for manifest in own)]
    return locations


def _discard(iceberg: Any, files: Sequence[Any]) -> None:
    """Delete files that no snapshot names, given as locations or as Iceberg's objects."""
    delete_files(iceberg, [file if isinstance(file, str) else file.location() for file in files])


def stage(store: IcebergStore, table: IcebergTable, change: Change) -> Any:
    """An uncommitted transaction that gives the table the change's shape, properties and tags.

    The transaction's `table()` is the future table, for which data files can be written. Columns that the new
    shape lacks are dropped. A column whose type does not simply widen becomes a new column of the same name.
    Then every row must be rewritten in the same transaction. Raises TryAgain if another writer committed
    first, and Refused for a name that no table can have.
    """
    transaction = table.begin()
    if change.back_to is not None:
        transaction.manageSnapshots().setCurrentSnapshot(change.back_to).commit()
    if change.into is not None:
        _reshape(store, table, transaction, change.into, change.renamed)
    if change.properties:
        set_properties(transaction, change.properties)
    state = str(transaction.table().schema().schemaId())
    if change.into is not None or (
        COLUMNS_STATE in table.properties and table.properties[COLUMNS_STATE] != state
    ):
        set_properties(transaction, {COLUMNS_STATE: state})
    if change.tags:
        _set_tags(transaction, table.tags, change.tags)
    return transaction


def _reshape(
    store: IcebergStore, table: IcebergTable, transaction: Any, into: Shape, renamed: Mapping[str, str]
) -> None:
    refuse_names(into.names)
    before = table.shape
    _set_shape_properties(transaction, before, into)
    if not into.layout.is_sorted:
        _evolve_columns(store, transaction, before, into, renamed)
        return
    is_partitioned = ACTIVE in [name for name, _, _ in table.partitioning]
    keeps_history = into.layout is Layout.FIVETRAN_HISTORY
    if is_partitioned and not keeps_history:
        transaction.updateSpec().removeField(ACTIVE).commit()
    # A column in the sort order cannot be dropped.
    transaction.replaceSortOrder().commit()
    _evolve_columns(store, transaction, before, into, renamed)
    sort_by_key(store, transaction, into)
    if keeps_history and before.layout is not into.layout:
        transaction.updateSpec().addField(ACTIVE).commit()


def _set_shape_properties(transaction: Any, before: Shape, into: Shape) -> None:
    properties: dict[str, str | None] = {KEY: json.dumps(list(into.key), ensure_ascii=False)}
    if source_names(before) != source_names(into):
        properties[SOURCE_NAMES] = source_names(into)
    if before.layout is not into.layout:
        properties |= {LAYOUT: into.layout.value, DISORDER: None}
    set_properties(transaction, properties)


def _set_tags(transaction: Any, known: Mapping[str, int], tags: Mapping[str, Tag | None]) -> None:
    update = transaction.manageSnapshots()
    for name, tag in tags.items():
        if tag is None:
            (update.removeTag if name in known else update.removeBranch)(name)
            continue
        if tag.max_age is None:
            update.createBranch(name, tag.snapshot)
            continue
        (update.replaceTag if name in known else update.createTag)(name, tag.snapshot)
        update.setMaxRefAgeMs(name, tag.max_age)
    update.commit()


def _evolve_columns(
    store: IcebergStore, transaction: Any, before: Shape, into: Shape, renamed: Mapping[str, str]
) -> None:
    schema = transaction.updateSchema()
    known = {renamed.get(column.name, column.name): column.type for column in before.columns}
    former = {new: old for old, new in renamed.items()}
    # Iceberg finds a column by its former name until the update is committed.
    called: dict[str, str] = {}
    for old, new in renamed.items():
        wanted = into.column(new)
        # A column that is replaced is dropped by its old name, the only one that Iceberg has so far.
        stays = wanted is None or widens(known[new], wanted.type) or added_fields(known[new], wanted.type)
        if old != new and stays:
            schema.renameColumn(old, new)
            called[new] = old
    for name in known.keys() - set(into.names):
        schema.deleteColumn(name)
    present = [name for name in known if into.column(name)]
    grown: dict[str, tuple[AddedField, ...]] = {}
    for column in into.columns:
        stored = known.get(column.name)
        if stored == column.type:
            continue
        if stored is not None and widens(stored, column.type):
            _widen_column(store, schema, column, iceberg_name(stored), called.get(column.name, column.name))
            continue
        if stored is not None and (added := added_fields(stored, column.type)) is not None:
            grown[former.get(column.name, column.name)] = added
            continue
        if stored is not None:
            schema.deleteColumn(former.get(column.name, column.name))
            present.remove(column.name)
        schema.addColumn(None, column.name, iceberg_type(store.jvm, column.type), column.doc)
        present.append(column.name)
    # New columns were added before, because they get the next field ids, on which marks of copies rely.
    for name, part in ((name, part) for name, added in grown.items() for part in added):
        schema.addColumn(".".join((name, *part.within)), part.name, iceberg_type(store.jvm, part.type))
    _order_columns(schema, present, into.names, called)
    schema.commit()


def _widen_column(store: IcebergStore, schema: Any, column: Column, stored: str, called: str) -> None:
    if iceberg_name(column.type) != stored:
        schema.updateColumn(called, iceberg_type(store.jvm, column.type))
    schema.updateColumnDoc(called, column.doc)


def _order_columns(
    schema: Any, present: Sequence[str], wanted: Sequence[str], called: Mapping[str, str]
) -> None:
    """Move columns into the order of the shape."""
    order = list(present)
    for place, name in enumerate(wanted):
        if order[place] == name:
            continue
        order.remove(name)
        order.insert(place, name)
        if place:
            schema.moveAfter(called.get(name, name), called.get(wanted[place - 1], wanted[place - 1]))
        else:
            schema.moveFirst(called.get(name, name))
