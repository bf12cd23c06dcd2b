"""The versions that a load on Spark writes: those that close and those that begin (section 9.1)."""

from typing import TYPE_CHECKING

from backstory.doors.historize.model import Role
from backstory.doors.historize.spark_standing import Standing
from backstory.doors.historize.spark_work import SparkWork
from backstory.model.table import TableName
from backstory.stores.iceberg.frames import rows_of
from backstory.stores.iceberg.literals import absent, column, quoted
from backstory.stores.iceberg.store import StoredTable
from backstory.strategies.actions import FILE, POSITION, ROW_ID
from backstory.strategies.scd2.plan import APPEARED, CHANGED, VANISHED, Outcomes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A column of a model has no blank in its name.
KEY, HASH, ACTION = "record key", "record hash", "record action"
AGAIN, HEALED = "record again", "record healed"
AS, IN, AT = "closing as", "closing file", "closing position"


def beginning(work: SparkWork, found: Outcomes, before: Standing, *, late: bool) -> "DataFrame":
    """The records that begin a version: key, hash, action, and how the record came.

    It comes back again if it has closed versions, archived ones too; or it is healed: an interrupted load of
    four steps closed a version of it at this instant and did not come further.
    """
    from pyspark.sql.functions import lit

    key, made = column_of("r", work.load.dataset.key), column_of("r", Role.ROW_HASH)
    begun = found.actions.where(column("action").isin(APPEARED, CHANGED))
    begun = begun.select(column("action").alias(ACTION), key.alias(KEY), made.alias(HASH))
    if not (found.appeared and (before.filled or work.load.archive)):
        return begun.withColumns({AGAIN: lit(False), HEALED: lit(False)})
    rows = before.rows.where(column(Role.ENDED).isNotNull())
    state, key = column(Role.STATE), column(work.load.dataset.key).alias(KEY)
    begun = begun.join(past(work, rows, KEY).withColumn(AGAIN, lit(True)), KEY, "left")
    if late:
        now = column(Role.ENDED) == work.sql("{{ load_timestamp }}")
        closed = rows.where(now & (state == work.load.labels.changed)).select(key).distinct()
        begun = begun.join(closed.withColumn(HEALED, lit(True)), KEY, "left")
    else:
        begun = begun.withColumn(HEALED, lit(False))
    again = (column(ACTION) == APPEARED) & column(AGAIN).eqNullSafe(lit(True))
    healed = (column(ACTION) == APPEARED) & column(HEALED).eqNullSafe(lit(True))
    return begun.withColumns({AGAIN: again & ~healed, HEALED: healed})


def past(work: SparkWork, closed: "DataFrame", name: str) -> "DataFrame":
    """The keys of records with closed versions, archived ones too, under a name."""
    keys, archive = closed.select(column(work.load.dataset.key).alias(name)), work.load.archive
    if archive:
        stored = work.store.spark.table(work.store.sql_name(TableName(work.load.schema, archive.table)))
        keys = keys.unionByName(stored.select(column(archive.key).alias(name)))
    return keys.distinct()


def closing(work: SparkWork, found: Outcomes, table: StoredTable) -> "DataFrame":
    """The versions that close, whole, with their end and the ids that they keep."""
    from pyspark.sql.functions import lit, when

    labels = work.load.labels
    found_here = found.actions.where(column("action").isin(CHANGED, VANISHED))
    places = found_here.select(
        column("action").alias(AS),
        column_of("v", FILE).alias(IN),
        column_of("v", POSITION).alias(AT),
    )
    rows = rows_of(work.store, table).where(column(Role.ENDED).isNull())
    here = (column(FILE) == column(IN)) & (column(POSITION) == column(AT))
    rows = rows.select("*", FILE, POSITION).join(places, here)
    state = when(column(AS) == CHANGED, lit(labels.changed)).otherwise(lit(labels.deleted))
    values: dict[str, Column] = {
        Role.ENDED: work.sql("{{ load_timestamp }}"),
        Role.STATE: state,
        Role.LOAD_RUN_ID: work.sql("{{ load_run_id }}"),
    }
    ids = [ROW_ID] if ROW_ID in rows.columns else []
    return rows.withColumns(values).select(*map(quoted, [*table.shape.names, *ids]))


def versions(work: SparkWork, live: "DataFrame", begun: "DataFrame", table: StoredTable) -> "DataFrame":
    """The versions that begin: the base's rows of these records, read once more but not moved."""
    from pyspark.sql.functions import expr, lit, when

    the = work.load
    same = (column(the.dataset.key) == column(KEY)) & (column(Role.ROW_HASH) == column(HASH))
    rows = work.peppered(live.join(begun, same).drop(KEY, HASH), "r")
    labels = the.labels
    state = when((column(ACTION) == CHANGED) | column(HEALED), lit(labels.changed))
    state = state.when(column(AGAIN), lit(labels.reappeared)).otherwise(lit(labels.new))
    names = the.hist_columns
    values = dict(zip(names, the.hist_values("NULL"), strict=True))
    del values[the.name(Role.STATE)]
    made = rows.select(
        *(work.sql(sql).alias(_bare(name)) for name, sql in values.items()), state.alias(Role.STATE)
    )
    made = made.withColumn(Role.ENDED, expr("CAST(NULL AS TIMESTAMP)"))
    return made.withColumns(absent(table.shape.columns, made.columns)).select(*map(quoted, table.shape.names))


def _bare(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def column_of(side: str, name: str) -> "Column":
    """A column of a struct."""
    from pyspark.sql.functions import col

    return col(f"{side}.{quoted(name)}")
