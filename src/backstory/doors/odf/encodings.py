"""A log in the other encoding: letters as pairs of operations, and the other way round (section 2.9, O2)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backstory.doors.odf.log_columns import LogColumns
from backstory.doors.odf.manifest.merge import OBSERVED
from backstory.stores.iceberg.literals import quoted
from backstory.strategies.events.sides import OP, PLACE, ROW, TIME
from backstory.strategies.events.terms import LETTERS, EventEncoding, Op

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def encoded(
    rows: "DataFrame", columns: LogColumns, key: Sequence[str], encoding: EventEncoding
) -> "DataFrame":
    """The rows of a log in an encoding: its system columns with `op` or `observed`, then the data.

    Offsets are the stored ones, so the halves of a pair share one. A `D` made of a retraction has the time of
    its commit, which is the only one that the other encoding keeps of the observation. A log without
    offsets, as older tools wrote it, is read in the order of its event times (R88).
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
    """`I` adds; `U` corrects what was there before it; `D` retracts that, with its own event time."""
    from pyspark.sql import Window
    from pyspark.sql.functions import array, col, explode, lag, lit, struct, when

    vocab = columns.vocab
    kept = [name for name in (vocab.offset_column, vocab.system_time_column) if name in rows.columns]
    place = vocab.offset_column if vocab.offset_column in kept else columns.time
    sides = columns.sides(data)
    identity = [sides[ROW].getField(name) if name in data else sides[TIME] for name in key]
    before = lag(struct(TIME, ROW)).over(Window.partitionBy("key").orderBy(PLACE))
    stored = rows.select(
        *map(quoted, kept),
        *(sides[name].alias(name) for name in (OP, TIME, ROW)),
        col(quoted(place)).alias(PLACE),
        struct(*identity).alias("key"),
    ).withColumn("before", before)

    def event(op: Op, time: "Column", row: "Column") -> "Column":
        return struct(lit(int(op)).alias(OP), time.alias(TIME), row.alias(ROW))

    own, old = (col(TIME), col(ROW)), (col("before")[TIME], col("before")[ROW])
    events = when(col(OP) == Op.CORRECT_TO, array(event(Op.CORRECT_FROM, *old), event(Op.CORRECT_TO, *own)))
    events = events.when(col(OP) == Op.RETRACT, array(event(Op.RETRACT, *old)))
    events = events.otherwise(array(event(Op.APPEND, *own)))
    told = stored.select(*map(quoted, kept), explode(events).alias("event"))
    values = {name: col(quoted(name)) for name in kept}
    values = {vocab.operation_type_column: col("event")[OP], **values, columns.time: col("event")[TIME]}
    order = [name for name in (vocab.offset_column, vocab.operation_type_column) if name in values]
    order += [name for name in values if name not in order]
    return told.select(
        *(values[name].alias(name) for name in order),
        *(col("event")[ROW].getField(name).alias(name) for name in data),
    )


def _letters(rows: "DataFrame", columns: LogColumns, data: Sequence[str], *, timed: bool) -> "DataFrame":
    """`+A` is `I`, `+C` is `U`, `-R` is `D`, timed where the key lets it, and `-C` is left out."""
    from pyspark.sql.functions import col, date_from_unix_date, floor, unix_seconds, when
    from pyspark.sql.types import DateType

    vocab = columns.vocab
    op, system = col(quoted(vocab.operation_type_column)), col(quoted(vocab.system_time_column))
    kept = rows.where(op != Op.CORRECT_FROM)
    letter = when(op == Op.APPEND, LETTERS[Op.APPEND]).when(op == Op.RETRACT, LETTERS[Op.RETRACT])
    time = col(quoted(columns.time))
    if isinstance(rows.schema[columns.time].dataType, DateType):  # a cast would ask for the session's zone
        system = date_from_unix_date(floor(unix_seconds(system) / 86_400).cast("int"))
    told = when(op == Op.RETRACT, system).otherwise(time) if timed else time
    return kept.select(
        quoted(vocab.offset_column),
        quoted(vocab.system_time_column),
        told.alias(columns.time),
        letter.otherwise(LETTERS[Op.CORRECT_TO]).alias(OBSERVED),
        *map(quoted, data),
    )
