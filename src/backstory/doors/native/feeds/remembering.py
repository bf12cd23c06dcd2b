"""When a feed is recorded, and what is settled from then on (V10, V28)."""

from dataclasses import dataclass
from datetime import UTC, datetime

from backstory.doors.native.instants import (
    MICROSECOND,
    interval_of,
    interval_text,
    newest_recorded,
)
from backstory.doors.native.stored_instants import StoredInstants
from backstory.model.instant import iso
from backstory.model.remembered import MEMORY_SINCE, SETTLED
from backstory.stores.iceberg.store import Store, StoredTable


@dataclass(frozen=True, slots=True)
class Remembering:
    """When a feed is recorded, what is settled from then on, and whether the memory begins with it (V28)."""

    recorded: datetime
    settled: tuple[datetime | None, datetime] | tuple[()]
    begins: bool

    def properties(self) -> dict[str, str]:
        """Those with which a memory begins."""
        if not self.begins:
            return {}
        return {SETTLED: interval_text(self.settled), MEMORY_SINCE: iso(self.recorded)}


def remembering(store: Store, table: StoredTable | None) -> Remembering:
    """The place of a feed in what the table remembers."""
    now = datetime.now(UTC)
    if table is None:
        return Remembering(now, (), begins=True)
    kept = table.properties.get(SETTLED)
    stored = StoredInstants(store, table)
    recorded = max(now, newest_recorded(stored) + MICROSECOND)
    return Remembering(recorded, stored.ends() or () if kept is None else interval_of(kept), kept is None)
