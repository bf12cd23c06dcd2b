"""The tables of a database, their declared keys, and copies of rows from one consistent state into a file."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from backstory.errors import Refused, UsageError
from backstory.model.types import ColumnType
from backstory.sources.databases.address import Database, quote_name

EXTRA: Final = 'pip install "backstory[historize]"'


@dataclass(frozen=True, slots=True)
class DatabaseCopy:
    """A file with the rows, and the time of the database's state.

    The time is taken from the database's clock if it has one. For a CSV file, `types` contains the types of
    all columns. A Parquet file contains its own types.
    """

    path: Path
    instant: datetime
    types: Mapping[str, ColumnType] | None = None


def copy_out(database: Database, types: Mapping[str, ColumnType], folder: Path) -> DatabaseCopy:
    """Copy the rows into a file in the folder.

    `types` are the column types that the caller declares. For SQLite, which may store the whole numbers of a
    column as integers, they include the table's columns of type DOUBLE. Raises UsageError for a wrong table,
    query or file, and Refused for a column without an exact type. Raises TryAgain if the database does not
    answer or a lock is not released, and Failed for other errors.
    """
    copied: DatabaseCopy = _reader(database).copy(database, types, folder)
    return copied


def _reader(database: Database) -> Any:
    """The module that reads databases of this kind. Raises UsageError if its driver is missing."""
    try:
        return import_module(f"backstory.sources.databases.{database.kind}")
    except ModuleNotFoundError as missing:
        raise UsageError(
            "no-driver", f"Reading {database.kind} needs the package {missing.name}.", f"Run {EXTRA}."
        ) from None


def refuse_column(database: Database, column: str, why: str, remedy: str = "") -> Refused:
    """The error for a column that no type represents exactly."""
    # An address with a table cannot have a query; `init` writes such addresses.
    bare = " and a `source` without `?table=`" if database.table else ""
    return Refused(
        "column-type",
        f"Column {column} of {database.what} {why}.",
        remedy
        or f"Nothing was written; leave it out or cast it with `query='SELECT ... {column} ...'`{bare}.",
        [column],
    )


def refuse_repeats(database: Database, names: Iterable[str]) -> None:
    """Raise UsageError if a query has two columns with the same name."""
    earlier: set[str] = set()
    for name in names:
        if name in earlier:
            raise UsageError(
                "bad-query", f"{database.what} has two columns {name}.", "Rename one in the query with AS."
            )
        earlier.add(name)


Keys = Mapping[str, tuple[str, ...]]

# For each kind of database, the query for the schema, the name and the primary key of each table.
_TABLES: Final[Mapping[str, str]] = {
    "postgresql": """
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
""",
    "duckdb": """
SELECT t.schema_name, t.table_name, coalesce(any_value(c.constraint_column_names), [])
FROM duckdb_tables() t LEFT JOIN duckdb_constraints() c
  ON c.table_oid = t.table_oid AND c.database_oid = t.database_oid AND c.constraint_type = 'PRIMARY KEY'
WHERE t.database_name = current_database() AND NOT t.internal
GROUP BY ALL
UNION ALL
SELECT schema_name, view_name, [] FROM duckdb_views()
WHERE database_name = current_database() AND NOT internal
ORDER BY ALL
""",
    "sqlite": """
SELECT CASE WHEN instr(t.name, '.') THEN 'main' ELSE '' END, t.name,
  (SELECT json_group_array(name) FROM (SELECT name FROM pragma_table_info(t.name) WHERE pk > 0 ORDER BY pk))
FROM sqlite_master t WHERE t.type IN ('table', 'view') AND substr(t.name, 1, 7) <> 'sqlite_'
ORDER BY t.name
""",
}


def declared_keys(database: Database) -> Keys:
    """The tables of a database, named as in sources, each with the columns of its primary key.

    If a schema has a dot in its name, which sources cannot write, its tables have their quoted names. The
    list of columns is empty for a table without a key. Raises UsageError for a JDBC database.
    """
    if database.kind not in _TABLES:
        raise catalog_error(database)
    with _reader(database).open_to_read(database) as connection:
        rows = connection.execute(_TABLES[database.kind]).fetchall()
    return {
        _name(schema, name): tuple(json.loads(key) if isinstance(key, str) else key)
        for schema, name, key in rows
    }


def catalog_error(database: Database) -> UsageError:
    """The error for a database whose tables cannot be listed."""
    return UsageError(
        "no-catalog",
        f"`init` cannot list the tables of {database.name}.",
        "Write the file by hand: a table for each source.",
    )


def _name(schema: str, name: str) -> str:
    if "." in schema:
        return f"{quote_name(schema)}.{quote_name(name)}"
    return f"{schema}.{name}" if schema else name
