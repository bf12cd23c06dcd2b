"""Write rows of data files into other files: those that stay are the rows that they were.

Bring the many small files of a table, and what hides rows in them, back to few.

Let old snapshots expire, with the files that nothing else needs.

Take rows out of a table for good: out of every snapshot, file, manifest and former metadata (V87, V88).
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstory.model.change import NOTHING
from backstory.model.layout import YEAR
from backstory.stores.iceberg.commit import discarding, finish, manifests_of, settle
from backstory.stores.iceberg.data_files import delete_files, write_frame
from backstory.stores.iceberg.erasures import (
    LEFT,
    UNFINISHED,
    Erased,
    Erasure,
    Expired,
    UnfinishedErasure,
    is_location,
    own_strays,
    refuse_unfinished,
)
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.jvm import rewrite_group
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.moves import ROWS
from backstory.stores.iceberg.places import Places, bare_location, places_of
from backstory.stores.iceberg.reachable import (
    ReachableFiles,
    file_digests,
    is_metadata,
    named_files,
)
from backstory.stores.iceberg.scripts import (
    TASKS_OPTION,
    commit_expiry,
    files_of_scan,
    forget_tasks,
    one_manifest,
    scan_tasks_of,
    stage_tasks,
)
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.stores.refusals import conflict

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A file is to hold so much, unless the table says that it may hold less.
TARGET = 128 << 20
TARGET_PROPERTY = "write.target-file-size-bytes"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Iceberg's scan tasks of files that make way, and its objects for those that take their place."""

    tasks: Sequence[Any]
    files: Sequence[Any]

    @property
    def freed_bytes(self) -> int:
        """The bytes of the files that make way."""
        return sum(int(task.file().fileSizeInBytes()) for task in self.tasks)


def rewrite(
    store: Store,
    table: StoredTable,
    locations: Iterable[str],
    keeping: "Callable[[DataFrame], DataFrame]" = lambda rows: rows,
) -> Rewritten:
    """New files with those rows of these files that are kept, sorted as the table is; committed by nobody.

    Rows keep their ids and the numbers of their last update. Raises TryAgain if a file is gone.
    """
    wanted = list(locations)
    tasks = list(scan_tasks_of(store.jvm, table.iceberg, wanted).values())
    if len(tasks) < len(set(wanted)):
        raise conflict(table.shape.table)
    size = sum(int(task.file().fileSizeInBytes()) for task in tasks)
    with rewrite_group(store.jvm, table.iceberg) as (group, _):
        stage_tasks(store.jvm, table.iceberg, group, store.jvm.java.util.ArrayList(tasks))
        try:
            rows = store.spark.read.format("iceberg").option(TASKS_OPTION, group).load(group)
            return Rewritten(tasks, write_frame(store, table, _sort_rows(table, keeping(rows), size)))
        finally:
            forget_tasks(store.jvm, table.iceberg, group)


def target_size(table: StoredTable) -> int:
    """How large a file is to be."""
    return min(TARGET, table.number(TARGET_PROPERTY, TARGET))


def stage_rewrite(
    transaction: Any, done: Rewritten, properties: dict[str, str], *, every: bool = False
) -> Any:
    """The operation of a transaction in which the files take the place of those that were read.

    A delete file that hides rows of one of them alone goes too; what hides rows of several stays, unless
    `every` one goes, as where each file with hidden rows was read.
    """
    operation = transaction.newRewrite()
    seen = transaction.startMetadata().currentSnapshot()
    operation.validateFromSnapshot(seen.snapshotId())
    gone = set()
    for task in done.tasks:
        operation.deleteFile(task.file())
        for deletes in task.deletes():
            place = (str(deletes.location()), deletes.contentOffset())
            if (every or deletes.referencedDataFile() is not None) and place not in gone:
                gone.add(place)
                operation.deleteFile(deletes)
    for file in done.files:
        operation.addFile(file)
    for name, value in properties.items():
        operation.set(name, value)
    return operation


def _sort_rows(table: StoredTable, rows: "DataFrame", size: int) -> "DataFrame":
    """The rows as they are to lie: apart by partition, then in the order of the key, or of offsets."""
    by = [*_partition_columns(table), *(column(name) for name in _order_names(table))]
    parts = max(1, -(-size // target_size(table)))
    parted = rows.repartitionByRange(parts, *by) if parts > 1 and by else rows.coalesce(parts)
    return parted.sortWithinPartitions(*by) if by else parted


def _partition_columns(table: StoredTable) -> "list[Column]":
    from pyspark.sql.functions import year

    found = {(str(each.transform()), each.sourceId()) for each in table.iceberg.spec().fields()}
    transforms = [(kind, str(table.iceberg.schema().findColumnName(id_))) for kind, id_ in sorted(found)]
    return [year(column(name)) if kind == YEAR else column(name) for kind, name in transforms if name]


def _order_names(table: StoredTable) -> Sequence[str]:
    """Rows of an event log lie in the order of their first column, the offset."""
    return table.shape.key if table.shape.layout.is_sorted else table.shape.names[:1]


# A file is small below this share of what it should hold, and hides too much above that share of its rows.
SMALL, HIDDEN = 0.75, 0.1


@dataclass(frozen=True, slots=True)
class Compacted:
    """Files before and after a compaction, the bytes that were rewritten, and its snapshot; None for none."""

    files: int
    files_after: int
    bytes: int = 0
    snapshot_id: int | None = None


def scattered_files(store: Store, table: StoredTable) -> list[str]:
    """The data files that are worth being rewritten: small ones that share a partition, and holey ones."""
    from pyspark.sql.functions import col, count, lit
    from pyspark.sql.functions import sum as total

    if table.iceberg.currentSnapshot() is None:
        return []
    with translate_faults(table.shape.table):
        files = store.spark.table(store.sql_name(table.shape.table, "data_files"))
        parts = ["spec_id", *(["partition"] if "partition" in files.columns else [])]
        deletes = store.spark.table(store.sql_name(table.shape.table, "delete_files"))
        hidden = (
            deletes.where(col("referenced_data_file").isNotNull())
            .groupBy(col("referenced_data_file").alias("file_path"))
            .agg(total("record_count").alias("hidden"))
        )
        found = files.select("file_path", "file_size_in_bytes", "record_count", *parts).join(
            hidden, "file_path", "left"
        )
        holey = col("hidden") > HIDDEN * col("record_count")
        small = col("file_size_in_bytes") < int(SMALL * target_size(table))
        rows = found.select("file_path", holey.alias("holey"), small.alias("small"), *parts).where(
            "holey OR small"
        )
        from pyspark.sql import Window

        beside = count(lit(1)).over(Window.partitionBy(*parts))
        worth = rows.withColumn("beside", beside).where("holey OR beside > 1")
        return [row["file_path"] for row in worth.select("file_path").collect()]


def compact(
    store: Store, table: StoredTable, properties: Mapping[str, str], *, dry_run: bool = False
) -> Compacted:
    """Rewrite what is scattered, in one commit that only moves rows; none where nothing is.

    A dry run takes it that a file of each folder will be left. Raises TryAgain if another writer came first.
    What failed leaves nothing.
    """
    before = _count_files(table)
    locations = scattered_files(store, table)
    if dry_run or not locations:
        left = {each.rpartition("/")[0] for each in locations}
        return Compacted(before, before - len(locations) + len(left))
    with translate_faults(table.shape.table):
        transaction = table.begin()
        with discarding(table.iceberg) as written:
            done = rewrite(store, table, locations)
            written.extend(done.files)
            operation = stage_rewrite(transaction, done, {})
    made = finish(table.shape.table, transaction, operation, properties, written)
    return Compacted(before, before - len(done.tasks) + len(done.files), done.freed_bytes, made)


def _count_files(table: StoredTable) -> int:
    snapshot: Any = table.iceberg.currentSnapshot()
    return 0 if snapshot is None else int(snapshot.summary().get("total-data-files") or 0)


def expire(
    jvm: Any,
    table: StoredTable,
    before_ms: int,
    tags: Sequence[str] = (),
    renewed: Mapping[str, int] = NOTHING,
) -> Expired:
    """Expire the snapshots that are older, and drop these tags before.

    What a branch or tag names stays, if the tag is not too old; those that are `renewed` may be so many
    milliseconds old.
    Raises TryAgain if another writer came first.
    """
    iceberg, known = table.iceberg, _snapshot_ids(table.iceberg)
    with translate_faults(table.shape.table):
        if tags or renewed:
            managing = iceberg.manageSnapshots()
            for tag in tags:
                managing.removeTag(tag)
            for tag, milliseconds in renewed.items():
                managing.setMaxRefAgeMs(tag, milliseconds)
            managing.commit()
        expiring = iceberg.expireSnapshots().expireOlderThan(before_ms).retainLast(1).cleanExpiredFiles(True)
        left = delete_files(iceberg, commit_expiry(jvm, expiring))
        iceberg.refresh()
    return Expired(len(known - _snapshot_ids(iceberg)), sorted(map(bare_location, left)))


def _snapshot_ids(iceberg: Any) -> set[int]:
    return {int(each.snapshotId()) for each in iceberg.snapshots()}


if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LATEST = (1 << 63) - 1


def erase(
    store: Store, table: StoredTable, plan: Erasure, keeping: "Callable[[DataFrame], DataFrame]"
) -> Erased:
    """Write the files that hold rows anew without them, and let nothing of what was before be there.

    One commit, which is validated; then the files go, in an order in which what is left names what is still
    to go: rows, then what names them. Who was interrupted leaves the mark, and the next erasure goes on.
    Raises TryAgain, and nothing is written, where one of the files may be that of a writer at work.
    """
    found, places = plan.found, places_of(table.iceberg)
    refuse_unfinished(table, found)
    own = own_strays(found)
    with translate_faults(table.shape.table):
        snapshots = [int(each.snapshotId()) for each in table.iceberg.snapshots()]
        made, rewritten, between = _commit_erasure(store, table, plan, keeping)
        left = existing(store, table.shape.table)
        after = {bare_location(each) for each in named_files(store, left).now.all}
        before = (found.named.now, found.past, own, _metadata_files(between))
        parts = zip(*map(_parts, before), strict=True)
        gone = ReachableFiles(*(_files_to_delete(each, after, places) for each in parts))
        holding = {bare_location(each) for each in found.holding}
        kept = _files_left(before, after, holding, places)
        metadata, statistics = (
            file_digests(store, table, gone.metadata),
            file_digests(store, table, gone.statistics),
        )
        data = file_digests(store, table, gone.data | gone.deletes)
        rows, tellers = _deletion_order(gone, holding)
        failed = delete_files(table.iceberg, rows)
        # Of files that an interrupted call has deleted, too; what names them is there until now.
        _remove_folders([*rows, *found.named.past.data], places)
        failed += delete_files(table.iceberg, tellers)
        if not failed:
            _clear_mark(left, plan.mark.kept)
    there = table.iceberg.io()
    remains = [each for each in sorted(kept) if there.newInputFile(each).exists()]
    return Erased(made, rewritten, snapshots, data, metadata, statistics, [*remains, *failed])


def _clear_mark(table: StoredTable, kept: Collection[str]) -> None:
    """Take the mark away; what still lies outside of the table's folder is remembered."""
    io, update = table.iceberg.io(), table.iceberg.updateProperties().remove(UNFINISHED)
    there = {each for each in kept if not is_location(each) or io.newInputFile(each).exists()}
    if there:
        update.set(LEFT, json.dumps(sorted(there)))
    update.commit()


def _metadata_files(files: Iterable[str]) -> ReachableFiles:
    return ReachableFiles(frozenset(), frozenset(), frozenset(), frozenset(files))


def _parts(files: ReachableFiles) -> tuple[frozenset[str], ...]:
    return files.data, files.deletes, files.statistics, files.metadata


def _files_to_delete(
    parts: Iterable[frozenset[str]], after: Collection[str], places: Places
) -> frozenset[str]:
    """Files that the table named and names no more, where it may delete them; each file once."""
    named = {bare_location(each): each for part in parts for each in part}
    return frozenset(each for name, each in named.items() if name not in after and places.owns(each))


def _files_left(
    parts: Iterable[ReachableFiles], after: Collection[str], holding: Collection[str], places: Places
) -> set[str]:
    """Files elsewhere that the table names no more, and that hold the rows, or values of rows."""
    return {
        each
        for part in parts
        for each in part.all
        if not places.owns(each) and bare_location(each) not in after
        if bare_location(each) in holding or each not in part.data
    }


def _deletion_order(gone: ReachableFiles, holding: Collection[str]) -> tuple[list[str], list[str]]:
    """Rows first; and what names them: manifests, their lists, and the files of metadata last."""

    def rank(location: str) -> tuple[int, str]:
        named = location.rpartition("/")[2]
        return (2 if is_metadata(location) else int(named.startswith("snap-")), location)

    rows = sorted(gone.data, key=lambda each: (bare_location(each) not in holding, each))
    return [*rows, *sorted(gone.deletes)], [*sorted(gone.statistics), *sorted(gone.metadata, key=rank)]


def _remove_folders(files: Iterable[str], places: Places) -> None:
    """Remove the folders of this machine that became empty, below the table's own."""
    for each in files:
        here = each.startswith("file:") or "://" not in each
        folder = Path(bare_location(each)).parent
        while here and _is_below(str(folder), places):
            with suppress(OSError):
                folder.rmdir()
            if folder.exists():
                break
            folder = folder.parent


def _is_below(folder: str, places: Places) -> bool:
    return places.owns(folder) and bare_location(folder) != bare_location(places.location)


def _commit_erasure(
    store: Store, table: StoredTable, plan: Erasure, keeping: "Callable[[DataFrame], DataFrame]"
) -> tuple[int | None, int, set[str]]:
    """One commit: files, manifests without entries of those that went, and no snapshot but the last.

    The snapshot, how many files were rewritten, and the metadata of the snapshots that the commit made: all
    but the last are gone with it.
    """
    between = set[str]()
    transaction = table.begin()
    if table.iceberg.currentSnapshot() is None:
        _set_mark(transaction, plan.mark)
        settle(transaction)
        return None, 0, between
    chosen, every = _files_to_rewrite(store, table, plan.found.holding)
    with discarding(table.iceberg) as written:
        done = rewrite(store, table, chosen, keeping) if chosen else Rewritten((), ())
        written.extend(done.files)
        if chosen:
            stage_rewrite(transaction, done, {}, every=every).commit()
        if every:
            transaction.newDelete().commit()  # leaves out manifests that tell of deletes which went alone
        # Manifests tell the bounds of files that went, until they are written anew.
        tidied = transaction.rewriteManifests()
        tidied.clusterBy(one_manifest(store.jvm))

    def alone() -> None:
        left = int(transaction.currentMetadata().currentSnapshot().snapshotId())
        between.update(manifests_of(transaction))
        written.extend(between)
        _set_mark(transaction, replace(plan.mark, files={*plan.mark.files, *between}))
        for tag, drop in plan.tags.items():
            managing = transaction.manageSnapshots()
            (managing.removeTag(tag) if drop else managing.replaceTag(tag, left)).commit()
        transaction.expireSnapshots().expireOlderThan(LATEST).retainLast(1).cleanExpiredFiles(False).commit()

    made = finish(table.shape.table, transaction, tidied, plan.properties, written, alone)
    return made, len(done.tasks), between


def _set_mark(transaction: Any, mark: UnfinishedErasure) -> None:
    """Leave the mark, which has what was remembered of former erasures, too."""
    transaction.updateProperties().set(UNFINISHED, mark.text()).remove(LEFT).commit()


def _files_to_rewrite(store: Store, table: StoredTable, holding: Collection[str]) -> tuple[set[str], bool]:
    """The files to write anew, and whether those are all that have hidden rows.

    What hides rows names the files that they are in, and their partitions, for several files at once. Where
    these may be named after the record none of it stays.
    """
    rows, hidden = set[str](), set[str]()
    latest = ""
    for line in files_of_scan(store.jvm, table.iceberg.newScan(), store.jvm.java.util.HashMap()):
        if line.content == ROWS:
            latest = line.location
            rows.add(latest)
        else:
            hidden.add(latest)
    chosen = rows & set(holding)
    every = bool(chosen) and bool(hidden) and _parted_by_users(table)
    return (chosen | hidden if every else chosen), every


def _parted_by_users(table: StoredTable) -> bool:
    """Whether a partition is, or was, made of a column that is not the layout's own."""
    schema, layout, name = table.iceberg.schema(), table.shape.layout, table.shape.table.name
    sources = {each.sourceId() for spec in dict(table.iceberg.specs()).values() for each in spec.fields()}
    names = (schema.findColumnName(each) for each in sources)
    return any(each is None or not layout.owns(str(each), name) for each in names)
