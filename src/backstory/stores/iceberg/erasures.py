"""What an erasure is planned on, and what came of it or of an expiry."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backstory.stores.iceberg.places import bare
from backstory.stores.iceberg.reachable import ReachableFiles, is_metadata, refuse_writers
from backstory.stores.iceberg.searching import FoundFiles
from backstory.stores.iceberg.store import StoredTable
from backstory.stores.iceberg.unfinished import Unfinished


@dataclass(frozen=True, slots=True)
class Erasure:
    """What an erasure is planned on: the files that were found, and what its commit tells.

    Of each tag `tags` says whether it is dropped, or follows to the snapshot that is left; `mark` stands in
    the table until the files are gone.
    """

    found: FoundFiles
    properties: Mapping[str, str]
    tags: Mapping[str, bool]
    mark: Unfinished


@dataclass(frozen=True, slots=True)
class Erased:
    """The snapshot that is left, how many files were rewritten, and the snapshots and files that went.

    `left` are files that are no more of the table and that hold rows or metadata of before: those that lie
    outside of its places, and those that could not be deleted.
    """

    snapshot_id: int | None
    rewritten: int
    snapshots: Sequence[int]
    data: Sequence[Mapping[str, Any]] = ()
    metadata: Sequence[Mapping[str, Any]] = ()
    statistics: Sequence[Mapping[str, Any]] = ()
    left: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Expired:
    """How many snapshots went, and the files that only they needed and that could not be deleted.

    Those are files outside of the table's folder, which may be another's.
    """

    snapshots: int = 0
    left: Sequence[str] = ()


def refuse_unfinished(table: StoredTable, found: FoundFiles) -> None:
    """Raises TryAgain where a file that would go may be that of a writer at work.

    A catalog may be about to name metadata that follows the table's own; what does not, no catalog will.
    """
    own, following = {bare(each) for each in own_strays(found).all}, found.strays.following
    files = (each for each in own if each in following or not is_metadata(each))
    refuse_writers(table, found.listed or {}, files)


def own_strays(found: FoundFiles) -> ReachableFiles:
    """The table's own strays that go: of data those with rows, all else may tell of some."""
    own = found.strays.own
    parts = (own.data & found.holding, own.deletes, own.statistics, own.metadata)
    located = {each: (found.listed or {})[each].location for each in own.all}
    return ReachableFiles(*(frozenset(located[each] for each in part) for part in parts))
