"""Count the violations of each law of a table's layout, and mend broken records.

A query finds the rows that break laws. DuckDB runs it on the files of a small table. Spark scans a large
table once, and plain Python examines and mends its broken records in Spark's tasks.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS
from backstory.formats.memory import MemoryLease
from backstory.journal.chain import WATERMARK, log_rows, log_rows_in_files, snapshots
from backstory.journal.verify import read_history
from backstory.model import versions_layout as memory
from backstory.model.instant import EPOCH, iso
from backstory.model.layout import FILE, MEMORY, POSITION, RECORDED_AT, ROW_HASH, ROW_ID, Layout
from backstory.model.table import TableName
from backstory.model.values import key_text
from backstory.reading.files import sort_in_lease, without_zone
from backstory.reading.frames import query_frame
from backstory.reading.lifetimes import DUCKDB, SPARK, SqlSyntax
from backstory.reading.questions import system_columns
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.iceberg.workers import map_batches
from backstory.stores.metadata.table_metadata import TableMetadata, Unreadable
from backstory.stores.metadata.table_rows import MOST_IN_ARROW, MOST_ROWS, TableReader, sort_like_spark
from backstory.stores.metadata.values import rows_of, values_of, whole_numbers
from backstory.strategies.values import identities
from backstory.upkeep.laws import queries
from backstory.upkeep.laws.mending import mend_rows
from backstory.upkeep.laws.queries import LAW_OF, RowLaws, count_broken
from backstory.upkeep.laws.terms import LAWS, PREFIX, REMEMBERED, Law, LawTerms, RecordRow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backstory.stores.sql.row_hashes import RowHash

VIOLATIONS_DDL: Final = "law string, violations bigint, keys array<string>"
_VIOLATIONS_SCHEMA: Final = pa.schema(
    {"law": pa.string(), "violations": pa.int64(), "keys": pa.list_(pa.string())}
)
Broken = dict[str, tuple[int, list[str]]]


def split_records(batches: Iterable[pa.Table], identity: Sequence[str]) -> Iterator[pa.Table]:
    """Split rows that are ordered by record into one table for each record."""
    pending: pa.Table | None = None
    for batch in batches:
        rows = batch if pending is None else pa.concat_tables([pending, batch])
        begins = [0, *(np.flatnonzero(np.diff(identities(rows, identity))) + 1)]
        for begin, end in pairwise(begins):
            yield rows.slice(begin, end - begin)
        pending = rows.slice(begins[-1])
    if pending is not None and pending.num_rows:
        yield pending


def examine(laws: RowLaws, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count how often rows, ordered by record, break each law, with up to ten keys for each law."""
    judge = laws.judge
    counts: Counter[str] = Counter()
    keys: dict[str, dict[str, None]] = {}

    def add(law: str, times: int, rows: pa.Table) -> None:
        counts[law] += times
        texts = keys.setdefault(law, {})
        for text in _key_texts(rows, laws.naming):
            if len(texts) == MAX_KEYS:
                break
            texts[text] = None

    def count_rows() -> Iterator[pa.Table]:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            for name in LAW_OF.keys() & set(rows.column_names):
                if times := pc.sum(rows[name]).as_py():
                    add(LAW_OF[name], times, rows.filter(rows[name]))
            yield rows if judge else rows.slice(0, 0)

    for life in split_records(count_rows(), laws.identity):
        for law, times in judge(life).items() if judge else ():
            add(law, times, life)
    results = [{"law": law, "violations": times, "keys": [*keys[law]]} for law, times in counts.items()]
    yield pa.RecordBatch.from_pylist(results, _VIOLATIONS_SCHEMA)


def _key_texts(rows: pa.Table, shown: Sequence[str]) -> Iterator[str]:
    """The keys of rows as people write them."""
    for begin in range(0, rows.num_rows, MAX_KEYS):
        part = rows.slice(begin, MAX_KEYS)
        for values in zip(*(values_of(part[name]) for name in shown), strict=True):
            yield key_text(shown, values)


def add_up(results: Iterable[Mapping[str, Any]]) -> Broken:
    """The sum of the results of `examine`, with the first ten keys for each law."""
    totals: Broken = {}
    for row in results:
        count, keys = totals.get(row["law"], (0, []))
        totals[row["law"]] = (count + row["violations"], sorted({*keys, *row["keys"]})[:MAX_KEYS])
    return totals


_PLACE: Final = "place"
_RECORD: Final = "record"
_BROKEN: Final = quote(f"{PREFIX}broken")


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows of a table. The columns are numbered in DuckDB, for which `a` and `A` are the same name."""

    lease: MemoryLease
    table: pa.Table

    @property
    def syntax(self) -> SqlSyntax:
        """DuckDB's syntax, with the names of the columns in queries."""
        names = {name: f"c{place}" for place, name in enumerate(self.table.column_names)}
        return replace(DUCKDB, stored=names.__getitem__)

    def ask(self, query: str, **more: np.ndarray) -> pa.Table:
        """The answer to a query on the rows, with their places and the columns `more`."""
        columns = {f"c{place}": without_zone(each) for place, each in enumerate(self.table.columns)}
        numbers = {_PLACE: np.arange(len(self.table)), **more}
        columns |= {name: pa.array(values) for name, values in numbers.items()}
        try:
            return sort_in_lease(self.lease, "laws", pa.table(columns), query)
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
        return tuple(way.sql(DuckDB(), self.syntax.column) for way in ways)

    def count(self, laws: RowLaws) -> Broken:
        """How often rows break each law. Finds the broken records, then checks their rows again."""
        records, relation = identities(self.table, laws.identity), laws.relation(self.syntax, [_RECORD])
        anything = " OR ".join(map(DUCKDB.name, laws.names))
        broken = self.ask(f"SELECT {_PLACE} FROM {relation} WHERE {anything}", record=records)
        places = np.flatnonzero(np.isin(records, records[whole_numbers(broken[_PLACE])]))
        if not len(places):
            return {}
        if laws.judge is not None and len(places) > MOST_ROWS:
            raise Unreadable("records that are checked one by one")
        lives = FileRows(self.lease, self.table.take(places))
        columns = ", ".join(map(DUCKDB.name, laws.columns_and_laws(self.syntax)))
        answers = lives.ask(f"SELECT {columns} FROM {relation} ORDER BY {_PLACE}", record=records[places])
        names = [*lives.table.column_names, *answers.column_names]
        table = pa.table([*lives.table.columns, *answers.columns], names)
        batches = sort_like_spark(table, [*laws.identity, laws.order]).combine_chunks().to_batches()
        return add_up(row for result in examine(laws, batches) for row in result.to_pylist())

    def count_events(self, laws: RowLaws, offset: str, wanted: int) -> tuple[Broken, int, list[str]]:
        """The result of `count`, and the number of wrong offsets, with the first ten of them.

        `wanted` is the number of offsets in the log's blocks, or 0 if the blocks contain no offsets.
        """
        offsets, right = FileRows(self.lease, self.table.select([offset])), wanted or len(self.table)
        return self.count(laws), *_wrong_offsets(offsets, offset, right)


@dataclass(frozen=True, slots=True)
class FrameRows:
    """Rows of a table as a frame."""

    rows: "DataFrame"
    table: TableName
    syntax = SPARK

    def ask(self, query: str) -> pa.Table:
        """The answer to a query on the rows."""
        with translate_faults(self.table):
            return arrow_of(query_frame(self.rows, query))

    def hashes(self, ways: "Sequence[RowHash]") -> tuple[str, ...]:
        """The hashes that a row may have, as SQL."""
        from backstory.stores.sql.dialects import Spark

        return tuple(way.sql(Spark(), quote) for way in ways)

    def count(self, laws: RowLaws) -> Broken:
        """How often rows break each law, counted in tasks."""
        columns = laws.columns_and_laws(SPARK) if laws.judge else laws.names
        names = dict.fromkeys([*laws.identity, *laws.naming, *laws.values, *columns])
        suspects = find_suspects(self.rows, laws).select(*map(quote, names))
        counts = map_batches(suspects, partial(examine, laws), VIOLATIONS_DDL)
        with translate_faults(self.table):
            return add_up(arrow_of(counts).to_pylist())

    def count_events(self, laws: RowLaws, offset: str, wanted: int) -> tuple[Broken, int, list[str]]:
        """The result of `count`, and the number of wrong offsets, with the first ten of them.

        The scan of the laws also computes the count and a hash of all offsets. The log is read again only if
        the count or the hash is wrong.
        """
        from pyspark.sql import Observation
        from pyspark.sql.functions import bit_xor, count, expr, lit, xxhash64

        observation, number = Observation(), expr(queries.offset_sql(SPARK, offset))
        whole = bit_xor(xxhash64(number)).alias("hash")
        rows = self.rows.observe(observation, count(lit(1)).alias("rows"), whole)
        broken, seen = FrameRows(rows, self.table).count(laws), observation.get
        right = wanted or seen["rows"]
        (hashes,) = rows.sparkSession.range(right).agg(bit_xor(xxhash64("id")).alias("hash")).collect()
        if (seen["rows"], seen["hash"]) == (right, hashes["hash"]):
            return broken, 0, []
        return broken, *_wrong_offsets(self, offset, right)


def _wrong_offsets(rows: "LawRows", offset: str, wanted: int) -> tuple[int, list[str]]:
    """The number of rows by which offsets are wrong, and the first ten offsets that do not occur once.

    The right offsets are the numbers from 0 to `wanted` - 1. NULL is never a right offset.
    """
    due = "CASE WHEN number IS NULL THEN 0 ELSE 1 END"
    there = f"SELECT {queries.offset_sql(rows.syntax, offset)} AS place FROM {rows.syntax.rows}"
    wrong = rows.ask(f"""WITH wrong AS (
      SELECT COALESCE(place, number) AS place, ABS(COALESCE(times, 0) - {due}) AS times
      FROM (SELECT place, COUNT(*) AS times FROM ({there}) AS rows GROUP BY place) AS there
      FULL JOIN RANGE({wanted}) AS numbers (number) ON place = number
    ) SELECT place, (SELECT CAST(SUM(times) AS BIGINT) FROM wrong) AS total FROM wrong WHERE times > 0
    ORDER BY place NULLS FIRST LIMIT {MAX_KEYS}""")
    totals, keys = wrong["total"].to_pylist(), wrong["place"].to_pylist()
    return max(totals, default=0), list(map(str, keys))


def broken_in_frame(rows: "DataFrame", terms: LawTerms) -> Broken:
    """How often versions in a frame break each law, with up to ten keys for each law."""
    return FrameRows(rows, terms.shape.table).count(queries.query_of_rows(terms))


def find_suspects(rows: "DataFrame", laws: RowLaws) -> "DataFrame":
    """The rows of records that break a law or are suspected, sorted by record, with the laws and columns."""
    key = list(map(quote, laws.identity))
    names = ", ".join(map(quote, dict.fromkeys([*rows.columns, *laws.columns_and_laws(SPARK)])))
    broken = f"MAX({' OR '.join(map(quote, laws.names))}) OVER (PARTITION BY {', '.join(key)})"
    text = f"SELECT {names}, {broken} AS {_BROKEN} FROM {laws.relation(SPARK, key)}"
    text = f"SELECT {names} FROM ({text}) AS records WHERE {_BROKEN}"
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
    rows, terms = read_terms(table, read)
    return rows.count(queries.query_of_rows(terms)) if terms.identity else {}


def read_terms(table: TableMetadata, read: ReadRows) -> tuple[LawRows, LawTerms]:
    """The rows of a table, and the table's terms, from its layout, properties, commits and marks."""
    ways, terms = queries.read_row_hashes(table), queries.terms_of(table)
    hashed = (column.name for way in ways for column in way.columns)
    rows = read([*dict.fromkeys([*queries.query_of_rows(terms).table_columns, *hashed])])
    terms = replace(terms, hashes=rows.hashes(ways) if ways else ())
    if not queries.keeps_memory(table):
        return rows, terms
    # Iceberg prunes by the key, which is NULL only in marks.
    marks = rows.ask(queries.marks_query(terms, rows.syntax))
    return rows, replace(terms, marks=tuple(terms.row(0, values) for values in rows_of(marks)))


def _broken_log(table: TableMetadata, read: ReadRows, logged: LogRows) -> Broken:
    names = system_columns(table)
    strict, watermark = queries.is_strict(table), queries.newest_instant(table, WATERMARK)
    laws = queries.query_of_events(table.shape, names, strict=strict, watermark=watermark)
    blocks, problems = read_history(logged(), snapshots(table))
    wrong_blocks = [str(each.offsets[0]) for each in problems if each.what == "offsets" and each.offsets]
    numbers = [block.offsets[1] + 1 for block in blocks if block.offsets]
    broken, times, keys = read(laws.table_columns).count_events(laws, names["offset"], [0, *numbers][-1])
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
    return broken_laws(table, lambda _: _rows_in_session(store, table), logged)


def terms_in_table(store: IcebergStore, table: IcebergTable) -> LawTerms:
    """The facts needed to check a table of versions, from its layout, properties, commits and marks."""
    return read_terms(table, lambda _: _rows_in_session(store, table))[1]


def _rows_in_session(store: IcebergStore, table: IcebergTable) -> FrameRows:
    """The rows of a table. Spark itself omits columns that no query needs."""
    return FrameRows(store.spark.table(store.sql_name(table.shape.table)), table.shape.table)


REMOVE, STAY, ADD, REPORT = range(4)
ACT, REPORTED = f"{PREFIX}act", f"{PREFIX}told"

# The laws of a record in the order in which they are shown.
_SHOWN: Final = tuple(dict.fromkeys([Law.MEMORY, Law.RECORDED, Law.SETTLED, *REMEMBERED, *Law]))


@dataclass
class MendTally:
    """Counts of a repair: records, and rows by outcome; and broken laws, with samples before and after."""

    counts: Counter[str] = field(default_factory=Counter)
    laws: Counter[str] = field(default_factory=Counter)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Mapping[str, Any]) -> None:
        """Add the fields of another tally."""
        self.counts.update(other["counts"])
        self.laws.update(other["laws"])
        self.samples = sorted([*self.samples, *other["samples"]], key=lambda each: each["key"])[:MAX_KEYS]


def mend_records(
    terms: LawTerms, names: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows of broken records to remove, to keep and to add, and one row with the counts."""
    tally, stored = MendTally(), None
    for life in split_records(map(pa.Table.from_batches, ([batch] for batch in batches)), terms.identity):
        stored, laws = life.select(list(names)), _laws_of_record(terms, life)
        if not laws:
            continue
        values = life.to_pylist()
        rows = _record_rows(terms, names, values)
        after = mend_rows(rows, terms, set(map(Law, laws)))
        changed = [row for row in after if row != rows[row.place]]
        stays = {row.place for row in after} - {row.place for row in changed}
        added = [
            _written_row(terms, {name: values[row.place][name] for name in names}, row) for row in changed
        ]
        tally.laws.update(laws)
        tally.counts.update(keys=1, dropped=len(rows) - len(after), rewritten=len(changed))
        if len(tally.samples) < MAX_KEYS:
            key = key_text(terms.naming, [values[0][name] for name in terms.naming])
            shown = {"before": _cells(terms, rows), "after": _cells(terms, after)}
            tally.samples.append({"key": key, "laws": [*laws], **shown})
        yield from _act(REMOVE, _take(stored, (place for place in range(len(rows)) if place not in stays)))
        yield from _act(STAY, _take(stored, sorted(stays)))
        yield from _act(ADD, pa.Table.from_pylist(added, stored.schema))
    if stored is not None:
        yield from _act(REPORT, stored.slice(0, 1), json.dumps(tally.__dict__))


def _take(rows: pa.Table, places: Iterable[int]) -> pa.Table:
    return rows.take(pa.array(places, pa.int64()))


def _act(act: int, rows: pa.Table, report: str | None = None) -> list[pa.RecordBatch]:
    columns = [pa.array([act] * len(rows), pa.int8()), pa.array([report] * len(rows), pa.string())]
    return pa.table([*columns, *rows.columns], names=[ACT, REPORTED, *rows.column_names]).to_batches()


def _laws_of_record(terms: LawTerms, life: pa.Table) -> dict[str, int]:
    """How often the rows of a record break each law."""
    times: Counter[str] = Counter(count_broken(terms, life) if terms.remembers else {})
    for name in LAW_OF.keys() & set(life.column_names):
        times[LAW_OF[name].value] += life[name].to_pylist().count(True)
    return {law.value: times[law] for law in _SHOWN if times[law]}


def _record_rows(
    terms: LawTerms, names: Sequence[str], values: Sequence[Mapping[str, Any]]
) -> list[RecordRow]:
    """The rows of a record. Identical rows differ only in their places."""
    places = {FILE, POSITION, *names[names.index(POSITION) + 1 :]}
    twins = [repr([row[name] for name in names if name not in places]) for row in values]
    return [terms.row(place, each, twins[place], each.get(ROW_ID)) for place, each in enumerate(values)]


def _own_cells(terms: LawTerms, row: RecordRow) -> dict[str, Any]:
    """The end, flag, state and recorded time of a row, as far as the layout has them."""
    cells = {terms.span.end: _instant(row.end), terms.span.flag: row.flag, terms.span.state: row.state}
    cells |= {RECORDED_AT: _instant(row.written)} if terms.remembers else {}
    return {name: value for name, value in cells.items() if name}


def _written_row(terms: LawTerms, values: dict[str, Any], row: RecordRow) -> dict[str, Any]:
    """The values of a stored row with the repaired end, flag, state and memory."""
    own = _own_cells(terms, row)
    if terms.remembers:
        fields = (values[MEMORY] or {}) | {
            memory.ROLE: row.role,
            memory.KIND: row.kind,
            memory.SCOPE: row.scope,
            memory.OWN_TIME: _instant(row.time),
            memory.ENDED_AT: _instant(row.ended_at),
            memory.END_BEFORE: _instant(row.end_before),
        }
        own[MEMORY] = None if all(value is None for value in fields.values()) else fields
    return values | own | dict(row.values)


def _cells(terms: LawTerms, rows: Sequence[RecordRow]) -> list[dict[str, Any]]:
    """The layout's own columns of the rows, sorted by start. Values are never included."""
    shown = []
    for row in sorted(rows, key=lambda row: (row.start or 0, row.place))[: 2 * MAX_KEYS]:
        cells = {terms.span.start: _instant(row.start), **_own_cells(terms, row)}
        cells |= {memory.ROLE: row.role} if row.role else {}
        texts = {name: iso(value) for name, value in cells.items() if isinstance(value, datetime)}
        shown.append(cells | texts)
    return shown


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else EPOCH + timedelta(microseconds=micros)
