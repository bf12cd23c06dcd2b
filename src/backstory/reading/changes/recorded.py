"""The feed of a table of layout `versions` out of its own rows, for commits whose snapshots are gone (V111).

A row tells two steps of its end: from `recorded_at` it was `end_before`, from `ended_at` on it is `valid_to`
(V6). A step is what a commit did, and the recorded time is that commit.
"""

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from backstory.model.instant import EPOCH, parse_instant
from backstory.model.layout import IS_CURRENT, MEMORY, RECORDED_AT, VALID_FROM, VALID_TO
from backstory.model.remembered import END_BEFORE, ENDED_AT, RECORDED, ROLE, Role
from backstory.reading.changes.frames import fed
from backstory.reading.changes.rows import feed_rows, identity_of
from backstory.reading.frames.knowledge import require_knowledge
from backstory.stores.iceberg import snapshots
from backstory.stores.iceberg.literals import column, instant, micros_of
from backstory.stores.iceberg.moved_rows import NUMBER, SIGN, TIME, VERSION
from backstory.stores.iceberg.store import Store, StoredTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FIRST: Final = "moved: first"
_STEP: Final = "moved: step"
_LAST: Final = "moved: last"


def recorded_changes(
    store: Store,
    table: StoredTable,
    since: datetime | None,
    until: datetime | None,
    *,
    net: bool,
    current: bool,
) -> "DataFrame":
    """The changes that were recorded after one time up to another.

    Versions are NULL where snapshots are gone. Raises UsageError (`known-pruned`) where the table no longer
    tells what it knew then.
    """
    require_knowledge(table, since or EPOCH)
    told = feed_rows(table, current=current)
    if not current:
        told = replace(told, condition=None)  # what a memory row told before it was one is told
    rows = store.spark.table(store.sql_name(table.shape.table))
    if since is not None:
        rows = rows.where(_learnt_after(since))
    steps = _steps(_statements(rows, identity_of(table)), table.shape.names)
    if since is not None:
        steps = steps.where(column(NUMBER) > micros_of(since))
    if until is not None:
        steps = steps.where(column(NUMBER) <= micros_of(until))
    return fed(_with_commits(store, table, steps), told, table.rows, net=net, only_come=False)


def _learnt_after(since: datetime) -> "Column":
    """The rows that tell of it, and all copies that rows left when their ends moved again."""
    from pyspark.sql.functions import col

    time = instant(micros_of(since))
    learnt = (column(RECORDED_AT) > time) | (col(f"{MEMORY}.{ENDED_AT}") > time)
    return learnt | (col(f"{MEMORY}.{ROLE}") == Role.PAST.value)


def _statements(rows: "DataFrame", identity: tuple[str, ...]) -> "DataFrame":
    """The rows that tell statements, each with the recorded time that it had at its first step.

    A row whose end moves again leaves a copy, and is itself recorded at its former step from then on (V7).
    """
    from pyspark.sql import Window
    from pyspark.sql.functions import coalesce, col, lag, lit, struct, when

    moved = col(f"{MEMORY}.{ENDED_AT}")
    rows = rows.where(~col(f"{MEMORY}.{ROLE}").eqNullSafe(lit(Role.FACT.value)))
    beside = Window.partitionBy(*map(column, identity)).orderBy(column(RECORDED_AT), moved)
    last = struct(column(RECORDED_AT).alias("recorded"), moved.alias("moved"))
    rows = rows.withColumn(_LAST, lag(last).over(beside))
    goes_on = column(_LAST)["moved"] == column(RECORDED_AT)
    first = coalesce(when(goes_on, column(_LAST)["recorded"]), column(RECORDED_AT))
    return rows.withColumn(_FIRST, first)


def _steps(rows: "DataFrame", names: list[str]) -> "DataFrame":
    """What came and went, and at which recorded time, for each statement and each step of its end."""
    from pyspark.sql.functions import array, col, explode, lit, struct, unix_micros, when

    moved, recorded = col(f"{MEMORY}.{ENDED_AT}"), column(RECORDED_AT)
    first = when(moved.isNull(), column(VALID_TO)).otherwise(col(f"{MEMORY}.{END_BEFORE}"))

    def step(time: "Column", sign: int, end: "Column", then: "Column") -> "Column":
        return struct(
            unix_micros(time).alias(NUMBER),
            lit(sign).cast("tinyint").alias(SIGN),
            end.alias(VALID_TO),
            then.alias(RECORDED_AT),
            end.isNull().alias(IS_CURRENT),
        )

    steps = array(
        step(recorded, 1, first, column(_FIRST)),
        step(moved, -1, first, column(_FIRST)),
        step(moved, 1, column(VALID_TO), recorded),
    )
    found = rows.withColumn(_STEP, explode(steps))
    ended = column(_STEP)[VALID_TO]
    found = found.where(column(_STEP)[NUMBER].isNotNull() & (ended.isNull() | (ended > column(VALID_FROM))))
    of_step = {VALID_TO, RECORDED_AT, IS_CURRENT, NUMBER, SIGN}
    shown = (
        column(_STEP)[name].alias(name) if name in of_step else column(name)
        for name in (*names, NUMBER, SIGN)
    )
    return found.select(*shown)


def _with_commits(store: Store, table: StoredTable, steps: "DataFrame") -> "DataFrame":
    """The version and time of each recorded time's commit; where it is gone NULL, and the recorded time."""
    from pyspark.sql.functions import broadcast, coalesce, timestamp_micros

    found = [
        (micros_of(parse_instant(recorded)), int(each.java.sequenceNumber()), micros_of(each.committed_at))
        for each in snapshots.ancestry(table)
        if (recorded := each.get_property(RECORDED))
    ]
    schema = f"`{NUMBER}` bigint, `{VERSION}` bigint, `{TIME}` bigint"
    commits = store.spark.createDataFrame(found, schema)
    joined = steps.join(broadcast(commits), NUMBER, "left")
    return joined.withColumn(TIME, timestamp_micros(coalesce(column(TIME), column(NUMBER))))
