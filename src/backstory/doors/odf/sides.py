"""A batch and the log of its dataset, as the sides of a plan and as frames.

Local files are read without Spark. A log has two encodings: `op`, with pairs of operations for corrections,
and `observed`, with letters (section 2.9, O2).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Window
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import DateType, StructType

from backstory.doors.odf.batch import BEYOND, NULLS, UNREADABLE, UNREADABLE_TIME, DeliveredSide, side_tables
from backstory.doors.odf.manifest.events import OBSERVED
from backstory.doors.odf.registry import LogColumns, RegisteredDataset
from backstory.engine.plans import LocalSide, PlanResult, PlanTerms, Side, columnar_side, empty_side
from backstory.engine.runner import run_plan
from backstory.engine.sift import ComparedSide, RowCounts, SiftTerms
from backstory.engine.staging import StagedRows
from backstory.formats.expected import first_unfit
from backstory.formats.memory import MemoryLease, TooLarge, unpacked_size
from backstory.formats.rows import arrow_type
from backstory.spark.versions import persist_on_disk
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.slice import LocalRows, searchable_columns
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.metadata.searches import OneOf
from backstory.strategies.events.plan import EVENTS, events_schema, plan_events
from backstory.strategies.events.sides import OP, PLACE, TIME, data_names, parted_by
from backstory.strategies.events.terms import LETTERS, EventEncoding, EventTerms, Moment, Op, Strategy
from backstory.strategies.frames import close_gaps, side_columns
from backstory.strategies.part_plan import PartPlan, Whole

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType

# In the frames of `encode_log`: the record's previous row. No source has a column with this name.
BEFORE: Final = "backstory before"


def log_schema(columns: LogColumns, data: "Sequence[StructField]", *, dated: bool = False) -> "StructType":
    """All columns of the table with Spark's types."""
    return StructType([*from_arrow_schema(columns.system_schema(dated=dated)), *data])


def stored_frame(
    columns: LogColumns, events: "DataFrame", data: Sequence[str], system_time: "Column"
) -> "DataFrame":
    """Numbered events as rows of the table."""
    values = {
        columns.vocab.offset_column: sf.col("offset"),
        columns.vocab.operation_type_column: sf.col(OP),
        columns.vocab.system_time_column: system_time,
        columns.time: sf.col(TIME),
        OBSERVED: _translate(sf.col(OP), {int(op): letter for op, letter in LETTERS.items()}),
    }
    system = [values[name].alias(name) for name in columns.system]
    return events.select(*system, *(sf.col(f"c{number}").alias(name) for number, name in enumerate(data)))


def _operation(columns: LogColumns) -> "Column":
    if columns.encoding is EventEncoding.OP:
        return sf.col(quote(columns.vocab.operation_type_column))
    if columns.encoding is None:
        return sf.lit(int(Op.APPEND))
    return _translate(sf.col(OBSERVED), {letter: int(op) for op, letter in LETTERS.items()})


def _translate(value: "Column", words: Mapping[Any, Any]) -> "Column":
    """The word for a value, or NULL if the value has no word."""
    cases: Any = sf
    for known, word in words.items():
        cases = cases.when(value == known, word)
    return cast("Column", cases)


def encode_log(
    rows: "DataFrame", columns: LogColumns, key: Sequence[str], encoding: EventEncoding
) -> "DataFrame":
    """The rows of a log in an encoding: its system columns with `op` or `observed`, then the data.

    Offsets are the stored offsets, so both halves of a pair share an offset. A `D` made from a retraction has
    the retraction's commit time, because `observed` has no other time for it. A log without offsets, written
    by older tools, is read in the order of its event times (R88).
    """
    if columns.encoding is encoding:
        return rows
    data = [name for name in rows.columns if name not in columns.system]
    if encoding is EventEncoding.OP:
        return _operations(rows, columns, key, data)
    return _letters(rows, columns, data, timed=columns.time not in key)


def _operations(
    rows: "DataFrame", columns: LogColumns, key: Sequence[str], data: Sequence[str]
) -> "DataFrame":
    """Convert letters to operations.

    `I` becomes `+A`. `U` becomes `-C` of the previous row and `+C`. `D` becomes `-R` of the previous row.
    """
    vocab, op = columns.vocab, _operation(columns)
    system = [name for name in (vocab.offset_column, vocab.system_time_column) if name in rows.columns]
    place = vocab.offset_column if vocab.offset_column in system else columns.time
    names = [columns.time, *data]
    records = Window.partitionBy(*map(quote, key)).orderBy(quote(place))
    before = sf.lag(sf.struct(*map(quote, names))).over(records)
    now, former = [sf.col(quote(name)) for name in names], [sf.col(quote(BEFORE))[name] for name in names]

    def event(op: Op, values: "Sequence[Column]") -> "Column":
        parts = (value.alias(name) for name, value in zip(names, values, strict=True))
        return sf.struct(sf.lit(int(op)).alias(vocab.operation_type_column), *parts)

    pair = sf.array(event(Op.CORRECT_FROM, former), event(Op.CORRECT_TO, now))
    events = sf.when(op == Op.CORRECT_TO, pair).when(op == Op.RETRACT, sf.array(event(Op.RETRACT, former)))
    events = events.otherwise(sf.array(event(Op.APPEND, now)))
    built = rows.withColumn(BEFORE, before).select(*map(quote, system), sf.inline(events))
    order = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column, *names)
    return built.select(*(quote(name) for name in order if name in built.columns))


def _letters(rows: "DataFrame", columns: LogColumns, data: Sequence[str], *, timed: bool) -> "DataFrame":
    """Convert operations to letters.

    `+A` becomes `I`, `+C` becomes `U` and `-R` becomes `D`; `-C` is left out. If `timed`, a `D` has the
    system time as its event time. Otherwise the event time is part of the key and is unchanged.
    """
    vocab = columns.vocab
    op, system = sf.col(quote(vocab.operation_type_column)), sf.col(quote(vocab.system_time_column))
    observed = rows.where(op != Op.CORRECT_FROM)
    letter = sf.when(op == Op.APPEND, LETTERS[Op.APPEND]).when(op == Op.RETRACT, LETTERS[Op.RETRACT])
    time = sf.col(quote(columns.time))
    if isinstance(rows.schema[columns.time].dataType, DateType):  # a cast would use the session's zone
        system = sf.date_from_unix_date(sf.floor(sf.unix_seconds(system) / 86_400).cast("int"))
    event_time = sf.when(op == Op.RETRACT, system).otherwise(time) if timed else time
    return observed.select(
        quote(vocab.offset_column),
        quote(vocab.system_time_column),
        event_time.alias(columns.time),
        letter.otherwise(LETTERS[Op.CORRECT_TO]).alias(OBSERVED),
        *map(quote, data),
    )


DELIVERED, LOGGED = "delivered", "logged"


def logged_tables(
    store: IcebergStore,
    table: IcebergTable,
    columns: LogColumns,
    keys: pa.Table | None,
    lease: MemoryLease,
    schema: pa.Schema,
) -> Iterator[pa.Table]:
    """The log as tables of a side with this schema.

    If `keys` is given, most rows with other keys are skipped. Raises Unreadable for files that cannot be read
    exactly without Spark.
    """
    vocab, data = columns.vocab, data_names(schema)
    op_columns = [name for role in ("op", "observed") if (name := columns.names[role]) is not None]
    names = [vocab.offset_column, columns.time, *op_columns, *data]
    types = {column.name: arrow_type(column.type) for column in table.shape.columns}
    keys = pa.table({}) if keys is None else keys
    same = [name for name in keys.column_names if types.get(name) == keys[name].type]
    searches = {name: OneOf(pc.unique(keys[name])) for name in same}
    for rows in LocalRows(store, table, lease).batches(names, searches=[searches]):
        system = {
            OP: _ops(columns, rows, op_columns),
            TIME: rows[columns.time],
            PLACE: rows[vocab.offset_column],
        }
        values = [system[name] if name in system else rows[name] for name in schema.names]
        yield pa.table(values, names=schema.names).cast(schema)


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

    `read` has the rows as they were read, before conversion. `resources` is the stack with the delivery's
    resources.
    """

    store: IcebergStore
    dataset: RegisteredDataset
    read: StagedRows | None
    delivered: DeliveredSide
    terms: EventTerms
    moment: Moment
    resources: ExitStack = field(compare=False)

    def plan(self) -> PlanResult:
        """Plan the events that the batch adds to the log. The result can be read until `resources` closes."""
        terms, table, read, schema = self.terms, self.dataset.table, self.read, self.schema
        size = None if read is None or not self.delivered.placed else read.size
        sides = {DELIVERED: Side(schema, self._delivered_frame, self._delivered_here, size)}
        if table is not None and table.rows and terms.looks_back and self.moment.start:
            meets = None if terms.strategy is Strategy.SNAPSHOT else DELIVERED
            size = unpacked_size(table.rows, len(schema), table.bytes)
            sides[LOGGED] = Side(schema, self._log_frame, self._log_here, size, table.rows, meets)
        plan = partial(plan_part, terms, self.moment, tuple(self.delivered.required))
        key = parted_by(terms) if terms.looks_back else ()
        kinds = {EVENTS: events_schema(schema)}
        sift = self._sift() if LOGGED in sides else None
        plan_terms = PlanTerms(self.store, self.dataset.name, sides, key, kinds, plan, sift=sift)
        return self.resources.enter_context(run_plan(plan_terms))

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

    def _delivered_frame(self) -> "DataFrame":
        rows = self.delivered.rows
        if self.terms.strategy is Strategy.CHANGELOG and not self.delivered.placed:
            rows = persist_on_disk(rows)
            self.resources.callback(rows.unpersist)
            rows = close_gaps(rows, PLACE)  # the halves of a correction need adjacent places
        return rows

    def _delivered_here(self, _lease: MemoryLease, _met: LocalSide | None) -> LocalSide | None:
        """The delivered rows as read, or None if Spark must convert them."""
        read, taken = self.read, self.delivered.taken
        if read is None or read.tables is None or taken is None:
            return None
        return columnar_side(self.schema, partial(side_tables, read, taken))

    def _log_frame(self) -> "DataFrame":
        rows, columns = self.store.spark.table(self.store.sql_name(self.dataset.name)), self.dataset.columns
        time, place = sf.col(quote(columns.time)), sf.col(quote(columns.vocab.offset_column))
        data = (sf.col(quote(field.name)).cast(field.dataType) for field in self.delivered.data)
        return rows.select(*side_columns(_operation(columns), time, place, data))

    def _log_here(self, lease: MemoryLease, met: LocalSide | None) -> LocalSide | None:
        """The events with keys of the delivery, or all events if the keys do not fit into memory."""
        table, columns = self.dataset.table, self.dataset.columns
        assert table is not None
        keys = None if met is None else self._keys(met, lease)
        if keys is not None and not len(keys):
            return empty_side(self.schema)
        keys = None if keys is None else self._searchable(keys)
        read = partial(logged_tables, self.store, table, columns, keys, lease)
        return columnar_side(self.schema, read)

    def _keys(self, met: LocalSide, lease: MemoryLease) -> pa.Table | None:
        """The keys of all delivered rows, or None if they do not fit into memory."""
        key = {*self.terms.key, *([TIME] if self.terms.time_in_key else [])}
        names = [name for name in met.rows.schema.names if name in key]
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
    terms: EventTerms, moment: Moment, required: Sequence[str], sides: Mapping[str, pa.Table], _whole: Whole
) -> PartPlan:
    """The events of a part.

    The plan has only counts if a row is faulty. Faults are NULLs in required columns, unreadable event times,
    other times outside the years 1 to 9999, and text that is not UTF-8.
    """
    delivered = sides[DELIVERED]
    failed = {f"{NULLS}{name}": delivered[name].null_count for name in required}
    for name in data_names(delivered):
        field = delivered.schema.field(name)
        failed[f"{BEYOND}{name}"] = sum(
            first_unfit(chunk, field) is not None for chunk in delivered[name].chunks
        )
    failed[UNREADABLE_TIME] = pc.sum(pc.equal(delivered[OP], UNREADABLE)).as_py() or 0
    if any(failed.values()):
        return PartPlan(counts=failed)
    return plan_events(sides.get(LOGGED), delivered, terms, moment)
