"""Event logs on Spark: the log and the delivery laid side by side, each row seeing what was before it.

One shuffle by key and one sort serve every strategy: a delivered row sees the event stored last for its
record, its neighbours, and a stored event whether anything came after it. No join, and no state table.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from backstory.errors import MAX_KEYS
from backstory.stores.iceberg.literals import literal
from backstory.strategies.events.columns import LEAD, OP, PLACE, ROW, STORED, TIME, align, field, timed
from backstory.strategies.events.happened import COUNTED, Happened, SeenEvents, problem_code, summed
from backstory.strategies.events.judged import WHAT, classify
from backstory.strategies.events.terms import PROBLEMS, EventTerms, Moment, Op, Strategy
from backstory.strategies.observed import observed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROWS_IN_PARTITION: Final = 100_000
OFFSET: Final = "offset"


@contextmanager
def merge_delivery(
    logged: "DataFrame | None", delivered: "DataFrame", terms: EventTerms, moment: Moment
) -> Iterator[Happened]:
    """Compare a delivery with a log, both as `sides` lays them out; each is read once.

    `moment` has the fallback and the watermark as columns' literals.
    """
    from pyspark.sql.functions import col, count, lit, when
    from pyspark.sql.functions import max as greatest

    own = f"events {uuid4()}"
    if terms.time_in_key and not terms.time_required and terms.strategy is Strategy.LEDGER:
        delivered = timed(logged, delivered, terms, moment)
    judging = classify(align(logged, delivered, terms), terms, moment)
    told = judging.observe(own, *(count(when(col(WHAT) == name, 1)).alias(name) for name in COUNTED))
    events = told.select(_events(terms, moment)).select("event.*").persist()
    try:
        late = (col(TIME) < literal(moment.watermark)) if moment.watermark is not None else lit(False)
        found = events.groupBy(OP).agg(
            count(lit(1)).alias("rows"),
            greatest(_micros(events)).alias("newest"),
            count(when(late, 1)).alias("late"),
        )
        seen = {row[OP]: SeenEvents(row["rows"], row["newest"], row["late"]) for row in found.collect()}
        counted = observed(events)

        def keys_of(op: int) -> list[dict[str, Any]]:
            keys = (field(ROW, name).alias(name) for name in terms.key)
            rows = events.where(col(OP) == int(op)).select(*keys).distinct()
            return [row.asDict() for row in rows.limit(MAX_KEYS).collect()]

        yield summed(events, seen, counted.get(own, {}), keys_of, counted)
    finally:
        events.unpersist()


def _micros(events: "DataFrame") -> "Column":
    """The event time in microseconds since 1970."""
    from pyspark.sql.functions import col, unix_date, unix_micros
    from pyspark.sql.types import DateType

    days = isinstance(events.schema[TIME].dataType, DateType)
    return unix_date(TIME) * 86_400_000_000 if days else unix_micros(col(TIME))


def _events(terms: EventTerms, moment: Moment) -> "Column":
    """The events of a judged row: none, one, or the pair of a correction; a problem keeps its row."""
    from pyspark.sql.functions import array, coalesce, col, create_map, element_at, explode, lit, struct, when

    filled, row, what = coalesce(col(TIME), literal(moment.fallback)), col(ROW), col(WHAT)

    def event(op: "Column", time: "Column", row: "Column", lead: "Column") -> "Column":
        columns = {OP: op.cast("int"), TIME: time, ROW: row, LEAD: lead, PLACE: col(PLACE)}
        return struct(*(value.alias(name) for name, value in columns.items()))

    appended = event(lit(int(Op.APPEND)), filled, row, filled)
    if terms.strategy is Strategy.APPEND:
        return explode(when(what == "appended", array(appended))).alias("event")
    problem = element_at(
        create_map(*(lit(each) for name in PROBLEMS for each in (name, problem_code(name)))), what
    )
    built = when(what.isin(*PROBLEMS), array(event(problem, filled, row, filled)))
    if terms.strategy is Strategy.CHANGELOG:
        return explode(built.when(what == "told", array(event(col(OP), filled, row, filled)))).alias("event")
    before = col(STORED)
    corrected = [event(lit(int(Op.CORRECT_TO)), filled, row, filled)]
    if terms.pairs:
        corrected.insert(0, event(lit(int(Op.CORRECT_FROM)), before[TIME], before[ROW], filled))
    # A snapshot retracts the stored row that it stands on; nothing needs to be carried to it.
    gone = (col(TIME), row) if terms.strategy is Strategy.SNAPSHOT else (before[TIME], before[ROW])
    retracted_at = gone[0] if terms.retracts_in_place else literal(moment.fallback)
    retracted = event(lit(int(Op.RETRACT)), retracted_at, gone[1], retracted_at)
    built = built.when(what == "appended", array(appended)).when(what == "retracted", array(retracted))
    return explode(built.when(what == "corrected", array(*corrected))).alias("event")


def order(terms: EventTerms, row_fields: Sequence[Any]) -> "list[Column]":
    """How events of one commit are sorted (section 2.1, step 7): in full, so that no tie is left open."""
    from pyspark.sql.functions import col

    if terms.strategy is Strategy.CHANGELOG:
        return [col(PLACE).asc()]
    keys = [field(ROW, name) for name in terms.key]
    plain = [each.name for each in row_fields if not has_map(each.dataType)]
    rest = [col(TIME), *(field(ROW, name) for name in plain if name not in terms.key)]
    if terms.strategy in {Strategy.APPEND, Strategy.LEDGER}:
        keys.insert(0, col(LEAD))
    elif terms.time_at is not None:
        keys.insert(terms.time_at, col(LEAD))
    return [each.asc_nulls_first() for each in (*keys, col(OP), *rest)]


def has_map(type_: object) -> bool:
    """Whether values of a type hold maps, which Spark neither compares nor sorts."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(type_, ArrayType):
        return has_map(type_.elementType)
    if isinstance(type_, StructType):
        return any(has_map(field.dataType) for field in type_)
    return isinstance(type_, MapType)


def is_nested(type_: object) -> bool:
    """Whether values of a type have parts, which Arrow neither compares nor sorts."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    return isinstance(type_, ArrayType | MapType | StructType)


@contextmanager
def number_events(
    events: "DataFrame", rows: int, by: "Sequence[Column]", start: int
) -> "Iterator[DataFrame]":
    """The events sorted, with `offset` from `start` on without a gap; many never go through one task."""
    from pyspark.sql.functions import lit
    from pyspark.sql.functions import monotonically_increasing_id as placed_id

    if rows <= ROWS_IN_PARTITION:
        sorted_ = events.coalesce(1).sortWithinPartitions(*by)
        yield sorted_.withColumn(OFFSET, placed_id() + lit(start))
        return
    parts = -(-rows // ROWS_IN_PARTITION)
    placed = events.repartitionByRange(parts, *by).sortWithinPartitions(*by)
    placed = placed.withColumn(OFFSET, placed_id()).persist()
    try:
        yield close_gaps(placed, OFFSET, start)
    finally:
        placed.unpersist()


def close_gaps(rows: "DataFrame", name: str, start: int = 0) -> "DataFrame":
    """The rows, which `monotonically_increasing_id` numbered in a column, numbered from `start` on.

    They are counted first, so they must lie in the same partitions whenever they are read.
    """
    from pyspark.sql.functions import col, element_at, lit, shiftright

    part = shiftright(name, 33)
    sizes = {row["part"]: row["count"] for row in rows.groupBy(part.alias("part")).count().collect()}
    begins = list(accumulate((sizes.get(n, 0) for n in range(max(sizes, default=0))), initial=start))
    first = element_at(lit(begins), (part + 1).cast("int"))
    return rows.withColumn(name, first + col(name).bitwiseAND(lit((1 << 33) - 1)))
