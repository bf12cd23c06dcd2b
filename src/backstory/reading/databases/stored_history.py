"""The tables and columns of a model's history in a database, in the syntax of a dialect."""

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
from backstory.reading.options import exact_value
from backstory.stores.sql.columns import Datatype, SqlColumn
from backstory.stores.sql.dialect import Dialect

_TIME, _UUID = ColumnType(Kind.STRING, foreign="time"), ColumnType(Kind.STRING, foreign="uuid")
# Types by the first word of their names in databases; the times of a model are in UTC in all of them.
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


def database_type(sql_type: str) -> ColumnType:
    """The type for the name of a type in a database; text if it is unknown."""
    name = sql_type.lower()
    if parts := _DECIMAL.fullmatch(name):
        return ColumnType(Kind.DECIMAL, int(parts[1]), int(parts[2]))
    return _NAMES.get(re.split(r"\W", name)[0], ColumnType(Kind.STRING))


def key_type(column: SqlColumn) -> ColumnType:
    """The type of a model's column."""
    decimal = f"decimal({column.decimal_precision or MAX_PRECISION},{column.decimal_scale or 0})"
    names = {Datatype.FLOAT: "double", Datatype.BINARY: "blob", Datatype.DECIMAL: decimal}
    return database_type(names.get(column.datatype, column.datatype.value))


def key_literal(dialect: Dialect, name: str, key_value: object, type_: ColumnType) -> str:
    """The value of a key's column as a SQL literal. Raises UsageError if it does not fit the type."""
    value: Any = exact_value(name, key_value, type_)
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
    """A column of a result: its name and its SQL."""

    name: str
    sql: str


@dataclass(frozen=True)
class StoredHistory:
    """A history table in one dialect; `model` describes the history.

    `columns` are all its columns, including retired ones. `catalog` is written before the schema if a session
    has several catalogs.
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
        """The table of pruned versions."""
        return self._qualify(self.model.archive_name)

    def name_with_suffix(self, suffix: str) -> str:
        """The table or view with the history's name and this suffix."""
        return self._qualify(f"{self.model.name}{suffix}")

    def _qualify(self, name: str) -> str:
        name = self.dialect.render_table_identifier(self.schema, name)
        return f"{self.dialect.render_identifier(self.catalog)}.{name}" if self.catalog else name

    def of(self, alias: str, column: str) -> str:
        """`alias.column`."""
        return f"{alias}.{self.dialect.render_identifier(column)}"

    def text(self, text: str) -> str:
        """The literal of a text."""
        return self.dialect.string_literal(text)

    # Columns

    @cached_property
    def names(self) -> list[str]:
        """The names of all columns."""
        return [column.name for column in self.columns]

    @cached_property
    def key(self) -> str:
        """The column that identifies a record."""
        return self.model.record_key

    @cached_property
    def identifying(self) -> list[str]:
        """The columns that identify a record: the database's key, and the business key."""
        return [self.key, *self.model.shape.key]

    @cached_property
    def attributes(self) -> list[SqlColumn]:
        """The user's columns outside the key, including retired ones."""
        return [self.column(each.name) for each in self.model.attributes]

    def column(self, name: str) -> SqlColumn:
        """The column with this name, which must exist."""
        return next(column for column in self.columns if column.name == name)

    @property
    def watermark(self) -> datetime | None:
        """The instant since which the history is complete; None if nothing was pruned."""
        return self.model.whole_since

    def start_of(self, alias: str) -> str:
        """The start of a version."""
        return self.of(alias, self.model.span.start)

    def end_of(self, alias: str) -> str:
        """The end of a version; NULL while it is open."""
        return self.of(alias, self.model.span.end)

    # Relations

    @cached_property
    def all_versions(self) -> str:
        """The relation of all versions, including pruned ones: a name, or a query in parentheses."""
        return f"(\n{self.union()}\n)" if self.model.archive else self.table

    def union(self) -> str:
        """The query for all versions; a version that is in both tables counts once."""
        current = ", ".join(self.of("h", name) for name in self.names)
        pruned = ", ".join(self._in_archive(column) for column in self.columns)
        version = self.model.version_key
        archived = self._in_archive(self.column(version))
        both = f"SELECT 1 FROM {self.table} AS b WHERE {self.of('b', version)} = {archived}"
        return (
            f"SELECT {current} FROM {self.table} AS h\nUNION ALL\n"
            f"SELECT {pruned} FROM {self.archive} AS a WHERE NOT EXISTS ({both})"
        )

    def _in_archive(self, column: SqlColumn) -> str:
        """The column in the archive, if necessary by a former name, or NULL for a column added later."""
        archive = self.model.archive
        there = archive.columns if archive else None
        names = (column.name, *reversed(column.former_names))
        name = next((each for each in names if there is None or each in there), None)
        return self.null_of(column) if name is None else self.of("a", name)

    # Values

    def is_record(self, alias: str, key: Key, renamed: Mapping[str, str] | None = None) -> str:
        """Whether a row belongs to the record with this key; `renamed` maps columns to other names."""
        names = self.model.shape.key
        values = key if isinstance(key, Mapping) else {names[0]: key}
        if set(values) != set(names):
            raise UsageError(
                "other-key",
                f"The key of {self.model.name} is ({', '.join(names)}).",
                "Give a value for each key column.",
            )
        pairs = [
            (self.of(alias, (renamed or {}).get(name, name)), self._literal(self.column(name), values[name]))
            for name in names
        ]
        return " AND ".join(f"NOT ({self.dialect.null_safe_ne(*pair)})" for pair in pairs)

    def _literal(self, column: SqlColumn, value: Any) -> str:
        """A value of a key's column, possibly as text. Raises UsageError if it does not fit the column."""
        if value is None:
            return self.null_of(column)
        try:
            literal = key_literal(self.dialect, column.name, value, key_type(column))
        except UsageError as stop:
            raise UsageError("wrong-key", stop.message, stop.remedy) from None
        return self.dialect.cast_expression(literal, self.dialect.type_of(column))

    def null_of(self, column: SqlColumn) -> str:
        """A NULL of the column's type."""
        return self.dialect.cast_expression("NULL", self.dialect.type_of(column))

    def instant(self, time: Time) -> str:
        """The literal of a time."""
        return self.dialect.timestamp_literal(instant_of(time))


def select(dialect: Dialect, shown: Sequence[ResultColumn], rest: str) -> Query:
    """The query `SELECT … rest`; names that are already taken get a number."""
    names = distinct(column.name for column in shown)
    listed = ",\n  ".join(
        f"{column.sql} AS {dialect.render_identifier(name)}"
        for column, name in zip(shown, names, strict=True)
    )
    return Query(f"SELECT\n  {listed}\n{rest}", names)


def distinct(names: Iterable[str], longest: int = LONGEST_NAME) -> tuple[str, ...]:
    """The names, short enough for any database; a name that is already taken gets a number."""
    taken: list[str] = []
    for name in names:
        free, number = name[:longest], 1
        while free in taken:
            number += 1
            end = f"_{number}"
            free = f"{name[: longest - len(end)]}{end}"
        taken.append(free)
    return tuple(taken)


def columns_of(
    history: StoredHistory, alias: str, names: Iterable[str], before: str = ""
) -> list[ResultColumn]:
    """Columns by their own names, with a prefix."""
    return [ResultColumn(f"{before}{name}", history.of(alias, name)) for name in names]
