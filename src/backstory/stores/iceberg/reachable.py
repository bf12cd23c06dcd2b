"""The files that a table's metadata names, and those in its folder that it does not."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from backstory.errors import TryAgain
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.store import Store, StoredTable

# Who writes to a table names its files in the end. A file that is older has lost its writer.
WRITING: Final = timedelta(days=1)
# A folder of metadata may hold more than Iceberg's own, such as a catalog's pointer to it.
METADATA: Final = (".avro", ".metadata.json", ".json.gz", ".puffin", ".stats", ".parquet")
SHOWN: Final = 10


class ListedFile(NamedTuple):
    """A file below a table's folder: its bytes, and when it was written."""

    bytes: int
    written: datetime


@dataclass(frozen=True, slots=True)
class ReachableFiles:
    """Locations: rows of `data`, `deletes` that hide some, `statistics`, and `metadata` that names them."""

    data: frozenset[str]
    deletes: frozenset[str]
    statistics: frozenset[str]
    metadata: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        """Every one of them."""
        return self.data | self.deletes | self.statistics | self.metadata


def reachable(store: Store, table: StoredTable) -> ReachableFiles:
    """What any snapshot of the table names, and the metadata that it was read from."""
    name = table.shape.table
    with translate_faults(name):
        files = store.spark.table(store.sql_name(name, "all_files")).select("content", "file_path").distinct()
        rows = files.collect() if table.iceberg.currentSnapshot() is not None else []
        manifests = store.spark.table(store.sql_name(name, "all_manifests")).select("path").distinct()
        named = [row["path"] for row in manifests.collect()] if rows else []
    current = table.iceberg.operations().current()
    statistics = [*current.statisticsFiles(), *current.partitionStatisticsFiles()]
    lists = [str(each.manifestListLocation()) for each in table.iceberg.snapshots()]
    return ReachableFiles(
        frozenset(row["file_path"] for row in rows if row["content"] == 0),
        frozenset(row["file_path"] for row in rows if row["content"] != 0),
        frozenset(str(each.path()) for each in statistics),
        frozenset([*named, *lists, str(current.metadataFileLocation())]),
    )


def in_folder(table: StoredTable) -> dict[str, ListedFile] | None:
    """The files below the table's folder; None where the storage lists none."""
    from py4j.protocol import Py4JError

    found = {}
    try:
        listed = table.iceberg.io().listPrefix(str(table.iceberg.location())).iterator()
    except Py4JError:
        return None
    while listed.hasNext():
        each = listed.next()
        written = datetime.fromtimestamp(int(each.createdAtMillis()) / 1000, UTC)
        found[bare(str(each.location()))] = ListedFile(int(each.size()), written)
    return found


def stray(listed: Iterable[str], holding: Collection[str], *named: ReachableFiles) -> set[str]:
    """Of the files that nobody names the metadata, and the data that is told to hold what shall go."""
    known = {bare(location) for each in named for location in each.all}
    rows = {bare(each) for each in holding}
    return {each for each in map(bare, listed) if each not in known and (_is_metadata(each) or each in rows)}


def _is_metadata(location: str) -> bool:
    return location.endswith(".puffin") or ("/metadata/" in location and location.endswith(METADATA))


def refuse_writers(
    table: StoredTable, listed: Mapping[str, ListedFile], holding: Collection[str], named: ReachableFiles
) -> None:
    """Raises TryAgain where files would go that a writer at work may be about to name.

    Whoever commits now writes the table's metadata and the list of its manifests anew: these it never names.
    """
    young = sorted(_unfinished(stray(listed, holding, named), listed))
    if young:
        ends = max(listed[each].written for each in young) + WRITING
        raise TryAgain(
            "writer-at-work",
            f"{table.shape.table} has {len(young)} new files that no metadata names: a program is writing to "
            "it, or was killed.",
            f"Nothing was written; stop it, and try after {ends:%Y-%m-%dT%H:%M:%SZ}, or without those files.",
            [each.rpartition("/")[2] for each in young[:SHOWN]],
        )


def _unfinished(strays: Iterable[str], listed: Mapping[str, ListedFile]) -> Iterator[str]:
    now = datetime.now(UTC)
    for each in strays:
        name = each.rpartition("/")[2]
        anew = name.endswith((".metadata.json", ".json.gz")) or name.startswith("snap-")
        if not anew and now - listed[each].written < WRITING:
            yield each


def bare(location: str) -> str:
    """A location as tables of a local folder spell it: without a scheme."""
    return location.removeprefix("file://").removeprefix("file:")


def digested(store: Store, table: StoredTable, locations: Iterable[str]) -> list[dict[str, Any]]:
    """Path, bytes and SHA-256 of each file that is there."""
    io, found = table.iceberg.io(), []
    digest = store.jvm.org.apache.commons.codec.digest.DigestUtils
    for location in sorted(locations):
        file = io.newInputFile(location)
        if file.exists():
            stream = file.newStream()
            told = {"path": location, "bytes": int(file.getLength()), "sha256": digest.sha256Hex(stream)}
            stream.close()
            found.append(told)
    return found
