"""Keep a table small and quick: compact, settle, let old snapshots expire; no answer changes (V91).

What the newest commit says of a table, for a commit that changes no answer to say after it.

Which commits of a table have to stay, and which may expire (native.md V91).

Settle what a table of versions remembers up to a time, and prune what it knew (V33, V34, V90).
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, Literal

from backstory.engine.deliver import TableChange, deliver
from backstory.engine.run_context import AUTHOR, NOTE, remark_properties
from backstory.engine.upkeep import compact, expire
from backstory.errors import BackstoryError, TryAgain, UsageError
from backstory.journal.chain import PREFIX as BLOCK
from backstory.journal.log_table import bring_up_to_date
from backstory.model.change import COUNTS, DOOR, TOKEN, Change, Note
from backstory.model.change_feed import CURSOR_TAG as CURSOR
from backstory.model.instant import iso, milliseconds_of, parse_instant
from backstory.model.layout import FILE, HIST_SUFFIX, MEMORY, POSITION, VALID_FROM, VALID_TO, Layout
from backstory.model.receipt import Receipt, attempt_each
from backstory.model.table import TableName
from backstory.model.versions_layout import (
    CURSOR_MAX_AGE,
    ENDED_AT,
    KIND,
    KNOWN_FROM,
    LOG,
    OWN_TIME,
    ROLE,
    SEQUENCE,
    SETTLE_AFTER,
    SETTLED,
    FactKind,
    Role,
)
from backstory.stores.iceberg.conditions import delete_where
from backstory.stores.iceberg.erasures import Expired
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, instant, micros_of
from backstory.stores.iceberg.positions import positions_of
from backstory.stores.iceberg.snapshots import all_snapshots, ancestry, newest_snapshot, references
from backstory.stores.iceberg.store import Store, StoredTable, existing, load
from backstory.stores.port import LOADING

OURS: Final = "backstory."
# Of a commit that took rows back; it counts from where it stands.
UNDONE: Final = "backstory.undone"
_OF_ONE_COMMIT: Final = (UNDONE, NOTE, AUTHOR)


def carried_properties(table: StoredTable, counts: Mapping[str, int]) -> dict[str, str]:
    """The properties of the commit: what makes a delivery known again stays where it is looked for.

    A block of a chain is not told twice.
    """
    snapshot, layout = newest_snapshot(table), table.shape.layout
    told = {} if snapshot is None or layout is Layout.ODF else dict(snapshot.summary)
    kept = {
        name: str(value)
        for name, value in told.items()
        if name.startswith(OURS) and not name.startswith(BLOCK) and name not in _OF_ONE_COMMIT
    }
    return {
        TOKEN: "",
        **kept,
        **remark_properties(),
        DOOR: layout.door,
        COUNTS: json.dumps(dict(counts)),
        "backstory.version": version("backstory"),
    }


MAX_AGE, AT_LEAST = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
GC: Final = "gc.enabled"
# How long commits and cursors stay, unless the table says otherwise.
STAYS: Final = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Expiry:
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


def plan_expiry(
    table: StoredTable, needed: Collection[str] = (), now: datetime | None = None
) -> Expiry | None:
    """What may go; None if nothing may, as of a table that may not delete files.

    Commits stay from the oldest one on that a cursor, somebody's branch or tag, or a token of `needed` asks
    for, without a gap: who looks for a commit among those that made the table must not miss one.
    """
    now, current = now or datetime.now(UTC), newest_snapshot(table)
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
    return Expiry(before, old_ones, stale, renewed) if old_ones or stale else None


def _age(table: StoredTable) -> timedelta:
    return timedelta(milliseconds=table.number(MAX_AGE, STAYS // timedelta(milliseconds=1)))


def _cursor_age(table: StoredTable, told: int | None) -> timedelta:
    if told is not None:
        return timedelta(milliseconds=told)
    asked = table.properties.get(CURSOR_MAX_AGE)
    return STAYS if asked is None else timedelta(milliseconds=milliseconds_of(asked))


if TYPE_CHECKING:
    from pyspark.sql import Column

# Beyond this share of a table's rows it is time to settle what they remember.
SHARE: Final = 0.2


@dataclass(frozen=True, slots=True)
class Bounds:
    """Up to when a table's memory is to be settled, and from when on it is to know what it knew."""

    settle_before: datetime | None = None
    known_from: datetime | None = None


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """The share of a table's rows that are no versions, and where to settle if that is much."""

    share: float
    propose: str | None


def settle(store: Store, name: TableName, bounds: Bounds, *, dry_run: bool) -> int:
    """Remove what is remembered of facts up to the one time and of knowledge up to the other; how many rows.

    One commit, also where a bound moves and no row goes (V13); none where neither moves. What is settled
    stays so, and a table that keeps no memory has nothing to settle.
    """
    removed = [0]

    def plan() -> tuple[StoredTable, Change | None]:
        table = existing(store, name)
        moving = _bounds_to_move(store, table, bounds)
        gone = [
            each
            for each in (_facts_before(moving.settle_before), _past_before(moving.known_from))
            if each is not None
        ]
        if not gone:
            return table, None
        condition = gone[0] if len(gone) == 1 else gone[0] | gone[1]
        if moving.settle_before is not None and LOG in table.properties:
            change = _settle_log(store, table, condition, moving.settle_before) or Change(snapshot=True)
        else:
            change = delete_where(store, table, condition) or Change(snapshot=True)
        removed[0] = change.counts.get("deleted", 0)
        return table, Change(
            {"settled": removed[0]}, change.removed, properties=_properties(moving), snapshot=change.snapshot
        )

    properties = {
        name: value
        for name, value in carried_properties(existing(store, name), {}).items()
        if name not in _NOTED
    }
    note = Note("native", carried_properties(existing(store, name), {})["backstory.token"], properties)
    deliver(store, TableChange([name], note, plan, dry_run))
    return removed[0]


_NOTED: Final = ("backstory.door", "backstory.token", "backstory.counts", "backstory.version")


def _bounds_to_move(store: Store, table: StoredTable, bounds: Bounds) -> Bounds:
    """Those of the bounds that move forward; None for the others, and for settling a table without memory."""
    settled, known_from = table.properties.get(SETTLED), table.properties.get(KNOWN_FROM)
    before, since = bounds.settle_before, bounds.known_from
    after = table.properties.get(SETTLE_AFTER)
    if before is None and after and settled is not None:
        newest = _newest_instant(store, table)
        before = newest - timedelta(milliseconds=milliseconds_of(after)) if newest else None
    if settled is None:
        before = None
    elif before is not None:
        before = _after_settled(before, _interval(settled))
    if since is not None and known_from is not None and parse_instant(known_from) >= since:
        since = None
    return Bounds(before, since)


def _interval(settled: str) -> tuple[datetime | None, datetime] | None:
    told = json.loads(settled)
    return (None if told[0] is None else parse_instant(told[0]), parse_instant(told[1])) if told else None


def _after_settled(before: datetime, interval: tuple[datetime | None, datetime] | None) -> datetime | None:
    """Up to when is settled then; None where nothing moves: the interval has no gap and never shrinks."""
    if interval is None:
        return before
    first, last = interval
    if before < last and (first is None or before < first):
        return None
    return None if first is None and before == last else max(before, last)


def _properties(bounds: Bounds) -> dict[str, str | None]:
    properties: dict[str, str | None] = {}
    if bounds.settle_before is not None:
        properties[SETTLED] = json.dumps([None, iso(bounds.settle_before)])
    if bounds.known_from is not None:
        properties[KNOWN_FROM] = iso(bounds.known_from)
    return properties


def _facts_before(before: datetime | None) -> "Column | None":
    if before is None:
        return None
    return (column(MEMORY)[ROLE] == Role.FACT.value) & (column(VALID_FROM) <= instant(micros_of(before)))


def _settle_log(store: Store, table: StoredTable, condition: "Column", before: datetime) -> Change | None:
    """The rows go, but for the last settled place of each record in its log, and for truncates (V135).

    A record has its own instant of each truncate. None if there are none.
    """
    from pyspark.sql import Window
    from pyspark.sql.functions import coalesce, lit, when
    from pyspark.sql.functions import max as last

    memory, early = column(MEMORY), column(VALID_FROM) <= instant(micros_of(before))
    live = memory[ENDED_AT].isNull() & (memory[ROLE] == Role.FACT.value)
    logged = memory[OWN_TIME].isNotNull()
    event = memory[KIND].isin(FactKind.UPSERT.value, FactKind.DELETE.value) & (live | memory[ROLE].isNull())
    place = when(event & logged & early, memory[SEQUENCE])
    with translate_faults(table.shape.table):
        rows = store.spark.table(store.sql_name(table.shape.table))
        record = Window.partitionBy(*(column(name) for name in table.shape.key))
        is_last = place == last(place).over(record)
        every = memory[KIND].isin(FactKind.TRUNCATE.value, FactKind.VOID.value)
        stays = live & logged & (every | coalesce(is_last, lit(False)))
        marked = rows.select(FILE, POSITION, (condition & ~coalesce(stays, lit(False))).alias("goes"))
        positions = positions_of(marked.where("goes"))
    if not positions:
        return None
    return Change({"deleted": sum(len(bitmap) for bitmap in positions.values())}, removed=positions)


def _past_before(since: datetime | None) -> "Column | None":
    if since is None:
        return None
    return (column(MEMORY)[ROLE] == Role.PAST.value) & (column(MEMORY)[ENDED_AT] <= instant(micros_of(since)))


def _newest_instant(store: Store, table: StoredTable) -> datetime | None:
    from pyspark.sql.functions import greatest, unix_micros
    from pyspark.sql.functions import max as latest

    with translate_faults(table.shape.table):
        rows = store.spark.table(store.sql_name(table.shape.table))
        (row,) = rows.agg(latest(unix_micros(greatest(column(VALID_FROM), column(VALID_TO))))).collect()
    return None if row[0] is None else datetime.fromtimestamp(0, UTC) + timedelta(microseconds=row[0])


def memory_share(store: Store, table: StoredTable) -> MemoryShare:
    """What part of a table of versions is memory; beyond a fifth, a time up to which to settle."""
    from pyspark.sql.functions import avg, percentile_approx, unix_micros, when

    role = column(MEMORY)[ROLE]
    fact = when(role == Role.FACT.value, unix_micros(VALID_FROM))
    with translate_faults(table.shape.table):
        rows = store.spark.table(store.sql_name(table.shape.table))
        share, until = rows.agg(avg(role.isNotNull().cast("int")), percentile_approx(fact, 0.8)).collect()[0]
    if share is None or share <= SHARE or until is None:
        return MemoryShare(share or 0.0, None)
    return MemoryShare(share, iso(datetime.fromtimestamp(0, UTC) + timedelta(microseconds=until)))


# The tokens of commits that no log tells of, so that they have to stay.
Needed = Callable[[Store, StoredTable], Collection[str]]


@dataclass(frozen=True, slots=True, repr=False)
class Maintained(Receipt):
    """What was done to a table, or would be in a dry run.

    Data files before and after, the bytes of those that were rewritten, snapshots that expired, cursors that
    were dropped for their age, files outside of the table's folder that nothing needs any more and that are
    not deleted (`left`), rows of memory that were settled or pruned, the share of rows that are memory, and a
    time up to which to settle where that is more than a fifth. Of a failed one no more is known.
    """

    table: str
    layout: str
    files: int = 0
    files_after: int = 0
    bytes_rewritten: int = 0
    snapshots_expired: int = 0
    cursors_dropped: Sequence[str] = ()
    left: Sequence[str] = ()
    rows_settled: int = 0
    memory_share: float | None = None
    propose_settle_before: str | None = None
    status: Literal["done", "failed"] = "done"
    error: BackstoryError | None = None


def maintain(
    store: Store, name: TableName, bounds: Bounds, needed: Needed, *, dry_run: bool = False
) -> Maintained:
    """Settle what is asked for, compact, and let expire what nothing needs; each is one commit, or none.

    Raises UsageError for bounds of a table that is none of versions, TryAgain where another writer came
    first each time, and while a load stands between its commits.
    """
    table = existing(store, name)
    native = table.shape.layout is Layout.VERSIONS
    if bounds != Bounds() and not native:
        layout = table.shape.layout
        raise UsageError("no-memory", f"{name} keeps no memory: its layout is {layout}.", "Omit the time.")
    _refuse_loading(store, table)
    done = Maintained(str(name), table.shape.layout.value)
    if native:
        done = replace(done, rows_settled=settle(store, name, bounds, dry_run=dry_run))
        share = memory_share(store, existing(store, name))
        done = replace(done, memory_share=round(share.share, 4), propose_settle_before=share.propose)
    found = compact(store, name, lambda stored: carried_properties(stored, {}), dry_run=dry_run)
    done = replace(done, files=found.files, files_after=found.files_after, bytes_rewritten=found.bytes)
    old = plan_expiry(existing(store, name), needed(store, existing(store, name)))
    if old is None:
        return done
    if not dry_run:
        gone = _expire(store, name, needed)
        cursors, left = list(old.cursors), list(gone.left)
        return replace(done, snapshots_expired=gone.snapshots, cursors_dropped=cursors, left=left)
    return replace(done, snapshots_expired=old.snapshots, cursors_dropped=list(old.cursors))


def run_for_each(
    names: Sequence[TableName], act: Callable[[TableName], Maintained], *, every: bool
) -> list[Maintained]:
    """The result of `act` for each table; an error of one is its receipt, and does not stop the others."""
    results = ((name, each) for name, each in attempt_each(names, act, every=every).items())
    return [
        Maintained(str(name), "", status="failed", error=each) if isinstance(each, BackstoryError) else each
        for name, each in results
    ]


def _expire(store: Store, name: TableName, needed: Needed) -> Expired:
    """Let go what nothing needs; the log of a dataset is written first, for it keeps the chain."""

    def chosen(table: StoredTable) -> tuple[int, Sequence[str], Mapping[str, int]] | None:
        found = plan_expiry(table, needed(store, table))
        return None if found is None else (found.milliseconds, found.cursors, found.renewed)

    table = existing(store, name)
    if table.shape.layout is Layout.ODF:
        bring_up_to_date(store, table)
    return expire(store, name, chosen)


def _refuse_loading(store: Store, table: StoredTable) -> None:
    name = table.shape.table
    beside = TableName(name.schema, name.name + HIST_SUFFIX) if table.shape.layout is Layout.BASE else name
    history = load(store, beside)
    told = history.properties.get(LOADING) if history else None
    if told:
        raise TryAgain(
            "CONCURRENT_RUN",
            f"A run is loading {name}, or was interrupted.",
            "Wait until it ends, or run the load again, which restores the base first.",
        )
