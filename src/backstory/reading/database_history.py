"""Read a model's history from a database, without the model, its lock file or Spark."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, time
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from backstory.errors import UsageError
from backstory.model.layout import VALID_FROM, VALID_TO, Layout, layout_of
from backstory.model.table import History, Shape, TableName
from backstory.reading.files import INSTANT, differences
from backstory.reading.history_queries import (
    ResultColumn,
    StoredHistory,
    database_type,
    fetch_rows,
    in_utc,
    is_valid_at,
    key_literal,
    select,
)
from backstory.reading.options import EVERYTHING, DiffRequest, ReadRequest, select_columns
from backstory.reading.questions import SIDE_COLUMNS
from backstory.reading.timelines import Timeline, shown_name, timeline_of
from backstory.stores.port import no_table
from backstory.stores.sql.dialects import get_dialect
from backstory.stores.sql.engine import Engine
from backstory.strategies.values import ranks, sorted_by

SCHEMES: Final = {"duckdb": "duckdb", "postgresql": "postgres", "postgres": "postgres"}
_RECORD: Final = "is record"  # no column of a model has a blank in its name
_TYPES: Final = {VALID_FROM: INSTANT, VALID_TO: INSTANT, **dict.fromkeys(SIDE_COLUMNS, pa.bool_())}

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class DatabaseHistory:
    """A model's history in a database, and the types that its columns have there."""

    engine: Engine
    history: StoredHistory
    types: Mapping[str, str]

    @property
    def users(self) -> list[str]:
        """The user's columns."""
        return [name for name in self.types if not Layout.HIST.owns(name, self.history.model.name)]

    def read_versions(self, condition: str, *more: ResultColumn) -> tuple[list[str], Rows]:
        """The columns and rows of the versions that meet a condition, as a warehouse returns them."""
        history = self.history
        users = [(shown_name(name), history.of("h", name)) for name in self.users]
        ends = [(VALID_FROM, history.start_of("h")), (VALID_TO, history.end_of("h"))]
        rows = f"FROM {history.table} AS h\nWHERE {condition}"
        query = select(history.dialect, [*users, *ends, *more], rows)
        found = fetch_rows(self.engine, query)
        return list(query.columns), [{name: _stored_value(row[name]) for name in row} for row in found]

    def require_key(self, key: Sequence[str]) -> None:
        """Raise UsageError if a column of the key is not a user's column. The database stores no key."""
        if unknown := [name for name in key if name not in self.users]:
            raise UsageError(
                "other-key",
                f"{self.history.model.shape.table} has no column {unknown[0]}.",
                f"Its columns are {', '.join(self.users)}.",
            )

    def read_record(self, key: Mapping[str, object], *conditions: str) -> tuple[list[str], Rows]:
        """The columns and rows of the versions that have a key and meet conditions.

        Raises UsageError if several records have the key, and the errors of `is_record`.
        """
        condition = " AND ".join([*conditions, *self.is_record(key)])
        (*names, record), rows = self.read_versions(condition, (_RECORD, self._record))
        if key and len({row[record] for row in rows}) > 1:
            raise self._several_records(key)
        return names, rows

    def require_records(self, key: Collection[str], condition: str) -> None:
        """Raise UsageError if several records have versions that meet a condition, but equal keys."""
        history = self.history
        # PostgreSQL's JSON has no equality.
        columns = (
            f"CAST({history.of('h', name)} AS VARCHAR)"
            if self.types[name].lower() == "json"
            else history.of("h", name)
            for name in key
        )
        query = (
            f"SELECT 1 FROM {history.table} AS h WHERE {condition} GROUP BY {', '.join(columns)} "
            f"HAVING MIN({self._record}) < MAX({self._record}) LIMIT 1"
        )
        if self.engine.execute_scalar(query):
            raise self._several_records(key)

    @property
    def _record(self) -> str:
        return self.history.of("h", self.history.key)

    def _several_records(self, key: Collection[str]) -> UsageError:
        return UsageError(
            "other-key",
            f"Several records of {self.history.model.shape.table} have the same {', '.join(key)}.",
            "Name every column of the model's business key.",
        )

    def is_record(self, key: Mapping[str, object]) -> list[str]:
        """The conditions under which a version belongs to the record with this key.

        Raises UsageError if a value does not fit the type of its column.
        """
        history, dialect = self.history, self.history.dialect
        self.require_key(list(key))
        literals = {
            name: key_literal(dialect, name, value, database_type(self.types[name]))
            for name, value in key.items()
        }
        return [
            f"{history.of('h', name)} = {dialect.cast_expression(literal, self.types[name])}"
            for name, literal in literals.items()
        ]


def read_rows(
    url: str, table: TableName, time: datetime | None = None, request: ReadRequest = EVERYTHING
) -> tuple[list[str], Rows]:
    """The columns of a history, and its rows that are true now or at a time, as a warehouse returns them.

    The columns are the user's, `valid_from` and `valid_to`. Raises UsageError for a wrong address and for a
    table that does not exist or keeps no history. Raises Refused for a time before the prune watermark.
    """
    key: Mapping[str, object] = request.key if isinstance(request.key, Mapping) else {}
    with _open_history(url, table) as database:
        history = database.history
        is_true = f"{history.end_of('h')} IS NULL" if time is None else f"({is_valid_at(history, 'h', time)})"
        names, rows = database.read_record(key, is_true)
        columns = [_arrow_values([row[name] for row in rows]) for name in names]
        # A model's history begins with its business key. The order of a database's texts is its own.
        places = sorted_by([ranks(pa.chunked_array([column])) for column in columns], len(rows))
        names = select_columns(request.columns, table, [shown_name(name) for name in key], names)
        return names, [{name: rows[place][name] for name in names} for place in places]


def read_differences(url: str, table: TableName, key: Sequence[str], request: DiffRequest) -> Rows:
    """The records, identified by a key, that differ between two instants, as a warehouse returns them.

    Raises the errors of `read_rows`, and UsageError for a key with other columns.
    """
    with _open_history(url, table) as database:
        database.require_key(key)
        marks = [
            (side, f"COALESCE({is_valid_at(database.history, 'h', time)}, FALSE)")
            for side, time in zip(SIDE_COLUMNS, (request.first, request.second), strict=True)
        ]
        low, high = map(database.history.instant, sorted((request.first, request.second)))
        touched = " OR ".join(
            f"({border} > {low} AND {border} <= {high})"
            for border in (database.history.start_of("h"), database.history.end_of("h"))
        )
        _, rows = database.read_versions(touched, *marks)
        started, ended = database.history.start_of("h"), database.history.end_of("h")
        database.require_records(key, f"{started} <= {high} AND ({ended} IS NULL OR {ended} > {low})")
        of_key = [shown_name(name) for name in key]
        names = request.names(table, of_key, [shown_name(name) for name in database.users])
    if not request.through:
        rows = [row for row in rows if len({row[side] for side in SIDE_COLUMNS}) > 1]
    values = pa.table({name: _arrow_values([row[name] for row in rows]) for name in names})
    sides = {name: pa.array([row[name] for row in rows], type_) for name, type_ in _TYPES.items()}

    def rows_at(places: Iterable[int]) -> Rows:
        return [{name: rows[each][name] for name in names} for each in places]

    return differences(values, of_key, pa.table(sides), request, rows_at).page()


def read_life(url: str, table: TableName, key: Mapping[str, object], columns: Sequence[str] = ()) -> Timeline:
    """The history of the record with this key, whose values may be text.

    Raises the errors of `read_differences`.
    """
    with _open_history(url, table) as database:
        names, rows = database.read_record(key)
    values = {shown_name(name): value for name, value in key.items()}
    names = select_columns(columns, table, list(values), names)
    return timeline_of(table, values, [{name: row[name] for name in names} for row in rows], {})


@contextmanager
def _open_history(url: str, table: TableName) -> Iterator[DatabaseHistory]:
    scheme, _, path = url.partition("://")
    if scheme not in SCHEMES:
        raise UsageError(
            "wrong-url",
            "This is not the address of a database.",
            "Write duckdb:///path or postgresql://host/name.",
        )
    if scheme == "duckdb" and not Path(path).is_file():  # DuckDB would create the file
        raise UsageError("wrong-url", f"There is no file {path}.", "Write duckdb:///path/file.duckdb.")
    dialect, model = get_dialect(SCHEMES[scheme]), History(Shape(table, (), (), Layout.HIST))
    with dialect.get_execution_engine(url) as engine:
        columns = engine.introspect_table(table.schema, table.name)
        if columns is None:
            raise no_table(table)
        if layout_of(None, table.name, frozenset(columns)) is not Layout.HIST:
            raise UsageError(
                "no-history", f"{table} is not a history of a model.", "Name a table that ends in _hist."
            )
        if engine.introspect_table(table.schema, model.archive_name) is not None:
            archive = dialect.render_table_identifier(table.schema, model.archive_name)
            newest = engine.execute_scalar(f"SELECT MAX({model.span.end}) FROM {archive}")
            model = replace(model, whole_since=newest and in_utc(newest))
        yield DatabaseHistory(engine, StoredHistory(dialect, model, ()), columns)


def _stored_value(value: Any) -> Any:
    """A value as a warehouse stores it: a time of day and a UUID are strings."""
    return str(value) if isinstance(value, time | UUID) else value


def _arrow_values(values: list[Any]) -> pa.Array:
    """The values as an Arrow array. Values without an Arrow type become JSON text."""
    try:
        if not any(isinstance(each, dict | list) for each in values):
            return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError):
        pass
    texts = (None if each is None else json.dumps(each, sort_keys=True, default=str) for each in values)
    return pa.array(texts, pa.string())
