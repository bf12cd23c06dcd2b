"""The files that a table's metadata names, and those in its folder that it does not."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.store import Store, StoredTable


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


def in_folder(table: StoredTable) -> dict[str, int] | None:
    """The files below the table's folder with their bytes; None where the storage lists none."""
    from py4j.protocol import Py4JError

    found = {}
    try:
        listed = table.iceberg.io().listPrefix(str(table.iceberg.location())).iterator()
    except Py4JError:
        return None
    while listed.hasNext():
        each = listed.next()
        found[bare(str(each.location()))] = int(each.size())
    return found


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
