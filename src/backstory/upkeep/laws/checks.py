"""Counts the violations of each law that a table's layout has, with a query that DuckDB or Spark runs.

DuckDB reads the files of a small table. Spark scans a large table once, and plain Python examines its broken
records in Spark's tasks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS
from backstory.formats.memory import MemoryLease
from backstory.journal.chain import log_rows, log_rows_in_files, snapshots_in_files
from backstory.model.layout import MEMORY, ROW_HASH, Layout
from backstory.model.table import TableName
from backstory.model.versions_layout import Role
from backstory.reading.files import SORT_MEMORY, hold_memory, query_rows, without_zone
from backstory.reading.frames import query_frame
from backstory.reading.histories import system_columns
from backstory.reading.lifetimes import DUCKDB, SPARK
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.iceberg.workers import map_batches
from backstory.stores.metadata.catalogs import metadata_of
from backstory.stores.metadata.table_metadata import TableMetadata, Unreadable
from backstory.stores.metadata.table_rows import MOST_IN_ARROW, MOST_ROWS, TableReader, sort_like_spark
from backstory.stores.metadata.values import integers, rows_of, whole_numbers
from backstory.strategies.values import identities
from backstory.upkeep.laws.queries import (
    LAW_OF,
    OFFSET,
    SUSPECT,
    LawQuery,
    TableSql,
    layout_columns,
    nest_steps,
    query_of_events,
    query_of_rows,
)
from backstory.upkeep.laws.table_terms import (
    TableTerms,
    log_facts,
    misplaced_query,
    read_row_hashes,
    terms_of,
    wrong_offsets,
)
from backstory.upkeep.laws.tally import FOUND, Broken, add_up, examine
from backstory.upkeep.laws.terms import LAWS, PREFIX, Law

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backstory.stores.sql.row_hashes import RowHash

_PLACE: Final = "place"
_RECORD: Final = "record"


# The column that is true if a row's record breaks a law, or is suspected.
_BROKEN: Final = quote(f"{PREFIX}broken")
_HASH: Final = f"{PREFIX}hash"


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows of a table. The columns are numbered in DuckDB, for which `a` and `A` are the same name."""

    lease: MemoryLease
    table: pa.Table

    @property
    def engine(self) -> TableSql:
        """The SQL of the columns in DuckDB."""
        names = {name: f"c{place}" for place, name in enumerate(self.table.column_names)}
        return TableSql(DUCKDB, names.__getitem__, [_RECORD])

    def ask(self, query: str, records: np.ndarray | None = None) -> pa.Table:
        """The answer to a query on the rows, with their places and the numbers of their records."""
        own = {_PLACE: integers(np.arange(len(self.table)))}
        own |= {} if records is None else {_RECORD: integers(records)}
        columns = {f"c{place}": without_zone(each) for place, each in enumerate(self.table.columns)}
        rows = pa.table(own | columns)
        with hold_memory(self.lease, "laws", SORT_MEMORY * rows.nbytes):
            try:
                return query_rows(rows, query)
            except duckdb.Error:
                raise Unreadable("values that DuckDB lacks") from None

    def hashes(self, ways: "Sequence[RowHash]") -> tuple[str, ...]:
        """The hashes that a row may have, as SQL. Raises Unreadable if they may differ from Spark's."""
        from backstory.stores.sql.dialects import DuckDB
        from backstory.stores.sql.duckdb_engine import SAME_TEXT, has_usual_years

        columns = [column for way in ways for column in way.columns]
        if any(column.datatype not in SAME_TEXT for column in columns):
            raise Unreadable("values whose texts differ")
        if not all(
            has_usual_years(self.table[name]) for name in (ROW_HASH, *(each.name for each in columns))
        ):
            raise Unreadable("years whose texts differ")
        return tuple(way.sql(DuckDB(), self.engine.column) for way in ways)

    def count(self, laws: LawQuery) -> Broken:
        """How often rows break each law. Finds the broken records, then checks their rows again."""
        records, steps = identities(self.table, laws.identity), laws.steps(self.engine)
        anything = " OR ".join(map(DUCKDB.name, steps[-1]))
        relation = f"{nest_steps(steps, DUCKDB)} AS judged"
        broken_places = self.ask(f"SELECT {_PLACE} FROM {relation} WHERE {anything}", records)
        if not broken_places.num_rows:
            return {}
        is_broken = np.zeros(records.max() + 1, bool)
        is_broken[records[whole_numbers(broken_places[_PLACE])]] = True
        places = np.flatnonzero(is_broken[records])
        if laws.judge is not None and len(places) > MOST_ROWS:
            raise Unreadable("records that are checked one by one")
        lives = replace(self, table=self.table.take(integers(places)))
        columns = ", ".join(map(DUCKDB.name, [*steps[0], *steps[-1]]))
        if laws.judge is not None:  # it judges whole records
            suspect = DUCKDB.name(SUSPECT)
            columns = columns.replace(suspect, f"MAX({suspect}) OVER (PARTITION BY {_RECORD}) AS {suspect}")
        answers = lives.ask(f"SELECT {columns} FROM {relation} ORDER BY {_PLACE}", records[places])
        names = [*lives.table.column_names, *answers.column_names]
        table = pa.table([*lives.table.columns, *answers.columns], names)
        batches = sort_like_spark(table, [*laws.identity, laws.order]).combine_chunks().to_batches()
        return add_up(row for result in examine(laws, batches) for row in result.to_pylist())

    def count_events(
        self, laws: LawQuery, offset: str, wanted: Callable[[int], int]
    ) -> tuple[Broken, int, list[str]]:
        """The result of `count`, and the number of wrong offsets, with the first ten of them."""
        broken, offsets = self.count(laws), self.table[offset].cast(pa.int64())
        query = f"{misplaced_query(DUCKDB.rows, wanted(len(offsets)))} ORDER BY place NULLS FIRST"
        with hold_memory(self.lease, "laws", offsets.nbytes):
            wrong = query_rows(pa.table({_PLACE: offsets}), query)
        keys = list(map(str, wrong[_PLACE].slice(0, MAX_KEYS).to_pylist()))
        return broken, int(pc.sum(wrong["times"]).as_py() or 0), keys


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
        """The answer to a query on the rows."""
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
        """The result of `count`, and the number of wrong offsets, with the first ten of them.

        The scan of the laws also computes the count and a hash of all offsets. The log is read again only if
        the count or the hash is wrong.
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


def broken_in_frame(rows: "DataFrame", table_terms: TableTerms) -> Broken:
    """How often versions in a frame break each law, with up to ten keys for each law."""
    return FrameRows(rows, table_terms.shape.table).count(query_of_rows(table_terms))


def find_suspects(rows: "DataFrame", laws: LawQuery) -> "DataFrame":
    """The rows of records that break a law or are suspected, sorted by record.

    The result also has the columns of the first and the last step.
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


# The rows of a table, in the engine that reads at least these columns.
LawRows: TypeAlias = FileRows | FrameRows
ReadRows: TypeAlias = Callable[[Sequence[str]], LawRows]
# The rows of a dataset's log.
LogRows = Callable[[], Sequence[Mapping[str, Any]]]


def broken_laws(table: TableMetadata, read: ReadRows, logged: LogRows) -> Broken:
    """How often the rows of a table break each law of its layout, with up to ten keys for each law."""
    if table.shape.layout is Layout.ODF:
        return _broken_log(table, read, logged)
    if table.shape.layout.span is None and Law.UNIQUE_KEY not in LAWS[table.shape.layout]:
        return {}
    rows, table_terms = read_terms(table, read)
    return rows.count(query_of_rows(table_terms)) if table_terms.identity else {}


def read_terms(table: TableMetadata, read: ReadRows) -> tuple[LawRows, TableTerms]:
    """The rows of a table, and the table's terms, from its layout, properties, commits and marks."""
    ways, table_terms = read_row_hashes(table), terms_of(table)
    rows = read(_columns(table_terms, ways))
    table_terms = replace(table_terms, hashes=rows.hashes(ways) if ways else ())
    if not table_terms.valued:
        return rows, table_terms
    # Iceberg prunes by the key, which is NULL only in marks.
    engine, first = rows.engine, rows.engine.column(table.shape.key[0])
    known = engine.steps(layout_columns(engine, table_terms))
    marks = f"SELECT {', '.join(map(engine.words.name, known[0]))} FROM {nest_steps(known, engine.words)}"
    marks += f" AS marks WHERE {first} IS NULL AND {engine.words.name(PREFIX + 'role')} = '{Role.FACT}'"
    return rows, table_terms.with_marks(rows_of(rows.ask(marks)))


def _columns(table_terms: TableTerms, ways: "Sequence[RowHash]") -> list[str]:
    """The columns that the laws of a table read."""
    span, terms = table_terms.shape.layout.span, table_terms.terms
    names = [*table_terms.identity, *table_terms.naming]
    if span is not None:
        names += filter(None, (span.start, span.end, span.flag, span.state))
        names += filter(None, (span.written, MEMORY) if terms.remembers else ())
    if terms.hashed:
        names += [ROW_HASH, *(column.name for way in ways for column in way.columns)]
    return [*dict.fromkeys([*names, *(terms.tracked if table_terms.valued else ())])]


def _broken_log(table: TableMetadata, read: ReadRows, logged: LogRows) -> Broken:
    names, shape = system_columns(table), table.shape
    laws = query_of_events(shape, names, log_facts(table, names))
    columns = [names[each] for each in ("offset", "op", "event_time", "observed") if names[each] is not None]
    rows, wrong_blocks = read([*dict.fromkeys([*columns, *shape.key, *laws.identity])]), list[str]()

    def right_number(count: int) -> int:
        wrong, right = wrong_offsets(logged(), snapshots_in_files(table), count)
        wrong_blocks.extend(wrong)
        return right

    broken, times, keys = rows.count_events(laws, names["offset"], right_number)
    times += len(wrong_blocks)
    return broken | ({Law.OFFSETS.value: (times, keys or wrong_blocks[:MAX_KEYS])} if times else {})


def broken_in_files(files: TableReader) -> Broken:
    """How often the rows of a table break each law. Raises Unreadable if only Spark can read them."""
    table = files.table

    def read(names: Sequence[str]) -> FileRows:
        return FileRows(files.lease, files.rows(table.snapshot, table.fields, names, MOST_IN_ARROW))

    return broken_laws(table, read, partial(log_rows_in_files, files))


def broken_in_table(store: IcebergStore, table: IcebergTable) -> Broken:
    """How often the rows of a table break each law, with up to ten keys for each law."""
    logged = partial(log_rows, store, table.shape.table)
    return broken_laws(metadata_of(store, table), lambda _: _rows_in_session(store, table), logged)


def terms_in_table(store: IcebergStore, table: IcebergTable) -> TableTerms:
    """The facts needed to check a table of versions, from its layout, properties, commits and marks."""
    return read_terms(metadata_of(store, table), lambda _: _rows_in_session(store, table))[1]


def _rows_in_session(store: IcebergStore, table: IcebergTable) -> FrameRows:
    """The rows of a table. Spark itself omits columns that no query needs."""
    return FrameRows(store.spark.table(store.sql_name(table.shape.table)), table.shape.table)
