"""Operations that keep a table in good order and change no answer, which no Change describes.

Each is one commit, or none, of the table as it stands, under the locks that deliveries take; a conflict with
another writer is planned anew, for two minutes, then TryAgain.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from backstory.engine.deliver import attempt
from backstory.model.table import TableName
from backstory.stores.iceberg import maintenance
from backstory.stores.iceberg.erasures import Erased, Erasure, Expired
from backstory.stores.iceberg.maintenance import Compacted
from backstory.stores.iceberg.sessions import announce
from backstory.stores.iceberg.store import Store, StoredTable, existing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def compact(
    store: Store,
    name: TableName,
    told: Callable[[StoredTable], Mapping[str, str]],
    *,
    dry_run: bool = False,
) -> Compacted:
    """Bring small files and what hides rows in files back to few; `told` are the commit's properties."""

    def act() -> Compacted:
        table = existing(store, name)
        done = maintenance.compact(store, table, told(table), dry_run=dry_run)
        announce(store, name)
        return done

    return attempt(store, [name], act)


def expire(
    store: Store,
    name: TableName,
    chosen: Callable[[StoredTable], tuple[int, Sequence[str], Mapping[str, int]] | None],
) -> Expired:
    """Let snapshots expire, as `expiry.expire` does; none where nothing is chosen."""

    def act() -> Expired:
        table = existing(store, name)
        found = chosen(table)
        expired = Expired() if found is None else maintenance.expire(store.jvm, table, *found)
        announce(store, name)
        return expired

    return attempt(store, [name], act)


def erase(
    store: Store,
    name: TableName,
    chosen: Callable[[StoredTable], Erasure | None],
    keeping: "Callable[[DataFrame], DataFrame]",
) -> Erased | None:
    """Take rows out for good, as `erasing.erase` does; None where nothing is chosen."""

    def act() -> Erased | None:
        table = existing(store, name)
        plan = chosen(table)
        if plan is None:
            return None
        erased = maintenance.erase(store, table, plan, keeping)
        announce(store, name)
        return erased

    return attempt(store, [name], act)
