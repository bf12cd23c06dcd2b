"""The columns of a dataset's table, system columns first (decision O11), and conversion between encodings.

The encodings are `op`, with pairs of operations for corrections, and `observed`, with letters (section 2.9,
O2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from backstory.doors.odf.manifest.dataset import Dataset
from backstory.doors.odf.manifest.events import SetVocab
from backstory.doors.odf.manifest.merge import OBSERVED, encoding_of
from backstory.stores.iceberg.literals import quote
from backstory.strategies.events.sides import OP, PLACE, ROW, TIME, data_names
from backstory.strategies.events.terms import LETTERS, EventEncoding, Op

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType


INSTANT: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class LogColumns:
    """The names of a table's system columns, and its encoding of operations."""

    vocab: SetVocab
    encoding: EventEncoding | None

    @property
    def time(self) -> str:
        """The name of the event-time column."""
        return self.vocab.event_time_column

    @property
    def names(self) -> dict[str, str | None]:
        """The names of the system columns by role, for programs that read the table."""
        vocab = self.vocab
        return {
            "offset": vocab.offset_column,
            "op": vocab.operation_type_column if self.encoding is EventEncoding.OP else None,
            "system_time": vocab.system_time_column,
            "event_time": vocab.event_time_column,
            "observed": OBSERVED if self.encoding is EventEncoding.OBSERVED else None,
        }

    @property
    def system(self) -> list[str]:
        """The names of the system columns, in order."""
        vocab = self.vocab
        op = [vocab.operation_type_column] if self.encoding is EventEncoding.OP else []
        observed = [OBSERVED] if self.encoding is EventEncoding.OBSERVED else []
        return [vocab.offset_column, *op, vocab.system_time_column, vocab.event_time_column, *observed]

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The names of all system columns in the manifest's vocabulary."""
        vocab = self.vocab
        return (
            vocab.offset_column,
            vocab.operation_type_column,
            vocab.system_time_column,
            vocab.event_time_column,
        )

    def system_schema(self, *, dated: bool = False) -> pa.Schema:
        """The system columns with their types. If `dated`, the event time is a day instead of an instant."""
        vocab = self.vocab
        types = {
            vocab.offset_column: pa.int64(),
            vocab.operation_type_column: pa.int32(),
            vocab.system_time_column: INSTANT,
            vocab.event_time_column: pa.date32() if dated else INSTANT,
            OBSERVED: pa.string(),
        }
        return pa.schema([(name, types[name]) for name in self.system])

    def schema(self, data: "Sequence[StructField]", *, dated: bool = False) -> "StructType":
        """All columns of the table with Spark's types."""
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructType

        return StructType([*from_arrow_schema(self.system_schema(dated=dated)), *data])

    def side_frame(self, rows: "DataFrame", data: Sequence[str]) -> "DataFrame":
        """The table's rows as a side of the plan."""
        sides = self.side_columns(data)
        return rows.select(*(value.alias(name) for name, value in sides.items()))

    def side_columns(self, data: Sequence[str]) -> "dict[str, Column]":
        """The columns of a side as expressions over the table's columns."""
        from pyspark.sql.functions import col, struct

        return {
            OP: self._op(),
            TIME: col(quote(self.time)),
            ROW: struct(*(col(quote(name)).alias(name) for name in data)),
            PLACE: col(quote(self.vocab.offset_column)),
        }

    def stored_frame(self, events: "DataFrame", data: Sequence[str], system_time: "Column") -> "DataFrame":
        """Numbered events as rows of the table."""
        from pyspark.sql.functions import col

        values = {
            self.vocab.offset_column: col("offset"),
            self.vocab.operation_type_column: col(OP),
            self.vocab.system_time_column: system_time,
            self.time: col(TIME),
            OBSERVED: _letter(),
        }
        system = [values[name].alias(name) for name in self.system]
        return events.select(*system, *(col(ROW).getField(name).alias(name) for name in data))

    def stored_rows(self, events: pa.Table, system_time: datetime, start: int) -> pa.Table:
        """Events in their order as rows of the table, with offsets from `start` on."""
        size = len(events)
        letters = [LETTERS.get(op) for op in Op]
        values = {
            self.vocab.offset_column: pa.array(np.arange(start, start + size)),
            self.vocab.operation_type_column: events[OP],
            self.vocab.system_time_column: pa.repeat(pa.scalar(system_time, INSTANT), size),
            self.time: events[TIME],
            OBSERVED: pa.array(letters, pa.string()).take(events[OP]),
        }
        system, data = self.system, data_names(events)
        return pa.table(
            [*(values[name] for name in system), *(events[name] for name in data)], names=[*system, *data]
        )

    def _op(self) -> "Column":
        from pyspark.sql.functions import col, lit, when

        if self.encoding is EventEncoding.OP:
            return col(quote(self.vocab.operation_type_column))
        if self.encoding is None:
            return lit(int(Op.APPEND))
        letters = [(letter, int(op)) for op, letter in LETTERS.items()]
        result = when(col(OBSERVED) == letters[0][0], letters[0][1])
        for letter, op in letters[1:]:
            result = result.when(col(OBSERVED) == letter, op)
        return result


def _letter() -> "Column":
    from pyspark.sql.functions import col, when

    (first, letter), *more = LETTERS.items()
    result = when(col(OP) == int(first), letter)
    for op, other in more:
        result = result.when(col(OP) == int(op), other)
    return result


def log_columns(dataset: Dataset) -> LogColumns:
    """The system columns of a dataset. All its sources have the same encoding."""
    encodings = {encoding_of(source.merge) for _, source in dataset.sources()} - {None}
    return LogColumns(dataset.vocab, next(iter(encodings), None))


def encode_log(
    rows: "DataFrame", columns: LogColumns, key: Sequence[str], encoding: EventEncoding
) -> "DataFrame":
    """The rows of a log in an encoding: its system columns with `op` or `observed`, then the data.

    Offsets are the stored ones, so both halves of a pair share an offset. A `D` made from a retraction has
    the time of its commit, because `observed` has no other time for it. A log without offsets, written by
    older tools, is read in the order of its event times (R88).
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
    from pyspark.sql import Window
    from pyspark.sql.functions import array, col, explode, lag, lit, struct, when

    vocab = columns.vocab
    system = [name for name in (vocab.offset_column, vocab.system_time_column) if name in rows.columns]
    place = vocab.offset_column if vocab.offset_column in system else columns.time
    sides = columns.side_columns(data)
    identity = [sides[ROW].getField(name) if name in data else sides[TIME] for name in key]
    before = lag(struct(TIME, ROW)).over(Window.partitionBy("key").orderBy(PLACE))
    stored = rows.select(
        *map(quote, system),
        *(sides[name].alias(name) for name in (OP, TIME, ROW)),
        col(quote(place)).alias(PLACE),
        struct(*identity).alias("key"),
    ).withColumn("before", before)

    def event(op: Op, time: "Column", row: "Column") -> "Column":
        return struct(lit(int(op)).alias(OP), time.alias(TIME), row.alias(ROW))

    row, old = (col(TIME), col(ROW)), (col("before")[TIME], col("before")[ROW])
    events = when(col(OP) == Op.CORRECT_TO, array(event(Op.CORRECT_FROM, *old), event(Op.CORRECT_TO, *row)))
    events = events.when(col(OP) == Op.RETRACT, array(event(Op.RETRACT, *old)))
    events = events.otherwise(array(event(Op.APPEND, *row)))
    events_in_rows = stored.select(*map(quote, system), explode(events).alias("event"))
    values = {name: col(quote(name)) for name in system}
    values = {vocab.operation_type_column: col("event")[OP], **values, columns.time: col("event")[TIME]}
    order = [name for name in (vocab.offset_column, vocab.operation_type_column) if name in values]
    order += [name for name in values if name not in order]
    return events_in_rows.select(
        *(values[name].alias(name) for name in order),
        *(col("event")[ROW].getField(name).alias(name) for name in data),
    )


def _letters(rows: "DataFrame", columns: LogColumns, data: Sequence[str], *, timed: bool) -> "DataFrame":
    """Convert operations to letters.

    `+A` becomes `I`, `+C` becomes `U` and `-R` becomes `D`; `-C` is left out. If `timed`, a `D` has the
    system time as its event time. Otherwise the event time is part of the key and is unchanged.
    """
    from pyspark.sql.functions import col, date_from_unix_date, floor, unix_seconds, when
    from pyspark.sql.types import DateType

    vocab = columns.vocab
    op, system = col(quote(vocab.operation_type_column)), col(quote(vocab.system_time_column))
    observed = rows.where(op != Op.CORRECT_FROM)
    letter = when(op == Op.APPEND, LETTERS[Op.APPEND]).when(op == Op.RETRACT, LETTERS[Op.RETRACT])
    time = col(quote(columns.time))
    if isinstance(rows.schema[columns.time].dataType, DateType):  # a cast would use the session's zone
        system = date_from_unix_date(floor(unix_seconds(system) / 86_400).cast("int"))
    event_time = when(op == Op.RETRACT, system).otherwise(time) if timed else time
    return observed.select(
        quote(vocab.offset_column),
        quote(vocab.system_time_column),
        event_time.alias(columns.time),
        letter.otherwise(LETTERS[Op.CORRECT_TO]).alias(OBSERVED),
        *map(quote, data),
    )
