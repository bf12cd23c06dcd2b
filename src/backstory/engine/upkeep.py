"""Operations that keep a table in good order and change no answer; no Change describes them.

Each is at most one commit of the current table, under the locks of deliveries. A conflict with another writer
is planned again for two minutes, then TryAgain is raised.
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
    """Rewrite small files and files with deleted rows into few; `properties` returns the commit's."""

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
    """Expire snapshots as `expiry.expire` does; none if `choose` returns None."""

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
    """Remove rows for good as `erasing.erase` does; None if `choose` returns None."""

    def act() -> Erased | None:
        table = existing(store, name)
        plan = choose(table)
        if plan is None:
            return None
        erased = maintenance.erase(store, table, plan, keeping)
        announce(store, name)
        return erased

    return attempt(store, [name], act)
