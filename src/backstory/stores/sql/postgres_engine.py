"""A connection to a PostgreSQL server."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
from psycopg import sql as psycopg_sql
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.types.datetime import DateLoader, TimeLoader, TimestampLoader, TimestamptzLoader
from psycopg.types.string import TextLoader

from backstory.sources.databases.postgresql import connect, translate_postgres
from backstory.stores.sql.columns import SqlColumn
from backstory.stores.sql.dialects import Postgres
from backstory.stores.sql.engine import Engine

_POLL_MILLISECONDS = 250


class PostgresEngine(Engine):
    """A connection in UTC. Its transactions see one snapshot (repeatable read)."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection

    @property
    def address(self) -> str:
        info = self._connection.info
        return f"{info.host}:{info.port}/{info.dbname}"

    def execute(self, sql: str) -> int:
        with translate_postgres():
            cursor = self._connection.execute(sql.encode())
            return max(cursor.rowcount, 0)

    def fetch_all(self, sql: str) -> list[tuple[Any, ...]]:
        with translate_postgres():
            return self._connection.execute(sql.encode()).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with translate_postgres(), self._connection.transaction():
            # Tables are joined whole, and there are no statistics on the transaction's own writes yet.
            self._connection.execute("SET LOCAL enable_nestloop = off")
            yield

    @contextmanager
    def lock(self, name: str) -> Iterator[bool]:
        with translate_postgres():
            cursor = self._connection.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [name])
            taken = bool(cursor.fetchall()[0][0])
        try:
            yield taken
        finally:
            if taken and not self._connection.broken:
                self._connection.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", [name])

    def introspect_table(self, schema: str, table: str) -> dict[str, str] | None:
        query = (
            "SELECT c.oid, a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            "WHERE n.nspname = %s AND c.relname = %s ORDER BY a.attnum"
        )
        with translate_postgres():
            rows = self._connection.execute(query, [schema, table]).fetchall()
        return {name: type_ for _, name, type_ in rows if name} if rows else None

    def bind_secret(self, name: str, value: str) -> None:
        # A server's log may contain statements and their parameters, but never the data of a COPY.
        with translate_postgres(), self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE backstory_secret (secret text) ON COMMIT DROP")
            with cursor.copy("COPY pg_temp.backstory_secret FROM STDIN") as rows:
                rows.write_row([value])
            query = "SELECT set_config(%s, (SELECT secret FROM pg_temp.backstory_secret), false)"
            cursor.execute(query, [f"backstory.{name}"])

    def bring(self, name: str, rows: pa.Table, columns: Sequence[SqlColumn]) -> str:
        dialect = Postgres()
        typed = ", ".join(
            f"{dialect.quote_ident(column.name)} "
            + dialect.map_logical_type(
                column.datatype, None, column.decimal_precision, column.decimal_scale, strict=False
            )
            for column in columns
        )
        with translate_postgres():
            quoted = dialect.quote_ident(name)
            self._connection.execute(f"DROP TABLE IF EXISTS pg_temp.{quoted}".encode())
            self._connection.execute(f"CREATE TEMPORARY TABLE {quoted} ({typed})".encode())
            copy = psycopg_sql.SQL("COPY {} FROM STDIN (FORMAT csv)").format(psycopg_sql.Identifier(name))
            with self._connection.cursor() as cursor, cursor.copy(copy) as target:
                for batch in _as_text(rows).to_batches():
                    sink = pa.BufferOutputStream()
                    pa_csv.write_csv(batch, sink, pa_csv.WriteOptions(include_header=False))
                    target.write(sink.getvalue().to_pybytes())
        return quoted

    def close(self) -> None:
        self._connection.close()


def _as_text(rows: pa.Table) -> pa.Table:
    """The rows with binary columns as PostgreSQL's strings."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_binary(field.type):
            texts = [None if value is None else "\\x" + value.hex() for value in rows[place].to_pylist()]
            rows = rows.set_column(place, field.name, pa.array(texts, pa.string()))
    return rows


class _ElseText(Loader):
    """A loader that returns the server's text of a value that Python's type cannot hold, such as infinity."""

    TYPED: ClassVar[type[Loader]]

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        self._typed = self.TYPED(oid, context)

    def load(self, data: Buffer) -> Any:
        try:
            return self._typed.load(data)
        except psycopg.DataError:
            return bytes(data).decode()


_TIMES: Mapping[str, type[Loader]] = {
    "date": DateLoader,
    "time": TimeLoader,
    "timestamp": TimestampLoader,
    "timestamptz": TimestamptzLoader,
}


def open_postgres(url: str) -> PostgresEngine:
    """A connection to `postgresql://user@host:port/db`. Raises the errors of `connect`."""
    connection = connect(url)
    with translate_postgres():
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        # Make the session of a killed process end soon, even while it waits, because it holds our locks.
        with suppress(psycopg.Error):  # a setting since PostgreSQL 14, on some systems only
            connection.execute(f"SET client_connection_check_interval = {_POLL_MILLISECONDS}")
    for name in ("json", "jsonb"):  # the stored text, as in every engine: JSON's null is not NULL
        connection.adapters.register_loader(name, TextLoader)
    for name, loader in _TIMES.items():
        connection.adapters.register_loader(name, type(loader.__name__, (_ElseText,), {"TYPED": loader}))
    return PostgresEngine(connection)
