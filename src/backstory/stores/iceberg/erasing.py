"""Take rows out of a table for good: out of every snapshot, file, manifest and former metadata (V87, V88)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backstory.stores.iceberg.commit import discarding, finish, made_by
from backstory.stores.iceberg.data_files import delete_files
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.reachable import (
    ReachableFiles,
    digested,
    in_folder,
    reachable,
    refuse_writers,
    stray,
)
from backstory.stores.iceberg.rewriting import Rewritten, rewrite, stage_rewrite
from backstory.stores.iceberg.store import Store, StoredTable, existing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LATEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Erased:
    """The snapshot that is left, how many files were rewritten, and the snapshots and files that went."""

    snapshot_id: int | None
    rewritten: int
    snapshots: Sequence[int]
    data: Sequence[Mapping[str, Any]] = ()
    metadata: Sequence[Mapping[str, Any]] = ()
    statistics: Sequence[Mapping[str, Any]] = ()


def erase(
    store: Store,
    table: StoredTable,
    holding: Collection[str],
    keeping: "Callable[[DataFrame], DataFrame]",
    properties: Mapping[str, str],
    tags: Mapping[str, bool],
) -> Erased:
    """Write the files that hold rows anew without them, and let nothing of what was before be there.

    `holding` are data files with such rows, reachable or not; of each tag `tags` says whether it is dropped,
    or follows to the snapshot that is left. One commit, which is validated; then the files go, those with
    rows last, so that whoever was interrupted finds them again. Raises TryAgain, and nothing is written,
    where one of the files may be that of a writer at work.
    """
    before = reachable(store, table)
    listed = in_folder(table) or {}
    refuse_writers(table, listed, holding, before)
    with translate_faults(table.shape.table):
        live = _live(store, table)
        snapshots = [int(each.snapshotId()) for each in table.iceberg.snapshots()]
        made, rewritten, between = None, 0, set[str]()
        if snapshots:
            chosen = live & set(holding)
            made, rewritten, between = _commit(store, table, chosen, keeping, properties, tags)
        left = existing(store, table.shape.table)
        former = {str(each.file()) for each in left.iceberg.operations().current().previousFiles()}
        gone = _gone(before, reachable(store, left), {*listed, *former, *between}, set(holding))
        metadata, statistics = digested(store, table, gone.metadata), digested(store, table, gone.statistics)
        data = digested(store, table, gone.data | gone.deletes)
        for part in (gone.metadata, gone.statistics, gone.deletes, gone.data):
            delete_files(table.iceberg.io(), sorted(part))
    return Erased(made, rewritten, snapshots, data, metadata, statistics)


def _live(store: Store, table: StoredTable) -> set[str]:
    if table.iceberg.currentSnapshot() is None:
        return set()
    rows = store.spark.table(store.sql_name(table.shape.table, "data_files")).select("file_path").collect()
    return {row["file_path"] for row in rows}


def _commit(
    store: Store,
    table: StoredTable,
    locations: Collection[str],
    keeping: "Callable[[DataFrame], DataFrame]",
    properties: Mapping[str, str],
    tags: Mapping[str, bool],
) -> tuple[int, int, set[str]]:
    """One commit: files, manifests without entries of those that went, and no snapshot but the last.

    The snapshot, how many files were rewritten, and the metadata of the snapshots that the commit made: all
    but the last are gone with it.
    """
    between = set[str]()
    transaction = table.begin()
    with discarding(table.iceberg.io()) as written:
        done = rewrite(store, table, locations, keeping) if locations else Rewritten((), ())
        written.extend(done.files)
        if locations:
            stage_rewrite(transaction, done, {}).commit()
        # Manifests tell the bounds of files that went, until they are written anew.
        tidied = transaction.rewriteManifests()
        tidied.clusterBy(store.jvm.com.google.common.base.Functions.constant("all"))

    def alone() -> None:
        left = int(transaction.currentMetadata().currentSnapshot().snapshotId())
        between.update(made_by(transaction))
        written.extend(between)
        for tag, drop in tags.items():
            managing = transaction.manageSnapshots()
            (managing.removeTag(tag) if drop else managing.replaceTag(tag, left)).commit()
        transaction.expireSnapshots().expireOlderThan(LATEST).retainLast(1).cleanExpiredFiles(False).commit()

    made = finish(table.shape.table, transaction, tidied, properties, written, alone)
    return made, len(done.tasks), between


def _gone(
    before: ReachableFiles, after: ReachableFiles, listed: Collection[str], holding: Collection[str]
) -> ReachableFiles:
    """What was named and is no more; and what nobody names."""
    strays = stray(listed, holding, before, after)
    packed = {each for each in strays if each.endswith(".puffin")}
    of_metadata = {each for each in strays if "/metadata/" in each}
    return ReachableFiles(
        (before.data - after.data) | (strays - packed - of_metadata),
        (before.deletes - after.deletes) | (packed - of_metadata),
        (before.statistics - after.statistics) | (of_metadata & packed),
        (before.metadata - after.metadata) | (of_metadata - packed),
    )
