"""Iceberg's snapshots of a table, with their summaries: its commits, until they expire."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from backstory.stores.branches import BRANCH, MAIN
from backstory.stores.iceberg.jvm import metadata_json
from backstory.stores.iceberg.store import IcebergStore, IcebergTable


@dataclass(frozen=True, slots=True)
class IcebergSnapshot:
    """One commit; each property is read when it is used, since it costs a call of Java."""

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
        """The id of the previous commit, which may have expired; None for the first commit."""
        id_ = self.java.parentId()
        return None if id_ is None else int(id_)

    @property
    def schema_id(self) -> int | None:
        """The id of the schema that it was written with."""
        id_ = self.java.schemaId()
        return None if id_ is None else int(id_)

    @property
    def operation(self) -> str:
        """Its kind of change to files: append, overwrite, replace or delete."""
        return str(self.java.operation())

    def get_property(self, name: str) -> str | None:
        """A property in its summary, as its writer wrote it; None if there is none."""
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
    """The table's present snapshot; None for a table without commits."""
    return _snapshot_or_none(table.iceberg.currentSnapshot())


def all_snapshots(table: IcebergTable) -> list[IcebergSnapshot]:
    """Every commit that has not expired, oldest first, including those that were rolled back.

    Commits to other branches are left out until they are published.
    """
    snapshots = [IcebergSnapshot(java, java.summary()) for java in table.iceberg.snapshots()]
    elsewhere = [each for each in snapshots if each.get_property(BRANCH) is not None]
    ours = {each.id for each in ancestry(table)} if elsewhere else set()
    left_out = {each.id for each in elsewhere} - ours
    return [each for each in snapshots if each.id not in left_out]


def ancestry(table: IcebergTable) -> Iterator[IcebergSnapshot]:
    """The present snapshot and its ancestors, newest first, up to an expired one."""
    snapshot = newest_snapshot(table)
    while snapshot is not None:
        yield snapshot
        snapshot = (
            None if snapshot.parent is None else _snapshot_or_none(table.iceberg.snapshot(snapshot.parent))
        )


@dataclass(frozen=True, slots=True)
class CommitNote:
    """One commit: its sequence number, its summary, and whether it is an ancestor of the present snapshot."""

    id: int
    number: int
    summary: Mapping[str, str]
    is_ancestor: bool


def commits(store: IcebergStore, table: IcebergTable) -> list[CommitNote]:
    """Every commit that has not expired, in order, by one call of Java."""
    metadata = json.loads(metadata_json(store.jvm, table.iceberg))
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", ())}
    ancestors, ancestor = set(), metadata.get("current-snapshot-id")
    while ancestor in snapshots:
        ancestors.add(ancestor)
        ancestor = snapshots[ancestor].get("parent-snapshot-id")
    return [
        CommitNote(name, snapshot.get("sequence-number", 0), snapshot.get("summary", {}), name in ancestors)
        for name, snapshot in snapshots.items()
    ]


def references(table: IcebergTable) -> list[Reference]:
    """The branches and tags of a table, without its main branch and branches that the next commit drops."""
    branches_and_tags = []
    for name, ref in dict(table.iceberg.refs()).items():
        snapshot = _snapshot_or_none(table.iceberg.snapshot(ref.snapshotId()))
        if name not in {MAIN, *table.finished} and snapshot is not None:
            reference = Reference(str(name), snapshot.id, snapshot.committed_at, ref.maxRefAgeMs())
            branches_and_tags.append(reference)
    return branches_and_tags


def _snapshot_or_none(java: Any) -> IcebergSnapshot | None:
    return None if java is None else IcebergSnapshot(java, java.summary())
