"""Settle what a table of versions remembers up to a time, and prune what it knew (V33, V34, V90)."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from backstory.engine.deliver import TableChange, deliver
from backstory.model.change import Change, Note
from backstory.model.instant import iso, milliseconds_of, parse_instant
from backstory.model.layout import MEMORY, VALID_FROM, VALID_TO
from backstory.model.places import FILE, POSITION
from backstory.model.remembered import (
    ENDED_AT,
    KIND,
    KNOWN_FROM,
    LOG,
    OWN_TIME,
    ROLE,
    SEQUENCE,
    SETTLE_AFTER,
    SETTLED,
    Role,
    Told,
)
from backstory.model.table import TableName
from backstory.stores.iceberg.conditions import delete_where
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, instant, micros_of
from backstory.stores.iceberg.positions import positions_of
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.upkeep.carried import carried

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
class RememberedShare:
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
        gone = [each for each in (_facts(moving.settle_before), _past(moving.known_from)) if each is not None]
        if not gone:
            return table, None
        condition = gone[0] if len(gone) == 1 else gone[0] | gone[1]
        if moving.settle_before is not None and LOG in table.properties:
            change = _without_places(store, table, condition, moving.settle_before) or Change(snapshot=True)
        else:
            change = delete_where(store, table, condition) or Change(snapshot=True)
        removed[0] = change.counts.get("deleted", 0)
        return table, Change(
            {"settled": removed[0]}, change.gone, properties=_properties(moving), snapshot=change.snapshot
        )

    properties = {
        name: value for name, value in carried(existing(store, name), {}).items() if name not in _NOTED
    }
    note = Note("native", carried(existing(store, name), {})["backstory.token"], properties)
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


def _facts(before: datetime | None) -> "Column | None":
    if before is None:
        return None
    return (column(MEMORY)[ROLE] == Role.FACT.value) & (column(VALID_FROM) <= instant(micros_of(before)))


def _without_places(store: Store, table: StoredTable, condition: "Column", before: datetime) -> Change | None:
    """The rows go, but for the last settled place of each record in its log, and for truncates (V135).

    A record has its own instant of each truncate. None if there are none.
    """
    from pyspark.sql import Window
    from pyspark.sql.functions import coalesce, lit, when
    from pyspark.sql.functions import max as last

    memory, early = column(MEMORY), column(VALID_FROM) <= instant(micros_of(before))
    live = memory[ENDED_AT].isNull() & (memory[ROLE] == Role.FACT.value)
    logged = memory[OWN_TIME].isNotNull()
    event = memory[KIND].isin(Told.UPSERT.value, Told.DELETE.value) & (live | memory[ROLE].isNull())
    place = when(event & logged & early, memory[SEQUENCE])
    with translate_faults(table.shape.table):
        rows = store.spark.table(store.sql_name(table.shape.table))
        record = Window.partitionBy(*(column(name) for name in table.shape.key))
        is_last = place == last(place).over(record)
        every = memory[KIND].isin(Told.TRUNCATE.value, Told.VOID.value)
        stays = live & logged & (every | coalesce(is_last, lit(False)))
        marked = rows.select(FILE, POSITION, (condition & ~coalesce(stays, lit(False))).alias("goes"))
        positions = positions_of(marked.where("goes"))
    if not positions:
        return None
    return Change({"deleted": sum(len(bitmap) for bitmap in positions.values())}, gone=positions)


def _past(since: datetime | None) -> "Column | None":
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


def remembered(store: Store, table: StoredTable) -> RememberedShare:
    """What part of a table of versions is memory; beyond a fifth, a time up to which to settle."""
    from pyspark.sql.functions import avg, percentile_approx, unix_micros, when

    role = column(MEMORY)[ROLE]
    fact = when(role == Role.FACT.value, unix_micros(VALID_FROM))
    with translate_faults(table.shape.table):
        rows = store.spark.table(store.sql_name(table.shape.table))
        share, until = rows.agg(avg(role.isNotNull().cast("int")), percentile_approx(fact, 0.8)).collect()[0]
    if share is None or share <= SHARE or until is None:
        return RememberedShare(share or 0.0, None)
    return RememberedShare(share, iso(datetime.fromtimestamp(0, UTC) + timedelta(microseconds=until)))
