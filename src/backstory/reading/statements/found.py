"""A model's history in a database that its table alone tells of: no model, no lock file, no Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from backstory.errors import UsageError
from backstory.model.history import ARCHIVE_SUFFIX, History
from backstory.model.layout import VALID_FROM, VALID_TO, Layout, layout_of
from backstory.model.schema import Shape
from backstory.model.table import TableName
from backstory.reading.statements.point_in_time import valid
from backstory.reading.statements.stored_history import Query, Shown, StoredHistory, select, shown
from backstory.stores.refusals import no_table
from backstory.stores.sql.dialects.registry import get_dialect
from backstory.stores.sql.engines.engine import Engine

SCHEMES: Final = {"duckdb": "duckdb", "postgresql": "postgres", "postgres": "postgres"}


def rows_of(
    url: str, table: TableName, time: datetime | None = None
) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns and rows of a history that are true now, or were at a time: as a warehouse answers.

    The user's columns, `valid_from` and `valid_to`. Raises UsageError for an address of no database, a table
    that is not there or keeps no history, and Refused for a time before what was pruned.
    """
    with _opened(url) as (engine, dialect_name):
        columns = engine.introspect_table(table.schema, table.name)
        if columns is None:
            raise no_table(table)
        if layout_of(None, table.name, frozenset(columns)) is not Layout.HIST:
            raise UsageError(
                "no-history", f"{table} is no history of a model.", "Name a table that ends in _hist."
            )
        pruned = _pruned(engine, dialect_name, table)
        history = StoredHistory(
            get_dialect(dialect_name), History(Shape(table, (), (), Layout.HIST), whole_since=pruned), ()
        )
        query = _query(history, [name for name in columns if not Layout.HIST.owns(name, table.name)], time)
        rows = [
            {name: _aware(value) for name, value in zip(query.columns, row, strict=True)}
            for row in engine.fetch_all(query.sql)
        ]
    return list(query.columns), rows


def _query(history: StoredHistory, users: list[str], time: datetime | None) -> Query:
    ends = [Shown(VALID_FROM, history.started("h")), Shown(VALID_TO, history.ended("h"))]
    true = f"{history.ended('h')} IS NULL" if time is None else valid(history, "h", time)
    rows = f"FROM {history.table} AS h\nWHERE {true}"
    return select(history.dialect, [*shown(history, "h", users), *ends], rows)


def _pruned(engine: Engine, dialect_name: str, table: TableName) -> datetime | None:
    """Until when versions were taken out into the archive, if there is one."""
    archive = f"{table.name}{ARCHIVE_SUFFIX}"
    if engine.introspect_table(table.schema, archive) is None:
        return None
    name = get_dialect(dialect_name).render_table_identifier(table.schema, archive)
    span = Layout.HIST.span
    assert span is not None
    newest = engine.execute_scalar(f"SELECT MAX({span.end}) FROM {name}")
    return newest and _aware(newest)


@contextmanager
def _opened(url: str) -> Iterator[tuple[Engine, str]]:
    scheme, _, path = url.partition("://")
    if scheme not in SCHEMES:
        raise UsageError(
            "wrong-url",
            "This is no address of a database.",
            "Write duckdb:///path or postgresql://host/name.",
        )
    if scheme == "duckdb" and not Path(path).is_file():  # DuckDB would make one
        raise UsageError("wrong-url", "There is no such file of DuckDB.", "Write duckdb:///path/file.duckdb.")
    name = SCHEMES[scheme]
    with get_dialect(name).get_execution_engine(url) as engine:
        yield engine, name


def _aware(value: Any) -> Any:
    """Times of a database are in UTC."""
    if not isinstance(value, datetime):
        return value
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
