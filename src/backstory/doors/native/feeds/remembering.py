"""When a feed is recorded, and what is settled from then on (V10, V28)."""

from dataclasses import dataclass
from datetime import UTC, datetime

from backstory.doors.native.instants import (
    MICROSECOND,
    Rows,
    all_instants,
    interval_of,
    interval_text,
    newest_recorded,
)
from backstory.model.instant import iso
from backstory.model.remembered import MEMORY_SINCE, SETTLED
from backstory.stores.iceberg.store import StoredTable


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


def remembering(table: StoredTable | None, rows: Rows) -> Remembering:
    """The place of a feed in what the table remembers; `rows` makes a frame of the table's."""
    now = datetime.now(UTC)
    if table is None:
        return Remembering(now, (), begins=True)
    kept = table.iceberg.properties().get(SETTLED)
    recorded = max(now, newest_recorded(table, rows) + MICROSECOND)
    return Remembering(recorded, all_instants(rows) if kept is None else interval_of(kept), kept is None)
