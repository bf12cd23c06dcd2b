"""The laws of a table's rows, checked by Spark in one scan, and by plain Python in its tasks."""

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

from backstory.errors import MAX_KEYS
from backstory.journal.chain import WATERMARK, snapshots
from backstory.journal.log_table import log_rows
from backstory.model.layout import MEMORY
from backstory.model.table import Shape
from backstory.model.versions_layout import RECORDED, ROLE, Role
from backstory.reading.histories import identity_names, system_columns
from backstory.reading.lifetimes import SPARK, TIMELY
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, quote
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.snapshots import ancestry
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.iceberg.workers import map_batches
from backstory.upkeep.laws.queries import (
    LAW_OF,
    SUSPECT,
    Steps,
    TableSql,
    laws_of_events,
    laws_of_keys,
    laws_of_lives,
    layout_columns,
)
from backstory.upkeep.laws.table_terms import (
    TableTerms,
    log_facts,
    misplaced_query,
    numbers_of,
    read_row_hashes,
    terms_of_keys,
    terms_of_versions,
    wrong_offsets,
)
from backstory.upkeep.laws.tally import FOUND, Broken, add_up, examine
from backstory.upkeep.laws.terms import PREFIX, Law

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

# The column that is true if a row's record breaks a law, or is suspected.
_BROKEN: Final = PREFIX + "broken"
_OFFSET: Final = PREFIX + "offset"


def read_terms(store: IcebergStore, table: IcebergTable) -> TableTerms:
    """The terms of a table of versions, by its layout, properties, commits and marks."""
    newest = next((text for commit in ancestry(table) if (text := commit.get_property(RECORDED))), None)
    table_terms = terms_of_versions(table, _hashes(store, table), newest, _numbers(store, table))
    if not table_terms.valued:
        return table_terms
    from pyspark.sql.functions import expr

    # Iceberg prunes by the key, which is NULL in marks only.
    rows = _rows(store, table)
    rows = rows.where(column(table.shape.key[0]).isNull() & (column(MEMORY)[ROLE] == Role.FACT))
    with translate_faults(table.shape.table):
        known = layout_columns(TableSql(SPARK, quote, ()), table_terms)
        marks = rows.select(*(expr(sql).alias(PREFIX + name) for name, sql in known.items()))
        return table_terms.with_marks(arrow_of(marks).to_pylist())


def _rows(store: IcebergStore, table: IcebergTable) -> "DataFrame":
    return store.spark.table(store.sql_name(table.shape.table))


def _numbers(store: IcebergStore, table: IcebergTable) -> Mapping[str, int]:
    return numbers_of(fields_of(store.jvm, table.iceberg.schema()))


def _hashes(store: IcebergStore, table: IcebergTable) -> tuple[str, ...]:
    """The hashes that a row may have, as Spark SQL."""
    if not (ways := read_row_hashes(table, _numbers(store, table))):
        return ()
    from backstory.stores.sql.dialects import Spark

    return tuple(way.sql(Spark(), quote) for way in ways)


def find_suspects(rows: "DataFrame", table_terms: TableTerms) -> "DataFrame":
    """The rows of records that break a law or are suspected, with the columns of the first and last step."""
    from pyspark.sql.functions import expr

    key, shape, span = (
        list(map(quote, table_terms.identity)),
        table_terms.shape,
        table_terms.shape.layout.span,
    )
    engine = TableSql(SPARK, quote, key)
    assert span is not None
    written = shape.column(span.written)
    if written is not None and written.type.kind in TIMELY:  # a repair needs it
        rows = rows.withColumn(f"{PREFIX}written", expr(engine.micros(shape, span.written)))
    steps = laws_of_lives(engine, table_terms)
    return _of_broken_records(rows, key, steps, f"{PREFIX}start")


def _of_broken_records(rows: "DataFrame", key: Sequence[str], steps: Steps, order: str) -> "DataFrame":
    """The rows of records with a suspected row or a broken law, sorted by record, with all laws."""
    from pyspark.sql import Window
    from pyspark.sql.functions import expr
    from pyspark.sql.functions import max as greatest

    known, laws = [*rows.columns, *steps[0]], [*steps[-1]]
    for step in steps:
        rows = rows.withColumns({name: expr(sql) for name, sql in step.items()})
    record = Window.partitionBy(*key)
    rows = rows.withColumn(_BROKEN, greatest(reduce(or_, map(column, laws))).over(record))
    if SUSPECT in laws:
        rows = rows.withColumn(SUSPECT, greatest(SUSPECT).over(record))
    rows = rows.where(column(_BROKEN)).sortWithinPartitions(*key, quote(order))
    return rows.select(*map(quote, dict.fromkeys([*known, *laws])))


def broken_spans(store: IcebergStore, table: IcebergTable) -> Broken:
    """The laws that versions break, how often, and up to ten keys of each."""
    return broken_in_frame(_rows(store, table), read_terms(store, table))


def broken_in_frame(rows: "DataFrame", table_terms: TableTerms) -> Broken:
    """The laws that versions in a frame break, how often, and up to ten keys of each."""
    suspects = find_suspects(rows, table_terms)
    judge = table_terms.count_broken if table_terms.terms.remembers else None
    own = table_terms.terms.tracked if table_terms.valued else ()
    columns = [each for each in suspects.columns if each.startswith(PREFIX) and (judge or each in LAW_OF)]
    suspects = suspects.select(
        *map(quote, dict.fromkeys([*table_terms.identity, *table_terms.naming, *own, *columns]))
    )
    return _run(
        table_terms.shape, suspects, partial(examine, judge, table_terms.identity, table_terms.naming)
    )


def broken_rows(store: IcebergStore, table: IcebergTable) -> Broken:
    """The laws of keys and hashes that rows break in a table with one row for each record."""
    table_terms = terms_of_keys(table, _hashes(store, table))
    if not (identity := table_terms.identity):
        return {}
    key = list(map(quote, identity))
    steps = laws_of_keys(TableSql(SPARK, quote, key), table_terms)
    rows = _of_broken_records(_rows(store, table), key, steps, f"{PREFIX}keyed")
    rows = rows.select(*map(quote, dict.fromkeys([*identity, *table_terms.naming, *steps[-1]])))
    return _run(table_terms.shape, rows, partial(examine, None, identity, table_terms.naming))


def broken_log(store: IcebergStore, table: IcebergTable) -> Broken:
    """The laws that a dataset's rows break, how often, and up to ten keys of each."""
    from pyspark.sql import Observation

    names, shape = system_columns(table), table.shape
    newest = next((text for commit in ancestry(table) if (text := commit.get_property(WATERMARK))), None)
    log = log_facts(table, names, newest)
    identity = list(shape.key if log.corrects else identity_names(names, shape)) or [names["offset"]]
    shown, key = shape.key or (names["offset"],), list(map(quote, identity))
    steps = laws_of_events(TableSql(SPARK, quote, key), shape, names, log)
    observation = Observation()
    columns = [names[each] for each in ("offset", "op", "event_time", "observed") if names[each] is not None]
    rows = _rows(store, table).select(*map(quote, dict.fromkeys([*columns, *identity, *shown])))
    rows = _observe_offsets(rows, steps[0][_OFFSET], observation)
    suspects = _of_broken_records(rows, key, steps, _OFFSET)
    suspects = suspects.select(*map(quote, dict.fromkeys([*identity, *shown, *steps[-1]])))
    broken = _run(shape, suspects, partial(examine, None, identity, shown))
    offsets = _offsets(store, table, names["offset"], observation.get)
    return broken | ({Law.OFFSETS.value: offsets} if offsets[0] else {})


def _observe_offsets(rows: "DataFrame", offset: str, seen: "Observation") -> "DataFrame":
    """The rows, with an observation of the count and the XOR of hashes of their offsets."""
    from pyspark.sql.functions import bit_xor, count, expr, lit, xxhash64

    hashed = rows.withColumn(f"{PREFIX}hash", xxhash64(expr(offset)))
    observed = hashed.observe(
        seen, count(lit(1)).alias("rows"), bit_xor(quote(f"{PREFIX}hash")).alias("hash")
    )
    return observed.drop(f"{PREFIX}hash")


def _offsets(
    store: IcebergStore, table: IcebergTable, offset: str, seen: Mapping[str, Any]
) -> tuple[int, list[str]]:
    """How many offsets are missing, repeated or in no block, and the first ten of them.

    Count and hash of the right offsets are known; only if the log has others is it read again.
    """
    from pyspark.sql.functions import bit_xor, xxhash64

    wrong_blocks, wanted = wrong_offsets(log_rows(store, table.shape.table), snapshots(table), seen["rows"])
    (whole,) = store.spark.range(wanted).agg(bit_xor(xxhash64("id")).alias("hash")).collect()
    if (seen["rows"], seen["hash"]) == (wanted, whole["hash"]):
        return len(wrong_blocks), wrong_blocks[:MAX_KEYS]
    source = f"(SELECT CAST({quote(offset)} AS BIGINT) AS place FROM {store.sql_name(table.shape.table)})"
    wrong = store.spark.sql(misplaced_query(source, wanted))
    with translate_faults(table.shape.table):
        keys = [str(row["place"]) for row in wrong.orderBy("place").limit(MAX_KEYS).collect()]
        (total,) = wrong.selectExpr("sum(times) AS times").collect()
    return int(total["times"] or 0) + len(wrong_blocks), keys


def _run(shape: Shape, rows: "DataFrame", check: Any) -> Broken:
    """Run a check in the tasks of a frame, and add up its results."""
    with translate_faults(shape.table):
        return add_up(arrow_of(map_batches(rows, check, FOUND)).to_pylist())
