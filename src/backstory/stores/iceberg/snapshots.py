"""Iceberg's snapshots of a table, with their summaries: its commits, until they expire."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from backstory.stores.branches import BRANCH, MAIN, ancestors
from backstory.stores.iceberg.jvm import metadata_json
from backstory.stores.iceberg.store import IcebergStore, IcebergTable


@dataclass(frozen=True, slots=True)
class IcebergSnapshot:
    """A commit. Each property is read when it is used, because reading it costs a call of Java."""

    java: Any
    summary: Any

    @property
    def id(self) -> int:
        """The snapshot id, unique in the table."""
        return int(self.java.snapshotId())

    @property
    def committed_at(self) -> datetime:
        """The time of the commit."""
        return datetime.fromtimestamp(self.java.timestampMillis() / 1000, UTC)

    @property
    def parent(self) -> int | None:
        """The id of the previous commit, which may have expired, or None for the first commit."""
        id_ = self.java.parentId()
        return None if id_ is None else int(id_)

    @property
    def schema_id(self) -> int | None:
        """The id of the schema that the commit was written with."""
        id_ = self.java.schemaId()
        return None if id_ is None else int(id_)

    @property
    def operation(self) -> str:
        """The kind of change to files: append, overwrite, replace or delete."""
        return str(self.java.operation())

    def get_property(self, name: str) -> str | None:
        """A property in the commit's summary, as its writer wrote it, or None."""
        value: str | None = self.summary.get(name)
        return value


@dataclass(frozen=True, slots=True)
class Reference:
    """A branch or tag, and the snapshot that it keeps."""

    name: str
    snapshot_id: int
    committed_at: datetime
    max_age_ms: int | None


def newest_snapshot(table: IcebergTable) -> IcebergSnapshot | None:
    """The table's current snapshot, or None for a table without commits."""
    return _snapshot_or_none(table.iceberg.currentSnapshot())


def all_snapshots(table: IcebergTable) -> list[IcebergSnapshot]:
    """Every commit that has not expired, oldest first, including commits that were rolled back.

    Commits to other branches are excluded until they are published.
    """
    snapshots = [IcebergSnapshot(java, java.summary()) for java in table.iceberg.snapshots()]
    elsewhere = [snapshot for snapshot in snapshots if snapshot.get_property(BRANCH) is not None]
    ours = {snapshot.id for snapshot in ancestry(table)} if elsewhere else set()
    left_out = {snapshot.id for snapshot in elsewhere} - ours
    return [snapshot for snapshot in snapshots if snapshot.id not in left_out]


def ancestry(table: IcebergTable) -> Iterator[IcebergSnapshot]:
    """The current snapshot and its ancestors, newest first, ending before the first one that has expired."""
    snapshot = newest_snapshot(table)
    while snapshot is not None:
        yield snapshot
        snapshot = (
            None if snapshot.parent is None else _snapshot_or_none(table.iceberg.snapshot(snapshot.parent))
        )


@dataclass(frozen=True, slots=True)
class CommitNote:
    """A commit: its sequence number, its summary, and whether it is an ancestor of the current snapshot."""

    id: int
    number: int
    summary: Mapping[str, str]
    is_ancestor: bool


def commits(store: IcebergStore, table: IcebergTable) -> list[CommitNote]:
    """Every commit that has not expired, in order, read in one call of Java."""
    metadata = json.loads(metadata_json(store.jvm, table.iceberg))
    known = {one["snapshot-id"]: one for one in metadata.get("snapshots", ())}
    past = {one["snapshot-id"] for one in ancestors(metadata, metadata.get("current-snapshot-id"))}
    return [
        CommitNote(name, snapshot.get("sequence-number", 0), snapshot.get("summary", {}), name in past)
        for name, snapshot in known.items()
    ]


def references(table: IcebergTable) -> list[Reference]:
    """The branches and tags of a table, except its main branch and branches that the next commit drops."""
    branches_and_tags = []
    for name, ref in dict(table.iceberg.refs()).items():
        snapshot = _snapshot_or_none(table.iceberg.snapshot(ref.snapshotId()))
        if name not in {MAIN, *table.finished} and snapshot is not None:
            reference = Reference(str(name), snapshot.id, snapshot.committed_at, ref.maxRefAgeMs())
            branches_and_tags.append(reference)
    return branches_and_tags


def _snapshot_or_none(java: Any) -> IcebergSnapshot | None:
    return None if java is None else IcebergSnapshot(java, java.summary())
