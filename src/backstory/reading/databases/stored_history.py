"""The key of a record in a database: read as every reader reads one, written in the words of a dialect.

A history as it stands in a database: its tables and columns in the words of a dialect.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Final, NamedTuple

from backstory.errors import UsageError
from backstory.model.history import History
from backstory.model.instant import instant_of
from backstory.model.types import MAX_PRECISION, ColumnType, Kind
from backstory.reading.selection import exact_value
from backstory.stores.sql.columns import Datatype, SqlColumn
from backstory.stores.sql.dialect import Dialect

_TIME, _UUID = ColumnType(Kind.STRING, foreign="time"), ColumnType(Kind.STRING, foreign="uuid")
_LOGICAL: Final = {
    Datatype.INTEGER: ColumnType(Kind.INT),
    Datatype.BIGINT: ColumnType(Kind.LONG),
    Datatype.FLOAT: ColumnType(Kind.DOUBLE),
    Datatype.BOOLEAN: ColumnType(Kind.BOOLEAN),
    Datatype.DATE: ColumnType(Kind.NAIVE_DATE),
    Datatype.TIME: _TIME,
    Datatype.TIMESTAMP: ColumnType(Kind.UTC_DATETIME),
    Datatype.BINARY: ColumnType(Kind.BINARY),
    Datatype.UUID: _UUID,
}
# What databases call types, by the first of their words; times of a model are UTC in all of them.
_NAMES: Final = {
    "smallint": ColumnType(Kind.SHORT),
    "integer": ColumnType(Kind.INT),
    "bigint": ColumnType(Kind.LONG),
    "real": ColumnType(Kind.FLOAT),
    "float": ColumnType(Kind.FLOAT),
    "double": ColumnType(Kind.DOUBLE),
    "boolean": ColumnType(Kind.BOOLEAN),
    "date": ColumnType(Kind.NAIVE_DATE),
    "timestamp": ColumnType(Kind.UTC_DATETIME),
    "time": _TIME,
    "blob": ColumnType(Kind.BINARY),
    "bytea": ColumnType(Kind.BINARY),
    "uuid": _UUID,
}
_DECIMAL: Final = re.compile(r"(?:decimal|numeric)\((\d+),(\d+)\)")


def database_type(database: str) -> ColumnType:
    """The type that a database calls so; text for one that nobody knows."""
    name = database.lower()
    if parts := _DECIMAL.fullmatch(name):
        return ColumnType(Kind.DECIMAL, int(parts[1]), int(parts[2]))
    return _NAMES.get(re.split(r"\W", name)[0], ColumnType(Kind.STRING))


def key_type(column: SqlColumn) -> ColumnType:
    """The type of a model's column."""
    if column.datatype is Datatype.DECIMAL:
        return ColumnType(Kind.DECIMAL, column.decimal_precision or MAX_PRECISION, column.decimal_scale or 0)
    return _LOGICAL.get(column.datatype, ColumnType(Kind.STRING))


def key_literal(dialect: Dialect, name: str, given: object, type_: ColumnType) -> str:
    """The value of a key's column that is given, as SQL; UsageError for what is none of its type."""
    value: Any = exact_value(name, given, type_)
    if isinstance(value, bytes):
        raise UsageError(
            "other-key",
            f"Key column {name} holds bytes, which cannot be named in a database.",
            "Use `current` without a key.",
        )
    if isinstance(value, float):
        return dialect.string_literal(repr(value))
    return f"{value:f}" if isinstance(value, Decimal) else dialect.render_literal(value)


LONGEST_NAME = 63
Key = Mapping[str, object] | str | int
Time = str | date  # ISO text, an aware datetime, or a date for its first instant


class Query(NamedTuple):
    """A query, and the names of its columns."""

    sql: str
    columns: tuple[str, ...]


class ResultColumn(NamedTuple):
    """A column of a result: the name that it should have, and its SQL."""

    name: str
    sql: str


@dataclass(frozen=True)
class StoredHistory:
    """A history table in one dialect; what it means is its `model`.

    `columns` are all that it has, retired ones too. `catalog` goes before the schema, where a session
    has several.
    """

    dialect: Dialect
    model: History
    columns: tuple[SqlColumn, ...]
    catalog: str | None = None

    # Names

    @property
    def schema(self) -> str:
        """The schema of its tables."""
        return self.model.shape.table.schema

    @cached_property
    def table(self) -> str:
        """The history table."""
        return self.name_with_suffix("")

    @cached_property
    def archive(self) -> str:
        """The table of what was pruned."""
        return self._placed(self.model.archive_name)

    def name_with_suffix(self, suffix: str) -> str:
        """The table or view that has the history's name with this suffix."""
        return self._placed(f"{self.model.name}{suffix}")

    def _placed(self, name: str) -> str:
        name = self.dialect.render_table_identifier(self.schema, name)
        return f"{self.dialect.render_identifier(self.catalog)}.{name}" if self.catalog else name

    def of(self, alias: str, column: str) -> str:
        """`alias.column`."""
        return f"{alias}.{self.dialect.render_identifier(column)}"

    def text(self, text: str) -> str:
        """A text's literal."""
        return self.dialect.string_literal(text)

    # Columns

    @cached_property
    def names(self) -> list[str]:
        """The names of all columns."""
        return [column.name for column in self.columns]

    @cached_property
    def key(self) -> str:
        """The column that tells records apart."""
        return self.model.record_key

    @cached_property
    def identifying(self) -> list[str]:
        """The columns by which a record is known: to the database, and to people."""
        return [self.key, *self.model.shape.key]

    @cached_property
    def attributes(self) -> list[SqlColumn]:
        """The user's columns that are none of the key, retired ones too."""
        return [self.column(each.name) for each in self.model.attributes]

    def column(self, name: str) -> SqlColumn:
        """The column of this name, which must be there."""
        return next(column for column in self.columns if column.name == name)

    @property
    def watermark(self) -> datetime | None:
        """The instant since which the history is whole; None if nothing was pruned."""
        return self.model.whole_since

    def start_of(self, alias: str) -> str:
        """From when a version was true."""
        return self.of(alias, self.model.span.start)

    def end_of(self, alias: str) -> str:
        """Until when a version was true; NULL while it is."""
        return self.of(alias, self.model.span.end)

    # Relations

    @cached_property
    def all_versions(self) -> str:
        """The relation of all versions, those that were pruned too: a name, or a query in brackets."""
        return f"(\n{self.union()}\n)" if self.model.archive else self.table

    def union(self) -> str:
        """The query of all versions; a version that is on its way into the archive comes once."""
        kept = ", ".join(self.of("h", name) for name in self.names)
        gone = ", ".join(self._in_archive(column) for column in self.columns)
        version = self.model.version_key
        archived = self._in_archive(self.column(version))
        both = f"SELECT 1 FROM {self.table} AS b WHERE {self.of('b', version)} = {archived}"
        return (
            f"SELECT {kept} FROM {self.table} AS h\nUNION ALL\n"
            f"SELECT {gone} FROM {self.archive} AS a WHERE NOT EXISTS ({both})"
        )

    def _in_archive(self, column: SqlColumn) -> str:
        """The column in the archive, under a former name if need be, or a NULL for a younger column."""
        archive = self.model.archive
        there = archive.columns if archive else None
        names = (column.name, *reversed(column.former_names))
        name = next((each for each in names if there is None or each in there), None)
        return self.nothing(column) if name is None else self.of("a", name)

    # Values

    def is_record(self, alias: str, key: Key, renamed: Mapping[str, str] | None = None) -> str:
        """Whether a row is of the record with this business key; `renamed` has other names of its columns."""
        names = self.model.shape.key
        given = key if isinstance(key, Mapping) else {names[0]: key}
        if set(given) != set(names):
            raise UsageError(
                "other-key",
                f"The key of {self.model.name} is ({', '.join(names)}).",
                "Give a value for each key column.",
            )
        pairs = [
            (self.of(alias, (renamed or {}).get(name, name)), self._literal(self.column(name), given[name]))
            for name in names
        ]
        return " AND ".join(f"NOT ({self.dialect.null_safe_ne(*pair)})" for pair in pairs)

    def _literal(self, column: SqlColumn, value: Any) -> str:
        """A value of a key's column, which may be given as text; UsageError for one that is none of it."""
        if value is None:
            return self.nothing(column)
        try:
            literal = key_literal(self.dialect, column.name, value, key_type(column))
        except UsageError as stop:
            raise UsageError("wrong-key", stop.message, stop.remedy) from None
        return self.dialect.cast_expression(literal, self.dialect.type_of(column))

    def nothing(self, column: SqlColumn) -> str:
        """A NULL of the column's type."""
        return self.dialect.cast_expression("NULL", self.dialect.type_of(column))

    def instant(self, time: Time) -> str:
        """The literal of a time that somebody gave."""
        return self.dialect.timestamp_literal(instant_of(time))


def select(dialect: Dialect, shown: Sequence[ResultColumn], rest: str) -> Query:
    """`SELECT … rest`; names that are taken already get a number."""
    names = distinct(column.name for column in shown)
    listed = ",\n  ".join(
        f"{column.sql} AS {dialect.render_identifier(name)}"
        for column, name in zip(shown, names, strict=True)
    )
    return Query(f"SELECT\n  {listed}\n{rest}", names)


def distinct(names: Iterable[str], longest: int = LONGEST_NAME) -> tuple[str, ...]:
    """The names, none too long for any database; one that is taken gets a number."""
    found: list[str] = []
    for name in names:
        free, number = name[:longest], 1
        while free in found:
            number += 1
            end = f"_{number}"
            free = f"{name[: longest - len(end)]}{end}"
        found.append(free)
    return tuple(found)


def columns_of(
    history: StoredHistory, alias: str, names: Iterable[str], before: str = ""
) -> list[ResultColumn]:
    """Columns under their own names, with a word before them."""
    return [ResultColumn(f"{before}{name}", history.of(alias, name)) for name in names]
