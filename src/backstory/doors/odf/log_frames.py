"""The log of a dataset as a frame: its rows as a side of a plan, events as rows, and its encodings.

The encodings are `op`, with pairs of operations for corrections, and `observed`, with letters (section 2.9,
O2).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DateType, StructType

from backstory.doors.odf.log_columns import LogColumns
from backstory.doors.odf.manifest.merge import OBSERVED
from backstory.stores.iceberg.literals import quote
from backstory.strategies.events.sides import OP, PLACE, ROW, TIME
from backstory.strategies.events.terms import LETTERS, EventEncoding, Op

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType


def log_schema(columns: LogColumns, data: "Sequence[StructField]", *, dated: bool = False) -> "StructType":
    """All columns of the table with Spark's types."""
    return StructType([*from_arrow_schema(columns.system_schema(dated=dated)), *data])


def side_frame(columns: LogColumns, rows: "DataFrame", data: Sequence[str]) -> "DataFrame":
    """The table's rows as a side of the plan."""
    sides = side_columns(columns, data)
    return rows.select(*(value.alias(name) for name, value in sides.items()))


def side_columns(columns: LogColumns, data: Sequence[str]) -> "dict[str, Column]":
    """The columns of a side as expressions over the table's columns."""
    return {
        OP: _operation(columns),
        TIME: sf.col(quote(columns.time)),
        ROW: sf.struct(*(sf.col(quote(name)).alias(name) for name in data)),
        PLACE: sf.col(quote(columns.vocab.offset_column)),
    }


def stored_frame(
    columns: LogColumns, events: "DataFrame", data: Sequence[str], system_time: "Column"
) -> "DataFrame":
    """Numbered events as rows of the table."""
    values = {
        columns.vocab.offset_column: sf.col("offset"),
        columns.vocab.operation_type_column: sf.col(OP),
        columns.vocab.system_time_column: system_time,
        columns.time: sf.col(TIME),
        OBSERVED: _letter(),
    }
    system = [values[name].alias(name) for name in columns.system]
    return events.select(*system, *(sf.col(ROW).getField(name).alias(name) for name in data))


def _operation(columns: LogColumns) -> "Column":
    if columns.encoding is EventEncoding.OP:
        return sf.col(quote(columns.vocab.operation_type_column))
    if columns.encoding is None:
        return sf.lit(int(Op.APPEND))
    letters = [(letter, int(op)) for op, letter in LETTERS.items()]
    result = sf.when(sf.col(OBSERVED) == letters[0][0], letters[0][1])
    for letter, op in letters[1:]:
        result = result.when(sf.col(OBSERVED) == letter, op)
    return result


def _letter() -> "Column":
    (first, letter), *more = LETTERS.items()
    result = sf.when(sf.col(OP) == int(first), letter)
    for op, other in more:
        result = result.when(sf.col(OP) == int(op), other)
    return result


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
    vocab = columns.vocab
    system = [name for name in (vocab.offset_column, vocab.system_time_column) if name in rows.columns]
    place = vocab.offset_column if vocab.offset_column in system else columns.time
    sides = side_columns(columns, data)
    identity = [sides[ROW].getField(name) if name in data else sides[TIME] for name in key]
    before = sf.lag(sf.struct(TIME, ROW)).over(Window.partitionBy("key").orderBy(PLACE))
    stored = rows.select(
        *map(quote, system),
        *(sides[name].alias(name) for name in (OP, TIME, ROW)),
        sf.col(quote(place)).alias(PLACE),
        sf.struct(*identity).alias("key"),
    ).withColumn("before", before)

    def event(op: Op, time: "Column", row: "Column") -> "Column":
        return sf.struct(sf.lit(int(op)).alias(OP), time.alias(TIME), row.alias(ROW))

    row, old = (sf.col(TIME), sf.col(ROW)), (sf.col("before")[TIME], sf.col("before")[ROW])
    events = sf.when(
        sf.col(OP) == Op.CORRECT_TO, sf.array(event(Op.CORRECT_FROM, *old), event(Op.CORRECT_TO, *row))
    )
    events = events.when(sf.col(OP) == Op.RETRACT, sf.array(event(Op.RETRACT, *old)))
    events = events.otherwise(sf.array(event(Op.APPEND, *row)))
    events_in_rows = stored.select(*map(quote, system), sf.explode(events).alias("event"))
    values = {name: sf.col(quote(name)) for name in system}
    values = {vocab.operation_type_column: sf.col("event")[OP], **values, columns.time: sf.col("event")[TIME]}
    order = [name for name in (vocab.offset_column, vocab.operation_type_column) if name in values]
    order += [name for name in values if name not in order]
    return events_in_rows.select(
        *(values[name].alias(name) for name in order),
        *(sf.col("event")[ROW].getField(name).alias(name) for name in data),
    )


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
