"""How often the rows of a table break each law of its layout, by a query that DuckDB or Spark runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from backstory.errors import MAX_KEYS
from backstory.journal.log_table import snapshots_in_files
from backstory.model.layout import MEMORY, ROW_HASH, Layout
from backstory.model.versions_layout import Role
from backstory.reading.histories import system_columns
from backstory.stores.metadata.table_metadata import TableMetadata
from backstory.stores.metadata.values import rows_of
from backstory.upkeep.laws.queries import (
    layout_columns,
    nest_steps,
    query_of_events,
    query_of_rows,
)
from backstory.upkeep.laws.table_terms import TableTerms, log_facts, read_row_hashes, terms_of, wrong_offsets
from backstory.upkeep.laws.tally import Broken
from backstory.upkeep.laws.terms import LAWS, PREFIX, Law

if TYPE_CHECKING:
    from backstory.stores.sql.row_hashes import RowHash
    from backstory.upkeep.laws.files import FileRows
    from backstory.upkeep.laws.frames import FrameRows


# The rows of a table, in the engine that reads at least these columns.
LawRows: TypeAlias = "FileRows | FrameRows"
ReadRows: TypeAlias = Callable[[Sequence[str]], LawRows]
# The rows of a dataset's log.
LogRows = Callable[[], Sequence[Mapping[str, Any]]]


def broken_laws(table: TableMetadata, read: ReadRows, logged: LogRows) -> Broken:
    """How often the rows of a table break each law of its layout, with up to ten keys of each."""
    if table.shape.layout is Layout.ODF:
        return _broken_log(table, read, logged)
    if table.shape.layout.span is None and Law.UNIQUE_KEY not in LAWS[table.shape.layout]:
        return {}
    rows, table_terms = read_terms(table, read)
    return rows.count(query_of_rows(table_terms)) if table_terms.identity else {}


def read_terms(table: TableMetadata, read: ReadRows) -> tuple[LawRows, TableTerms]:
    """The rows of a table, and their terms by its layout, properties, commits and marks."""
    ways, table_terms = read_row_hashes(table), terms_of(table)
    rows = read(_columns(table_terms, ways))
    table_terms = replace(table_terms, hashes=rows.hashes(ways) if ways else ())
    if not table_terms.valued:
        return rows, table_terms
    # Iceberg prunes by the key, which is NULL in marks only.
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

    def wanted(count: int) -> int:
        wrong, right = wrong_offsets(logged(), snapshots_in_files(table), count)
        wrong_blocks.extend(wrong)
        return right

    broken, times, keys = rows.count_events(laws, names["offset"], wanted)
    times += len(wrong_blocks)
    return broken | ({Law.OFFSETS.value: (times, keys or wrong_blocks[:MAX_KEYS])} if times else {})
