"""Copies of rows from a database into a file, from one consistent state."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from backstory.errors import Refused, UsageError
from backstory.model.types import ColumnType
from backstory.sources.databases.address import Database

EXTRA: Final = 'pip install "backstory[historize]"'


@dataclass(frozen=True, slots=True)
class DatabaseCopy:
    """A file with the rows, and the time of the database's state, by the database's clock if it has one.

    `types` has the types of all columns of a CSV. A Parquet file contains its types.
    """

    path: Path
    instant: datetime
    types: Mapping[str, ColumnType] | None = None


def copy_out(database: Database, types: Mapping[str, ColumnType], folder: Path) -> DatabaseCopy:
    """Copy the rows into a file in the folder.

    `types` are the types that the caller gives to columns. Raises UsageError for a wrong table, query or
    file, and Refused for a column without an exact type. Raises TryAgain if the database does not answer or a
    lock is not released, and Failed for other errors.
    """
    with _needing_driver(database):
        copier = _copier(database)
    return copier(database, types, folder)


def _copier(database: Database) -> Callable[[Database, Mapping[str, ColumnType], Path], DatabaseCopy]:
    if database.kind == "postgresql":
        from backstory.sources.databases.postgres import copy_postgres

        return copy_postgres
    if database.kind == "duckdb":
        from backstory.sources.databases.duckdb import copy_duckdb

        return copy_duckdb
    from backstory.sources.databases.sqlite import copy_sqlite

    return copy_sqlite


@contextmanager
def _needing_driver(database: Database) -> Iterator[None]:
    try:
        yield
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
    """Raise UsageError if a query has two columns of the same name."""
    earlier: set[str] = set()
    for name in names:
        if name in earlier:
            raise UsageError(
                "bad-query", f"{database.what} has two columns {name}.", "Rename one in the query with AS."
            )
        earlier.add(name)
