"""A delivery that the driver can hold, and what it meets of the log: read here, and planned as Arrow."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from backstory.doors.odf.batch import DeliveredSide
from backstory.doors.odf.batch_here import side_of_batch
from backstory.doors.odf.logged_rows import logged_rows
from backstory.doors.odf.registry import Registered
from backstory.engine.staging import FEW_ROWS, StagedRows
from backstory.formats.memory import MemoryLease, TooLarge, unpacked_size
from backstory.stores.iceberg.slice import of_keys
from backstory.stores.iceberg.store import Store
from backstory.stores.metadata.hidden import Unreadable
from backstory.strategies.events.arrow.plan import merge_tables
from backstory.strategies.events.arrow.sides import ArrowSide, side_of
from backstory.strategies.events.columns import PLACE
from backstory.strategies.events.happened import Happened
from backstory.strategies.events.plan import is_nested
from backstory.strategies.events.terms import EventTerms, Moment, Strategy
from backstory.strategies.observed import observed_by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Spark is asked for the delivered keys of a longer log.
SHORT: Final = 20_000
# Of the delivered keys it has no more events than these, or Spark's tasks merge.
MANY: Final = 200_000
# One array of texts has room for 2 GiB.
LONGEST: Final = (1 << 31) - 1
# What else keys are made of is not asked for: NaN, for one, is in no range.
ASKED: Final = (
    *(pa.types.is_integer, pa.types.is_decimal, pa.types.is_string),
    *(pa.types.is_date, pa.types.is_timestamp),
)
Counts = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class SmallMerge:
    """A batch as it was read and as the dataset has it, the dataset that it meets, and how they meet."""

    store: Store
    dataset: Registered
    read: StagedRows | None
    arrived: DeliveredSide
    terms: EventTerms
    moment: Moment

    @property
    def stored(self) -> int:
        """How many events the log has."""
        return self.dataset.table.rows if self.dataset.table and self.moment.start else 0

    def logged(self, keys: pa.Table | None = None) -> "DataFrame | None":
        """The log as a side of the plan, only the events of these keys if there are any; None for no log."""
        if not self.moment.start:
            return None
        rows = self.store.spark.table(self.store.sql_name(self.dataset.name))
        rows = rows if keys is None else of_keys(self.store, rows, keys)
        return self.dataset.columns.logged(rows, [field.name for field in self.arrived.data])


def merge_small(merging: SmallMerge, held: ExitStack) -> Happened | None:
    """What the batch adds to the log; None for what Spark's tasks must find.

    That are values with parts, rows that have nothing but a time, more rows than a query promised, and more
    of both than the driver can hold.
    """
    arrived = merging.arrived
    if not arrived.data or any(is_nested(each.dataType) for each in arrived.data):
        return None
    lease = held.enter_context(merging.store.memory.lease())
    try:
        delivered, seen = _delivered_here(merging, lease) or _delivered_by_spark(merging, lease)
        logged = _logged(merging, delivered, lease)
    except TooLarge:
        return None
    if any(_longest(name, delivered, logged) > LONGEST for name in delivered.data.column_names):
        return None
    happened = merge_tables(logged, delivered, merging.terms, merging.moment)
    return replace(happened, seen=seen) if arrived.seen else happened


def _longest(name: str, *sides: ArrowSide | None) -> int:
    """The bytes of a column on both sides."""
    return sum(side.data[name].nbytes for side in sides if side is not None)


def _delivered_here(merging: SmallMerge, lease: MemoryLease) -> tuple[ArrowSide, Counts] | None:
    """The delivered rows as they were read; None where Spark makes something of them."""
    read, arrived = merging.read, merging.arrived
    if read is None or read.here is None or arrived.taken is None:
        return None
    try:
        found = side_of_batch(read.here(lease), arrived.taken)
    except (OSError, pa.ArrowException):  # a file that is spoilt: Spark tells of it
        return None
    return None if found is None else (found[0], {arrived.seen: found[1]})


def _delivered_by_spark(merging: SmallMerge, lease: MemoryLease) -> tuple[ArrowSide, Counts]:
    """The delivered rows in one query; TooLarge if they are too many, as a query may make of few."""
    read, arrived = merging.read, merging.arrived
    if read is None or not (read.size if arrived.placed else read.few):
        raise TooLarge
    size = read.size or 0 if arrived.placed else unpacked_size(FEW_ROWS, len(arrived.data), 0)
    lease.hold("batch", size)
    frame = arrived.rows if arrived.placed else arrived.rows.limit(FEW_ROWS + 1)
    rows = frame.toArrow()
    if not arrived.placed and len(rows) > FEW_ROWS:
        raise TooLarge
    side = side_of(rows)
    # A correction's two halves stand right beside each other.
    places = pa.chunked_array([np.argsort(np.argsort(rows[PLACE]))])
    return replace(side, places=places), observed_by(frame) if arrived.seen else {}


def _logged(merging: SmallMerge, delivered: ArrowSide, lease: MemoryLease) -> ArrowSide | None:
    """What the delivery meets of the log; None for nothing. TooLarge if that is more than can be held."""
    terms, table = merging.terms, merging.dataset.table
    whole = terms.strategy is Strategy.SNAPSHOT
    if table is None or not terms.looks_back or not merging.stored:
        return None
    if not (whole or len(delivered.data)):
        return None
    keys = None if whole else _keys(merging, delivered)
    try:
        return logged_rows(merging.store, table, merging.dataset.columns, delivered.data.schema, keys, lease)
    except Unreadable:
        return side_of(_logged_by_spark(merging, keys, lease))


def _logged_by_spark(merging: SmallMerge, keys: pa.Table | None, lease: MemoryLease) -> pa.Table:
    table, columns = merging.dataset.table, len(merging.arrived.data) + len(merging.dataset.columns.system)
    assert table is not None
    if keys is None or merging.stored <= SHORT:
        lease.hold("log", unpacked_size(merging.stored, columns, table.bytes))
        rows = merging.logged()
        assert rows is not None
        return rows.toArrow()
    logged = merging.logged(keys) if keys.num_columns else None
    if logged is None:
        raise TooLarge
    lease.hold("log", unpacked_size(MANY, columns, 0))
    found = logged.limit(MANY + 1).toArrow()
    if len(found) > MANY:
        raise TooLarge
    return found


def _keys(merging: SmallMerge, delivered: ArrowSide) -> pa.Table:
    """The delivered keys by the table's names of their columns, as far as a log is asked for them."""
    terms = merging.terms
    keys = {name: delivered.data[name] for name in terms.key}
    if terms.time_in_key and not delivered.times.null_count:
        keys[merging.dataset.columns.time] = delivered.times
    return pa.table({name: each for name, each in keys.items() if any(told(each.type) for told in ASKED)})
