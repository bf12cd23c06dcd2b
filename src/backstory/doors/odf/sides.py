"""A batch and the log of its dataset, as the sides of a plan. Local files are read without Spark."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_type

from backstory.doors.odf.batch import NULLS, UNREADABLE, UNREADABLE_TIME, DeliveredSide, side_tables
from backstory.doors.odf.log_columns import LogColumns
from backstory.doors.odf.log_frames import side_frame
from backstory.doors.odf.manifest.merge import OBSERVED
from backstory.doors.odf.registry import RegisteredDataset
from backstory.engine.plans import PlanResult, PlanTerms
from backstory.engine.runner import run_plan
from backstory.engine.sides import LocalSide, Side, SideRows, empty_side
from backstory.engine.sift import ComparedSide, RowCounts, SiftTerms
from backstory.engine.staging import StagedRows
from backstory.formats.memory import MemoryLease, TooLarge, unpacked_size
from backstory.formats.rows import arrow_type
from backstory.spark.versions import persist_on_disk
from backstory.stores.iceberg.slice import LocalRows, searchable_columns
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.strategies.events.numbering import close_gaps, struct_field
from backstory.strategies.events.plan import EVENTS, events_schema, plan_events
from backstory.strategies.events.sides import OP, PLACE, ROW, TIME, data_names, parted_by
from backstory.strategies.events.terms import LETTERS, EventEncoding, EventTerms, Moment, Op, Strategy
from backstory.strategies.part_plan import PartPlan, Whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField


DELIVERED, LOGGED = "delivered", "logged"


def logged_tables(
    store: IcebergStore,
    table: IcebergTable,
    columns: LogColumns,
    schema: pa.Schema,
    keys: pa.Table | None,
    lease: MemoryLease,
) -> Iterator[pa.Table]:
    """The log as tables of a side with this schema.

    With `keys`, they mostly have rows of these keys. Raises Unreadable for files that cannot be read exactly
    without Spark.
    """
    vocab, data = columns.vocab, data_names(schema)
    op_columns_by_encoding = {
        EventEncoding.OP: [vocab.operation_type_column],
        EventEncoding.OBSERVED: [OBSERVED],
    }
    op_columns = op_columns_by_encoding[columns.encoding] if columns.encoding else []
    names = [vocab.offset_column, columns.time, *op_columns, *data]
    local_rows = LocalRows(store, table, lease)
    for rows in local_rows.batches(names, values=_values_of_keys(table, keys)):
        system = {
            OP: _ops(columns, rows, op_columns),
            TIME: rows[columns.time],
            PLACE: rows[vocab.offset_column],
        }
        values = [system[name] if name in system else rows[name] for name in schema.names]
        yield pa.table(values, names=schema.names).cast(schema)


def _values_of_keys(table: IcebergTable, keys: pa.Table | None) -> dict[str, pa.Array]:
    """The distinct values of each key column that has the same type in the table."""
    types = {column.name: arrow_type(column.type) for column in table.shape.columns}
    keys = pa.table({}) if keys is None else keys
    return {name: pc.unique(keys[name]) for name in keys.column_names if types.get(name) == keys[name].type}


def _ops(columns: LogColumns, rows: pa.Table, op_columns: list[str]) -> pa.ChunkedArray:
    """The operation of each event, as a number."""
    if not op_columns:
        return pa.chunked_array([np.zeros(len(rows), np.int32)])
    ops = rows[op_columns[0]]
    if columns.encoding is EventEncoding.OP:
        return ops
    numbers = pa.array([int(op) for op in LETTERS], pa.int32())
    return numbers.take(pc.index_in(ops, value_set=pa.array(list(LETTERS.values()))))


@dataclass(frozen=True, slots=True)
class LogMerge:
    """A batch to merge into the log of its dataset.

    `read` are the rows as they were read, before conversion. `resources` is the stack with the delivery's
    resources.
    """

    store: IcebergStore
    dataset: RegisteredDataset
    read: StagedRows | None
    delivered: DeliveredSide
    terms: EventTerms
    moment: Moment
    resources: ExitStack = field(compare=False)

    @contextmanager
    def open_plan(self) -> Iterator[PlanResult]:
        """Plan the events that the batch adds to the log. The result must be read within the context."""
        terms, sides = self.terms, {DELIVERED: self._delivered_side()}
        if (stored := self._stored_count) and self.dataset.table is not None:
            sides[LOGGED] = self._logged_side(stored)
        plan = partial(plan_part, terms, self.moment, tuple(self.delivered.required))
        key = parted_by(terms) if terms.looks_back else ()
        kinds = {EVENTS: events_schema(self.schema)}
        sift = self._sift() if LOGGED in sides else None
        with run_plan(
            PlanTerms(self.store, self.dataset.name, sides, key, kinds, plan, sift=sift)
        ) as planned:
            yield planned

    def _sift(self) -> SiftTerms | None:
        """The columns for comparing a snapshot's record with the sum of its events in the log.

        Returns None if corrections have no event for the former row.
        """
        terms, timed = self.terms, self.delivered.timed
        if terms.strategy is not Strategy.SNAPSHOT or not terms.pairs or (terms.time_in_key and not timed):
            return None
        compare = [name for name in data_names(self.schema) if terms.compare is None or name in terms.compare]
        times = [TIME] if terms.time_in_key or (terms.compare_time and timed) else []
        columns = [*compare, *times]
        required = [*self.delivered.required, *([TIME] if timed else [])]
        logged = ComparedSide(LOGGED, columns, (), takes_back=(OP, (Op.RETRACT, Op.CORRECT_FROM)))
        return SiftTerms([(ComparedSide(DELIVERED, columns, required), logged)], _count_unchanged)

    @property
    def schema(self) -> pa.Schema:
        """The columns of both sides."""
        time = pa.date32() if self.delivered.dated else pa.timestamp("us", "UTC")
        data = [(field.name, to_arrow_type(field.dataType)) for field in self.delivered.data]
        return pa.schema([(OP, pa.int32()), (TIME, time), (PLACE, pa.int64()), *data])

    @property
    def _stored_count(self) -> int:
        """The number of events in the log that are compared."""
        looks_back = self.terms.looks_back and self.moment.start
        return self.dataset.table.rows if self.dataset.table and looks_back else 0

    def _delivered_side(self) -> Side:
        read = self.read
        size = None if read is None or not self.delivered.placed else read.size
        return Side(self.schema, self._delivered_frame, self._delivered_here, size)

    def _delivered_frame(self) -> "DataFrame":
        rows = self.delivered.rows
        if self.terms.strategy is Strategy.CHANGELOG and not self.delivered.placed:
            rows = persist_on_disk(rows)
            self.resources.callback(rows.unpersist)
            rows = close_gaps(rows, PLACE)  # the halves of a correction need adjacent places
        return flatten_data(rows, self.delivered.data)

    def _delivered_here(self, _lease: MemoryLease, _met: LocalSide | None) -> LocalSide | None:
        """The delivered rows as they were read, or None if Spark must convert them."""
        read, taken = self.read, self.delivered.taken
        if read is None or read.tables is None or taken is None:
            return None

        def columns(names: Sequence[str]) -> SideRows:
            schema = pa.schema([field for field in self.schema if field.name in names])
            return SideRows(schema, partial(side_tables, read, taken, schema))

        return LocalSide(columns(self.schema.names), columns=columns)

    @property
    def _key_names(self) -> set[str]:
        return {*self.terms.key, *([TIME] if self.terms.time_in_key else [])}

    def _logged_side(self, stored: int) -> Side:
        table, schema = self.dataset.table, self.schema
        assert table is not None
        meets = None if self.terms.strategy is Strategy.SNAPSHOT else DELIVERED
        size = unpacked_size(stored, len(schema), table.bytes)
        return Side(schema, self._log_frame, self._log_here, size, stored, meets)

    def _log_frame(self) -> "DataFrame":
        rows = self.store.spark.table(self.store.sql_name(self.dataset.name))
        names = [field.name for field in self.delivered.data]
        return flatten_data(side_frame(self.dataset.columns, rows, names), self.delivered.data)

    def _log_here(self, lease: MemoryLease, met: LocalSide | None) -> LocalSide | None:
        """The events with keys of the delivery, or all events if the keys exceed the memory."""
        table, columns = self.dataset.table, self.dataset.columns
        assert table is not None
        keys = None if met is None else self._keys(met, lease)
        if keys is not None and not len(keys):
            return empty_side(self.schema)
        keys = None if keys is None else self._searchable(keys)

        def columns_of_log(names: Sequence[str]) -> SideRows:
            schema = pa.schema([field for field in self.schema if field.name in names])
            return SideRows(schema, partial(logged_tables, self.store, table, columns, schema, keys, lease))

        return LocalSide(columns_of_log(self.schema.names), columns=columns_of_log)

    def _keys(self, met: LocalSide, lease: MemoryLease) -> pa.Table | None:
        """The keys of all delivered rows, or None if they exceed the memory."""
        names = [name for name in met.rows.schema.names if name in self._key_names]
        rows = met.rows if met.columns is None else met.columns(names)
        keys = rows.schema.empty_table().select(names)
        try:
            for rows_of_part in rows.tables():
                keys = pa.concat_tables([keys, rows_of_part.select(names)])
                lease.hold("keys", keys.nbytes)
        except TooLarge:
            lease.hold("keys", 0)
            return None
        return keys

    def _searchable(self, keys: pa.Table) -> pa.Table:
        """The keys under the table's column names, with only the columns by which the log can be searched."""
        if TIME in keys.column_names and keys[TIME].null_count:  # a row without a time matches any time
            keys = keys.drop_columns([TIME])
        keys = searchable_columns(keys)
        names = [self.dataset.columns.time if name == TIME else name for name in keys.column_names]
        return keys.rename_columns(names)


def _count_unchanged(rows: Mapping[str, RowCounts]) -> dict[str, int]:
    """The counts of a plan in which all rows are unchanged."""
    return {"unchanged": rows[DELIVERED].rows}


def plan_part(
    terms: EventTerms,
    moment: Moment,
    required: Sequence[str],
    sides: Mapping[str, pa.Table],
    _whole: Whole,
) -> PartPlan:
    """The events of a part.

    If a required value is NULL or an event time is unreadable, the plan has only counts.
    """
    delivered = sides[DELIVERED]
    failed = {f"{NULLS}{name}": delivered[name].null_count for name in required}
    failed[UNREADABLE_TIME] = pc.sum(pc.equal(delivered[OP], UNREADABLE)).as_py() or 0
    if any(failed.values()):
        return PartPlan(counts=failed)
    return plan_events(sides.get(LOGGED), delivered, terms, moment)


def flatten_data(rows: "DataFrame", fields: "Sequence[StructField]") -> "DataFrame":
    """The rows of a side in Spark, with the data columns named by position (`c0`, `c1`)."""
    data = [
        struct_field(ROW, field.name).cast(field.dataType).alias(f"c{n}") for n, field in enumerate(fields)
    ]
    return rows.select(sf.col(OP).cast("int").alias(OP), TIME, sf.col(PLACE).cast("long").alias(PLACE), *data)


def nest_data(events: "DataFrame", fields: "Sequence[StructField]") -> "DataFrame":
    """Planned events in Spark, with the data columns in the struct `ROW`."""
    system = events.columns[: len(events.columns) - len(fields)]
    flattened = events.toDF(*system, *(f"c{n}" for n in range(len(fields))))
    row: Any = sf.struct(*(sf.col(f"c{n}").alias(field.name) for n, field in enumerate(fields)))
    return flattened.select(*system, row.alias(ROW))
