"""The commits of a table as Iceberg keeps them until they expire: its snapshots, and the summary of each."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from backstory.stores.iceberg.jvm import metadata_json
from backstory.stores.iceberg.store import Store, StoredTable

MAIN: Final = "main"


@dataclass(frozen=True, slots=True)
class IcebergSnapshot:
    """One commit; its properties are asked for one by one, for each answer is a call of Java."""

    java: Any
    summary: Any

    @property
    def id(self) -> int:
        """Its snapshot id, unique in the table."""
        return int(self.java.snapshotId())

    @property
    def committed_at(self) -> datetime:
        """When it was committed."""
        return datetime.fromtimestamp(self.java.timestampMillis() / 1000, UTC)

    @property
    def parent(self) -> int | None:
        """The commit before it, whether or not that has expired; None for the first."""
        id_ = self.java.parentId()
        return None if id_ is None else int(id_)

    @property
    def schema_id(self) -> int | None:
        """The number of the columns' state that it was written with."""
        id_ = self.java.schemaId()
        return None if id_ is None else int(id_)

    @property
    def operation(self) -> str:
        """What it did to files: append, overwrite, replace or delete."""
        return str(self.java.operation())

    def get_property(self, name: str) -> str | None:
        """The property of this name in its summary, as its writer wrote it; None without one."""
        value: str | None = self.summary.get(name)
        return value


@dataclass(frozen=True, slots=True)
class Reference:
    """A branch or tag, and the snapshot that it keeps."""

    name: str
    snapshot_id: int
    committed_at: datetime
    max_age_ms: int | None


def newest_snapshot(table: StoredTable) -> IcebergSnapshot | None:
    """The commit whose rows the table has; None for a table that has no commits."""
    return _snapshot_or_none(table.iceberg.currentSnapshot())


def all_snapshots(table: StoredTable) -> list[IcebergSnapshot]:
    """Every commit that has not expired, oldest first, those that were rolled back included."""
    return [IcebergSnapshot(java, java.summary()) for java in table.iceberg.snapshots()]


def ancestry(table: StoredTable) -> Iterator[IcebergSnapshot]:
    """The commits that made the table what it is, newest first; one that expired ends the walk."""
    snapshot = newest_snapshot(table)
    while snapshot is not None:
        yield snapshot
        snapshot = (
            None if snapshot.parent is None else _snapshot_or_none(table.iceberg.snapshot(snapshot.parent))
        )


@dataclass(frozen=True, slots=True)
class CommitNote:
    """One commit: its number, its summary, and whether it is among the ancestors of the present state."""

    id: int
    number: int
    summary: Mapping[str, str]
    is_ancestor: bool


def commits(store: Store, table: StoredTable) -> list[CommitNote]:
    """Every commit that has not expired, in their order; one call of Java, however many there are."""
    metadata = json.loads(metadata_json(store.jvm, table.iceberg))
    snapshots = {each["snapshot-id"]: each for each in metadata.get("snapshots", ())}
    standing, now = set(), metadata.get("current-snapshot-id")
    while now in snapshots:
        standing.add(now)
        now = snapshots[now].get("parent-snapshot-id")
    return [
        CommitNote(name, each.get("sequence-number", 0), each.get("summary", {}), name in standing)
        for name, each in snapshots.items()
    ]


def references(table: StoredTable) -> list[Reference]:
    """The branches and tags of a table but its own branch."""
    kept = []
    for name, each in dict(table.iceberg.refs()).items():
        snapshot = _snapshot_or_none(table.iceberg.snapshot(each.snapshotId()))
        if name != MAIN and snapshot is not None:
            kept.append(Reference(str(name), snapshot.id, snapshot.committed_at, each.maxRefAgeMs()))
    return kept


def _snapshot_or_none(java: Any) -> IcebergSnapshot | None:
    return None if java is None else IcebergSnapshot(java, java.summary())
