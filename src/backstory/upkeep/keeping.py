"""Which commits of a table have to stay, and which may expire (native.md V91)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from backstory.model.change import TOKEN
from backstory.model.cursor import TAG as CURSOR
from backstory.model.instant import milliseconds_of
from backstory.model.remembered import CURSOR_MAX_AGE
from backstory.stores.iceberg.snapshots import all_snapshots, ancestry, newest, references
from backstory.stores.iceberg.store import StoredTable

MAX_AGE, AT_LEAST = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
GC: Final = "gc.enabled"
# How long commits and cursors stay, unless the table says otherwise.
STAYS: Final = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Expiring:
    """Commits before an instant may go, `snapshots` of them; and cursors that nobody moved for too long.

    `renewed` are cursors that have read all there is, and how many milliseconds they are kept for now.
    """

    before: datetime
    snapshots: int
    cursors: Sequence[str]
    renewed: Mapping[str, int]

    @property
    def milliseconds(self) -> int:
        """The instant in milliseconds from 1970-01-01T00:00:00Z, rounded down."""
        return int(self.before.timestamp() * 1000)


def expiring(
    table: StoredTable, needed: Collection[str] = (), now: datetime | None = None
) -> Expiring | None:
    """What may go; None if nothing may, as of a table that may not delete files.

    Commits stay from the oldest one on that a cursor, somebody's branch or tag, or a token of `needed` asks
    for, without a gap: who looks for a commit among those that made the table must not miss one.
    """
    now, current = now or datetime.now(UTC), newest(table)
    if current is None or table.properties.get(GC, "true").lower() == "false":
        return None
    stale, renewed, kept = list[str](), dict[str, int](), [current.committed_at]
    for each in references(table):
        stays, age = _cursor_age(table, each.max_age_ms), now - each.committed_at
        old = each.name.startswith(CURSOR) and age > stays
        if old and each.snapshot_id != current.id:
            stale.append(each.name)
            continue
        kept.append(each.committed_at)
        if old and each.max_age_ms is not None:
            renewed[each.name] = int((age + stays) / timedelta(milliseconds=1))
    past = list(ancestry(table))
    at_least = table.number(AT_LEAST, 1)
    kept += [each.committed_at for each in past[:at_least]]
    kept += [each.committed_at for each in past if each.get_property(TOKEN) in needed]
    before = min(now - _age(table), *kept)
    old_ones = sum(each.committed_at < before for each in all_snapshots(table))
    return Expiring(before, old_ones, stale, renewed) if old_ones or stale else None


def _age(table: StoredTable) -> timedelta:
    return timedelta(milliseconds=table.number(MAX_AGE, STAYS // timedelta(milliseconds=1)))


def _cursor_age(table: StoredTable, told: int | None) -> timedelta:
    if told is not None:
        return timedelta(milliseconds=told)
    asked = table.properties.get(CURSOR_MAX_AGE)
    return STAYS if asked is None else timedelta(milliseconds=milliseconds_of(asked))
