"""Maintenance of a table's files: compaction, expiry of snapshots, and permanent erasure of rows (V87, V88).

Remaining rows keep their ids and contents. An erasure removes rows from every snapshot, file, manifest and
former metadata file.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as sf

from backstory.model.layout import YEAR
from backstory.stores.iceberg.commit import discarding, finish, manifests_of, settle
from backstory.stores.iceberg.data_files import delete_files, write_frame
from backstory.stores.iceberg.erasures import (
    LEFT,
    UNFINISHED,
    Erased,
    Erasure,
    Expired,
    Expiry,
    UnfinishedErasure,
    is_location,
    own_strays,
    refuse_unfinished,
)
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.jvm import rewrite_group
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.schema import names_by_id
from backstory.stores.iceberg.scripts import (
    TASKS_OPTION,
    commit_expiry,
    files_of_scan,
    forget_tasks,
    one_manifest,
    scan_tasks_of,
    stage_tasks,
)
from backstory.stores.iceberg.storage import (
    Places,
    ReachableFiles,
    bare_location,
    file_digests,
    is_metadata,
    named_files,
    places_of,
)
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing
from backstory.stores.metadata.parquet_files import partition_ids
from backstory.stores.port import conflict

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The size of a rewritten file, unless the table's property is smaller.
TARGET = 128 << 20
TARGET_PROPERTY = "write.target-file-size-bytes"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Iceberg's scan tasks of replaced files, its objects for the new files, and the replaced bytes."""

    tasks: Sequence[Any] = ()
    files: Sequence[Any] = ()
    freed_bytes: int = 0


def rewrite(
    store: IcebergStore,
    table: IcebergTable,
    locations: Iterable[str],
    keeping: "Callable[[DataFrame], DataFrame]" = lambda rows: rows,
) -> Rewritten:
    """Write the rows of these files that `keeping` returns to new files, sorted, without a commit.

    Rows keep their ids and the sequence numbers of their last update. Raises TryAgain if a file is missing.
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
            return Rewritten(tasks, write_frame(store, table, _sort_rows(table, keeping(rows), size)), size)
        finally:
            forget_tasks(store.jvm, table.iceberg, group)


def target_size(table: IcebergTable) -> int:
    """The target size of a rewritten file, in bytes."""
    return min(TARGET, table.number(TARGET_PROPERTY, TARGET))


def stage_rewrite(transaction: Any, done: Rewritten, *, every: bool = False) -> Any:
    """A transaction's operation that replaces files. The operation is not yet committed.

    Delete files for only one replaced file are removed too. Delete files for several files remain, unless
    `every` is true because each file with hidden rows was rewritten.
    """
    operation = transaction.newRewrite()
    seen = transaction.startMetadata().currentSnapshot()
    operation.validateFromSnapshot(seen.snapshotId())
    removed = set()
    for task in done.tasks:
        operation.deleteFile(task.file())
        for deletes in task.deletes():
            place = (str(deletes.location()), deletes.contentOffset())
            if (every or deletes.referencedDataFile() is not None) and place not in removed:
                removed.add(place)
                operation.deleteFile(deletes)
    for file in done.files:
        operation.addFile(file)
    return operation


def _sort_rows(table: IcebergTable, rows: "DataFrame", size: int) -> "DataFrame":
    """The rows in the order of files: by partition, then by key or by offset."""
    # An event log's first column is its offset.
    names = table.shape.key if table.shape.layout.is_sorted else table.shape.names[:1]
    by = [*_partition_columns(table), *map(column, names)]
    parts = max(1, -(-size // target_size(table)))
    ranges = rows.repartitionByRange(parts, *by) if parts > 1 and by else rows.coalesce(parts)
    return ranges.sortWithinPartitions(*by) if by else ranges


def _partition_columns(table: IcebergTable) -> "list[Column]":
    transforms = sorted({(transform, name) for _, transform, name in table.partitioning if name})
    return [sf.year(column(name)) if kind == YEAR else column(name) for kind, name in transforms]


# A file is small if it has less than the first share of its target size. It has many hidden rows if they are
# more than the second share of its rows.
SMALL, HIDDEN = 0.75, 0.1


@dataclass(frozen=True, slots=True)
class Compacted:
    """The numbers of files before and after a compaction, the rewritten bytes, and its snapshot if any."""

    files: int
    files_after: int
    bytes: int = 0
    snapshot_id: int | None = None


def scattered_files(store: IcebergStore, table: IcebergTable) -> list[str]:
    """The data files worth rewriting: several small files in a partition, and files with many hidden rows."""
    if table.newest is None:
        return []
    with translate_faults(table.shape.table):
        files = store.spark.table(store.sql_name(table.shape.table, "data_files"))
        parts = ["spec_id", *(["partition"] if "partition" in files.columns else [])]
        deletes = store.spark.table(store.sql_name(table.shape.table, "delete_files"))
        hidden = (
            deletes.where(sf.col("referenced_data_file").isNotNull())
            .groupBy(sf.col("referenced_data_file").alias("file_path"))
            .agg(sf.sum("record_count").alias("hidden"))
        )
        counts = files.select("file_path", "file_size_in_bytes", "record_count", *parts).join(
            hidden, "file_path", "left"
        )
        holey = sf.col("hidden") > HIDDEN * sf.col("record_count")
        small = sf.col("file_size_in_bytes") < int(SMALL * target_size(table))
        rows = counts.select("file_path", holey.alias("holey"), small.alias("small"), *parts).where(
            "holey OR small"
        )

        in_partition = sf.count(sf.lit(1)).over(Window.partitionBy(*parts))
        scattered = rows.withColumn("in_partition", in_partition).where("holey OR in_partition > 1")
        return [row["file_path"] for row in scattered.select("file_path").collect()]


def compact(
    store: IcebergStore, table: IcebergTable, properties: Mapping[str, str], *, dry_run: bool = False
) -> Compacted:
    """Rewrite scattered files in one commit that only moves rows. If no file is scattered, make no commit.

    A dry run assumes that one file remains in each folder. Raises TryAgain if another writer committed first.
    A failed compaction leaves no files.
    """
    before = 0 if table.newest is None else int(table.newest.properties.get("total-data-files") or 0)
    locations = scattered_files(store, table)
    if dry_run or not locations:
        folders = {location.rpartition("/")[0] for location in locations}
        return Compacted(before, before - len(locations) + len(folders))
    with translate_faults(table.shape.table):
        transaction = table.begin()
        with discarding(table.iceberg) as written:
            done = rewrite(store, table, locations)
            written.extend(done.files)
            operation = stage_rewrite(transaction, done)
    snapshot = finish(table.shape.table, transaction, operation, properties, written)
    return Compacted(before, before - len(done.tasks) + len(done.files), done.freed_bytes, snapshot)


def expire(jvm: Any, table: IcebergTable, expiry: Expiry) -> Expired:
    """Drop cursors, then expire older snapshots, and delete files that nothing else needs.

    A snapshot of a branch or tag remains, unless the tag is too old. Raises TryAgain if another writer
    committed first.
    """
    iceberg, known = table.iceberg, {int(one.snapshotId()) for one in table.iceberg.snapshots()}
    with translate_faults(table.shape.table):
        if expiry.cursors or expiry.renewed:
            managing = iceberg.manageSnapshots()
            for tag in expiry.cursors:
                managing.removeTag(tag)
            for tag, milliseconds in expiry.renewed.items():
                managing.setMaxRefAgeMs(tag, milliseconds)
            managing.commit()
        before_ms = int(expiry.before.timestamp() * 1000)
        expiring = iceberg.expireSnapshots().expireOlderThan(before_ms).retainLast(1).cleanExpiredFiles(True)
        left = delete_files(iceberg, commit_expiry(jvm, expiring))
        iceberg.refresh()
    known -= {int(one.snapshotId()) for one in iceberg.snapshots()}
    return Expired(len(known), sorted(map(bare_location, left)))


LATEST = (1 << 63) - 1


def erase(
    store: IcebergStore, table: IcebergTable, plan: Erasure, keeping: "Callable[[DataFrame], DataFrame]"
) -> Erased:
    """Rewrite the files that contain the rows to erase, without these rows, and delete every earlier file.

    One validated commit is followed by the deletion of files: first data files, then files that name them. So
    the remaining files always name all files that are still to be deleted. After an interruption the mark
    remains in the table, and the next erasure continues. Raises TryAgain, with nothing written, if another
    writer may be writing a file.
    """
    files, places = plan.files, places_of(table)
    refuse_unfinished(table, files)
    own = own_strays(files)
    with translate_faults(table.shape.table):
        snapshots = [one["snapshot-id"] for one in table.metadata.get("snapshots") or ()]
        snapshot, rewritten, between = _commit_erasure(store, table, plan, keeping)
        erased = existing(store, table.shape.table)
        after = {bare_location(location) for location in named_files(store, erased).now.all}
        before = (files.named.now, files.past, own, ReachableFiles(metadata=frozenset(between)))
        parts = zip(*before, strict=True)
        unnamed = ReachableFiles(*(_files_to_delete(part, after, places) for part in parts))
        holding = {bare_location(location) for location in files.holding}
        foreign = _files_left(before, after, holding, places)
        metadata = file_digests(store, table, unnamed.metadata)
        statistics = file_digests(store, table, unnamed.statistics)
        data = file_digests(store, table, unnamed.data | unnamed.deletes)
        rows, naming = _deletion_order(unnamed, holding)
        failed = delete_files(table.iceberg, rows)
        # This includes folders of files that an interrupted call deleted. The files that
        # name them are deleted after this.
        _remove_folders([*rows, *files.named.past.data], places)
        failed += delete_files(table.iceberg, naming)
        if not failed:
            _clear_mark(erased, plan.mark.kept)
    io = table.iceberg.io()
    remaining = [location for location in sorted(foreign) if io.newInputFile(location).exists()]
    return Erased(snapshot, rewritten, snapshots, data, metadata, statistics, [*remaining, *failed])


def _clear_mark(table: IcebergTable, foreign: Collection[str]) -> None:
    """Remove the mark, and record the files that still exist outside of the table's folder."""
    io, update = table.iceberg.io(), table.base.updateProperties().remove(UNFINISHED)
    existing_files = {
        location for location in foreign if not is_location(location) or io.newInputFile(location).exists()
    }
    if existing_files:
        update.set(LEFT, json.dumps(sorted(existing_files)))
    update.commit()


def _files_to_delete(
    parts: Iterable[frozenset[str]], after: Collection[str], places: Places
) -> frozenset[str]:
    """The files that the table no longer names and may delete, without duplicates."""
    named = {bare_location(location): location for part in parts for location in part}
    return frozenset(
        location for name, location in named.items() if name not in after and places.owns(location)
    )


def _files_left(
    parts: Iterable[ReachableFiles], after: Collection[str], holding: Collection[str], places: Places
) -> set[str]:
    """The files with the rows or their values that the table no longer names and may not delete."""
    return {
        location
        for part in parts
        for location in part.all
        if not places.owns(location) and bare_location(location) not in after
        if bare_location(location) in holding or location not in part.data
    }


def _deletion_order(unnamed: ReachableFiles, holding: Collection[str]) -> tuple[list[str], list[str]]:
    """The files with rows, then the files that name them: manifests, manifest lists, and finally metadata."""

    def rank(location: str) -> tuple[int, str]:
        name = location.rpartition("/")[2]
        return (2 if is_metadata(location) else int(name.startswith("snap-")), location)

    rows = sorted(unnamed.data, key=lambda location: (bare_location(location) not in holding, location))
    naming = [*sorted(unnamed.statistics), *sorted(unnamed.metadata, key=rank)]
    return [*rows, *sorted(unnamed.deletes)], naming


def _remove_folders(files: Iterable[str], places: Places) -> None:
    """Remove local folders below the table's folder that have become empty."""
    for location in files:
        is_local = location.startswith("file:") or "://" not in location
        folder = Path(bare_location(location)).parent
        root = bare_location(places.location)
        while is_local and places.owns(str(folder)) and bare_location(str(folder)) != root:
            with suppress(OSError):
                folder.rmdir()
            if folder.exists():
                break
            folder = folder.parent


def _commit_erasure(
    store: IcebergStore, table: IcebergTable, plan: Erasure, keeping: "Callable[[DataFrame], DataFrame]"
) -> tuple[int | None, int, set[str]]:
    """Make one commit of rewritten files. Its manifests name no replaced file and only the last snapshot.

    Returns the snapshot, the number of rewritten files, and the metadata files of the snapshots that the
    commit made. Only the last of these snapshots remains.
    """
    between = set[str]()
    transaction = table.begin()
    if table.newest is None:
        _set_mark(transaction, plan.mark)
        settle(transaction)
        return None, 0, between
    locations, every = _files_to_rewrite(store, table, plan.files.holding)
    with discarding(table.iceberg) as written:
        done = rewrite(store, table, locations, keeping) if locations else Rewritten()
        written.extend(done.files)
        if locations:
            stage_rewrite(transaction, done, every=every).commit()
        if every:
            transaction.newDelete().commit()  # removes manifests that list only removed delete files
        # Old manifests contain the bounds of removed files.
        new_manifests = transaction.rewriteManifests()
        new_manifests.clusterBy(one_manifest(store.jvm))

    def expire_others() -> None:
        last = int(transaction.currentMetadata().currentSnapshot().snapshotId())
        between.update(manifests_of(transaction))
        written.extend(between)
        _set_mark(transaction, replace(plan.mark, files={*plan.mark.files, *between}))
        for tag, drop in plan.tags.items():
            managing = transaction.manageSnapshots()
            (managing.removeTag(tag) if drop else managing.replaceTag(tag, last)).commit()
        transaction.expireSnapshots().expireOlderThan(LATEST).retainLast(1).cleanExpiredFiles(False).commit()

    snapshot = finish(table.shape.table, transaction, new_manifests, plan.properties, written, expire_others)
    return snapshot, len(done.tasks), between


def _set_mark(transaction: Any, mark: UnfinishedErasure) -> None:
    """Set the mark, which includes the files that former erasures left."""
    transaction.updateProperties().set(UNFINISHED, mark.text()).remove(LEFT).commit()


def _files_to_rewrite(
    store: IcebergStore, table: IcebergTable, holding: Collection[str]
) -> tuple[set[str], bool]:
    """The files to rewrite, and whether they include every file with hidden rows.

    A delete file contains the paths and partitions of one data file or, often, of several. If the partitions
    may contain values of the record, no delete file may remain.
    """
    scanned = files_of_scan(store.jvm, table.iceberg.newScan(), store.jvm.java.util.HashMap())
    with_record = {line.location for line, _ in scanned} & set(holding)
    hidden = {line.location for line, deletes in scanned if deletes}
    every = bool(with_record) and bool(hidden) and _is_partitioned_by_users(table)
    return (with_record | hidden if every else with_record), every


def _is_partitioned_by_users(table: IcebergTable) -> bool:
    """Whether a column other than the layout's own columns partitions the table, or once did."""
    layout, name, names = table.shape.layout, table.shape.table.name, names_by_id(table.fields)
    sources = partition_ids(table.metadata["partition-specs"])
    return any(id_ not in names or not layout.owns(names[id_], name) for id_ in sources)
