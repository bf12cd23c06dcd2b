"""The laws of a table's rows, checked by DuckDB on its files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS
from backstory.formats.memory import MemoryLease
from backstory.journal.log_table import log_rows_in_files
from backstory.model.layout import ROW_HASH
from backstory.reading.arrow.versions import SORT_MEMORY, hold_memory, query_rows, without_zone
from backstory.reading.lifetimes import DUCKDB
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.table_rows import MOST_IN_ARROW, MOST_ROWS, TableReader, sort_like_spark
from backstory.stores.metadata.values import integers, whole_numbers
from backstory.strategies.values import identities
from backstory.upkeep.laws.checks import broken_laws
from backstory.upkeep.laws.queries import SUSPECT, LawQuery, TableSql, nest_steps
from backstory.upkeep.laws.table_terms import misplaced_query
from backstory.upkeep.laws.tally import Broken, add_up, examine

if TYPE_CHECKING:
    from backstory.stores.sql.row_hashes import RowHash

_PLACE: Final = "place"
_RECORD: Final = "record"


def broken_in_files(files: TableReader) -> Broken:
    """How often the rows of a table break each law; Unreadable if only Spark can read them."""
    return broken_laws(files.table, partial(_read_rows, files), partial(log_rows_in_files, files))


def _read_rows(files: TableReader, names: Sequence[str]) -> "FileRows":
    table = files.table
    return FileRows(files.lease, files.rows(table.snapshot, table.fields, names, MOST_IN_ARROW))


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows of a table. Their columns are numbered in DuckDB, for which `a` and `A` are the same name."""

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
        """The hashes that a row may have, as SQL; Unreadable if they may differ from Spark's."""
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
        """How often rows break each law: find the broken records, then check their rows again."""
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
        """As `count`, and the number of wrong offsets, with the first ten of them."""
        broken, offsets = self.count(laws), self.table[offset].cast(pa.int64())
        query = f"{misplaced_query(DUCKDB.rows, wanted(len(offsets)))} ORDER BY place NULLS FIRST"
        with hold_memory(self.lease, "laws", offsets.nbytes):
            wrong = query_rows(pa.table({_PLACE: offsets}), query)
        keys = list(map(str, wrong[_PLACE].slice(0, MAX_KEYS).to_pylist()))
        return broken, int(pc.sum(wrong["times"]).as_py() or 0), keys
