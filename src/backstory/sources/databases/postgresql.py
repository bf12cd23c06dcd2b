"""PostgreSQL: connections, translated errors, and copies of a table or query, by COPY in one transaction."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import postgres, sql
from psycopg.conninfo import conninfo_to_dict

from backstory.errors import Failed, TryAgain, UsageError
from backstory.model.types import MAX_PRECISION, ColumnType, Kind
from backstory.sources.databases.address import Database
from backstory.sources.databases.copies import DatabaseCopy, refuse_column, refuse_repeats

# SQL states of temporary errors: serialization failures, deadlocks and locks; a server that is absent,
# starts or stops; a server without resources, or one that cancelled a query.
_CONFLICT: Final = ("40", "55P03")
_DOWN: Final = ("08", "57P")
_BUSY: Final = ("53", "57")
# Messages of permanent connection errors. The driver has no SQL state for them.
_DENIED: Final = re.compile(r"does not exist|authentication failed|pg_hba\.conf|no password supplied")

LOCK_TIMEOUT: Final = "60s"
# Every value has one text form, regardless of the settings of the database, the role and the environment.
_FORMS: Final = (
    "SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; "
    "SET extra_float_digits = 1; SET bytea_output = 'hex'; SET client_encoding = 'UTF8'"
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
# Expressions for types whose own text form is rejected by the file readers. Padding blanks are removed.
_WRITTEN: Final[Mapping[str, str]] = {
    "bool": "{}::text",
    "bpchar": "{}::text",
    "bytea": "translate(encode({}, 'base64'), E'\\n', '')",
}
# Counts of infinite times and of times before the common era, which no column can hold.
_ENDLESS: Final[Mapping[str, str]] = {
    name: f"count(*) FILTER (WHERE NOT isfinite({{}}) OR {{}} < '0001-01-01'::{name})"
    for name in ("date", "timestamp", "timestamptz")
}


def connect(url: str, *, autocommit: bool = True) -> psycopg.Connection[tuple[Any, ...]]:
    """Connect to `postgresql://user@host:port/db` in UTC, with one text form for every value.

    Raises TryAgain if the server does not answer. Raises UsageError for a rejected login, for a database
    without an encoding, and for an invalid address, which the error does not quote.
    """
    if url.partition("://")[0] not in {"postgres", "postgresql"} or not _is_readable(url):
        raise UsageError(
            "wrong-url",
            "This is not a PostgreSQL address.",
            "Write postgresql://user@host:port/database; in a password, write @ and / as %40 and %2F.",
        )
    with translate_postgres():
        try:
            # Most poolers that would not keep a session's settings refuse this option, so they are not used.
            connection = psycopg.connect(url, autocommit=True, options=f"{_options(url)} -c TimeZone=UTC")
        except psycopg.OperationalError as refused:
            reason = str(refused).split("\n", 1)[0].rpartition("FATAL:")[2].strip()
            if not _DENIED.search(reason):
                raise
            remedy = "Create the database or the role, or fix the address or the password."
            raise UsageError("no-database", f"PostgreSQL: {reason}.", remedy) from None
        if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
            connection.close()
            raise UsageError(
                "wrong-encoding",
                "The PostgreSQL database has the encoding SQL_ASCII, which does not define its characters.",
                "Restore a dump of it into a database created with ENCODING 'UTF8', and use that one.",
            )
        connection.execute(_FORMS)
        connection.autocommit = autocommit
        return connection


def _options(url: str) -> str:
    """The server's options from the address, or else from the environment, such as a search path."""
    given = conninfo_to_dict(url).get("options")
    defaults = {option.keyword: option.val for option in psycopg.pq.Conninfo.get_defaults()}
    return str(given or (defaults[b"options"] or b"").decode())


def _is_readable(url: str) -> bool:
    """Whether the driver parses the address correctly.

    The driver may take part of a password for a host or port, and its errors would then show that part.
    """
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return False
    host, port = str(parts.get("host") or ""), str(parts.get("port") or "")
    return "@" not in host and not port.strip("0123456789,")


@contextmanager
def open_to_read(database: Database) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Connect to the database, and translate its errors within the block."""
    with translate_postgres(), connect(database.url) as connection:
        yield connection


@contextmanager
def translate_postgres() -> Iterator[None]:
    """Translate PostgreSQL errors within the block: TryAgain for temporary errors, Failed for others."""
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate or ("08" if isinstance(error, psycopg.OperationalError) else "")
        reason = error.diag.message_primary or str(error).split("\n", 1)[0]
        if state.startswith(_CONFLICT):
            raise TryAgain("conflict", f"PostgreSQL: {reason}.", "Try again.") from None
        if state.startswith(_DOWN):
            raise TryAgain(
                "database-down", f"PostgreSQL does not answer: {reason}.", "Try again once it runs."
            ) from None
        if state.startswith(_BUSY):
            raise TryAgain("database-busy", f"PostgreSQL: {reason}.", "Try again later.") from None
        raise Failed("database-failed", f"PostgreSQL: {reason}.", "Check the database.") from None


def copy(database: Database, types: Mapping[str, ColumnType], folder: Path) -> DatabaseCopy:
    """Copy the rows into a CSV file. The copy's time is the start of the transaction's snapshot."""
    with translate_postgres(), connect(database.url, autocommit=False) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        # SET does not start a snapshot yet. The driver cannot parse intervals of ISO 8601.
        connection.execute(f"SET LOCAL IntervalStyle = 'iso_8601'; SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        (instant,) = connection.execute("SELECT statement_timestamp()").fetchone() or ()
        source: sql.Composable = sql.Identifier(*database.parts)
        if database.query is not None:
            source = sql.SQL("({}\n) AS copied").format(sql.SQL(database.query.strip().rstrip(";")))
        columns = _describe(connection, database, source)
        kinds = {column.name: _type_in_copy(database, column, types.get(column.name)) for column in columns}
        _refuse_endless(
            connection, database, source, [column for column in columns if column.name not in types]
        )
        path = folder / "copy.csv"
        _copy(connection, source, columns, path)
    return DatabaseCopy(path, instant, kinds)


def _describe(
    connection: psycopg.Connection[Any], database: Database, source: sql.Composable
) -> list[psycopg.Column]:
    """The columns in order. Raises UsageError for a missing table or an invalid query."""
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
    refuse_repeats(database, [column.name for column in described])
    return described


def _type_name(column: psycopg.Column) -> str:
    """The name of the column's type, or an empty string for an array and for a type of an extension."""
    known = postgres.types.get(column.type_code)
    return known.name if known and known.oid == column.type_code else ""


def _wrong_query(database: Database, error: psycopg.Error) -> UsageError:
    reason = error.diag.message_primary or "it cannot be read"
    return UsageError("bad-query", f"PostgreSQL, {database.what}: {reason}.", "Fix the query or the rights.")


def _type_in_copy(database: Database, column: psycopg.Column, wanted: ColumnType | None) -> ColumnType:
    """The type that the caller wants, or else the column's own type.

    Raises Refused if bytes would become text, or text bytes.
    """
    if wanted is None:
        return _type_of(database, column)
    is_bytes = _type_name(column) == "bytea"
    if is_bytes != (wanted.kind is Kind.BINARY):
        own = "bytea" if is_bytes else "not bytea"
        raise refuse_column(database, column.name, f"is {own}, so it cannot be read as {wanted}")
    return wanted


def _type_of(database: Database, column: psycopg.Column) -> ColumnType:
    """The type that holds every value of a column exactly, or else text.

    Raises Refused if the column's values have no exact text form either.
    """
    name = _type_name(column)
    if name == "numeric":
        if column.precision is None or column.scale is None:
            example = f"`type={{'{column.name}': 'DECIMAL(38,9)'}}`"
            raise refuse_column(
                database,
                column.name,
                "is numeric without a scale, so its values may have any number of digits",
                f"Nothing was written; declare how many with {example}, or copy its text with STRING.",
            )
        # A negative scale adds zeros before the point, and a scale above the precision zeros after it.
        digits = max(column.precision, column.scale) - min(column.scale, 0)
        if digits > MAX_PRECISION:
            raise refuse_column(
                database, column.name, f"is numeric({column.precision},{column.scale}), beyond 38 digits"
            )
        return ColumnType.decimal(digits, max(column.scale, 0))
    if name == "money":
        raise refuse_column(database, column.name, "is money, whose text depends on the server's language")
    return ColumnType(_TYPES.get(name, Kind.STRING))


def _refuse_endless(
    connection: psycopg.Connection[Any],
    database: Database,
    source: sql.Composable,
    columns: Sequence[psycopg.Column],
) -> None:
    """Raise Refused for a column with infinite times, or with times before the common era."""
    times = [(column.name, _ENDLESS[name]) for column in columns if (name := _type_name(column)) in _ENDLESS]
    if not times:
        return
    counts = [sql.SQL(count).format(*[sql.Identifier(name)] * 2) for name, count in times]
    query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(counts), source)
    for (name, _), count in zip(times, connection.execute(query).fetchone() or (), strict=True):
        if count:
            raise refuse_column(
                database, name, f"has {count} times that are infinite or before the common era"
            )


def _copy(
    connection: psycopg.Connection[Any], source: sql.Composable, columns: Sequence[psycopg.Column], path: Path
) -> None:
    values = [
        sql.SQL(_WRITTEN.get(_type_name(column), "{}") + " AS {}").format(*[sql.Identifier(column.name)] * 2)
        for column in columns
    ]
    query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv, HEADER)")
    statement = query.format(sql.SQL(", ").join(values), source)
    with path.open("wb") as file, connection.cursor() as cursor, cursor.copy(statement) as rows:
        file.writelines(rows)
