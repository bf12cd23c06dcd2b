"""Tables of a warehouse, maintained one after the other."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from backstory.model.table import TableName
from backstory.table import Table

if TYPE_CHECKING:
    from backstory.stores.iceberg.store import Store
    from backstory.upkeep.maintaining import Maintained


def maintain_each(
    store: "Store",
    named: Sequence[TableName],
    times: Mapping[str, datetime | None],
    *,
    every: bool,
    dry_run: bool,
) -> "list[Maintained]":
    """Maintain these tables, or every one; then the times are heeded where a table keeps memory."""
    from backstory.model.layout import Layout
    from backstory.stores.iceberg.faults import translate_faults
    from backstory.stores.iceberg.store import existing, tables
    from backstory.stores.refusals import require_some
    from backstory.upkeep.maintaining import run_for_each

    require_some(named, every=every)

    def one(name: TableName) -> "Maintained":
        with translate_faults(name):
            heeded = bool(named) or existing(store, name).shape.layout is Layout.VERSIONS
            bounds: dict[str, Any] = dict(times) if heeded else {}
            return Table(store, name).maintain(**bounds, dry_run=dry_run)

    return run_for_each(named or tables(store), one, every=not named)
