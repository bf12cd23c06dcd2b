"""Maintenance of a table: compact files, settle memory, expire old snapshots (V33, V34, V90, V91).

Queries return the same results afterwards, except for times that were settled or pruned on request.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any, Final, Literal

from pyroaring import BitMap64
from pyspark.sql import Window
from pyspark.sql import functions as sf

from backstory.engine.deliver import deliver_change
from backstory.engine.run_context import AUTHOR, NOTE, remark_properties
from backstory.engine.upkeep import compact, expire
from backstory.errors import BackstoryError, TryAgain, UsageError, bad_option
from backstory.journal.chain import PREFIX as BLOCK
from backstory.journal.chain import bring_up_to_date
from backstory.model.change import COUNTS, DOOR, TOKEN, Change, Note
from backstory.model.change import CURSOR_TAG as CURSOR
from backstory.model.instant import EPOCH, iso, milliseconds_of, parse_instant
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
from backstory.spark.connect import needs_java
from backstory.stores.iceberg.erasures import Expired, Expiry
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, instant, micros_of
from backstory.stores.iceberg.positions import positions_of
from backstory.stores.iceberg.store import (
    IcebergStore,
    IcebergTable,
    existing,
    load,
    references,
)
from backstory.stores.port import LOADING
from backstory.upkeep.options import Bounds

OURS: Final = "backstory."
# The property of a commit that undoes a load. Later commits do not repeat it.
UNDONE: Final = "backstory.undone"
_OF_ONE_COMMIT: Final = (UNDONE, NOTE, AUTHOR)


def carried_properties(table: IcebergTable) -> dict[str, str]:
    """The properties of an upkeep commit, including the properties of the newest commit.

    The last delivery's token thus stays in the newest commit, where it is looked up. The properties of a
    chain's block are not repeated.
    """
    newest, layout = table.newest, table.shape.layout
    properties = {} if newest is None or layout is Layout.ODF else newest.properties
    carried = {
        name: str(value)
        for name, value in properties.items()
        if name.startswith(OURS) and not name.startswith(BLOCK) and name not in _OF_ONE_COMMIT
    }
    return {
        TOKEN: "",
        **carried,
        **remark_properties(),
        DOOR: layout.door,
        COUNTS: "{}",
        "backstory.version": version("backstory"),
    }


MAX_AGE, AT_LEAST = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
GC: Final = "gc.enabled"
# How long commits and cursors are kept by default.
RETENTION: Final = timedelta(days=30)


def plan_expiry(table: IcebergTable, needed: Collection[str]) -> Expiry | None:
    """The commits and cursors that may expire. None if nothing may expire or the table may not delete files.

    Commits are kept from the oldest one that a cursor, a branch, a tag or a token in `needed` requires. All
    later commits are kept too, because a search through the table's history must not have gaps.
    """
    now, current = datetime.now(UTC), table.newest
    if current is None or table.properties.get(GC, "true").lower() == "false":
        return None
    if table.finished:  # the next commit drops these branches
        return None
    stale, renewed, times_to_keep = list[str](), dict[str, int](), [current.committed_at]
    for reference in references(table):
        own_ms, age = reference.max_age_ms, now - reference.committed_at
        if own_ms is None and CURSOR_MAX_AGE in table.properties:
            age_limit = timedelta(milliseconds=milliseconds_of(table.properties[CURSOR_MAX_AGE]))
        else:
            age_limit = RETENTION if own_ms is None else timedelta(milliseconds=own_ms)
        old = reference.name.startswith(CURSOR) and age > age_limit
        if old and reference.snapshot_id != current.id:
            stale.append(reference.name)
            continue
        times_to_keep.append(reference.committed_at)
        if old and own_ms is not None:
            renewed[reference.name] = int((age + age_limit) / timedelta(milliseconds=1))
    past = list(table.lineage)
    at_least = table.number(AT_LEAST, 1)
    times_to_keep += [commit.committed_at for commit in past[:at_least]]
    times_to_keep += [commit.committed_at for commit in past if commit.properties.get(TOKEN) in needed]
    age_of_commits = timedelta(milliseconds=table.number(MAX_AGE, RETENTION // timedelta(milliseconds=1)))
    before = min(now - age_of_commits, *times_to_keep)
    old_ones = sum(commit.committed_at < before for commit in table.commits)
    return Expiry(before, old_ones, stale, renewed) if old_ones or stale else None


# If memory is a larger share of a table's rows, settling is proposed.
SHARE: Final = 0.2


def settle(store: IcebergStore, name: TableName, bounds: Bounds, *, dry_run: bool) -> int:
    """Remove remembered facts up to one bound and earlier states up to the other.

    Returns the number of removed rows. Makes one commit if a bound moves, even if no row is removed (V13),
    and no commit otherwise. Bounds never move back, and a table without memory has nothing to settle. Raises
    UsageError for a bound after the current time, because it would refuse future copies and changes.
    """
    _refuse_future(bounds)
    removed = [0]

    def plan() -> tuple[IcebergTable, Change | None]:
        table = existing(store, name)
        moving = _bounds_to_move(store, table, bounds)
        if moving == Bounds():
            return table, None
        positions = _removable_rows(store, table, moving) if table.rows else {}
        removed[0] = sum(len(bitmap) for bitmap in positions.values())
        properties, places = _properties(moving), positions or None
        return table, Change({"settled": removed[0]}, places, properties=properties, snapshot=not positions)

    carried = carried_properties(existing(store, name))
    deliver_change(store, [name], Note("native", carried[TOKEN], carried), plan, dry_run=dry_run)
    return removed[0]


def _removable_rows(store: IcebergStore, table: IcebergTable, bounds: Bounds) -> dict[Any, BitMap64]:
    """The positions of facts up to one bound, and of earlier states up to the other.

    In a log, truncates and each record's last settled position stay (V135). Truncates stay because each
    record has its own instant for a truncate.
    """
    memory, goes, stays = column(MEMORY), sf.lit(False), sf.lit(False)
    if bounds.known_from is not None:
        ended = memory[ENDED_AT] <= instant(micros_of(bounds.known_from))
        goes = (memory[ROLE] == Role.PAST.value) & ended
    if bounds.settle_before is not None:
        early = column(VALID_FROM) <= instant(micros_of(bounds.settle_before))
        goes = ((memory[ROLE] == Role.FACT.value) & early) | goes
        if LOG in table.properties:
            live = memory[ENDED_AT].isNull() & (memory[ROLE] == Role.FACT.value)
            logged = memory[OWN_TIME].isNotNull()
            event = memory[KIND].isin(FactKind.UPSERT.value, FactKind.DELETE.value)
            event &= live | memory[ROLE].isNull()
            place = sf.when(event & logged & early, memory[SEQUENCE])
            record = Window.partitionBy(*(column(name) for name in table.shape.key))
            is_last = place == sf.max(place).over(record)
            every = memory[KIND].isin(FactKind.TRUNCATE.value, FactKind.VOID.value)
            stays = live & logged & (every | sf.coalesce(is_last, sf.lit(False)))
    with translate_faults(table.shape.table):
        rows = store.spark.table(store.sql_name(table.shape.table))
        marked = rows.select(FILE, POSITION, (goes & ~sf.coalesce(stays, sf.lit(False))).alias("goes"))
        return positions_of(marked.where("goes"))


def _refuse_future(bounds: Bounds) -> None:
    now = datetime.now(UTC)
    for name, bound in (("settle_before", bounds.settle_before), ("known_from", bounds.known_from)):
        if bound is not None and bound > now:
            raise bad_option(f"`{name}=` is {iso(bound)}, a time after now.", "Give a past time.")


def _bounds_to_move(store: IcebergStore, table: IcebergTable, bounds: Bounds) -> Bounds:
    """The bounds that move forward, with None for the others. Without memory, nothing can be settled."""
    settled, known_from = table.properties.get(SETTLED), table.properties.get(KNOWN_FROM)
    before, since = bounds.settle_before, bounds.known_from
    after = table.properties.get(SETTLE_AFTER)
    if before is None and after and settled is not None:
        newest = _newest_instant(store, table)
        before = newest - timedelta(milliseconds=milliseconds_of(after)) if newest else None
    if settled is None:
        before = None
    elif before is not None:
        ends = json.loads(settled)
        interval = (ends[0] and parse_instant(ends[0]), parse_instant(ends[1])) if ends else None
        before = _after_settled(before, interval)
    if since is not None and known_from is not None and parse_instant(known_from) >= since:
        since = None
    return Bounds(before, since)


def _after_settled(before: datetime, interval: tuple[datetime | None, datetime] | None) -> datetime | None:
    """The new end of the settled interval, which never shrinks and has no gap, or None if the end stays."""
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


def _newest_instant(store: IcebergStore, table: IcebergTable) -> datetime | None:
    with translate_faults(table.shape.table):
        rows = store.spark.table(store.sql_name(table.shape.table))
        (row,) = rows.agg(sf.max(sf.unix_micros(sf.greatest(column(VALID_FROM), column(VALID_TO))))).collect()
    return None if row[0] is None else EPOCH + timedelta(microseconds=row[0])


def memory_share(store: IcebergStore, table: IcebergTable) -> tuple[float, str | None]:
    """The share of memory rows and, if the share is above a fifth, a proposed time up to which to settle."""
    role = column(MEMORY)[ROLE]
    fact = sf.when(role == Role.FACT.value, sf.unix_micros(VALID_FROM))
    with translate_faults(table.shape.table):
        rows = store.spark.table(store.sql_name(table.shape.table))
        facts = sf.avg(role.isNotNull().cast("int")), sf.percentile_approx(fact, 0.8)
        share, until = rows.agg(*facts).collect()[0]
    if share is None or share <= SHARE or until is None:
        return share or 0.0, None
    return share, iso(min(EPOCH + timedelta(microseconds=until), datetime.now(UTC)))


# Returns the tokens of commits that must be kept because no log records them.
Needed = Callable[[IcebergStore, IcebergTable], Collection[str]]


@dataclass(frozen=True, slots=True, repr=False)
class Maintained(Receipt):
    """The result of maintaining a table, or its plan in a dry run.

    `files` and `files_after` count data files, and `bytes_rewritten` is the size of the rewritten files.
    `cursors_dropped` are cursors that were too old. `left` are unused files outside of the table's folder,
    which are not deleted. `rows_settled` counts rows of memory that were settled or pruned. `memory_share` is
    the share of rows that are memory. If the share is more than a fifth, `propose_settle_before` is a time up
    to which to settle. A failed receipt has only the table and the error.
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
    store: IcebergStore, name: TableName, bounds: Bounds, needed: Needed, *, dry_run: bool = False
) -> Maintained:
    """Settle up to the bounds, compact, and expire unneeded commits. Each step makes at most one commit.

    Raises UsageError if the bounds are for a table without versions. Raises TryAgain if another writer
    committed first at every attempt, or while a load is between its two commits.
    """
    if not store.has_java:
        raise needs_java("Maintenance", f"maintain {name}")
    table = existing(store, name)
    native = table.shape.layout is Layout.VERSIONS
    if bounds != Bounds() and not native:
        layout = table.shape.layout
        raise UsageError("no-memory", f"{name} keeps no memory: its layout is {layout}.", "Omit the time.")
    refuse_loading(store, table)
    done = Maintained(str(name), table.shape.layout.value)
    if native:
        done = replace(done, rows_settled=settle(store, name, bounds, dry_run=dry_run))
        share, propose = memory_share(store, existing(store, name))
        done = replace(done, memory_share=round(share, 4), propose_settle_before=propose)
    compaction = compact(store, name, carried_properties, dry_run=dry_run)
    done = replace(
        done, files=compaction.files, files_after=compaction.files_after, bytes_rewritten=compaction.bytes
    )
    stored = existing(store, name)
    expiry = plan_expiry(stored, needed(store, stored))
    if expiry is None:
        return done
    done = replace(done, snapshots_expired=expiry.snapshots, cursors_dropped=list(expiry.cursors))
    if dry_run:
        return done
    expired = _expire(store, name, needed)
    return replace(done, snapshots_expired=expired.snapshots, left=list(expired.left))


def run_for_each(
    names: Sequence[TableName], act: Callable[[TableName], Maintained], *, every: bool
) -> list[Maintained]:
    """Run `act` for each table.

    An error becomes the receipt of its table and does not stop `act` for other tables.
    """
    return [
        Maintained(str(name), "", status="failed", error=result)
        if isinstance(result, BackstoryError)
        else result
        for name, result in attempt_each(names, act, every=every).items()
    ]


def _expire(store: IcebergStore, name: TableName, needed: Needed) -> Expired:
    """Expire unneeded commits. The log of a dataset is written first, because it keeps the chain."""
    table = existing(store, name)
    if table.shape.layout is Layout.ODF:
        bring_up_to_date(store, table)
    return expire(store, name, lambda table: plan_expiry(table, needed(store, table)))


def refuse_loading(store: IcebergStore, table: IcebergTable) -> None:
    """Raise TryAgain if a load of the table, or of the history of a base, is between its two commits."""
    name = table.shape.table
    of_history = TableName(name.schema, name.name + HIST_SUFFIX)
    history = load(store, of_history if table.shape.layout is Layout.BASE else name)
    if history and history.properties.get(LOADING):
        raise TryAgain(
            "CONCURRENT_RUN",
            f"A run is loading {name}, or was interrupted.",
            "Wait until it ends, or run the load again, which restores the base first.",
        )
