"""Tables: their names, columns, key, layout and versions, and names that differ only by case.

Spark, Trino, DuckDB and most other readers treat names that differ only by case as equal.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from backstory.errors import Refused, UsageError
from backstory.model.instant import iso
from backstory.model.layout import HIST_SUFFIX, KEY_SUFFIX, Layout, Span
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
    """The tables that a string may name, with the dataset last.

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
    """The name in the form in which engines that ignore case compare names."""
    return name.lower()


def other_spelling(name: str, names: Iterable[str]) -> str | None:
    """The first of the names that differs from this name only by case, or None."""
    return next((other for other in names if other != name and fold_case(other) == fold_case(name)), None)


def names_alike(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two names, in their order, that are equal or differ only by case, or None."""
    before: dict[str, str] = {}
    for name in names:
        if (folded := fold_case(name)) in before:
            return before[folded], name
        before[folded] = name
    return None


def fields_alike(type_: ColumnType) -> tuple[str, str] | None:
    """The names of the first two fields of a struct, at any depth, that differ at most by case, or None."""
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


ARCHIVE_SUFFIX = "_archive"


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels for the states of versions."""

    new: str = "new"
    changed: str = "changed"
    deleted: str = "deleted"
    reappeared: str = "new"


@dataclass(frozen=True, slots=True)
class Dating:
    """The column that contains the time from which a version is true, and the precision of the time."""

    column: str
    granularity: Literal["timestamp", "date"] = "timestamp"


@dataclass(frozen=True, slots=True)
class Archive:
    """The table of pruned versions. By default, it has the columns of the history."""

    name: str
    columns: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class History:
    """A table with versions: its shape, its labels and marks, and its archive.

    `own` are the columns that are not the user's. By default, these are the layout's columns. `references`
    are columns with keys of other tables. `labels` are stored, and views show `shown_labels` instead.
    Versions that ended before `whole_since` may be in the `archive`.
    """

    shape: Shape
    own: frozenset[str] | None = None
    labels: Labels = Labels()
    references: frozenset[str] = frozenset()
    former_names: tuple[str, ...] = ()
    archive: Archive | None = None
    whole_since: datetime | None = None
    shown_labels: Labels | None = None
    dating: Dating | None = None

    @property
    def name(self) -> str:
        """The name of the table in its schema."""
        return self.shape.table.name

    @property
    def archive_name(self) -> str:
        """The name of the table of pruned versions, whether or not the table exists."""
        return self.archive.name if self.archive else f"{self.name}{ARCHIVE_SUFFIX}"

    @property
    def span(self) -> Span:
        """The columns that contain the start and the end of a version. The layout must have them."""
        span = self.shape.layout.span
        assert span is not None
        return span

    @property
    def version_key(self) -> str:
        """The column that identifies a version."""
        return f"{self.name}{KEY_SUFFIX}"

    @property
    def record_key(self) -> str:
        """The single column that identifies a record.

        `shape.key` has the columns by which people identify the record.
        """
        return f"{self.name.removesuffix(HIST_SUFFIX)}{KEY_SUFFIX}"

    @property
    def user_columns(self) -> list[Column]:
        """The columns of the source."""
        if self.own is None:
            return self.shape.user_columns
        return [column for column in self.shape.columns if column.name not in self.own]

    @property
    def attributes(self) -> list[Column]:
        """The user's columns outside the key."""
        return [column for column in self.user_columns if column.name not in self.shape.key]

    def require_unpruned(self, instant: datetime) -> datetime:
        """Return the instant, if no version that was valid then can have been pruned.

        Raises Refused otherwise.
        """
        if self.whole_since and instant < self.whole_since:
            raise Refused(
                "PRUNED",
                f"{self.name} was pruned up to {iso(self.whole_since)}.",
                f"Ask for a later time; {self.name}_all also has the archived versions.",
            )
        return instant
