"""Take rows out of a table for good: out of every snapshot, file, manifest and former metadata (V87, V88)."""

import json
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstory.stores.iceberg.commit import discarding, finish, manifests_of, settle
from backstory.stores.iceberg.data_files import delete_files
from backstory.stores.iceberg.erasures import Erased, Erasure, own_strays, refuse_unfinished
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.moves import ROWS
from backstory.stores.iceberg.places import Places, bare, places_of
from backstory.stores.iceberg.reachable import (
    ReachableFiles,
    digested,
    is_metadata,
    named_files,
)
from backstory.stores.iceberg.rewriting import Rewritten, rewrite, stage_rewrite
from backstory.stores.iceberg.scripts import all_in_one, files_of_scan
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.stores.iceberg.unfinished import LEFT, UNFINISHED, Unfinished, is_location

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
        made, rewritten, between = _commit(store, table, plan, keeping)
        left = existing(store, table.shape.table)
        after = {bare(each) for each in named_files(store, left).now.all}
        before = (found.named.now, found.past, own, _metadata(between))
        parts = zip(*map(_parts, before), strict=True)
        gone = ReachableFiles(*(_files_to_delete(each, after, places) for each in parts))
        holding = {bare(each) for each in found.holding}
        kept = _files_left(before, after, holding, places)
        metadata, statistics = digested(store, table, gone.metadata), digested(store, table, gone.statistics)
        data = digested(store, table, gone.data | gone.deletes)
        rows, tellers = _ordered(gone, holding)
        failed = delete_files(table.iceberg, rows)
        # Of files that an interrupted call has deleted, too; what names them is there until now.
        _remove_folders([*rows, *found.named.past.data], places)
        failed += delete_files(table.iceberg, tellers)
        if not failed:
            _settle(left, plan.mark.kept)
    there = table.iceberg.io()
    remains = [each for each in sorted(kept) if there.newInputFile(each).exists()]
    return Erased(made, rewritten, snapshots, data, metadata, statistics, [*remains, *failed])


def _settle(table: StoredTable, kept: Collection[str]) -> None:
    """Take the mark away; what still lies outside of the table's folder is remembered."""
    io, update = table.iceberg.io(), table.iceberg.updateProperties().remove(UNFINISHED)
    there = {each for each in kept if not is_location(each) or io.newInputFile(each).exists()}
    if there:
        update.set(LEFT, json.dumps(sorted(there)))
    update.commit()


def _metadata(files: Iterable[str]) -> ReachableFiles:
    return ReachableFiles(frozenset(), frozenset(), frozenset(), frozenset(files))


def _parts(files: ReachableFiles) -> tuple[frozenset[str], ...]:
    return files.data, files.deletes, files.statistics, files.metadata


def _files_to_delete(
    parts: Iterable[frozenset[str]], after: Collection[str], places: Places
) -> frozenset[str]:
    """Files that the table named and names no more, where it may delete them; each file once."""
    named = {bare(each): each for part in parts for each in part}
    return frozenset(each for name, each in named.items() if name not in after and places.owns(each))


def _files_left(
    parts: Iterable[ReachableFiles], after: Collection[str], holding: Collection[str], places: Places
) -> set[str]:
    """Files elsewhere that the table names no more, and that hold the rows, or values of rows."""
    return {
        each
        for part in parts
        for each in part.all
        if not places.owns(each) and bare(each) not in after
        if bare(each) in holding or each not in part.data
    }


def _ordered(gone: ReachableFiles, holding: Collection[str]) -> tuple[list[str], list[str]]:
    """Rows first; and what names them: manifests, their lists, and the files of metadata last."""

    def rank(location: str) -> tuple[int, str]:
        named = location.rpartition("/")[2]
        return (2 if is_metadata(location) else int(named.startswith("snap-")), location)

    rows = sorted(gone.data, key=lambda each: (bare(each) not in holding, each))
    return [*rows, *sorted(gone.deletes)], [*sorted(gone.statistics), *sorted(gone.metadata, key=rank)]


def _remove_folders(files: Iterable[str], places: Places) -> None:
    """Remove the folders of this machine that became empty, below the table's own."""
    for each in files:
        here = each.startswith("file:") or "://" not in each
        folder = Path(bare(each)).parent
        while here and _below(str(folder), places):
            with suppress(OSError):
                folder.rmdir()
            if folder.exists():
                break
            folder = folder.parent


def _below(folder: str, places: Places) -> bool:
    return places.owns(folder) and bare(folder) != bare(places.location)


def _commit(
    store: Store, table: StoredTable, plan: Erasure, keeping: "Callable[[DataFrame], DataFrame]"
) -> tuple[int | None, int, set[str]]:
    """One commit: files, manifests without entries of those that went, and no snapshot but the last.

    The snapshot, how many files were rewritten, and the metadata of the snapshots that the commit made: all
    but the last are gone with it.
    """
    between = set[str]()
    transaction = table.begin()
    if table.iceberg.currentSnapshot() is None:
        _mark(transaction, plan.mark)
        settle(transaction)
        return None, 0, between
    chosen, every = _chosen(store, table, plan.found.holding)
    with discarding(table.iceberg) as written:
        done = rewrite(store, table, chosen, keeping) if chosen else Rewritten((), ())
        written.extend(done.files)
        if chosen:
            stage_rewrite(transaction, done, {}, every=every).commit()
        if every:
            transaction.newDelete().commit()  # leaves out manifests that tell of deletes which went alone
        # Manifests tell the bounds of files that went, until they are written anew.
        tidied = transaction.rewriteManifests()
        tidied.clusterBy(all_in_one(store.jvm))

    def alone() -> None:
        left = int(transaction.currentMetadata().currentSnapshot().snapshotId())
        between.update(manifests_of(transaction))
        written.extend(between)
        _mark(transaction, replace(plan.mark, files={*plan.mark.files, *between}))
        for tag, drop in plan.tags.items():
            managing = transaction.manageSnapshots()
            (managing.removeTag(tag) if drop else managing.replaceTag(tag, left)).commit()
        transaction.expireSnapshots().expireOlderThan(LATEST).retainLast(1).cleanExpiredFiles(False).commit()

    made = finish(table.shape.table, transaction, tidied, plan.properties, written, alone)
    return made, len(done.tasks), between


def _mark(transaction: Any, mark: Unfinished) -> None:
    """Leave the mark, which has what was remembered of former erasures, too."""
    transaction.updateProperties().set(UNFINISHED, mark.text()).remove(LEFT).commit()


def _chosen(store: Store, table: StoredTable, holding: Collection[str]) -> tuple[set[str], bool]:
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
