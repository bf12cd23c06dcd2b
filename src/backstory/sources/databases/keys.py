"""The tables of a database and their declared primary keys."""

import sqlite3
from collections.abc import Mapping
from typing import Final

from backstory.errors import UsageError
from backstory.sources.databases.address import Database

Keys = Mapping[str, tuple[str, ...]]

_POSTGRES: Final = """
SELECT n.nspname, c.relname, coalesce(k.names, '{}')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN LATERAL (
  SELECT array_agg(a.attname::text ORDER BY place) AS names
  FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS of(number, place)
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = of.number
  WHERE i.indrelid = c.oid AND i.indisprimary
) k ON true
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
  AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
ORDER BY 1, 2
"""
_DUCKDB: Final = """
SELECT t.schema_name, t.table_name, coalesce(any_value(c.constraint_column_names), [])
FROM duckdb_tables() t LEFT JOIN duckdb_constraints() c
  ON c.table_oid = t.table_oid AND c.database_oid = t.database_oid AND c.constraint_type = 'PRIMARY KEY'
WHERE t.database_name = current_database() AND NOT t.internal
GROUP BY ALL ORDER BY ALL
"""


def declared_keys(database: Database) -> Keys:
    """The tables of a database, named as in sources, each with the columns of its primary key.

    The list of columns is empty for a table without a key. Raises UsageError for a JDBC database.
    """
    if database.kind == "postgresql":
        return _of_postgres(database)
    if database.kind == "duckdb":
        return _of_duckdb(database)
    if database.kind == "sqlite":
        return _of_sqlite(database)
    raise catalog_error(database)


def catalog_error(database: Database) -> UsageError:
    """The error for a database whose tables cannot be listed."""
    return UsageError(
        "no-catalog",
        f"`init` cannot list the tables of {database.name}.",
        "Write the file by hand: a table for each source.",
    )


def _of_postgres(database: Database) -> Keys:
    from backstory.sources.databases.postgres import connect, translate_postgres

    with translate_postgres(), connect(database.url) as connection:
        rows = connection.execute(_POSTGRES).fetchall()
    return {f"{schema}.{name}": tuple(key) for schema, name, key in rows}


def _of_duckdb(database: Database) -> Keys:
    from backstory.sources.databases.duckdb import open_duckdb

    with open_duckdb(database) as connection:
        rows = connection.execute(_DUCKDB).fetchall()
    return {f"{schema}.{name}": tuple(key) for schema, name, key in rows}


def _of_sqlite(database: Database) -> Keys:
    from backstory.sources.databases.sqlite import open_sqlite

    with open_sqlite(database) as connection:
        query = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
        names = sorted(name for (name,) in connection.execute(query))
        return {name: _key_of_sqlite(connection, name) for name in names}


def _key_of_sqlite(connection: sqlite3.Connection, name: str) -> tuple[str, ...]:
    columns = connection.execute("SELECT pk, name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk", [name])
    return tuple(column for _, column in columns)
