"""Copies of an SQLite table or query, each made in one read transaction.

In SQLite, any column can hold values of any type. A column is copied in its declared type if all values have
that type. A column without a declared type is copied in the common type of all its values, or as DOUBLE if
the caller names DOUBLE and all values are numbers that fit it. Any other column is refused.
"""

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.errors import Failed, TryAgain, UsageError
from backstory.model.types import ColumnType, Kind
from backstory.sources.databases.address import Database, quote_name
from backstory.sources.databases.copies import DatabaseCopy, refuse_column, refuse_repeats

PATIENCE: Final = 60  # seconds to wait while another program writes
AT_ONCE: Final = 1 << 16
# The storage classes of values, and the Arrow types that hold all their values.
_CLASSES: Final = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string(), "blob": pa.binary()}
# The range of integers that a double holds exactly.
_EXACT: Final = 1 << 53


def copy(database: Database, types: Mapping[str, ColumnType], folder: Path) -> DatabaseCopy:
    """Copy the rows into a Parquet file. The copy's time is just before the read, by this machine's clock."""
    instant, path = datetime.now(UTC), folder / "copy.parquet"
    with open_to_read(database) as connection:
        source = database.source()
        try:
            described = connection.execute(f"SELECT * FROM {source} LIMIT 0").description  # noqa: S608
            names = [column[0] for column in described]
        except sqlite3.OperationalError as wrong:
            if "locked" in str(wrong):
                raise
            code = "no-table" if database.query is None else "bad-query"
            raise UsageError(
                code, f"SQLite, {database.what}: {wrong}.", "Check the name, or the query."
            ) from None
        refuse_repeats(database, names)
        doubles = {name for name, type_ in types.items() if type_.kind is Kind.DOUBLE}
        schema = pa.schema(
            list(zip(names, _types_of(connection, database, source, names, doubles), strict=True))
        )
        rows = connection.execute(f"SELECT * FROM {source}")  # noqa: S608
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for batch in _batches(rows, schema):
                writer.write_batch(batch)
    return DatabaseCopy(path, instant)


@contextmanager
def open_to_read(database: Database) -> Iterator[sqlite3.Connection]:
    """Open a read-only transaction on one state of the database."""
    try:
        address = f"{database.file().absolute().as_uri()}?mode=ro"
        with closing(
            sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)
        ) as connection:
            connection.execute("BEGIN")
            yield connection
    except sqlite3.OperationalError as busy:
        if "locked" not in str(busy) and "busy" not in str(busy):
            raise Failed("database-failed", f"SQLite: {busy}.", "Check the file.") from None
        raise TryAgain("source-busy", f"SQLite: {busy}.", "Try again when no other program writes.") from None
    except sqlite3.DatabaseError as broken:
        raise Failed("database-failed", f"SQLite: {broken}.", "Check the file.") from None


def _types_of(
    connection: sqlite3.Connection,
    database: Database,
    source: str,
    names: Sequence[str],
    doubles: Collection[str],
) -> list[pa.DataType]:
    """The Arrow types of the columns, from the storage classes of all values."""
    declared = _declared_classes(connection, database)
    types = []
    for few in (names[place : place + 100] for place in range(0, len(names), 100)):
        counts = _counts(connection, source, few)
        types += [
            _type_of(database, name, declared.get(name), count, is_double=name in doubles)
            for name, count in zip(few, counts, strict=True)
        ]
    return types


def _declared_classes(connection: sqlite3.Connection, database: Database) -> Mapping[str, str]:
    """The declared storage class of each column, or an empty string if none is implied (SQLite, 3.1)."""
    if database.query is not None:
        return {}
    schema = f"{quote_name(database.parts[0])}." if len(database.parts) > 1 else ""
    columns = connection.execute(f"PRAGMA {schema}table_info({quote_name(database.parts[-1])})")
    return {name: _affinity(str(type_).upper()) for _, name, type_, *_ in columns}


def _affinity(declared: str) -> str:
    if "INT" in declared:
        return "integer"
    if any(word in declared for word in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if "BLOB" in declared:
        return "blob"
    return "real" if any(word in declared for word in ("REAL", "FLOA", "DOUB")) else ""


def _counts(connection: sqlite3.Connection, source: str, names: Sequence[str]) -> list[Mapping[str, int]]:
    """For each column, the number of values of each storage class.

    The class `wide` counts integers that a double cannot hold exactly.
    """
    parts = [
        part
        for name in map(quote_name, names)
        for part in (
            *(f"sum(typeof({name}) = '{storage}')" for storage in _CLASSES),
            f"sum(typeof({name}) = 'integer' AND {name} NOT BETWEEN -{_EXACT} AND {_EXACT})",
        )
    ]
    (row,) = connection.execute(f"SELECT {', '.join(parts)} FROM {source}")  # noqa: S608 - names are quoted
    width = len(_CLASSES) + 1
    labels = (*_CLASSES, "wide")
    return [
        {label: row[place + number] or 0 for number, label in enumerate(labels)}
        for place in range(0, len(row), width)
    ]


def _type_of(
    database: Database, name: str, declared: str | None, count: Mapping[str, int], *, is_double: bool
) -> pa.DataType:
    classes = {storage for storage in _CLASSES if count[storage]}
    if declared and not classes - {declared}:
        return _CLASSES[declared]
    if declared:
        others = ", ".join(f"{count[storage]} of type {storage}" for storage in sorted(classes - {declared}))
        raise refuse_column(database, name, f"is declared as {declared} and has {others}")
    if classes == {"integer"} and is_double and not count["wide"]:
        return pa.float64()
    if len(classes) == 1:
        return _CLASSES[classes.pop()]
    if classes == {"integer", "real"} and not count["wide"]:
        return pa.float64()
    if classes:
        raise refuse_column(database, name, f"has values of several types: {', '.join(sorted(classes))}")
    return pa.null()


def _batches(rows: sqlite3.Cursor, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while rows_read := rows.fetchmany(AT_ONCE):
        columns: list[Any] = list(zip(*rows_read, strict=True))
        arrays = [_array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        yield pa.record_batch(arrays, schema=schema)


def _array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if pa.types.is_floating(type_):
        values = [None if value is None else float(value) for value in values]
    return pa.array(values, type_)
