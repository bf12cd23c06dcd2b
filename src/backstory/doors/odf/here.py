"""A merge planned by the driver: together, or in parts by key where it is large."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa

from backstory.doors.odf.delivered_rows import side_tables
from backstory.doors.odf.logged_rows import logged_tables
from backstory.doors.odf.sides import MergeSides
from backstory.doors.odf.spark_rows import collect_delivery, collect_log
from backstory.engine.held_rows import HeldRows
from backstory.engine.parts import Rows, parts_by_key
from backstory.engine.staging import is_local
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.stores.metadata.hidden import Unreadable
from backstory.strategies.events.happened import Happened, sum_parts
from backstory.strategies.events.plan import plan_events
from backstory.strategies.events.sides import TIME, parted_by

DELIVERED, LOGGED = "delivered", "logged"
# One array of texts has room for 2 GiB.
LONGEST: Final = (1 << 31) - 1
# What else keys are made of is not asked for: NaN, for one, is in no range.
ASKED: Final = (
    *(pa.types.is_integer, pa.types.is_decimal, pa.types.is_string),
    *(pa.types.is_date, pa.types.is_timestamp),
)


@dataclass(frozen=True, slots=True)
class DeliveredRows:
    """Delivered rows; `columns` gives some of their columns alone.

    `observed` is what was counted of them when they were read last.
    """

    rows: Rows
    columns: Callable[[pa.Schema], Iterable[pa.Table]]
    observed: Counter[str] = field(default_factory=Counter)


def plan_here(sides: MergeSides, kept: ExitStack) -> Happened | None:
    """What the batch adds to the log; None where it is not read exactly here, TooLarge where it is too much.

    What is held or spilled goes with `kept`.
    """
    for here in ({DELIVERED, LOGGED}, {DELIVERED}, set[str]()):
        with ExitStack() as own:
            lease = own.enter_context(sides.store.memory.lease())
            try:
                happened = _planned(sides, lease, own, here)
            except Unreadable:
                continue
            kept.push(own.pop_all())
            return happened
    return None


def _planned(sides: MergeSides, lease: MemoryLease, kept: ExitStack, here: Collection[str]) -> Happened:
    """The plan, for which the sides that are not read `here` are read by Spark."""
    delivered = (_delivered_here(sides) if DELIVERED in here else None) or _delivered_by_spark(sides, lease)
    logged = _logged(sides, delivered, lease, here=LOGGED in here)
    with suppress(TooLarge):
        return _in_parts(sides, delivered, logged, lease, kept, spread=False)
    if not is_local(sides.store):
        raise TooLarge
    return _in_parts(sides, delivered, logged, lease, kept, spread=True)


def _in_parts(
    sides: MergeSides,
    delivered: DeliveredRows,
    logged: Rows,
    lease: MemoryLease,
    kept: ExitStack,
    *,
    spread: bool,
) -> Happened:
    events = HeldRows("events", lease, kept)
    sums, samples = [], []
    parts: Iterable[Mapping[str, pa.Table]]
    if sides.terms.looks_back:
        both = {DELIVERED: delivered.rows, LOGGED: logged}
        spills = is_local(sides.store)
        parts = parts_by_key(both, parted_by(sides.terms), lease, spills=spills, spread=spread)
    else:
        parts = ({DELIVERED: rows} for rows in delivered.rows.tables())
    for part in parts:
        _require_room(part)
        plan = plan_events(part.get(LOGGED), part[DELIVERED], sides.terms, sides.moment)
        sums.append((plan.seen, plan.counts))
        samples.append(plan.samples)
        events.add(plan.events)
        if events.spilled and not is_local(sides.store):
            raise TooLarge
    few = pa.concat_tables(samples) if samples else delivered.rows.schema.empty_table()
    return sum_parts(events, sums, few, sides.terms, delivered.observed)


def _require_room(part: Mapping[str, pa.Table]) -> None:
    """Raises TooLarge where a column of both sides is longer than an array can be."""
    for name in part[DELIVERED].column_names:
        if sum(rows[name].nbytes for rows in part.values()) > LONGEST:
            raise TooLarge


def _delivered_here(sides: MergeSides) -> DeliveredRows | None:
    """The delivered rows as they were read; None where Spark makes something of them."""
    read, taken, observed = sides.read, sides.arrived.taken, Counter[str]()
    if read is None or read.tables is None or taken is None:
        return None

    def columns(schema: pa.Schema) -> Iterator[pa.Table]:
        return side_tables(read, taken, schema, observed)

    return DeliveredRows(Rows(sides.schema, partial(columns, sides.schema)), columns, observed)


def _delivered_by_spark(sides: MergeSides, lease: MemoryLease) -> DeliveredRows:
    rows, observed = collect_delivery(sides, lease)
    return DeliveredRows(
        Rows(rows.schema, lambda: [rows]), lambda schema: [rows.select(schema.names)], observed
    )


def _logged(sides: MergeSides, delivered: DeliveredRows, lease: MemoryLease, *, here: bool) -> Rows:
    """What the delivery meets of the log; it is read when its first row is asked for."""
    table, nothing = sides.dataset.table, Rows(sides.schema, lambda: ())
    if table is None or not sides.stored:
        return nothing
    keys = None if sides.whole else _keys(sides, delivered, lease)
    if keys is not None and not len(keys):
        return nothing
    if keys is not None:
        keys = _searchable_keys(sides, keys)
    if not here:
        rows = collect_log(sides, keys, lease)
        return Rows(rows.schema, lambda: [rows])
    columns = sides.dataset.columns
    return Rows(sides.schema, lambda: logged_tables(sides.store, table, columns, sides.schema, keys, lease))


def _keys(sides: MergeSides, delivered: DeliveredRows, lease: MemoryLease) -> pa.Table | None:
    """The key columns of all delivered rows; None where they are more than can be held."""
    terms = sides.terms
    names = {*terms.key, *([TIME] if terms.time_in_key else [])}
    schema = pa.schema([each for each in sides.schema if each.name in names])
    keys = schema.empty_table()
    try:
        for rows in delivered.columns(schema):
            keys = pa.concat_tables([keys, rows])
            lease.hold("keys", keys.nbytes)
    except TooLarge:
        lease.hold("keys", 0)
        return None
    return keys


def _searchable_keys(sides: MergeSides, keys: pa.Table) -> pa.Table:
    """The keys by the table's names of their columns, as far as a log is asked for them."""
    if TIME in keys.column_names and keys[TIME].null_count:  # a row without a time means one of any time
        keys = keys.drop_columns([TIME])
    keys = keys.select([each.name for each in keys.schema if any(told(each.type) for told in ASKED)])
    names = [sides.dataset.columns.time if name == TIME else name for name in keys.column_names]
    return keys.rename_columns(names)
