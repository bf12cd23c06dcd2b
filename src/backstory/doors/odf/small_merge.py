"""A delivery that the driver can hold: read with its slice of the log in a query or two, planned as Arrow."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.odf.batch import DeliveredSide
from backstory.doors.odf.registry import Registered
from backstory.engine.staging import FEW_ROWS
from backstory.formats.memory import TooLarge, unpacked_size
from backstory.stores.iceberg.slice import of_keys
from backstory.stores.iceberg.store import Store
from backstory.strategies.events.arrow.plan import merge_tables
from backstory.strategies.events.arrow.sides import side_of
from backstory.strategies.events.columns import DELIVERED, LOGGED, PLACE, ROW, SOURCE, TIME
from backstory.strategies.events.happened import Happened
from backstory.strategies.events.plan import is_nested
from backstory.strategies.events.terms import EventTerms, Moment, Strategy
from backstory.strategies.observed import observed_by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A longer log is asked for the delivered keys.
SHORT: Final = 20_000
# Of the delivered keys it has no more events than these, or Spark's tasks merge.
MANY: Final = 200_000
# What else keys are made of is not asked for: NaN, for one, is in no range.
ASKED: Final = (
    *(pa.types.is_integer, pa.types.is_decimal, pa.types.is_string),
    *(pa.types.is_date, pa.types.is_timestamp),
)


@dataclass(frozen=True, slots=True)
class SmallMerge:
    """A batch, the dataset that it meets, and how they meet."""

    store: Store
    dataset: Registered
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
    events than the driver can hold.
    """
    lease = held.enter_context(merging.store.memory.lease())
    try:
        lease.hold(str(merging.dataset.name), _size(merging))
        return _merged(merging)
    except TooLarge:
        return None


def _size(merging: SmallMerge) -> int:
    """What the rows may take; of a long log only those of the delivered keys."""
    table, columns = merging.dataset.table, len(merging.arrived.data) + len(merging.dataset.columns.system)
    delivered = unpacked_size(FEW_ROWS, columns, 0)
    if table is None or not merging.terms.looks_back or _is_keyed(merging):
        return delivered
    return delivered + unpacked_size(merging.stored, columns, table.bytes)


def _is_keyed(merging: SmallMerge) -> bool:
    """Whether the log is so long that it is asked for the delivered keys; a snapshot is about all records."""
    return merging.stored > SHORT and merging.terms.strategy is not Strategy.SNAPSHOT


def _merged(merging: SmallMerge) -> Happened | None:
    arrived, terms = merging.arrived, merging.terms
    if not arrived.data or any(is_nested(each.dataType) for each in arrived.data):
        return None
    logged = None if _is_keyed(merging) or not terms.looks_back else merging.logged()
    frame = _one_query(arrived, logged)
    rows = frame.toArrow()
    delivered = _of_side(rows, DELIVERED)
    if len(delivered) > FEW_ROWS:
        return None
    events = None if logged is None else _of_side(rows, LOGGED)
    if _is_keyed(merging) and terms.looks_back and len(delivered):
        events = _events_of_keys(merging, delivered)
        if events is None:
            return None
    if not arrived.placed:
        # A correction's two halves stand right beside each other.
        places = pa.array(np.argsort(np.argsort(delivered[PLACE])), pa.int64())
        delivered = delivered.set_column(delivered.column_names.index(PLACE), PLACE, places)
    logged_side = None if events is None else side_of(events)
    happened = merge_tables(logged_side, side_of(delivered), terms, merging.moment)
    return replace(happened, seen=observed_by(frame)) if arrived.seen else happened


def _one_query(arrived: DeliveredSide, logged: "DataFrame | None") -> "DataFrame":
    """The delivered rows, and with them those of the log; a query may make many rows of few."""
    from pyspark.sql.functions import lit

    rows = arrived.rows if arrived.placed else arrived.rows.limit(FEW_ROWS + 1)
    rows = rows.select("*", lit(DELIVERED).alias(SOURCE))
    return rows if logged is None else rows.unionAll(logged.select("*", lit(LOGGED).alias(SOURCE)))


def _of_side(rows: pa.Table, side: int) -> pa.Table:
    return rows.filter(pc.equal(rows[SOURCE], side)).drop_columns([SOURCE])


def _events_of_keys(merging: SmallMerge, delivered: pa.Table) -> pa.Table | None:
    """The log's events of the delivered keys; None if they are many, or cannot be asked for."""
    keys = _keys(merging, delivered)
    logged = merging.logged(keys) if keys.num_columns else None
    if logged is None:
        return None
    found = logged.limit(MANY + 1).toArrow()
    return None if len(found) > MANY else found


def _keys(merging: SmallMerge, delivered: pa.Table) -> pa.Table:
    """The delivered keys by the table's names of their columns, as far as a log is asked for them."""
    terms, struct = merging.terms, delivered[ROW].combine_chunks()
    keys = {name: struct.field(struct.type.get_field_index(name)) for name in terms.key}
    if terms.time_in_key and not delivered[TIME].null_count:
        keys[merging.dataset.columns.time] = delivered[TIME]
    return pa.table({name: each for name, each in keys.items() if any(told(each.type) for told in ASKED)})
