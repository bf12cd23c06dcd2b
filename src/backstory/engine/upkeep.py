"""Maintenance of a table that changes no query result, so that no Change describes it.

Each operation is at most one commit of the current table, under the same locks as deliveries. After a
conflict with another writer, the operation is planned again. After two minutes, TryAgain is raised.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from backstory.engine.deliver import attempt
from backstory.model.table import TableName
from backstory.stores.iceberg import maintenance
from backstory.stores.iceberg.erasures import Erased, Erasure, Expired, Expiry
from backstory.stores.iceberg.maintenance import Compacted
from backstory.stores.iceberg.sessions import announce
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


Result = TypeVar("Result")


def compact(
    store: IcebergStore,
    name: TableName,
    properties: Callable[[IcebergTable], Mapping[str, str]],
    *,
    dry_run: bool,
) -> Compacted:
    """Combine small files and files with deleted rows into few files.

    `properties` returns the properties of the commit.
    """
    return _change_table(
        store, name, lambda table: maintenance.compact(store, table, properties(table), dry_run=dry_run)
    )


def expire(store: IcebergStore, name: TableName, choose: Callable[[IcebergTable], Expiry | None]) -> Expired:
    """Expire snapshots as `maintenance.expire` does. No snapshots expire if `choose` returns None."""

    def expire_chosen(table: IcebergTable) -> Expired:
        choice = choose(table)
        return Expired() if choice is None else maintenance.expire(store.jvm, table, choice)

    return _change_table(store, name, expire_chosen)


def erase(
    store: IcebergStore,
    name: TableName,
    choose: Callable[[IcebergTable], Erasure | None],
    keeping: "Callable[[DataFrame], DataFrame]",
) -> Erased | None:
    """Remove rows permanently as `maintenance.erase` does. Returns None if `choose` returns None."""

    def erase_chosen(table: IcebergTable) -> Erased | None:
        plan = choose(table)
        return None if plan is None else maintenance.erase(store, table, plan, keeping)

    return _change_table(store, name, erase_chosen)


def _change_table(store: IcebergStore, name: TableName, change: Callable[[IcebergTable], Result]) -> Result:
    """Change the current table, and announce the change to the readers in this process."""

    def act() -> Result:
        result = change(existing(store, name))
        announce(store, name)
        return result

    return attempt(store, [name], act)
