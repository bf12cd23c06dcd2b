"""A table of PostgreSQL, or the rows of a query, by COPY in one transaction that sees one state.

Connections to PostgreSQL, and its errors in words of ours.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from backstory.errors import Failed, TryAgain, UsageError
from backstory.model.types import MAX_PRECISION, ColumnType, Kind
from backstory.sources.databases.address import Database
from backstory.sources.databases.copies import DatabaseCopy, refuse_column, refuse_repeats

# What may be otherwise later, by SQL states: serialization failures, deadlocks and locks; a server that is
# not there, starts or ends; one that has no room, or gave a query up.
_CONFLICT: Final = ("40", "55P03")
_DOWN: Final = ("08", "57P")
_BUSY: Final = ("53", "57")
# What a server that answers says of a connection that it will not open later either; it has no code here.
_TURNED_AWAY: Final = re.compile(r"does not exist|authentication failed|pg_hba\.conf|no password supplied")


def connect(url: str, *, autocommit: bool = True) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection in UTC to `postgresql://user@host:port/db`; TryAgain if the server does not answer.

    Raises UsageError for what is no such address, without a word of it, and for one that is turned away.
    """
    if url.partition("://")[0] not in {"postgres", "postgresql"} or not _is_readable(url):
        raise UsageError(
            "wrong-url",
            "This is not an address of PostgreSQL.",
            "Write postgresql://user@host:port/database; in a password, write @ and / as %40 and %2F.",
        )
    with translate_postgres():
        try:
            return psycopg.connect(url, autocommit=autocommit, options="-c TimeZone=UTC")
        except psycopg.OperationalError as refused:
            told = str(refused).split("\n", 1)[0].rpartition("FATAL:")[2].strip()
            if not _TURNED_AWAY.search(told):
                raise
            remedy = "Create the database or the role, or fix the address or the password."
            raise UsageError("no-database", f"PostgreSQL: {told}.", remedy) from None


def _is_readable(url: str) -> bool:
    """Whether the driver reads no part of a password as another part, which its errors would show."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return False
    host, port = str(parts.get("host") or ""), str(parts.get("port") or "")
    return "@" not in host and not port.strip("0123456789,")


@contextmanager
def translate_postgres() -> Iterator[None]:
    """Raise TryAgain for what may be otherwise later, and Failed for other errors of PostgreSQL."""
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate or ("08" if isinstance(error, psycopg.OperationalError) else "")
        told = error.diag.message_primary or str(error).split("\n", 1)[0]
        if state.startswith(_CONFLICT):
            raise TryAgain("conflict", f"PostgreSQL: {told}.", "Try again.") from None
        if state.startswith(_DOWN):
            raise TryAgain(
                "database-down", f"PostgreSQL does not answer: {told}.", "Try again once it runs."
            ) from None
        if state.startswith(_BUSY):
            raise TryAgain("database-busy", f"PostgreSQL: {told}.", "Try again later.") from None
        raise Failed("database-failed", f"PostgreSQL: {told}.", "Check the database.") from None


LOCK_TIMEOUT: Final = "60s"
# One text for each value, whatever the server is set to. Setting them sees no state of the database yet.
_FORMS: Final = (
    "SET LOCAL DateStyle = 'ISO, YMD'",
    "SET LOCAL IntervalStyle = 'iso_8601'",
    "SET LOCAL extra_float_digits = 1",
    f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'",
)
_TYPES: Final[Mapping[str, Kind]] = {
    "bool": Kind.BOOLEAN,
    "int2": Kind.INT,
    "int4": Kind.INT,
    "int8": Kind.LONG,
    "oid": Kind.LONG,
    "float4": Kind.FLOAT,
    "float8": Kind.DOUBLE,
    "date": Kind.NAIVE_DATE,
    "timestamp": Kind.NAIVE_DATETIME,
    "timestamptz": Kind.UTC_DATETIME,
    "bytea": Kind.BINARY,
}
# How a value is written where its own text is not what readers of files take; blanks that pad go.
_WRITTEN: Final[Mapping[str, str]] = {
    "bool": "{}::text",
    "bpchar": "{}::text",
    "bytea": "translate(encode({}, 'base64'), E'\\n', '')",
}
# Times beyond every calendar, and before the common era, which no column here holds.
_ENDLESS: Final[Mapping[str, str]] = {
    name: f"count(*) FILTER (WHERE NOT isfinite({{}}) OR {{}} < '0001-01-01'::{name})"
    for name in ("date", "timestamp", "timestamptz")
}


@dataclass(frozen=True, slots=True)
class _Column:
    """A column as the server describes it; `precision` and `scale` are None where it has none."""

    name: str
    type: str
    precision: int | None
    scale: int | None


def copy_postgres(database: Database, types: Mapping[str, ColumnType], folder: Path) -> DatabaseCopy:
    """The rows as a CSV, of the time at which the transaction began to see."""
    with translate_postgres(), connect(database.url, autocommit=False) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        for statement in _FORMS:
            connection.execute(statement)
        (instant,) = connection.execute("SELECT statement_timestamp()").fetchone() or ()
        source = _source(database)
        columns = _describe(connection, database, source)
        kinds = {each.name: types.get(each.name) or _type_of(database, each) for each in columns}
        _refuse_endless(connection, database, source, [each for each in columns if each.name not in types])
        path = folder / "copy.csv"
        _copy(connection, source, columns, path)
    return DatabaseCopy(path, instant, kinds)


def _source(database: Database) -> sql.Composable:
    """What stands behind FROM."""
    if database.query is not None:
        return sql.SQL("({}) AS copied").format(sql.SQL(database.query.strip().rstrip(";")))
    return sql.Identifier(*database.parts)


def _describe(
    connection: psycopg.Connection[Any], database: Database, source: sql.Composable
) -> list[_Column]:
    """The columns, in their order; UsageError for a table that is not there and for a query that is none."""
    try:
        cursor = connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(source))
    except psycopg.errors.UndefinedTable as absent:
        if database.query is not None:
            raise _wrong_query(database, absent) from None
        raise UsageError(
            "no-table", f"There is no table {database.what}.", "Check its name and case."
        ) from None
    except (psycopg.ProgrammingError, psycopg.errors.DataError) as wrong:
        raise _wrong_query(database, wrong) from None
    described = cursor.description or []
    refuse_repeats(database, [each.name for each in described])
    names = dict(
        connection.execute(
            "SELECT oid::bigint, typname FROM pg_type WHERE oid = ANY(%s)",
            [[each.type_code for each in described]],
        ).fetchall()
    )
    return [_Column(each.name, names[each.type_code], each.precision, each.scale) for each in described]


def _wrong_query(database: Database, error: psycopg.Error) -> UsageError:
    told = error.diag.message_primary or "it cannot be read"
    return UsageError("bad-query", f"PostgreSQL, {database.what}: {told}.", "Fix the query or the rights.")


def _type_of(database: Database, column: _Column) -> ColumnType:
    """The type that holds every value of a column exactly; of what has none its text, or Refused."""
    if column.type == "numeric":
        if column.precision is None or column.scale is None:
            example = f"`type={{'{column.name}': 'DECIMAL(38,9)'}}`"
            raise refuse_column(
                database,
                column.name,
                "is numeric without a scale, so its values may have any number of digits",
                f"Nothing was written; say how many with {example}, or take its text with STRING.",
            )
        if column.precision > MAX_PRECISION or not 0 <= column.scale <= column.precision:
            raise refuse_column(
                database, column.name, f"is numeric({column.precision},{column.scale}), beyond 38 digits"
            )
        return ColumnType.decimal(column.precision, column.scale)
    if column.type == "money":
        raise refuse_column(database, column.name, "is money, whose text depends on the server's language")
    return ColumnType(_TYPES.get(column.type, Kind.STRING))


def _refuse_endless(
    connection: psycopg.Connection[Any],
    database: Database,
    source: sql.Composable,
    columns: Sequence[_Column],
) -> None:
    """Raise Refused for a column of times with infinity, or with times before the common era."""
    times = [each for each in columns if each.type in _ENDLESS]
    if not times:
        return
    counts = [sql.SQL(_ENDLESS[each.type]).format(*[sql.Identifier(each.name)] * 2) for each in times]
    query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(counts), source)
    for each, count in zip(times, connection.execute(query).fetchone() or (), strict=True):
        if count:
            raise refuse_column(
                database, each.name, f"has {count} times that are infinite or before the common era"
            )


def _copy(
    connection: psycopg.Connection[Any], source: sql.Composable, columns: Sequence[_Column], path: Path
) -> None:
    values = [
        sql.SQL(_WRITTEN.get(each.type, "{}") + " AS {}").format(*[sql.Identifier(each.name)] * 2)
        for each in columns
    ]
    query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv, HEADER)")
    statement = query.format(sql.SQL(", ").join(values), source)
    with path.open("wb") as file, connection.cursor() as cursor, cursor.copy(statement) as rows:
        file.writelines(rows)
