"""The rows of a database, copied into a file out of one consistent view: what is read later is that view."""

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
    """A file with the rows, and the time that they are of, by the database's clock where it has one.

    A CSV's columns are of these `types`, all of them; a Parquet file has its own.
    """

    path: Path
    instant: datetime
    types: Mapping[str, ColumnType] | None = None


def copy_out(database: Database, types: Mapping[str, ColumnType], folder: Path) -> DatabaseCopy:
    """Copy the rows into a file in the folder; `types` are those that the caller names for columns.

    Raises UsageError for what cannot be read, Refused for a column without an exact type, TryAgain where the
    database does not answer or a lock is not given up, and Failed for other errors.
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
    """The error for a column whose values have no exact type here."""
    # An address that names the table takes no query: so do those in the file that `init` writes.
    bare = " and a `source` without `?table=`" if database.table else ""
    return Refused(
        "column-type",
        f"Column {column} of {database.what} {why}.",
        remedy
        or f"Nothing was written; leave it out or cast it with `query='SELECT ... {column} ...'`{bare}.",
        [column],
    )


def refuse_repeats(database: Database, names: Iterable[str]) -> None:
    """Raise UsageError for a query that gives two columns one name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UsageError(
                "bad-query", f"{database.what} has two columns {name}.", "Rename one in the query with AS."
            )
        seen.add(name)
