"""Tables: their names, columns, key and layout, and names that differ only by case.

Spark, Trino, DuckDB and most other readers treat names that differ only by case as equal.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from backstory.errors import UsageError
from backstory.model.layout import Layout
from backstory.model.types import ColumnType, Kind

NUL = "\0"  # no name in a catalog, a file system or a database contains it
ODF = "odf"  # the schema of datasets


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """`<schema>.<table>`, both spelled as in the source."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def table_name(text: str) -> TableName:
    """The table `schema.table`. The schema is the part before the first dot."""
    schema, _, name = text.partition(".")
    if not schema or not name or NUL in text:
        raise UsageError("no-table", f"{text!r} does not name a table.", "Write it as schema.table.")
    return TableName(schema, name)


def resolve_name(text: str, is_there: Callable[[TableName], bool]) -> TableName | None:
    """The table `schema.table`, or else the dataset of this name in `odf`, or None if neither exists.

    Raises UsageError if the string cannot be the name of a table.
    """
    return next(filter(is_there, possible_names(text)), None)


def possible_names(text: str) -> Iterator[TableName]:
    """The tables that a string may name, the dataset last.

    Raises UsageError if the string cannot name a table.
    """
    if NUL in text:
        table_name(text)
    if dotted := all(text.partition(".")[::2]):
        yield table_name(text)
    if text:
        yield TableName(ODF, text)
    if not dotted:
        table_name(text)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table or of a delivery.

    `source_name` is the source's name if it differs from the table's (F21), or else empty. `comment` is the
    comment for a new column, if it contains more than the type.
    """

    name: str
    type: ColumnType
    source_name: str = ""
    comment: str = field(default="", compare=False)

    @property
    def source(self) -> str:
        """The source's name, as in requests, replies, messages and reads."""
        return self.source_name or self.name

    @property
    def doc(self) -> str:
        """The comment of the column, by default its type, as `ColumnType.parse` reads it."""
        return self.comment or self.type.stored_name


@dataclass(frozen=True, slots=True)
class Shape:
    """A table's columns, key and layout. The key never contains the start of versions (F15)."""

    table: TableName
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    layout: Layout

    @property
    def names(self) -> list[str]:
        """The names of the columns, in the order of the table."""
        return [column.name for column in self.columns]

    def column(self, name: str) -> Column | None:
        """The column with exactly this name, or None."""
        return next((column for column in self.columns if column.name == name), None)

    def column_of_source(self, source: str) -> Column | None:
        """The column with exactly this name in the source, or None."""
        return next((column for column in self.columns if column.source == source), None)

    @property
    def source_key(self) -> tuple[str, ...]:
        """The key in the source's names."""
        sources = {column.name: column.source for column in self.columns}
        return tuple(sources.get(name, name) for name in self.key)

    @property
    def user_columns(self) -> list[Column]:
        """The columns of the source, without the layout's own columns."""
        return [column for column in self.columns if not self.layout.owns(column.name, self.table.name)]


def fold_case(name: str) -> str:
    """The name in the form that engines which ignore case compare."""
    return name.lower()


def other_spelling(name: str, names: Iterable[str]) -> str | None:
    """The first of the names that differs from this one only by case."""
    return next((other for other in names if other != name and fold_case(other) == fold_case(name)), None)


def names_alike(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two names, in their order, that are equal or differ only by case."""
    before: dict[str, str] = {}
    for name in names:
        if (folded := fold_case(name)) in before:
            return before[folded], name
        before[folded] = name
    return None


def fields_alike(type_: ColumnType) -> tuple[str, str] | None:
    """The first two fields of a struct, at any depth, whose names are equal or differ only by case."""
    return next(filter(None, map(names_alike, _structs(type_))), None)


def is_reserved(name: str, reserved: Iterable[str]) -> bool:
    """Whether a name is reserved, ignoring case."""
    return fold_case(name) in map(fold_case, reserved)


def nested_key_error(nested: Sequence[str], keys: Sequence[str] = ()) -> UsageError:
    """The error for nested key columns. `keys` are the names in the error's JSON."""
    message = f"{', '.join(nested)} cannot be in a key: it is nested."
    return UsageError("bad-option", message, "Use flat columns.", keys)


def spelling_hint(missing: Iterable[str], names: Collection[str]) -> str:
    """A sentence with the right spellings of missing names, followed by a space, or an empty string."""
    pairs = ((name, other_spelling(name, names)) for name in missing)
    words = [f"{other} instead of {name}" for name, other in pairs if other is not None]
    return f"Write {', '.join(words)}. " if words else ""


def _structs(type_: ColumnType) -> Iterator[list[str]]:
    if type_.kind is Kind.STRUCT:
        yield [name for name, _ in type_.parts]
    for _, part in type_.parts:
        yield from _structs(part)
