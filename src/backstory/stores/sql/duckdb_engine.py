"""DuckDB in this process, and the values for which DuckDB and Spark write the same canonical text."""

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_date, is_timestamp

from backstory.errors import Failed, TryAgain, UsageError
from backstory.stores.sql.columns import Datatype, SqlColumn
from backstory.stores.sql.engine import Engine, fill_placeholders

# Spark's tables store the other types as strings.
SAME_TEXT: Final = frozenset(Datatype) - {Datatype.FLOAT, Datatype.TIME, Datatype.UUID}
# DuckDB and Spark write years outside of these days differently.
FIRST, LAST = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))


def has_usual_years(values: pa.ChunkedArray) -> bool:
    """Whether days and instants are in years with four digits."""
    if not (is_date(values.type) or is_timestamp(values.type)):
        return True
    days = pc.min_max(values.cast(pa.date32()).cast(pa.int32())).as_py()
    return days["min"] is None or FIRST <= days["min"] <= days["max"] <= LAST


_locks: dict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)


class DuckDBEngine(Engine):
    """A connection to a DuckDB file. Only one process can have the file open."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, path: str) -> None:
        self._connection = connection
        self._path = path

    @property
    def address(self) -> str:
        return str(Path(self._path).resolve()) if self._path else ""

    def execute(self, sql: str) -> int:
        with _translate_errors():
            row = self._connection.execute(sql).fetchone()
            return int(row[0]) if row and isinstance(row[0], int) else 0

    def fetch_all(self, sql: str) -> list[tuple[Any, ...]]:
        with _translate_errors():
            return self._connection.execute(sql).fetchall()

    def rows(self, sql: str) -> pa.Table:
        """The rows of a query as an Arrow table, in the order in which DuckDB returns them."""
        with _translate_errors():
            return self._connection.sql(sql).to_arrow_table()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN TRANSACTION")
        try:
            yield
        except BaseException:
            self._connection.rollback()
            raise
        self.execute("COMMIT")

    @contextmanager
    def lock(self, name: str) -> Iterator[bool]:
        lock = _locks[self._path, name]
        taken = lock.acquire(blocking=False)
        try:
            yield taken
        finally:
            if taken:
                lock.release()

    def introspect_table(self, schema: str, table: str) -> dict[str, str] | None:
        with _translate_errors():
            rows = self._connection.execute(
                "SELECT column_name, data_type FROM duckdb_columns() "
                "WHERE database_name = current_database() AND lower(schema_name) = lower(?) "
                "AND lower(table_name) = lower(?) ORDER BY column_index",
                [schema, table],
            ).fetchall()
        return dict(rows) if rows else None

    def bind_secret(self, name: str, value: str) -> None:
        with _translate_errors():
            self._connection.execute(f"SET VARIABLE backstory_{name} = ?", [value])

    def bring(self, name: str, rows: pa.Table, columns: Sequence[SqlColumn]) -> str:
        del columns
        zoneless = pa.schema(
            [
                field.with_type(pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field
                for field in rows.schema
            ]
        )
        with _translate_errors():
            self._connection.register(name, rows.cast(zoneless))
        return name

    def keep(self, name: str, template: str, values: Mapping[str, str]) -> str:
        # DuckDB's MERGE reads rows of its source that it has already written.
        self.execute(f"CREATE OR REPLACE TEMPORARY TABLE {name} AS\n{fill_placeholders(template, values)}")
        return name

    def close(self) -> None:
        self._connection.close()


def open_duckdb(url: str) -> DuckDBEngine:
    """A connection to `duckdb:///path`. Raises TryAgain if another process has the file open."""
    scheme, _, path = url.partition("://")
    if scheme != "duckdb":
        raise UsageError("wrong-url", "This is not a DuckDB address.", "Write duckdb:///path/file.duckdb.")
    place = Path(path)
    if path and (place.is_dir() or not place.parent.is_dir()):
        shown = "This" if "@" in path else path  # a password may precede the @
        raise UsageError(
            "wrong-url", f"{shown} is not the path of a file.", "Write duckdb:///path/file.duckdb."
        )
    with _translate_errors():
        connection = duckdb.connect(path or ":memory:")
        connection.execute("SET TimeZone = 'UTC'")
    return DuckDBEngine(connection, path)


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except duckdb.TransactionException as busy:
        raise TryAgain("conflict", f"DuckDB: {_sentence(busy)}", "Try again.") from None
    except duckdb.IOException as stop:
        if "lock" in str(stop):
            raise TryAgain("conflict", f"DuckDB: {_sentence(stop)}", "Try again.") from None
        raise Failed("database-failed", f"DuckDB: {_sentence(stop)}", "Check the file.") from None
    except duckdb.Error as error:
        raise Failed("database-failed", f"DuckDB: {_sentence(error)}", "Check the database.") from None


def _sentence(error: Exception) -> str:
    """The first line of an error. The other lines repeat the statement."""
    return str(error).split("\n", 1)[0]
