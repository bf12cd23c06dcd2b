"""The part of a log that a delivery can mean, where Spark has both."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backstory.stores.iceberg.literals import instant, literal
from backstory.strategies.events.numbering import field
from backstory.strategies.events.sides import ROW, TIME
from backstory.strategies.events.terms import EventTerms, Strategy

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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
