"""Two sides in one table: what is stored and what was delivered, row by row in their order."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from backstory.stores.iceberg.literals import instant, literal
from backstory.strategies.events.terms import EventTerms, Moment, Op, Strategy

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Both sides have these columns; the user's own names live within `row` only.
OP: Final = "op"  # an integer: what an event did, or what a delivered row shall do
TIME: Final = "time"  # the event time, NULL where the source has none
ROW: Final = "row"  # a struct of the data columns
PLACE: Final = "place"  # the offset of an event, the arrival of a delivered row
SIDES: Final = (OP, TIME, ROW, PLACE)

SOURCE: Final = "source"
LOGGED, DELIVERED = 0, 1
STORED: Final = "stored"  # the record's last event, as a struct of the sides
BEFORE: Final = "before"  # the row before, stored or delivered
AFTER: Final = "after"  # the row after, or its place
TOLD, KEY = "told", "key"
LEAD: Final = "lead"  # what an event sorts by before its own time


def field(struct: str, name: str) -> "Column":
    """A field of a struct, whatever its name."""
    from pyspark.sql.functions import col

    return col(struct).getField(name)


def align(logged: "DataFrame | None", delivered: "DataFrame", terms: EventTerms) -> "DataFrame":
    """Both sides, each row with the record's last event (`stored`), the row before and the row after.

    Rows of one record stand in the order of the log, then of their arrival, where that has a meaning.
    Where a record has none, the log is not read.
    """
    from pyspark.sql import Window
    from pyspark.sql.functions import col, lag, last, lead, when

    rows = _placed(delivered, DELIVERED, terms)
    if terms.strategy is Strategy.APPEND:
        return rows.select(f"{TOLD}.*")
    if logged is not None and terms.looks_back:
        rows = _placed(logged, LOGGED, terms).unionAll(rows)
    identity = [name for name in rows.columns if name.startswith(KEY)]
    order = [name for name in rows.columns if name not in {*identity, TOLD}]
    window = Window.partitionBy(*identity).orderBy(*order)
    after = lead(TOLD if terms.strategy is Strategy.CHANGELOG else PLACE).over(window)
    if terms.strategy is Strategy.SNAPSHOT:
        # Only the first delivered row of a record is compared, and it stands right behind the stored one.
        stored = when((col(BEFORE)[SOURCE] == LOGGED) & (col(SOURCE) == DELIVERED), col(BEFORE))
        stored = stored.when(col(SOURCE) == LOGGED, col(TOLD))
    else:
        until_now = window.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        stored = last(when(col(SOURCE) == LOGGED, col(TOLD)), ignorenulls=True).over(until_now)
    seen = rows.withColumns({BEFORE: lag(TOLD).over(window), AFTER: after}).withColumn(STORED, stored)
    return seen.select(f"{TOLD}.*", BEFORE, AFTER, STORED)


def _placed(side: "DataFrame", source: int, terms: EventTerms) -> "DataFrame":
    """The rows of a side as one struct each, and what they are grouped and sorted by.

    These are columns of their own: Spark would move and sort all rows once for each window over an
    expression, and move a struct that a window makes beside the columns that it is made of.
    """
    from pyspark.sql.functions import col, lit, struct

    identity = [field(ROW, name) for name in terms.key]
    if terms.time_in_key:
        identity.append(col(TIME))
    by = [lit(source).alias(SOURCE), col(PLACE)]
    if terms.sequence:
        by.insert(1, (field(ROW, terms.sequence) if source == DELIVERED else lit(None)).alias("sequence"))
    told = struct(by[0], *SIDES).alias(TOLD)
    return side.select(*(each.alias(f"{KEY} {n}") for n, each in enumerate(identity)), *by, told)


def prune_log(logged: "DataFrame", delivered: "DataFrame", terms: EventTerms) -> "DataFrame":
    """The log's rows between the least and the greatest delivered key: no others are meant.

    Where keys or times grow, the log's old files are not read then; the delivered keys are read once
    more. A snapshot is about all records.
    """
    from pyspark.sql.functions import col, count_if, unix_micros
    from pyspark.sql.functions import max as greatest
    from pyspark.sql.functions import min as least
    from pyspark.sql.types import DateType, DecimalType, IntegralType, StringType, TimestampType

    if terms.strategy is Strategy.SNAPSHOT or not terms.looks_back:
        return logged
    wanted = [field(ROW, name) for name in terms.key] + ([col(TIME)] if terms.time_in_key else [])
    keys = delivered.select(*wanted)
    if not keys._jdf.queryExecution().optimizedPlan().deterministic():  # noqa: SLF001
        return logged  # a query of rand() gives other keys the next time
    bounds: list[tuple[Column, bool, Column, Callable[[Any], Column]]] = []
    for place, (value, type_) in enumerate(zip(wanted, [each.dataType for each in keys.schema], strict=True)):
        is_time = place == len(terms.key)
        if isinstance(type_, TimestampType):  # Python would bring it into the zone of this machine
            bounds.append((value, is_time, unix_micros(value), instant))
        elif isinstance(type_, IntegralType | DecimalType | StringType | DateType):  # floats have NaN
            bounds.append((value, is_time, value, literal))
    aggregates = [each(told) for *_, told, _ in bounds for each in (least, greatest)]
    untimed, *ends = delivered.agg(count_if(col(TIME).isNull()), *aggregates).collect()[0]
    for (value, is_time, _, built), low, high in zip(bounds, ends[::2], ends[1::2], strict=True):
        # A row without a time means one of any time.
        if low is not None and not (untimed and is_time):
            logged = logged.where(value.between(built(low), built(high)))
    return logged


def timed(
    logged: "DataFrame | None", delivered: "DataFrame", terms: EventTerms, moment: Moment
) -> "DataFrame":
    """The delivered rows, those without an event time with that of the event that they mean (decision O13).

    It is the newest event of the row's key, one of the same content before all others; else the fallback.
    """
    from pyspark.sql.functions import any_value, coalesce, col, max_by, when

    untimed = delivered.where(col(TIME).isNull())
    if untimed.isEmpty():
        return delivered
    fallback = literal(moment.fallback)
    if logged is None:
        return delivered.withColumn(TIME, coalesce(TIME, fallback))
    known = logged.where(col(OP) != Op.CORRECT_FROM)
    known = known.select(*(col(name).alias(f"known {name}") for name in (TIME, ROW, PLACE)))
    same_key = [col(f"known {ROW}").getField(name) == field(ROW, name) for name in terms.key]
    place = col(f"known {PLACE}")
    alike = max_by(f"known {TIME}", when(col(f"known {ROW}").eqNullSafe(col(ROW)), place))
    meant = coalesce(alike, max_by(f"known {TIME}", place), fallback).alias(TIME)
    pairs = untimed.join(known, same_key, "left").groupBy(PLACE)
    found = pairs.agg(any_value(OP).alias(OP), meant, any_value(ROW).alias(ROW)).select(*SIDES)
    return delivered.where(col(TIME).isNotNull()).select(*SIDES).unionAll(found)
