"""The columns of a copy, in types that tables have."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from backstory.errors import Refused, UsageError
from backstory.model.remembered import RESERVED
from backstory.model.schema import Column
from backstory.model.spelling import fields_alike, is_reserved, names_alike, spelling_hint
from backstory.stores.iceberg.spark_types import column_type

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def delivered_columns(fields: "StructType") -> tuple[tuple[Column, ...], frozenset[str]]:
    """A frame's columns, and the names of those without a type, because no row has a value in them.

    These are texts for now; within what is nested, too. Raises Refused for reserved and repeated names, and
    for types that no table has.
    """
    refuse_names([each.name for each in fields])
    for each in fields:
        if not _holdable(each.dataType):
            raise Refused(
                "unsupported-type",
                f"Column {each.name} has type {each.dataType.simpleString()}, which no table can store.",
                "Nothing was written; cast it, or leave it out.",
                [each.name],
            )
    empty = frozenset(each.name for each in fields if _void(each.dataType))
    comments = {each.name: each.metadata.get("comment", "") for each in fields}
    columns = tuple(
        Column(each.name, column_type(each.dataType), comment=comments[each.name]) for each in fields
    )
    for column in columns:
        if (alike := fields_alike(column.type)) is not None:
            raise _alike(f"Fields {' and '.join(alike)} of column {column.name}", [column.name])
    return columns, empty


def refuse_names(names: Sequence[str]) -> None:
    """Raise Refused for reserved and repeated names of columns, in whatever case."""
    if reserved := [name for name in names if is_reserved(name, RESERVED)]:
        raise Refused(
            "reserved-column",
            f"{_are(reserved)} reserved.",
            "Nothing was written; rename them at the source.",
            reserved,
        )
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise Refused(
            "repeated-column", f"Two columns are named {twice[0]}.", "Give each a name of its own.", twice
        )
    if (alike := names_alike(names)) is not None:
        raise _alike(f"Columns {' and '.join(alike)}", alike)


def refuse_lacking_key(key: Sequence[str], names: Collection[str], *, kept: bool = False) -> None:
    """Raise UsageError where a copy lacks columns of the key: of one that is given, or that a table keeps."""
    if lacking := [name for name in key if name not in names]:
        told = f"columns {', '.join(lacking)} are" if len(lacking) > 1 else f"column {lacking[0]} is"
        raise UsageError(
            "missing-column",
            f"Key {told} missing from the delivery.",
            f"Add them to the delivery, or name their new columns with `rename=`: {', '.join(names)}."
            if kept
            else f"{spelling_hint(lacking, names)}Use its columns for `key=`: {', '.join(names)}.",
            lacking,
        )


def _alike(what: str, names: Sequence[str]) -> Refused:
    return Refused(
        "repeated-column",
        f"{what} differ by case alone, and most engines that read the table ignore case.",
        "Nothing was written; rename one of them at the source, or leave it out.",
        names,
    )


def _are(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"Column name {names[0]} is"
    return f"Column names {', '.join(names)} are"


def _void(type_: "DataType") -> bool:
    """Whether a type says nothing of values, or of some within them."""
    return any(each.typeName() == "void" for each in _within(type_))


def _holdable(type_: "DataType") -> bool:
    """Whether tables have the type and all within it; no file holds a struct without fields."""
    return all(each.typeName() in _TYPES and each.simpleString() != "struct<>" for each in _within(type_))


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
