"""Changes of shape and mode on Spark: what a table's rows become, as DataFrames."""

import uuid
from typing import TYPE_CHECKING

from backstory.model.instant import MILLISECOND, TMAX
from backstory.model.layout import ACTIVE, DELETED, END, HISTORY_COLUMNS, START, SYNCED
from backstory.model.places import ROW_ID
from backstory.stores.iceberg.literals import column, instant, micros_of
from backstory.stores.iceberg.unique import grouping_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

_OPEN_END = micros_of(TMAX)


def differs(name: str, value: "Column") -> "Column":
    """Which rows a value would change."""
    return ~column(name).eqNullSafe(value)


def newest_open_start(rows: "DataFrame") -> "DataFrame":
    """One row: `open`, the count of open versions, and `newest`, the greatest start in microseconds."""
    from pyspark.sql.functions import count, lit, unix_micros
    from pyspark.sql.functions import max as greatest

    newest = unix_micros(greatest(column(START))).alias("newest")
    return rows.where(column(ACTIVE)).agg(count(lit(1)).alias("open"), newest)


def re_versioned(name: str, value: "Column", moment: int, *, where: "Column | None" = None) -> "Column":
    """Which versions a change of a column at `at` (microseconds) touches (6.3 and 6.4).

    Versions that start then and have another value, and open ones from before; of these `where`
    tells those that the change concerns, every one if it is left out.
    """
    before = column(ACTIVE) & (column(START) < instant(moment))
    return ((column(START) == instant(moment)) & differs(name, value)) | (
        before if where is None else before & where
    )


def succeeded(rows: "DataFrame", name: str, value: "Column", moment: int) -> "DataFrame":
    """What versions that `re_versioned` tells become: closed ones, which keep their ids, and successors."""
    from pyspark.sql.functions import array, explode, lit, when

    turn, starts_then = f"turn {uuid.uuid4()}", column(START) == instant(moment)
    # One row for a version that starts then, two for an older one: as it was, and its successor.
    turns = when(starts_then, array(lit(True))).otherwise(array(lit(False), lit(True)))
    rows = rows.withColumn(turn, explode(turns))
    new = column(turn)
    closes = ~new
    follows = new & (column(START) < instant(moment))
    ids = {ROW_ID: when(~follows, column(ROW_ID))} if ROW_ID in rows.columns else {}
    return rows.withColumns(
        {
            **ids,
            name: when(new, value).otherwise(column(name)),
            START: when(follows, instant(moment)).otherwise(column(START)),
            END: when(closes, instant(moment - MILLISECOND))
            .when(follows, instant(_OPEN_END))
            .otherwise(column(END)),
            ACTIVE: when(closes, lit(False)).when(follows, lit(True)).otherwise(column(ACTIVE)),
        }
    ).drop(turn)


def newest_sync(rows: "DataFrame") -> "DataFrame":
    """One row: `newest`, the greatest `_fivetran_synced` in microseconds."""
    from pyspark.sql.functions import max as greatest
    from pyspark.sql.functions import unix_micros

    return rows.agg(unix_micros(greatest(column(SYNCED))).alias("newest"))


def to_history(rows: "DataFrame", flag: str, start: int) -> "DataFrame":
    """Rows of a table without history as versions; `start` is that of the rows that are true."""
    from pyspark.sql.functions import coalesce, lit, when

    gone = coalesce(column(flag), lit(False)) if flag in rows.columns else lit(False)
    return rows.withColumns(
        {
            START: when(gone, instant(0)).otherwise(instant(start)),
            END: when(gone, instant(0)).otherwise(instant(_OPEN_END)),
            ACTIVE: ~gone,
        }
    ).drop(DELETED)


def to_soft_delete(rows: "DataFrame", key: "Sequence[str]", flag: str) -> "DataFrame":
    """The newest version of each key as a row, flagged if it is closed."""
    from pyspark.sql.functions import coalesce, lit

    newest = newest_versions(rows, key)
    if flag != DELETED:
        newest = newest.withColumn(DELETED, lit(False))
    closed = ~coalesce(column(ACTIVE), lit(False))
    return newest.withColumn(flag, closed).drop(*HISTORY_COLUMNS)


def newest_versions(rows: "DataFrame", key: "Sequence[str]") -> "DataFrame":
    """Of each key the version with the greatest start; one without a start loses against any other."""
    from pyspark.sql.functions import coalesce, lit, max_by, struct

    age = struct(column(START), coalesce(column(ACTIVE), lit(False)), column(END))
    whole = struct(*map(column, rows.columns))
    version = f"version {uuid.uuid4()}"
    newest = rows.groupBy(*grouping_columns(rows, key)).agg(max_by(whole, age).alias(version))
    return newest.select(*(column(version).getField(name).alias(name) for name in rows.columns))


def soft_delete_to_live(rows: "DataFrame", flag: str) -> "DataFrame":
    """The rows that are not flagged."""
    from pyspark.sql.functions import coalesce, lit

    kept = rows.where(~coalesce(column(flag), lit(False))) if flag in rows.columns else rows
    return kept.drop(DELETED) if flag == DELETED else kept


def history_to_live(rows: "DataFrame", key: "Sequence[str]", *, keep_deleted: bool) -> "DataFrame":
    """The newest version of each key, if it is open or deleted rows are kept."""
    newest = newest_versions(rows, key)
    kept = newest if keep_deleted else newest.where(column(ACTIVE))
    return kept.drop(*HISTORY_COLUMNS)


def live_to_history(rows: "DataFrame", start: int) -> "DataFrame":
    """Every row as an open version."""
    from pyspark.sql.functions import lit

    begun = {START: instant(start), END: instant(_OPEN_END), ACTIVE: lit(True)}
    return rows.withColumns(begun)
