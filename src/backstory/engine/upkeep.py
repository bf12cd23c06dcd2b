"""Maintenance of a table that changes no query result, so that no Change describes it.

Each operation is at most one commit of the current table, under the same locks as deliveries. After a
conflict with another writer it is planned again for two minutes, then TryAgain is raised.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from backstory.engine.deliver import attempt
from backstory.model.table import TableName
from backstory.stores.iceberg import maintenance
from backstory.stores.iceberg.erasures import Erased, Erasure, Expired
from backstory.stores.iceberg.maintenance import Compacted
from backstory.stores.iceberg.sessions import announce
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def compact(
    store: IcebergStore,
    name: TableName,
    properties: Callable[[IcebergTable], Mapping[str, str]],
    *,
    dry_run: bool = False,
) -> Compacted:
    """Combine small files and files with deleted rows into few files.

    `properties` returns the properties of the commit.
    """

    def act() -> Compacted:
        table = existing(store, name)
        compacted = maintenance.compact(store, table, properties(table), dry_run=dry_run)
        announce(store, name)
        return compacted

    return attempt(store, [name], act)


def expire(
    store: IcebergStore,
    name: TableName,
    choose: Callable[[IcebergTable], tuple[int, Sequence[str], Mapping[str, int]] | None],
) -> Expired:
    """Expire snapshots as `expiry.expire` does. No snapshots expire if `choose` returns None."""

    def act() -> Expired:
        table = existing(store, name)
        choice = choose(table)
        expired = Expired() if choice is None else maintenance.expire(store.jvm, table, *choice)
        announce(store, name)
        return expired

    return attempt(store, [name], act)


def erase(
    store: IcebergStore,
    name: TableName,
    choose: Callable[[IcebergTable], Erasure | None],
    keeping: "Callable[[DataFrame], DataFrame]",
) -> Erased | None:
    """Remove rows permanently as `erasing.erase` does. Returns None if `choose` returns None."""

    def act() -> Erased | None:
        table = existing(store, name)
        plan = choose(table)
        if plan is None:
            return None
        erased = maintenance.erase(store, table, plan, keeping)
        announce(store, name)
        return erased

    return attempt(store, [name], act)
