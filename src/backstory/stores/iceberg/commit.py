"""The one way to change a table: a Change becomes one commit, and nothing else is written.

Bring a table to another shape: its columns, their types, its key and its layout, in one commit.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, cast

import pyarrow as pa

from backstory.errors import BackstoryError
from backstory.model.change import COLUMNS_STATE, Change, Commit, Note, RowBatches, Tag
from backstory.model.layout import ACTIVE, Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import added_fields, widens
from backstory.observe.metrics import COMMITS, time_stage
from backstory.stores.iceberg.create import builder, drop, rename, sort_by_key
from backstory.stores.iceberg.data_files import (
    Deletions,
    delete_files,
    positions_by_file,
    write_deletions,
    write_frame,
    write_rows,
)
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import without_row_ids
from backstory.stores.iceberg.jvm import every_row
from backstory.stores.iceberg.positions import positions_of
from backstory.stores.iceberg.schema import iceberg_name, iceberg_type
from backstory.stores.iceberg.sessions import announce
from backstory.stores.iceberg.store import KEY, LAYOUT, SOURCE_NAMES, Store, StoredTable, source_names
from backstory.stores.port import DISORDER, refuse_names
from backstory.stores.read_ahead import read_ahead
from backstory.stores.refusals import conflict


def stage(store: Store, table: StoredTable, change: Change) -> Any:
    """Iceberg's transaction that gives the table the change's shape and properties; nothing is committed yet.

    The transaction's `table()` is the table as it will be: data files can be written for it. Columns that
    the new shape lacks are dropped. A column whose values do not simply widen is another column of the same
    name, so that every row must be written anew in the same transaction, if there are rows. Raises TryAgain
    if another writer came first, and Refused for a name that no table can have.
    """
    transaction = table.begin()
    if change.back_to is not None:
        transaction.manageSnapshots().setCurrentSnapshot(change.back_to).commit()
    if change.into is not None:
        _reshape(store, table, transaction, change.into, change.renamed)
    elif table.shape.layout.is_sorted and not table.iceberg.sortOrders().containsKey(0):
        transaction.replaceSortOrder().commit()  # a table of an earlier version
        sort_by_key(store, transaction, table.shape)
    if change.properties:
        _set_properties(transaction, change.properties)
    left = str(transaction.table().schema().schemaId())
    if change.into is not None or (
        COLUMNS_STATE in table.properties and table.properties[COLUMNS_STATE] != left
    ):
        _set_properties(transaction, {COLUMNS_STATE: left})
    if change.tags:
        _set_tags(transaction, table.tags, change.tags)
    return transaction


def _reshape(
    store: Store, table: StoredTable, transaction: Any, into: Shape, renamed: Mapping[str, str]
) -> None:
    refuse_names(store.reserves, into.names)
    before = table.shape
    _set_shape_properties(transaction, before, into)
    if not into.layout.is_sorted:
        _evolve_columns(store, transaction, before, into, renamed)
        return
    parted = ACTIVE in [field.name() for field in table.iceberg.spec().fields()]
    keeps_history = into.layout is Layout.FIVETRAN_HISTORY
    if parted and not keeps_history:
        transaction.updateSpec().removeField(ACTIVE).commit()
    # A column in the sort order cannot be dropped.
    transaction.replaceSortOrder().commit()
    _evolve_columns(store, transaction, before, into, renamed)
    sort_by_key(store, transaction, into)
    if keeps_history and before.layout is not into.layout:
        transaction.updateSpec().addField(ACTIVE).commit()


def _set_shape_properties(transaction: Any, before: Shape, into: Shape) -> None:
    told: dict[str, str | None] = {KEY: json.dumps(list(into.key), ensure_ascii=False)}
    if source_names(before) != source_names(into):
        told[SOURCE_NAMES] = source_names(into)
    if before.layout is not into.layout:
        told |= {LAYOUT: into.layout.value, DISORDER: None}
    _set_properties(transaction, told)


def _set_properties(transaction: Any, properties: Mapping[str, str | None]) -> None:
    update = transaction.updateProperties()
    for name, value in properties.items():
        if value is None:
            update.remove(name)
        else:
            update.set(name, value)
    update.commit()


def _set_tags(transaction: Any, known: Mapping[str, int], tags: Mapping[str, Tag | None]) -> None:
    update = transaction.manageSnapshots()
    for name, tag in tags.items():
        if tag is None:
            update.removeTag(name)
            continue
        (update.replaceTag if name in known else update.createTag)(name, tag.snapshot)
        update.setMaxRefAgeMs(name, tag.max_age)
    update.commit()


def _evolve_columns(
    store: Store, transaction: Any, before: Shape, into: Shape, renamed: Mapping[str, str]
) -> None:
    schema = transaction.updateSchema()
    known = {renamed.get(column.name, column.name): column.type for column in before.columns}
    former = {new: old for old, new in renamed.items()}
    # Iceberg knows a column by its former name until the update is committed.
    called: dict[str, str] = {}
    for old, new in renamed.items():
        wanted = into.column(new)
        # What becomes another column goes under its old name: Iceberg knows no other yet.
        stays = wanted is None or widens(known[new], wanted.type) or added_fields(known[new], wanted.type)
        if old != new and stays:
            schema.renameColumn(old, new)
            called[new] = old
    for name in known.keys() - set(into.names):
        schema.deleteColumn(name)
    standing = [name for name in known if into.column(name)]
    for column in into.columns:
        stored = known.get(column.name)
        if stored == column.type:
            continue
        if stored is not None and widens(stored, column.type):
            _widen_column(store, schema, column, iceberg_name(stored), called.get(column.name, column.name))
            continue
        if stored is not None and (added := added_fields(stored, column.type)) is not None:
            for part in added:
                parent = ".".join((former.get(column.name, column.name), *part.within))
                schema.addColumn(parent, part.name, iceberg_type(store.jvm, part.type))
            continue
        if stored is not None:
            schema.deleteColumn(former.get(column.name, column.name))
            standing.remove(column.name)
        schema.addColumn(None, column.name, iceberg_type(store.jvm, column.type), column.doc)
        standing.append(column.name)
    _order_columns(schema, standing, into.names, called)
    schema.commit()


def _widen_column(store: Store, schema: Any, column: Column, stored: str, called: str) -> None:
    if iceberg_name(column.type) != stored:
        schema.updateColumn(called, iceberg_type(store.jvm, column.type))
    schema.updateColumnDoc(called, column.doc)


def _order_columns(
    schema: Any, standing: Sequence[str], wanted: Sequence[str], called: Mapping[str, str]
) -> None:
    """Move columns until they stand in the order that the shape has them in."""
    order = list(standing)
    for place, name in enumerate(wanted):
        if order[place] == name:
            continue
        order.remove(name)
        order.insert(place, name)
        if place:
            schema.moveAfter(called.get(name, name), called.get(wanted[place - 1], wanted[place - 1]))
        else:
            schema.moveFirst(called.get(name, name))


# Threads that stay: each has a connection to the JVM of its own.
_DELETION_WRITERS = ThreadPoolExecutor(8, thread_name_prefix="deletions")


def commit(store: Store, table: StoredTable | None, change: Change, note: Note) -> Commit:
    """Make the one commit; without a table the change makes it.

    It holds only if nothing was written to the table since it was loaded: what was planned is then what is
    true. Raises TryAgain if another writer came first, or if other rows come than were counted, and Refused
    for a name that no table can have. The files of a commit that failed are taken away.
    """
    made = _commit(store, table, change, note)
    announce(store, *{each.table for each in (table and table.shape, change.into) if each})
    return made


def _commit(store: Store, table: StoredTable | None, change: Change, note: Note) -> Commit:
    if table is None or change.recreate:
        return _create_table(store, change, note)
    if change.dropped or (change.into and change.into.table != table.shape.table):
        return _drop_or_rename(store, table.shape.table, change)
    with translate_faults(table.shape.table):
        staged = stage(store, table, change)
        if not (_touches_rows(table, change) or _needs_snapshot(table, change)):
            settle(staged)
            return Commit(None, change.counts)
        with discarding(table.iceberg) as written:
            pending = StoredTable(change.into, staged.table()) if change.into else table
            with time_stage("write"):
                files, deletions = _write(store, table, pending, change, written)
            counts = _counts(change, files)
            adding = _add_files(store, staged, files, deletions, change)
            properties = {**note.properties(counts), **change.late_properties(pending)}
    return Commit(finish(table.shape.table, staged, adding, properties, written), counts)


def _touches_rows(table: StoredTable, change: Change) -> bool:
    """Whether a snapshot comes of it; no row of a table without any is written anew."""
    if change.whole:
        return table.rows > 0 or change.snapshot
    return change.snapshot or change.added is not None or change.removed is not None


def _drop_or_rename(store: Store, table: TableName, change: Change) -> Commit:
    """Drop the table, or give it another name."""
    if change.into is None:
        drop(store, table)
    else:
        rename(store, table, change.into.table)
    return Commit(None, change.counts)


def _needs_snapshot(table: StoredTable, change: Change) -> bool:
    """Whether a snapshot without rows has to tell other writers of a change that they would not notice."""
    return change.back_to is None and not change.tags and not table.guards_properties


def _create_table(store: Store, change: Change, note: Note) -> Commit:
    """Create the table of the change's shape, with the rows that come; one that is there makes way.

    Or, where none was seen when the change was planned, another writer came first.
    """
    shape = change.into
    assert shape is not None
    with translate_faults(shape.table):
        building = builder(store, shape)
        for name, value in change.properties.items():
            building = building.withProperty(name, value)
        staged = building.createOrReplaceTransaction() if change.recreate else building.createTransaction()
        sort_by_key(store, staged, shape)
        if change.added is None:
            settle(staged)
            return Commit(None, change.counts)
        with discarding(staged.table()) as written:
            pending = StoredTable(shape, staged.table())
            with time_stage("write"):
                # In a table that is made every row begins, also a copy of one that has an id elsewhere.
                files = _write_rows(store, pending, without_row_ids(change.added), written)
            counts = _counts(change, files)
            adding = staged.newAppend()
            for file in files:
                adding.appendFile(file)
            properties = {**note.properties(counts), **change.late_properties(pending)}
    return Commit(finish(shape.table, staged, adding, properties, written), counts)


def _write(
    store: Store, table: StoredTable, pending: StoredTable, change: Change, written: list[Any]
) -> tuple[list[Any], Deletions]:
    """The files of the rows that come, and those that hide the rows that go; the small ones side by side."""
    hidden: Future[Deletions] | None = None
    if isinstance(change.removed, pa.Table | Mapping):
        gone = change.removed if isinstance(change.removed, Mapping) else positions_by_file(change.removed)
        hidden = _DELETION_WRITERS.submit(write_deletions, store, table, gone)
    try:
        files = _write_rows(store, pending, change.added, written)
        if change.expected not in {None, sum(int(file.recordCount()) for file in files)}:
            raise conflict(table.shape.table)  # what they were made of is not what was counted
    finally:
        if hidden is not None:
            written.extend(hidden.result().added)
    if hidden is not None:
        return files, hidden.result()
    if change.removed is None:
        return files, Deletions([], [])
    deletions = write_deletions(store, table, positions_of(change.removed))
    written.extend(deletions.added)
    return files, deletions


def _write_rows(store: Store, pending: StoredTable, come: Any, written: list[Any]) -> list[Any]:
    """New files with the rows, which are added to those that are `written`."""
    if come is None:
        return []
    if isinstance(come, RowBatches):
        with ThreadPoolExecutor(1) as pool:  # the next piece is made while one is written
            pieces = read_ahead(pool, [come.tables], 1)
            return [file for rows in pieces for file in _write_rows(store, pending, rows, written)]
    files = (write_rows if isinstance(come, pa.Table) else write_frame)(store, pending, come)
    written.extend(files)
    return files


def _counts(change: Change, files: Sequence[Any]) -> Mapping[str, int]:
    if not change.count_as:
        return change.counts
    return {**change.counts, change.count_as: sum(int(file.recordCount()) for file in files)}


def _add_files(store: Store, staged: Any, files: Sequence[Any], deletions: Deletions, change: Change) -> Any:
    """The operation of the transaction that adds the files."""
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
        with translate_faults(table), time_stage("commit"):
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
