"""The key of a record in a database: read as every reader reads one, written in the words of a dialect."""

import re
from decimal import Decimal
from typing import Any, Final

from backstory.errors import UsageError
from backstory.model.types import MAX_PRECISION, ColumnType, Kind
from backstory.reading.keys import exact
from backstory.stores.sql.columns import Datatype, SqlColumn
from backstory.stores.sql.dialects.dialect import Dialect

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


def type_in(database: str) -> ColumnType:
    """The type that a database calls so; text for one that nobody knows."""
    name = database.lower()
    if parts := _DECIMAL.fullmatch(name):
        return ColumnType(Kind.DECIMAL, int(parts[1]), int(parts[2]))
    return _NAMES.get(re.split(r"\W", name)[0], ColumnType(Kind.STRING))


def type_of(column: SqlColumn) -> ColumnType:
    """The type of a model's column."""
    if column.datatype is Datatype.DECIMAL:
        return ColumnType(Kind.DECIMAL, column.decimal_precision or MAX_PRECISION, column.decimal_scale or 0)
    return _LOGICAL.get(column.datatype, ColumnType(Kind.STRING))


def literal(dialect: Dialect, name: str, given: object, type_: ColumnType) -> str:
    """The value of a key's column that is given, as SQL; UsageError for what is none of its type."""
    value: Any = exact(name, given, type_)
    if isinstance(value, bytes):
        raise UsageError(
            "other-key",
            f"Key column {name} holds bytes, which cannot be named in a database.",
            "Use `current` without a key.",
        )
    if isinstance(value, float):
        return dialect.string_literal(repr(value))
    return f"{value:f}" if isinstance(value, Decimal) else dialect.render_literal(value)
