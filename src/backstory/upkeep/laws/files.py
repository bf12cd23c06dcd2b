"""The laws of a table's rows out of its files, by DuckDB: the queries that Spark runs, without Spark."""

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
from backstory.reading.arrow.versions import SORT_MEMORY, hold_memory, query_rows
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
    """Rows of a table, whose columns have numbers in DuckDB, which takes `a` and `A` for one name."""

    lease: MemoryLease
    table: pa.Table

    @property
    def engine(self) -> TableSql:
        """How DuckDB writes the columns."""
        names = {name: f"c{place}" for place, name in enumerate(self.table.column_names)}
        return TableSql(DUCKDB, names.__getitem__, [_RECORD])

    def ask(self, query: str, records: np.ndarray) -> pa.Table:
        """The answer to a query of the rows, their places and the numbers of their records."""
        own = {_PLACE: integers(np.arange(len(records))), _RECORD: integers(records)}
        columns = {f"c{place}": _zoneless(each) for place, each in enumerate(self.table.columns)}
        rows = pa.table(own | columns)
        with hold_memory(self.lease, "laws", SORT_MEMORY * rows.nbytes):
            try:
                return query_rows(rows, query)
            except duckdb.Error:
                raise Unreadable("values that DuckDB has not") from None


def _zoneless(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Instants as times in UTC."""
    return values.cast(pa.timestamp("us")) if pa.types.is_timestamp(values.type) else values


def broken_spans(files: TableReader) -> Broken:
    """The laws that versions of records break, as `broken_spans` of Spark gives them."""
    table, ways = files.table, _row_hashes(files)
    judged = terms_of_versions(table, (), table.newest_property(RECORDED), numbers_of(table.fields))
    span, values = table.shape.layout.span, judged.terms.tracked if judged.valued else ()
    assert span is not None
    own = [span.start, span.end, span.flag, span.state]
    own += [span.written, MEMORY] if judged.terms.remembers else []
    names = [*judged.identity, *judged.naming, *filter(None, own), *_hash_inputs(ways, judged), *values]
    rows = _rows(files, names)
    engine = rows.engine
    judged = replace(judged, hashes=_hashes(ways, rows, judged))
    if judged.valued:
        first = engine.column(judged.shape.key[0])
        marks = f"SELECT * FROM {nest_steps(engine.steps(layout_columns(engine, judged)))} AS told"
        marks += f" WHERE {first} IS NULL AND {DUCKDB.name(PREFIX + 'role')} = '{Role.FACT}'"
        none = np.zeros(len(rows.table), np.int64)
        judged = judged.with_marks(rows_of(rows.ask(marks, none)))
    return broken_lives(rows, judged)


def broken_lives(rows: LawRows, judged: TableTerms) -> Broken:
    """The laws that versions break, for a table that is judged so."""
    laws = _LawQuery(laws_of_lives(rows.engine, judged), judged.identity, judged.naming, f"{PREFIX}start")
    return _count_broken(rows, laws, judged.count_broken if judged.terms.remembers else None)


def broken_rows(files: TableReader) -> Broken:
    """The laws of keys of a table that has each record once; and of its hashes, if it has them."""
    ways, judged = _row_hashes(files), terms_of_keys(files.table, ())
    if not judged.identity:
        return {}
    rows = _rows(files, [*judged.identity, *judged.naming, *_hash_inputs(ways, judged)])
    judged = replace(judged, hashes=_hashes(ways, rows, judged))
    return broken_keys(rows, judged)


def broken_keys(rows: LawRows, judged: TableTerms) -> Broken:
    """The laws that rows break of which each record has one."""
    steps = laws_of_keys(rows.engine, judged)
    return _count_broken(rows, _LawQuery(steps, judged.identity, judged.naming, f"{PREFIX}keyed"))


def broken_log(files: TableReader) -> Broken:
    """The laws that a dataset's rows break, as `broken_log` of Spark gives them."""
    table = files.table
    names, shape = system_columns(table), table.shape
    log = log_facts(table, names, table.newest_property(WATERMARK))
    asked = [names[each] for each in ("offset", "op", "event_time", "observed") if names[each] is not None]
    rows = _rows(files, [*asked, *shape.key])
    broken = broken_events(rows, shape, names, log)
    missed = _offsets(files, rows.table[names["offset"]].cast(pa.int64()))
    return broken | ({Law.OFFSETS.value: missed} if missed[0] else {})


def broken_events(rows: LawRows, shape: Shape, names: Mapping[str, Any], log: LogFacts) -> Broken:
    """The laws that events break, but for that of offsets; `names` are the system columns."""
    identity = (shape.key if log.corrects else identity_names(names, shape)) or [names["offset"]]
    steps = laws_of_events(rows.engine, shape, names, log)
    return _count_broken(rows, _LawQuery(steps, identity, shape.key or (names["offset"],), f"{PREFIX}offset"))


def _rows(files: TableReader, names: Sequence[str]) -> LawRows:
    """All rows with these columns; Unreadable for what only Spark reads."""
    table = files.table
    return LawRows(
        files.lease, files.rows(table.snapshot, table.fields, list(dict.fromkeys(names)), MOST_IN_ARROW)
    )


@dataclass(frozen=True, slots=True)
class _LawQuery:
    """The steps of a query, what tells records apart, by what they are shown, and the order of their rows."""

    steps: Steps
    identity: Sequence[str]
    naming: Sequence[str]
    order: str


def _count_broken(rows: LawRows, laws: _LawQuery, judge: Judge | None = None) -> Broken:
    """How often rows break each law; those of records that break one are asked again, record by record."""
    records = identities(rows.table, laws.identity)
    anything = " OR ".join(map(DUCKDB.name, laws.steps[-1]))
    relation = f"{nest_steps(laws.steps)} AS judged"
    found = rows.ask(f"SELECT {_PLACE} FROM {relation} WHERE {anything}", records)
    if not found.num_rows:
        return {}
    is_broken = np.zeros(records.max() + 1, bool)
    is_broken[records[whole_numbers(found[_PLACE])]] = True
    places = np.flatnonzero(is_broken[records])
    if judge is not None and len(places) > MOST_ROWS:
        raise Unreadable("rows that are judged one by one")
    lives = replace(rows, table=rows.table.take(integers(places)))
    columns = ", ".join(map(DUCKDB.name, [*laws.steps[0], *laws.steps[-1]]))
    if judge is not None:  # it judges whole records
        suspect = DUCKDB.name(SUSPECT)
        columns = columns.replace(suspect, f"MAX({suspect}) OVER (PARTITION BY {_RECORD}) AS {suspect}")
    said = lives.ask(f"SELECT {columns} FROM {relation} ORDER BY {_PLACE}", records[places])
    table = pa.table([*lives.table.columns, *said.columns], [*lives.table.column_names, *said.column_names])
    batches = sort_like_spark(table, [*laws.identity, laws.order]).combine_chunks().to_batches()
    told = examine(judge, laws.identity, laws.naming, batches)
    return add_up(row for each in told for row in each.to_pylist())


def _offsets(files: TableReader, offsets: pa.ChunkedArray) -> tuple[int, list[str]]:
    """How many offsets are missing, too many or of no block, and the first ten of them."""
    told, wanted = wrong_offsets(log_rows_in_files(files), snapshots_in_files(files.table), len(offsets))
    query = f"{misplaced_query(DUCKDB.rows, wanted)} ORDER BY place NULLS FIRST"
    with hold_memory(files.lease, "laws", offsets.nbytes):
        wrong = query_rows(pa.table({_PLACE: offsets}), query)
    if not wrong.num_rows:
        return len(told), told[:MAX_KEYS]
    total = pc.sum(wrong["times"]).as_py()
    return int(total) + len(told), list(map(str, wrong[_PLACE].slice(0, MAX_KEYS).to_pylist()))


def _row_hashes(files: TableReader) -> "tuple[RowHash, ...]":
    return read_row_hashes(files.table, numbers_of(files.table.fields))


def _hash_inputs(ways: "Sequence[RowHash]", judged: TableTerms) -> list[str]:
    """The columns of hashes, and those that go into them."""
    return (
        [ROW_HASH, *(column.name for each in ways for column in each.columns)] if judged.terms.hashed else []
    )


def _hashes(ways: "Sequence[RowHash]", rows: LawRows, judged: TableTerms) -> tuple[str, ...]:
    """The hashes that a row may have, in DuckDB's words; Unreadable where these are not Spark's."""
    if not ways:
        return ()
    from backstory.stores.sql.dialects import DuckDB
    from backstory.stores.sql.duckdb_engine import SAME_TEXT, has_usual_years

    if any(column.datatype not in SAME_TEXT for each in ways for column in each.columns):
        raise Unreadable("values whose texts differ")
    if not all(has_usual_years(rows.table[name]) for name in _hash_inputs(ways, judged)):
        raise Unreadable("years whose texts differ")
    return tuple(each.sql(DuckDB(), rows.engine.column) for each in ways)
