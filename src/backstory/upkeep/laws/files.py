"""The laws of a table's rows, checked by DuckDB on its files: the queries of Spark, without Spark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS
from backstory.formats.memory import MemoryLease
from backstory.journal.chain import WATERMARK
from backstory.journal.log_table import log_rows_in_files, snapshots_in_files
from backstory.model.layout import MEMORY, ROW_HASH
from backstory.model.table import Shape
from backstory.model.versions_layout import RECORDED, Role
from backstory.reading.arrow.versions import SORT_MEMORY, hold_memory, query_rows, without_zone
from backstory.reading.histories import identity_names, system_columns
from backstory.reading.lifetimes import DUCKDB
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.table_rows import MOST_IN_ARROW, MOST_ROWS, TableReader, sort_like_spark
from backstory.stores.metadata.values import integers, rows_of, whole_numbers
from backstory.strategies.values import identities
from backstory.upkeep.laws.queries import (
    SUSPECT,
    Steps,
    TableSql,
    laws_of_events,
    laws_of_keys,
    laws_of_lives,
    layout_columns,
    nest_steps,
)
from backstory.upkeep.laws.table_terms import (
    LogFacts,
    TableTerms,
    log_facts,
    misplaced_query,
    numbers_of,
    read_row_hashes,
    terms_of_keys,
    terms_of_versions,
    wrong_offsets,
)
from backstory.upkeep.laws.tally import Broken, Judge, add_up, examine
from backstory.upkeep.laws.terms import PREFIX, Law

if TYPE_CHECKING:
    from backstory.stores.sql.row_hashes import RowHash

_PLACE: Final = "place"
_RECORD: Final = "record"


@dataclass(frozen=True, slots=True)
class LawRows:
    """Rows of a table. Their columns are numbered in DuckDB, for which `a` and `A` are the same name."""

    lease: MemoryLease
    table: pa.Table

    @property
    def engine(self) -> TableSql:
        """The SQL of the columns in DuckDB."""
        names = {name: f"c{place}" for place, name in enumerate(self.table.column_names)}
        return TableSql(DUCKDB, names.__getitem__, [_RECORD])

    def ask(self, query: str, records: np.ndarray) -> pa.Table:
        """The answer to a query on the rows, with their places and the numbers of their records."""
        own = {_PLACE: integers(np.arange(len(records))), _RECORD: integers(records)}
        columns = {f"c{place}": without_zone(each) for place, each in enumerate(self.table.columns)}
        rows = pa.table(own | columns)
        with hold_memory(self.lease, "laws", SORT_MEMORY * rows.nbytes):
            try:
                return query_rows(rows, query)
            except duckdb.Error:
                raise Unreadable("values that DuckDB lacks") from None


def broken_spans(files: TableReader) -> Broken:
    """The laws that versions break, as `broken_spans` of `frames.py` gives them."""
    table, ways = files.table, _row_hashes(files)
    table_terms = terms_of_versions(table, (), table.newest_property(RECORDED), numbers_of(table.fields))
    span, values = table.shape.layout.span, table_terms.terms.tracked if table_terms.valued else ()
    assert span is not None
    own = [span.start, span.end, span.flag, span.state]
    own += [span.written, MEMORY] if table_terms.terms.remembers else []
    names = [
        *table_terms.identity,
        *table_terms.naming,
        *filter(None, own),
        *_hash_inputs(ways, table_terms),
        *values,
    ]
    rows = _rows(files, names)
    engine = rows.engine
    table_terms = replace(table_terms, hashes=_hashes(ways, rows, table_terms))
    if table_terms.valued:
        first = engine.column(table_terms.shape.key[0])
        marks = f"SELECT * FROM {nest_steps(engine.steps(layout_columns(engine, table_terms)))} AS told"
        marks += f" WHERE {first} IS NULL AND {DUCKDB.name(PREFIX + 'role')} = '{Role.FACT}'"
        none = np.zeros(len(rows.table), np.int64)
        table_terms = table_terms.with_marks(rows_of(rows.ask(marks, none)))
    return broken_lives(rows, table_terms)


def broken_lives(rows: LawRows, table_terms: TableTerms) -> Broken:
    """The laws that versions break, by the terms of their table."""
    laws = _LawQuery(
        laws_of_lives(rows.engine, table_terms), table_terms.identity, table_terms.naming, f"{PREFIX}start"
    )
    return _count_broken(rows, laws, table_terms.count_broken if table_terms.terms.remembers else None)


def broken_rows(files: TableReader) -> Broken:
    """The laws of keys and hashes that rows break in a table with one row for each record."""
    ways, table_terms = _row_hashes(files), terms_of_keys(files.table, ())
    if not table_terms.identity:
        return {}
    rows = _rows(files, [*table_terms.identity, *table_terms.naming, *_hash_inputs(ways, table_terms)])
    table_terms = replace(table_terms, hashes=_hashes(ways, rows, table_terms))
    return broken_keys(rows, table_terms)


def broken_keys(rows: LawRows, table_terms: TableTerms) -> Broken:
    """The laws of keys and hashes that rows break, by the terms of their table."""
    steps = laws_of_keys(rows.engine, table_terms)
    return _count_broken(rows, _LawQuery(steps, table_terms.identity, table_terms.naming, f"{PREFIX}keyed"))


def broken_log(files: TableReader) -> Broken:
    """The laws that a dataset's rows break, as `broken_log` of `frames.py` gives them."""
    table = files.table
    names, shape = system_columns(table), table.shape
    log = log_facts(table, names, table.newest_property(WATERMARK))
    columns = [names[each] for each in ("offset", "op", "event_time", "observed") if names[each] is not None]
    rows = _rows(files, [*columns, *shape.key])
    broken = broken_events(rows, shape, names, log)
    offsets = _offsets(files, rows.table[names["offset"]].cast(pa.int64()))
    return broken | ({Law.OFFSETS.value: offsets} if offsets[0] else {})


def broken_events(rows: LawRows, shape: Shape, names: Mapping[str, Any], log: LogFacts) -> Broken:
    """The laws that events break, except the law `offsets`; `names` are the system columns."""
    identity = (shape.key if log.corrects else identity_names(names, shape)) or [names["offset"]]
    steps = laws_of_events(rows.engine, shape, names, log)
    return _count_broken(rows, _LawQuery(steps, identity, shape.key or (names["offset"],), f"{PREFIX}offset"))


def _rows(files: TableReader, names: Sequence[str]) -> LawRows:
    """All rows with these columns; Unreadable if only Spark can read them."""
    table = files.table
    return LawRows(
        files.lease, files.rows(table.snapshot, table.fields, list(dict.fromkeys(names)), MOST_IN_ARROW)
    )


@dataclass(frozen=True, slots=True)
class _LawQuery:
    """The steps of a query, and the columns by which records are identified, shown and ordered."""

    steps: Steps
    identity: Sequence[str]
    naming: Sequence[str]
    order: str


def _count_broken(rows: LawRows, laws: _LawQuery, judge: Judge | None = None) -> Broken:
    """Count how often rows break each law: find the broken records, then check their rows again."""
    records = identities(rows.table, laws.identity)
    anything = " OR ".join(map(DUCKDB.name, laws.steps[-1]))
    relation = f"{nest_steps(laws.steps)} AS judged"
    broken_places = rows.ask(f"SELECT {_PLACE} FROM {relation} WHERE {anything}", records)
    if not broken_places.num_rows:
        return {}
    is_broken = np.zeros(records.max() + 1, bool)
    is_broken[records[whole_numbers(broken_places[_PLACE])]] = True
    places = np.flatnonzero(is_broken[records])
    if judge is not None and len(places) > MOST_ROWS:
        raise Unreadable("records that are checked one by one")
    lives = replace(rows, table=rows.table.take(integers(places)))
    columns = ", ".join(map(DUCKDB.name, [*laws.steps[0], *laws.steps[-1]]))
    if judge is not None:  # it judges whole records
        suspect = DUCKDB.name(SUSPECT)
        columns = columns.replace(suspect, f"MAX({suspect}) OVER (PARTITION BY {_RECORD}) AS {suspect}")
    answers = lives.ask(f"SELECT {columns} FROM {relation} ORDER BY {_PLACE}", records[places])
    table = pa.table(
        [*lives.table.columns, *answers.columns], [*lives.table.column_names, *answers.column_names]
    )
    batches = sort_like_spark(table, [*laws.identity, laws.order]).combine_chunks().to_batches()
    results = examine(judge, laws.identity, laws.naming, batches)
    return add_up(row for result in results for row in result.to_pylist())


def _offsets(files: TableReader, offsets: pa.ChunkedArray) -> tuple[int, list[str]]:
    """How many offsets are missing, repeated or in no block, and the first ten of them."""
    wrong_blocks, wanted = wrong_offsets(
        log_rows_in_files(files), snapshots_in_files(files.table), len(offsets)
    )
    query = f"{misplaced_query(DUCKDB.rows, wanted)} ORDER BY place NULLS FIRST"
    with hold_memory(files.lease, "laws", offsets.nbytes):
        wrong = query_rows(pa.table({_PLACE: offsets}), query)
    if not wrong.num_rows:
        return len(wrong_blocks), wrong_blocks[:MAX_KEYS]
    total = pc.sum(wrong["times"]).as_py()
    return int(total) + len(wrong_blocks), list(map(str, wrong[_PLACE].slice(0, MAX_KEYS).to_pylist()))


def _row_hashes(files: TableReader) -> "tuple[RowHash, ...]":
    return read_row_hashes(files.table, numbers_of(files.table.fields))


def _hash_inputs(ways: "Sequence[RowHash]", table_terms: TableTerms) -> list[str]:
    """The column of hashes, and the columns that are hashed."""
    return (
        [ROW_HASH, *(column.name for way in ways for column in way.columns)]
        if table_terms.terms.hashed
        else []
    )


def _hashes(ways: "Sequence[RowHash]", rows: LawRows, table_terms: TableTerms) -> tuple[str, ...]:
    """The hashes that a row may have, as DuckDB SQL; Unreadable if they may differ from Spark's."""
    if not ways:
        return ()
    from backstory.stores.sql.dialects import DuckDB
    from backstory.stores.sql.duckdb_engine import SAME_TEXT, has_usual_years

    if any(column.datatype not in SAME_TEXT for way in ways for column in way.columns):
        raise Unreadable("values whose texts differ")
    if not all(has_usual_years(rows.table[name]) for name in _hash_inputs(ways, table_terms)):
        raise Unreadable("years whose texts differ")
    return tuple(way.sql(DuckDB(), rows.engine.column) for way in ways)
