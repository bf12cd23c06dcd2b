"""Tables with histories of millions of versions, four for each record, and facts about the same records."""

from datetime import UTC, datetime
from typing import Any, Final

from backstory.engine.deliver import commit_change
from backstory.model import layout
from backstory.model.change import Change, Note
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.model.versions_layout import OWN_COLUMNS
from backstory.stores.iceberg.store import IcebergStore

FACTS, VERSIONS, EACH = 1_000_000, 4_000_000, 4
DAY, SINCE = 86_400, 1_577_836_800
LIFE: Final = 100 * DAY
# A time at which every record is in its second version.
ASKED: Final = datetime.fromtimestamp(SINCE + LIFE + LIFE // 2, UTC)

TEXT, NUMBER, FLAG = (ColumnType(kind) for kind in (Kind.STRING, Kind.LONG, Kind.BOOLEAN))
INSTANT: Final = ColumnType(Kind.UTC_DATETIME)
USERS: Final = (Column("id", NUMBER), Column("name", TEXT), Column("city", TEXT))
COLUMNS: Final = {
    Layout.VERSIONS: (*USERS, *OWN_COLUMNS),
    Layout.HIST: (
        Column("c_key", TEXT),
        *USERS,
        Column(layout.ROW_HASH, TEXT),
        Column(layout.STARTED, INSTANT),
        Column(layout.ENDED, INSTANT),
        Column(layout.STATE, TEXT),
        Column(layout.LOADED_AT, INSTANT),
    ),
    Layout.FIVETRAN_HISTORY: (
        *USERS,
        Column(layout.START, INSTANT),
        Column(layout.END, INSTANT),
        Column(layout.ACTIVE, FLAG),
        Column(layout.SYNCED, INSTANT),
    ),
}
NEVER: Final = "TIMESTAMP '9999-12-31 23:59:59.999Z'"
# The values of a layout's own columns, for a version of record `id` from `a` to `b` (NULL: open).
SAID: Final = {
    layout.VALID_FROM: "a",
    layout.VALID_TO: "b",
    layout.IS_CURRENT: "b IS NULL",
    layout.RECORDED_AT: "a",
    layout.MEMORY: "if(b IS NULL, NULL, {memory})",
    "c_key": "sha2(string(id), 256)",
    layout.ROW_HASH: "sha2(concat(id, name, city), 256)",
    layout.STARTED: "a",
    layout.ENDED: "b",
    layout.STATE: "if(b IS NULL AND n = 0, 'new', 'changed')",
    layout.LOADED_AT: "a",
    layout.START: "a",
    layout.END: f"coalesce(b - INTERVAL 1 MILLISECOND, {NEVER})",
    layout.ACTIVE: "b IS NULL",
    layout.SYNCED: "a",
}


def table_of(layout_: Layout, *, hot: bool = False) -> TableName:
    """The table of a layout; with `hot` half of all its versions are on one key."""
    return TableName("bench", "hot" if hot else "c_hist" if layout_ is Layout.HIST else layout_.name.lower())


def make(store: IcebergStore, layout_: Layout, count: int, *, hot: bool = False) -> TableName:
    """Make a table with this number of versions, by one INSERT that bypasses every door."""
    table = table_of(layout_, hot=hot)
    shape = Shape(table, COLUMNS[layout_], ("id",), layout_)
    commit_change(store, None, Change(into=shape), Note("bench", ""))
    name = store.sql_name(table)
    stored = store.spark.table(name).schema
    memory = ""
    if layout_ is Layout.VERSIONS:
        fields = stored[layout.MEMORY].dataType.fields  # type: ignore[attr-defined]
        told = (
            "b" if field.name == "ended_at" else f"CAST(NULL AS {field.dataType.simpleString()})"
            for field in fields
        )
        pairs = (f"'{field.name}', {each}" for field, each in zip(fields, told, strict=True))
        memory = f"named_struct({', '.join(pairs)})"
    chosen = (SAID.get(name, name).format(memory=memory) for name in stored.names)
    lives(store.spark, count, hot=hot).createOrReplaceTempView("lives")
    store.spark.sql(f"INSERT INTO {name} SELECT {', '.join(chosen)} FROM lives")
    return table


def lives(spark: Any, count: int, *, hot: bool) -> Any:
    """This number of versions as `id, n, name, city, a, b`; with `hot` half of them are on record 0."""
    if not hot:
        numbered = spark.range(count).selectExpr(f"id DIV {EACH} AS k", f"id % {EACH} AS n", "id AS v")
        numbered = numbered.selectExpr("*", f"{SINCE} + n * {LIFE} AS a", f"n = {EACH - 1} AS last")
        step = LIFE
    else:
        half, step = count // 2, 60
        numbered = spark.range(count).selectExpr(
            f"if(id < {half}, 0, (id - {half}) DIV {EACH} + 1) AS k",
            f"if(id < {half}, id, id % {EACH}) AS n",
            "id AS v",
        )
        last = f"n = if(k = 0, {half}, {EACH}) - 1"
        numbered = numbered.selectExpr("*", f"{SINCE} + n * {step} AS a", f"{last} AS last")
    return numbered.repartition(4).selectExpr(
        "k AS id",
        "n",
        "concat('customer ', v) AS name",
        "concat('city ', v % 300) AS city",
        "timestamp_seconds(a) AS a",
        f"if(last, NULL, timestamp_seconds(a + {step})) AS b",
    )


def facts(spark: Any, folder: str, count: int, keys: int, *, hot: bool) -> Any:
    """Facts as a Parquet file, each with a record and a time; with `hot` every second one is on record 0."""
    key = f"if(fact % 2 = 0, 0, fact * 7 % {keys})" if hot else f"fact * 7 % {keys}"
    span = keys * 60 if hot else EACH * LIFE
    rows = spark.range(count).withColumnRenamed("id", "fact")
    at = f"timestamp_seconds({SINCE} + fact * 7919 % {span}) AS at"
    rows = rows.selectExpr("fact", f"{key} AS id", at, "fact % 97 AS amount")
    rows.repartition(4).write.mode("overwrite").parquet(folder)
    return spark.read.parquet(folder)
