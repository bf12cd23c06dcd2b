"""The laws of a table's rows, checked by Spark in one scan, and by plain Python in its tasks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from backstory.errors import MAX_KEYS
from backstory.journal.log_table import log_rows
from backstory.model.table import TableName
from backstory.reading.frames.versions import query_frame
from backstory.reading.lifetimes import SPARK
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.iceberg.workers import map_batches
from backstory.stores.metadata.catalogs import metadata_of
from backstory.upkeep.laws import checks
from backstory.upkeep.laws.queries import (
    LAW_OF,
    OFFSET,
    SUSPECT,
    LawQuery,
    TableSql,
    nest_steps,
    query_of_rows,
)
from backstory.upkeep.laws.table_terms import TableTerms, misplaced_query
from backstory.upkeep.laws.tally import FOUND, Broken, add_up, examine
from backstory.upkeep.laws.terms import PREFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backstory.stores.sql.row_hashes import RowHash

# The column that is true if a row's record breaks a law, or is suspected.
_BROKEN: Final = quote(f"{PREFIX}broken")
_HASH: Final = f"{PREFIX}hash"


def broken_in_table(store: IcebergStore, table: IcebergTable) -> Broken:
    """How often the rows of a table break each law, with up to ten keys of each."""
    logged = partial(log_rows, store, table.shape.table)
    return checks.broken_laws(metadata_of(store, table), partial(_read_rows, store, table), logged)


def read_terms(store: IcebergStore, table: IcebergTable) -> TableTerms:
    """The terms of a table of versions, by its layout, properties, commits and marks."""
    return checks.read_terms(metadata_of(store, table), partial(_read_rows, store, table))[1]


def broken_in_frame(rows: "DataFrame", table_terms: TableTerms) -> Broken:
    """How often versions in a frame break each law, with up to ten keys of each."""
    return FrameRows(rows, table_terms.shape.table).count(query_of_rows(table_terms))


def find_suspects(rows: "DataFrame", laws: LawQuery) -> "DataFrame":
    """The rows of records that break a law or are suspected, sorted by record.

    They also have the columns of the first and the last step.
    """
    key = list(map(quote, laws.identity))
    steps, of_record = laws.steps(TableSql(SPARK, quote, key)), f"OVER (PARTITION BY {', '.join(key)})"
    names = list(map(quote, dict.fromkeys([*rows.columns, *steps[0], *steps[-1]])))
    whole = {quote(SUSPECT): f"MAX({quote(SUSPECT)}) {of_record} AS {quote(SUSPECT)}"}
    anything = f"MAX({' OR '.join(map(quote, steps[-1]))}) {of_record} AS {_BROKEN}"
    listed = ", ".join([*(whole.get(name, name) for name in names), anything])
    text = f"SELECT {listed} FROM {nest_steps(steps, SPARK)} AS judged"
    text = f"SELECT {', '.join(names)} FROM ({text}) AS records WHERE {_BROKEN}"
    return query_frame(rows, text).sortWithinPartitions(*key, quote(laws.order))


def _read_rows(store: IcebergStore, table: IcebergTable, names: Sequence[str]) -> "FrameRows":
    """The rows of a table; Spark itself leaves out columns that no query needs."""
    del names
    return FrameRows(store.spark.table(store.sql_name(table.shape.table)), table.shape.table)


@dataclass(frozen=True, slots=True)
class FrameRows:
    """Rows of a table as a frame."""

    rows: "DataFrame"
    table: TableName

    @property
    def engine(self) -> TableSql:
        """The SQL of the columns in Spark."""
        return TableSql(SPARK, quote, ())

    def ask(self, query: str) -> pa.Table:
        """The answer to a query of the rows."""
        with translate_faults(self.table):
            return arrow_of(query_frame(self.rows, query))

    def hashes(self, ways: "Sequence[RowHash]") -> tuple[str, ...]:
        """The hashes that a row may have, as SQL."""
        from backstory.stores.sql.dialects import Spark

        return tuple(way.sql(Spark(), quote) for way in ways)

    def count(self, laws: LawQuery) -> Broken:
        """How often rows break each law, counted in tasks."""
        suspects = find_suspects(self.rows, laws)
        judged = laws.judge is not None
        columns = [
            each for each in suspects.columns if each.startswith(PREFIX) and (judged or each in LAW_OF)
        ]
        names = dict.fromkeys([*laws.identity, *laws.naming, *laws.values, *columns])
        counts = map_batches(suspects.select(*map(quote, names)), partial(examine, laws), FOUND)
        with translate_faults(self.table):
            return add_up(arrow_of(counts).to_pylist())

    def count_events(
        self, laws: LawQuery, offset: str, wanted: Callable[[int], int]
    ) -> tuple[Broken, int, list[str]]:
        """As `count`, and the number of wrong offsets, with the first ten of them.

        The scan of the laws also computes the count and a hash of all offsets. Only if these are wrong is the
        log read again.
        """
        from pyspark.sql import Observation
        from pyspark.sql.functions import bit_xor, count, expr, lit, xxhash64

        number, observation = laws.steps(self.engine)[0][OFFSET], Observation()
        rows = self.rows.withColumn(_HASH, xxhash64(expr(number)))
        whole = bit_xor(quote(_HASH)).alias("hash")
        rows = rows.observe(observation, count(lit(1)).alias("rows"), whole).drop(_HASH)
        broken, seen = FrameRows(rows, self.table).count(laws), observation.get
        right = wanted(seen["rows"])
        (hashes,) = rows.sparkSession.range(right).agg(bit_xor(xxhash64("id")).alias("hash")).collect()
        if (seen["rows"], seen["hash"]) == (right, hashes["hash"]):
            return broken, 0, []
        source = f"(SELECT CAST({quote(offset)} AS BIGINT) AS place FROM {SPARK.rows})"
        wrong = query_frame(self.rows, misplaced_query(source, right))
        with translate_faults(self.table):
            keys = [str(row["place"]) for row in wrong.orderBy("place").limit(MAX_KEYS).collect()]
            (total,) = wrong.selectExpr("sum(times) AS times").collect()
        return broken, int(total["times"] or 0), keys
