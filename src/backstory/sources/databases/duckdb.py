"""Copies of a DuckDB table or query, each made by one statement."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb

from backstory.errors import Failed, TryAgain, UsageError
from backstory.model.types import MAX_PRECISION, ColumnType
from backstory.sources.databases.address import Database, quote_name
from backstory.sources.databases.copies import DatabaseCopy, refuse_column, refuse_repeats

# Types that are copied as another type, or as text.
_AS: Final[Mapping[str, str]] = {
    "TINYINT": "INTEGER",
    "SMALLINT": "INTEGER",
    "UTINYINT": "INTEGER",
    "USMALLINT": "INTEGER",
    "UINTEGER": "BIGINT",
    "UBIGINT": "DECIMAL(20,0)",
    "HUGEINT": "DECIMAL(38,0)",
    "UHUGEINT": "DECIMAL(38,0)",
    "TIMESTAMP_S": "TIMESTAMP",
    "TIMESTAMP_MS": "TIMESTAMP",
    "TIMESTAMP_NS": "TIMESTAMP",
    **dict.fromkeys(
        ("TIME", "TIME_NS", "TIME WITH TIME ZONE", "INTERVAL", "UUID", "BIT", "JSON", "VARIANT"), "VARCHAR"
    ),
}
_NESTED: Final = ("list", "array", "map", "struct", "tuple")
# The years from 1 to 9999, in microseconds since 1970.
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
_LARGEST: Final = 10**MAX_PRECISION - 1
# Conditions for values that cannot be copied, by type, and descriptions of the values for errors.
_NOT: Final[Mapping[str, tuple[str, str]]] = {
    "HUGEINT": (f"{{}} NOT BETWEEN -{_LARGEST} AND {_LARGEST}", "numbers beyond 38 digits"),
    "UHUGEINT": (f"{{}} > {_LARGEST}", "numbers beyond 38 digits"),
    "TIMESTAMP_NS": ("epoch_ns({}) % 1000 <> 0", "times with nanoseconds"),
    "VARIANT": ("{} IS NOT NULL", "values of type VARIANT"),
    **dict.fromkeys(
        ("DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP_S", "TIMESTAMP_MS"),
        (
            f"isinf({{0}}) OR epoch_us({{0}}) NOT BETWEEN {_FIRST} AND {_LAST}",
            "times that are infinite or outside the years 1 to 9999",
        ),
    ),
}


def copy(database: Database, _types: Mapping[str, ColumnType], folder: Path) -> DatabaseCopy:
    """Copy the rows into a Parquet file. The copy's time is just before the statement."""
    instant, path = datetime.now(UTC), folder / "copy.parquet"
    with open_to_read(database) as connection:
        source = database.source()
        columns = _describe(connection, database, source)
        _refuse_values(connection, database, source, columns)
        values = ", ".join(_value(name, type_) for name, type_ in columns.items())
        target = str(path).replace("'", "''")
        connection.execute(f"COPY (SELECT {values} FROM {source}) TO '{target}' (FORMAT parquet)")  # noqa: S608
    return DatabaseCopy(path, instant)


@contextmanager
def open_to_read(database: Database) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a read-only transaction on one state of the database."""
    try:
        with duckdb.connect(str(database.file()), read_only=True) as connection:
            # A missing table is not a variable of the program.
            connection.execute("SET python_enable_replacements = false")
            connection.execute("BEGIN TRANSACTION READ ONLY")
            yield connection
    except (duckdb.IOException, duckdb.ConnectionException) as busy:
        if "lock" in str(busy):
            raise TryAgain(
                "source-busy", f"DuckDB: another program has {database.name} open.", "Try again."
            ) from None
        if "different configuration" in str(busy):
            message = f"DuckDB: this process has {database.name} open for writing."
            raise TryAgain("source-busy", message, "Close it, and try again.") from None
        raise Failed("database-failed", f"DuckDB: {_first_line(busy)}.", "Check the file.") from None
    except duckdb.Error as error:
        raise Failed("database-failed", f"DuckDB: {_first_line(error)}.", "Check the database.") from None


def _describe(connection: duckdb.DuckDBPyConnection, database: Database, source: str) -> Mapping[str, Any]:
    """The types of the columns by name, in the order of the columns."""
    try:
        relation = connection.sql(f"SELECT * FROM {source}")  # noqa: S608
    except (duckdb.CatalogException, duckdb.BinderException, duckdb.ParserException) as wrong:
        code = "no-table" if database.query is None else "bad-query"
        message = f"DuckDB, {database.what}: {_first_line(wrong)}."
        raise UsageError(code, message, "Check the name, or the query.") from None
    refuse_repeats(database, relation.columns)
    return dict(zip(relation.columns, relation.types, strict=True))


def _refuse_values(
    connection: duckdb.DuckDBPyConnection, database: Database, source: str, columns: Mapping[str, Any]
) -> None:
    """Raise Refused for the first column that has a value without an exact copy."""
    faults = [(name, *fault) for name, type_ in columns.items() for fault in _faults(type_, quote_name(name))]
    if not faults:
        return
    counts = ", ".join(f"count(*) FILTER (WHERE {condition})" for _, condition, _ in faults)
    row: Sequence[int] = connection.execute(f"SELECT {counts} FROM {source}").fetchone() or ()  # noqa: S608
    for (name, _, values), count in zip(faults, row, strict=True):
        if count:
            raise refuse_column(database, name, f"has {count} {values}")


def _faults(type_: Any, value: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Conditions for values that cannot be copied, each with a description of these values.

    The conditions also find values that are nested in other values.
    """
    if str(type_) in _NOT:
        condition, values = _NOT[str(type_)]
        yield condition.format(value), values
    parts, lists = dict(type_.children) if type_.id in _NESTED else {}, {}
    match type_.id:
        case "list":
            lists = {value: parts["child"]}
        case "array":
            lists = {f"{value}::{parts['child']}[]": parts["child"]}
        case "map":
            lists = {f"map_keys({value})": parts["key"], f"map_values({value})": parts["value"]}
        case "struct" | "tuple":  # `"a"."x"` could also be the column x of a table a
            for number, (_, part) in enumerate(type_.children, 1):
                yield from _faults(part, f"struct_extract_at({value}, {number})", depth)
    item = f"item_{depth}"
    for list_, part in lists.items():
        for condition, values in _faults(part, item, depth + 1):
            yield f"len(list_filter({list_}, lambda {item}: {condition})) > 0", values


def _value(name: str, type_: Any) -> str:
    target = _target(type_)
    return quote_name(name) if target == str(type_) else f"{quote_name(name)}::{target} AS {quote_name(name)}"


def _target(type_: Any) -> str:
    """The type in which a column is copied. Parquet would store nested HUGEINT as DOUBLE."""
    match type_.id:
        case "enum" | "union":
            return "VARCHAR"
        case "list" | "array":
            parts = dict(type_.children)
            return f"{_target(parts['child'])}[{parts.get('size', '')}]"
        case "map":
            parts = dict(type_.children)
            return f"MAP({_target(parts['key'])}, {_target(parts['value'])})"
        case "struct":  # DuckDB 1 has no other name for a struct without names
            fields = (
                f"{quote_name(name or f'element{number}')} {_target(part)}"
                for number, (name, part) in enumerate(type_.children, 1)
            )
            return f"STRUCT({', '.join(fields)})"
        case "tuple":
            return f"TUPLE({', '.join(_target(part) for _, part in type_.children)})"
    return _AS.get(str(type_), str(type_))


def _first_line(error: Exception) -> str:
    """The first line of an error's message. Further lines repeat the statement."""
    return str(error).split("\n", 1)[0].rstrip(".")
