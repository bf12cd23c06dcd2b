"""The commits of a table as Iceberg keeps them, until they expire: its snapshots, and what each was told."""

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
    """One commit; what it was told is asked for name by name, for each answer is a call of Java."""

    java: Any
    summary: Any

    @property
    def id(self) -> int:
        """What tells it from all others of the table."""
        return int(self.java.snapshotId())

    @property
    def committed_at(self) -> datetime:
        """When it was committed."""
        return datetime.fromtimestamp(self.java.timestampMillis() / 1000, UTC)

    @property
    def parent(self) -> int | None:
        """The commit before it, whether or not that has expired; None for the first."""
        found = self.java.parentId()
        return None if found is None else int(found)

    @property
    def schema_id(self) -> int | None:
        """The number of the columns' state that it was written with."""
        found = self.java.schemaId()
        return None if found is None else int(found)

    @property
    def operation(self) -> str:
        """What it did to files: append, overwrite, replace or delete."""
        return str(self.java.operation())

    def told(self, name: str) -> str | None:
        """The property of this name that its writer gave it, or None."""
        value: str | None = self.summary.get(name)
        return value


@dataclass(frozen=True, slots=True)
class Reference:
    """A branch or tag, and the snapshot that it keeps."""

    name: str
    snapshot_id: int
    committed_at: datetime
    max_age_ms: int | None


def newest(table: StoredTable) -> IcebergSnapshot | None:
    """The commit whose rows the table has; None for a table that has no commits."""
    return _of(table.iceberg.currentSnapshot())


def known(table: StoredTable) -> list[IcebergSnapshot]:
    """Every commit that has not expired, oldest first, also those that were rolled back."""
    return [IcebergSnapshot(java, java.summary()) for java in table.iceberg.snapshots()]


def ancestry(table: StoredTable) -> Iterator[IcebergSnapshot]:
    """The commits that made the table what it is, newest first; one that expired ends the walk."""
    found = newest(table)
    while found is not None:
        yield found
        found = None if found.parent is None else _of(table.iceberg.snapshot(found.parent))


@dataclass(frozen=True, slots=True)
class CommitNote:
    """One commit: its number, what it was told, and whether the rows of now come from it."""

    id: int
    number: int
    told: Mapping[str, str]
    stands: bool


def commits(store: Store, table: StoredTable) -> list[CommitNote]:
    """Every commit that has not expired, in their order; one call of Java, however many there are."""
    metadata = json.loads(metadata_json(store.jvm, table.iceberg))
    known = {each["snapshot-id"]: each for each in metadata.get("snapshots", ())}
    standing, now = set(), metadata.get("current-snapshot-id")
    while now in known:
        standing.add(now)
        now = known[now].get("parent-snapshot-id")
    return [
        CommitNote(name, each.get("sequence-number", 0), each.get("summary", {}), name in standing)
        for name, each in known.items()
    ]


def references(table: StoredTable) -> list[Reference]:
    """The branches and tags of a table but its own branch."""
    found = []
    for name, each in dict(table.iceberg.refs()).items():
        snapshot = _of(table.iceberg.snapshot(each.snapshotId()))
        if name != MAIN and snapshot is not None:
            found.append(Reference(str(name), snapshot.id, snapshot.committed_at, each.maxRefAgeMs()))
    return found


def _of(java: Any) -> IcebergSnapshot | None:
    return None if java is None else IcebergSnapshot(java, java.summary())
