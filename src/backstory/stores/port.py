"""The contract of every store: tables, the names of their columns, the checks before use, and the errors."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, Protocol, TypeVar

from backstory.errors import Failed, Refused, TryAgain, UsageError, option
from backstory.formats.memory import Memory
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.versions_layout import OF_ICEBERG

# A sender once delivered overlapping versions of a key to this table.
DISORDER: Final = "backstory.disorder"
# A load of this history has committed the base, but not yet the history.
LOADING: Final = "backstory.loading"


class Store(Protocol):
    """A catalog of tables."""

    @property
    def catalog(self) -> str:
        """The name of the catalog, which is part of the key for locks on its tables."""

    @property
    def memory(self) -> Memory:
        """The memory of this process that deliveries may use."""

    @property
    def description(self) -> str:
        """The warehouse and its origin, for errors. The user may have meant another warehouse."""


class TableLike(Protocol):
    """A table and the meaning of its rows, for every reader."""

    @property
    def shape(self) -> Shape:
        """The table's columns, key and layout."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""

    @property
    def rows(self) -> int:
        """The number of rows in data files, including deleted rows."""

    @property
    def foreign_writes(self) -> Sequence[str]:
        """Descriptions of writes by other programs since the table's door last wrote."""


class StoredTable(TableLike, Protocol):
    """A table in the state in which it was loaded. If `rows` is 0, the table is empty."""

    @property
    def schema_id(self) -> int:
        """The id of the table's schema, which differs after every change of columns."""

    @property
    def disorderly(self) -> bool:
        """Whether a sender has ever delivered overlapping versions of a key."""

    @property
    def newest_token(self) -> str | None:
        """The token of the newest commit of rows, if backstory made it."""

    @property
    def tags(self) -> Mapping[str, int]:
        """The tags of snapshots, by name. A snapshot with a tag does not expire."""


Loaded = TypeVar("Loaded", bound=StoredTable)
Readable = TypeVar("Readable", bound=TableLike)


def require_columns(table: Readable, *own: str) -> Readable:
    """The table, if it has its key and its layout's columns. Raises Refused if another tool dropped one.

    `own` are other columns that a door needs. If a column is missing, rows have another meaning, so nothing
    is read or written. Only `check` still reads the table.
    """
    shape = table.shape
    if shape.layout is Layout.FOREIGN or (shape.layout is Layout.ODF and not table.rows):
        return table  # a dataset has its columns from its first delivery on
    needed = dict.fromkeys((*shape.key, *shape.layout.required_columns, *own))
    lacking = [name for name in needed if not shape.column(name)]
    if lacking:
        one = len(lacking) == 1
        raise Refused(
            "column-gone",
            f"{shape.table} no longer has the column{'' if one else 's'} {', '.join(lacking)}, "
            f"which {'is' if one else 'are'} part of its key or of its layout {shape.layout}.",
            f"Nothing was written; give {'it its' if one else 'them their'} former name again with "
            "ALTER TABLE, or register the table's metadata file from before the change.",
            lacking,
        )
    return table


def require_layout(table: Loaded, *layouts: Layout) -> Loaded:
    """The table, if its layout is one that the calling door writes. Raises Refused for any other layout."""
    shape = table.shape
    if shape.layout is Layout.FOREIGN or shape.layout.is_adopted:
        raise Refused(
            "other-layout",
            f"backstory did not create {shape.table} and does not write to it.",
            "Nothing was written; use another name. To read a history of another tool, run "
            "`backstory adopt`.",
        )
    if shape.layout not in layouts:
        raise Refused(
            "other-layout",
            f"{shape.table} has the layout {shape.layout}, which only the {shape.layout.door} door writes.",
            f"Nothing was written; use another name, or a table of layout {' or '.join(layouts)}.",
        )
    return require_columns(table)


def stored_names(sources: Iterable[str], known: Iterable[Column] = ()) -> dict[str, str]:
    """The stored name of each column of a source, including the `known` columns (F21).

    A name that Iceberg reserves gets an underscore as its last letter, and more underscores while the result
    is taken. Any other name is stored unchanged, unless a known column already has it as its stored name.
    """
    names = {column.source: column.name for column in known}
    is_reserved = {source: source in OF_ICEBERG for source in sources if source not in names}
    for source in sorted(is_reserved, key=is_reserved.__getitem__):
        name = f"{source}_" if is_reserved[source] else source
        while name in names.values():
            name += "_"
        names[source] = name
    return names


def refuse_names(names: Sequence[str]) -> None:
    """Raise Refused for column names that no table can have."""
    for name in names:
        if not name or name in OF_ICEBERG:
            raise Refused(
                "reserved-column",
                f"A column cannot be named {name!r}: Iceberg reserves this name.",
                "Rename the column at its source or leave it out.",
            )
    if len(set(names)) < len(names):
        raise Refused("repeated-column", "Two columns have one name.", "Name each column once.")


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
    """The error for a file of a table that does not have the expected content."""
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
