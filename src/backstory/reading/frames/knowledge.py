"""The rows that a table had at a recorded time: what was known then."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Protocol, TypeVar

from backstory.errors import Refused, UsageError
from backstory.model.instant import iso, parse_instant
from backstory.model.layout import Layout, layout_of
from backstory.model.remembered import KNOWN_FROM
from backstory.model.schema import Shape
from backstory.model.table import TableName
from backstory.stores.iceberg import snapshots
from backstory.stores.iceberg.store import Store, StoredTable, shape_then
from backstory.stores.port import ToldTable

Commit = TypeVar("Commit", bound="Dated")
TRAVELLING = {Layout.FIVETRAN_LIVE, Layout.FIVETRAN_HISTORY}


def source_at(store: Store, table: StoredTable, known_at: datetime | None) -> tuple[str, Shape]:
    """The stored rows by which a table answers for a recorded time, in Spark SQL, and their shape.

    None is now. On layout `versions` and of an event log all rows are read, which record themselves what was
    known; of any other table those of the newest commit not after the time, with the columns of then, and
    none before the first. Raises UsageError (`known-pruned`) where `versions` no longer records it, Refused
    (`snapshots-expired`) where the commit is gone.
    """
    name = store.sql_name(table.shape.table)
    if known_at is None or table.shape.layout is Layout.ODF:
        return name, table.shape
    if table.shape.layout is Layout.VERSIONS:
        require_knowledge(table, known_at)
        return name, table.shape
    snapshot = commit_at(snapshots.ancestry(table), table.shape.table, known_at)
    if snapshot is None:
        return f"(SELECT * FROM {name} LIMIT 0)", table.shape  # noqa: S608 - a name in quotes
    return f"{name} VERSION AS OF {snapshot.id}", as_it_was(shape_then(store, table, snapshot.schema_id))


def as_it_was(shape: Shape) -> Shape:
    """An earlier shape with its layout of then: a sync mode may have changed since."""
    if shape.layout not in TRAVELLING:
        return shape
    then = layout_of(None, shape.table.name, frozenset(shape.names))
    return replace(shape, layout=Layout.FIVETRAN_LIVE if then is Layout.FOREIGN else then)


def require_knowledge(table: ToldTable, known_at: datetime) -> None:
    """Raise UsageError if a table of layout `versions` was pruned of what it knew at this time (V90)."""
    since = table.properties.get(KNOWN_FROM)
    if since and known_at < parse_instant(since):
        raise UsageError(
            "known-pruned",
            f"What {table.shape.table} knew before {iso(parse_instant(since))} was pruned.",
            "Ask for a later known time.",
        )


class Dated(Protocol):
    """A commit with its time, and the one before it."""

    @property
    def committed_at(self) -> datetime:
        """When it was committed."""

    @property
    def parent(self) -> int | None:
        """The commit before it; None for the first."""


def commit_at(ancestry: Iterable[Commit], table: TableName, known_at: datetime) -> Commit | None:
    """The commit that made the rows of this time; None before the first, Refused where it is gone."""
    oldest = None
    for snapshot in ancestry:
        if snapshot.committed_at <= known_at:
            return snapshot
        oldest = snapshot
    if oldest is not None and oldest.parent is not None:
        raise Refused(
            "snapshots-expired",
            f"The commits of {table} before {iso(oldest.committed_at)} have expired.",
            "Ask for a later known time; `backstory log` lists the commits that are kept.",
        )
    return None
