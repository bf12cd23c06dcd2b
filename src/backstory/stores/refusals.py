"""The errors of stores: tables that are missing, already exist, were changed concurrently, or are damaged."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from backstory.errors import Failed, Refused, TryAgain, UsageError, option
from backstory.model.table import TableName


def no_table(table: TableName, known: Iterable[TableName] = (), searched: str = "") -> UsageError:
    """The error for a missing table, which suggests the most similar of the `known` tables.

    `searched` describes the warehouse that was searched, and the origin of its name.
    """
    near = get_close_matches(str(table), map(str, known), 1)
    remedy = f"Did you mean {near[0]}?" if near else "Create it first, or check its name."
    return UsageError("no-table", f"There is no table {table}{searched and f' in {searched}'}.", remedy)


def table_exists(table: TableName) -> Refused:
    """The error for a new table with the name of an existing table."""
    return Refused("table-exists", f"The table {table} already exists.", "Alter it, or drop it first.")


def view_exists(table: TableName) -> Refused:
    """The error for a new table with the name of an existing view."""
    return Refused(
        "table-exists", f"{table} is the name of a view.", "Drop the view, or give the table another name."
    )


def require_some(tables: Sequence[object], *, every: bool) -> None:
    """Raise UsageError if no table is named and `every` is false."""
    if not tables and not every:
        raise UsageError(
            "no-table", "No table is named.", f"Name tables, or use {option('all', value=True)}."
        )


def conflict(table: TableName | str) -> TryAgain:
    """The error for a table that another writer changed concurrently."""
    return TryAgain(
        "conflict",
        f"{table} was changed by another writer while this request was planned.",
        "Nothing was written; send it again.",
    )


def file_lost(table: TableName | str, file: str) -> Failed:
    """The error for a missing file of a table."""
    return Failed(
        "file-lost",
        f"A file of {table} is missing or cannot be reached: {file}.",
        "Restore it from a copy of the storage, then try again.",
    )


def file_garbled(table: TableName | str, file: str) -> Failed:
    """The error for a table's file without the expected content."""
    return Failed(
        "file-garbled",
        f"A file of {table} does not have the expected content: {file}.",
        "Restore it from a copy of the storage, then try again.",
    )


def property_garbled(table: TableName, name: str) -> Failed:
    """The error for one of backstory's properties with a value that backstory did not write."""
    return Failed(
        "property-garbled",
        f"The property {name} of {table} has an unexpected value.",
        "Set it to its former value, which earlier metadata files of the table contain.",
    )


def repeated_key(table: TableName, key: Sequence[str], keys: int, rows: int) -> Refused:
    """The error for columns that are not a key, because `rows` rows would have only `keys` distinct keys."""
    return Refused(
        "repeated-key",
        f"({', '.join(key)}) is not a key of {table}: {rows} rows would share {keys} keys.",
        "The table is unchanged; use columns that identify its rows.",
    )
