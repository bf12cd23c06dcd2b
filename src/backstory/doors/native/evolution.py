"""The columns of a copy beside those of its table: added, widened, renamed or refused (N1, N2, V60)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backstory.doors.native.asked import bad_option
from backstory.errors import Refused, UsageError
from backstory.model.change import Change
from backstory.model.layout import Layout
from backstory.model.remembered import OWN_COLUMNS, RESERVED
from backstory.model.schema import Column, Shape
from backstory.model.table import TableName
from backstory.model.types import ColumnType, widens
from backstory.stores.iceberg.spark_types import column_type

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


@dataclass(frozen=True, slots=True)
class Evolved:
    """The table's shape with the copy's columns in it; `delivered` are those, the key's among them.

    `stored` is the shape as it stands under its new names, None without a table; `added` are the columns
    that come.
    """

    shape: Shape
    stored: Shape | None
    delivered: tuple[Column, ...]
    renamed: Mapping[str, str]
    added: frozenset[str]
    changes: Sequence[str]

    @property
    def changed(self) -> bool:
        """Whether the table's columns are others than before."""
        return bool(self.changes)


def delivered_columns(fields: "StructType") -> tuple[tuple[Column, ...], frozenset[str]]:
    """A frame's columns, and the names of those without a type: of them nothing is known yet.

    Raises Refused for reserved and repeated names, and for types that no table has.
    """
    names = [each.name for each in fields]
    if reserved := [name for name in names if name in RESERVED]:
        raise Refused(
            "reserved-column",
            f"{', '.join(reserved)}: the table has columns of its own with these names.",
            "Nothing was written; rename them at the source.",
            reserved,
        )
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise Refused("repeated-column", "Two columns have one name.", "Name each column once.", twice)
    for each in fields:
        if not _holdable(each.dataType):
            raise Refused(
                "unsupported-type",
                f"{each.name} is of type {each.dataType.simpleString()}, which no table has.",
                "Nothing was written; cast it, or leave it out.",
                [each.name],
            )
    empty = frozenset(each.name for each in fields if _void(each.dataType))
    typed = (each for each in fields if each.name not in empty)
    comments = {each.name: each.metadata.get("comment", "") for each in fields}
    columns = (Column(each.name, column_type(each.dataType), comment=comments[each.name]) for each in typed)
    return tuple(columns), empty


def made(table: TableName, columns: tuple[Column, ...], key: tuple[str, ...] | None) -> Evolved:
    """The table that a first copy makes; UsageError for a key that it does not have."""
    if key is None:
        raise bad_option(f"{table} is not there yet, and no key is given.", "Name the key's columns.")
    _require_key(key, columns)
    shape = Shape(table, (*columns, *OWN_COLUMNS), key, Layout.VERSIONS)
    return Evolved(shape, None, columns, {}, frozenset(), ())


def evolved(
    before: Shape,
    columns: tuple[Column, ...],
    empty: frozenset[str],
    key: tuple[str, ...] | None,
    rename: Mapping[str, str],
) -> Evolved:
    """The shape that a later copy gives a table; `empty` are columns of it that have no type.

    Raises UsageError for a rename of no column, Refused for another key and for a type that does not widen.
    """
    renamed = _renames(before, rename)
    stored = replace(
        before,
        columns=tuple(replace(each, name=renamed.get(each.name, each.name)) for each in before.columns),
        key=tuple(renamed.get(name, name) for name in before.key),
    )
    if key is not None and set(key) != set(stored.key):
        raise Refused(
            "key-changed",
            f"The key of {before.table} is ({', '.join(stored.key)}), and ({', '.join(key)}) is given.",
            "Nothing was written; leave the key out, for the table keeps it, or make another table.",
        )
    columns += tuple(each for each in stored.columns if each.name in empty)
    _require_key(stored.key, columns)
    own = {each.name for each in OWN_COLUMNS}
    delivered = {each.name: each for each in columns}
    users = [_wider(each, delivered.get(each.name)) for each in stored.columns if each.name not in own]
    added = [each for each in columns if stored.column(each.name) is None]
    shape = replace(stored, columns=(*users, *added, *(each for each in stored.columns if each.name in own)))
    changes = Change(into=shape, renamed=renamed).lines(before)
    return Evolved(shape, stored, columns, renamed, frozenset(each.name for each in added), changes)


def _renames(before: Shape, rename: Mapping[str, str]) -> dict[str, str]:
    """The renames that are still to do: one that the table has had already is done."""
    found = {}
    for old, new in rename.items():
        is_there, is_taken = before.column(old) is not None, before.column(new) is not None
        if new in RESERVED or old in RESERVED:
            raise Refused(
                "reserved-column", f"{old} cannot be renamed {new}.", "Choose another name.", [old, new]
            )
        if is_there == is_taken:
            told = f"There is a column {new} already" if is_there else f"There is no column {old}"
            raise bad_option(f"{told} in {before.table}.", "Rename a column to a name that is free.")
        if is_there:
            found[old] = new
    return found


def _require_key(key: Sequence[str], columns: Sequence[Column]) -> None:
    names = {each.name: each.type for each in columns}
    if lacking := [name for name in key if name not in names]:
        raise UsageError(
            "missing-column",
            f"The copy has no column {', '.join(lacking)}, which is of the key.",
            f"Its columns are {', '.join(names)}.",
            lacking,
        )
    if nested := [name for name in key if not names[name].flat]:
        raise bad_option(f"{', '.join(nested)} cannot be of a key: it is nested.", "Choose flat columns.")


def _wider(stored: Column, delivered: Column | None) -> Column:
    """The column with a type that holds both what is stored and what comes."""
    if delivered is None or widens(delivered.type, stored.type):
        return stored
    if not widens(stored.type, delivered.type):
        raise type_changed(stored.name, stored.type, delivered.type)
    return replace(stored, type=delivered.type)


def type_changed(name: str, stored: ColumnType, delivered: ColumnType) -> Refused:
    """The error for a column that comes in a type that does not hold what is stored (N2)."""
    return Refused(
        "type-changed",
        f"{name} is of type {stored} in the table, and {delivered} in the copy.",
        "Nothing was written; cast it to the table's type, or bring it under another name.",
        [name],
    )


def _void(type_: "DataType") -> bool:
    """Whether a type says nothing of values, or of some within them."""
    return any(each.typeName() == "void" for each in _within(type_))


def _holdable(type_: "DataType") -> bool:
    """Whether tables have the type and all within it."""
    return all(each.typeName() in _TYPES for each in _within(type_))


def _within(type_: "DataType") -> "list[DataType]":
    from pyspark.sql.types import ArrayType, MapType, StructType

    inner: list[DataType] = []
    if isinstance(type_, ArrayType):
        inner = [type_.elementType]
    elif isinstance(type_, MapType):
        inner = [type_.keyType, type_.valueType]
    elif isinstance(type_, StructType):
        inner = [each.dataType for each in type_]
    return [type_, *(deep for each in inner for deep in _within(each))]


_FLAT = "boolean byte short integer long float double decimal string char varchar binary date timestamp"
_TYPES = frozenset([*_FLAT.split(), "timestamp_ntz", "array", "map", "struct", "void"])
