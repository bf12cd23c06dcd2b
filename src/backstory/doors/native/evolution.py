"""The columns of a delivery and of its table: types, names, new shapes and field ids (N1, N2, V60)."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import TYPE_CHECKING, Final

from backstory.doors.native.options import DeliveryRequest
from backstory.engine.staging import type_with_void
from backstory.errors import Refused, UsageError, bad_option, option
from backstory.model.change import Change
from backstory.model.layout import Layout
from backstory.model.table import (
    Column,
    Shape,
    TableName,
    fields_alike,
    is_reserved,
    names_alike,
    nested_key_error,
    other_spelling,
    spelling_hint,
)
from backstory.model.types import NESTED_KINDS, ColumnType, Kind, added_fields, common_type, widens
from backstory.model.versions_layout import OWN_COLUMNS, RESERVED
from backstory.stores.iceberg.schema import column_type
from backstory.stores.iceberg.store import IcebergTable

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_FLAT = "boolean byte short integer long float double decimal string char varchar binary date timestamp"
_TYPES = frozenset([*_FLAT.split(), "timestamp_ntz", "array", "map", "struct", "void"])
_NESTED: Final = {"struct": Kind.STRUCT, "array": Kind.LIST, "map": Kind.MAP}
_DIGITS_OF_DOUBLE: Final = 15
KEEPS_KEY: Final = "Nothing was written; omit `key=`, because the table keeps its key, or use another table."
# The ending of a mistaken column's name, after it is set aside for another column.
_ASIDE: Final = "_taken_back"


def delivered_columns(fields: "StructType") -> "tuple[tuple[Column, ...], Mapping[str, DataType]]":
    """A frame's columns, and the Spark types that are unknown because all values are NULL, by column.

    A nested type may be partly unknown, as for a list without elements or a field without values. Unknown
    types are temporarily replaced by STRING. Raises Refused for reserved and repeated names, and for types
    that tables cannot store.
    """
    refuse_names([field.name for field in fields])
    types = {field.name: type_with_void(field) for field in fields}
    for name, type_ in types.items():
        nested = _nested_types(type_)
        # Parquet has no struct without fields.
        if any(part.typeName() not in _TYPES or part.simpleString() == "struct<>" for part in nested):
            raise Refused(
                "unsupported-type",
                f"Column {name} has type {type_.simpleString()}, which no table can store.",
                "Nothing was written; cast it, or leave it out.",
                [name],
            )
    empty = {
        name: type_
        for name, type_ in types.items()
        if any(part.typeName() == "void" for part in _nested_types(type_))
    }
    comments = {field.name: field.metadata.get("comment", "") for field in fields}
    columns = tuple(
        Column(field.name, column_type(types[field.name]), comment=comments[field.name]) for field in fields
    )
    for column in columns:
        if (alike := fields_alike(column.type)) is not None:
            if len(set(alike)) == 1:
                message = f"Two fields of column {column.name} are named {alike[0]}."
                remedy = "Nothing was written; give each field its own name."
                raise Refused("repeated-column", message, remedy, [column.name])
            raise _alike_error(f"Fields {' and '.join(alike)} of column {column.name}", [column.name])
    return columns, empty


def _parts(type_: "DataType") -> "list[tuple[str, DataType]]":
    """The fields of a struct, the element of a list, or the key and the value of a map."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match type_:
        case StructType():
            return [(field.name, field.dataType) for field in type_]
        case ArrayType():
            return [("element", type_.elementType)]
        case MapType():
            return [("key", type_.keyType), ("value", type_.valueType)]
    return []


def _nested_types(type_: "DataType") -> "list[DataType]":
    """The type and all types nested in it."""
    return [type_, *(deep for _, part in _parts(type_) for deep in _nested_types(part))]


def _filled_type(type_: "DataType", stored: ColumnType | None) -> ColumnType:
    """The type, with its unknown parts replaced by the stored column's types, or else by STRING."""
    if type_.typeName() == "void":
        return stored or ColumnType(Kind.STRING)
    if not (parts := _parts(type_)):
        return column_type(type_)
    known = {} if stored is None else dict(stored.parts)
    filled = tuple((name, _filled_type(part, known.get(name))) for name, part in parts)
    return ColumnType(_NESTED[type_.typeName()], parts=filled)


def _has_known_part(type_: "DataType") -> bool:
    """Whether the type has a known part, other than lists, structs and maps."""
    return any(part.typeName() not in {"void", *_NESTED} for part in _nested_types(type_))


def refuse_names(names: Sequence[str]) -> None:
    """Raise Refused for names that are reserved or repeated, ignoring case."""
    if reserved := [name for name in names if is_reserved(name, RESERVED)]:
        many = len(reserved) > 1
        subject = f"Column name{'s' if many else ''} {', '.join(reserved)} {'are' if many else 'is'}"
        remedy = "Nothing was written; rename them at the source."
        raise Refused("reserved-column", f"{subject} reserved.", remedy, reserved)
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise Refused(
            "repeated-column", f"Two columns are named {twice[0]}.", "Give each column its own name.", twice
        )
    if (alike := names_alike(names)) is not None:
        raise _alike_error(f"Columns {' and '.join(alike)}", alike)


def refuse_lacking_key(key: Sequence[str], names: Collection[str], *, kept: bool = False) -> None:
    """Raise UsageError if key columns are missing. If `kept` is true, the key is the table's own."""
    if lacking := [name for name in key if name not in names]:
        lacking_words = f"columns {', '.join(lacking)} are" if len(lacking) > 1 else f"column {lacking[0]} is"
        if not names:
            raise UsageError(
                "missing-column",
                f"Key {lacking_words} missing from the delivery, which names no columns.",
                "Deliver rows with these columns, or a CSV file with only a header if there are no rows.",
                lacking,
            )
        raise UsageError(
            "missing-column",
            f"Key {lacking_words} missing from the delivery.",
            f"Add them to the delivery, or name their new columns with `rename=`: {', '.join(names)}."
            if kept
            else f"{spelling_hint(lacking, names)}Use its columns for `key=`: {', '.join(names)}.",
            lacking,
        )


def _alike_error(what: str, names: Sequence[str]) -> Refused:
    return Refused(
        "repeated-column",
        f"{what} differ only in case, and most engines that read the table ignore case.",
        "Nothing was written; rename one of them at the source, or leave it out.",
        names,
    )


@dataclass(frozen=True, slots=True)
class EvolvedShape:
    """The table's shape, including the delivery's columns.

    `delivered` are the delivery's columns, including the key. `stored` is the table's shape with its new
    names, or None for a new table. It omits columns without values whose type changes. `added` are new
    columns, and `left_out` are delivered columns of unknown type. `retyped` maps the columns whose stored
    values change type to their old types. `mistakes` are columns set aside because they were added by
    mistake. `changes` describes the differences as text.
    """

    shape: Shape
    stored: Shape | None
    delivered: tuple[Column, ...]
    renamed: Mapping[str, str]
    added: frozenset[str]
    changes: Sequence[str]
    left_out: Sequence[str] = ()
    retyped: Mapping[str, ColumnType] = field(default_factory=dict)
    mistakes: frozenset[str] = frozenset()

    def former_name(self, name: str) -> str:
        """The name of a column before the renames of this delivery."""
        return next((old for old, new in self.renamed.items() if new == name), name)

    @property
    def missing(self) -> list[Column]:
        """The table's columns that the delivery lacks."""
        delivered = {column.name for column in self.delivered}
        users = () if self.stored is None else self.stored.user_columns
        return [column for column in users if column.name not in delivered]

    @property
    def successions(self) -> Iterator[tuple[str, str]]:
        """Pairs of a missing and an added column of the same type.

        The added column may be the missing one, renamed.
        """
        came = [column for column in self.delivered if column.name in self.added and column.type.flat]
        return ((old.name, new.name) for old in self.missing for new in came if old.type == new.type)


def new_table(
    table: TableName, columns: tuple[Column, ...], empty: "Mapping[str, DataType]", request: DeliveryRequest
) -> EvolvedShape:
    """The shape of the table that a first delivery creates. Raises UsageError for missing key columns."""
    key = request.key
    if key is None:
        message = f"{table} does not exist yet; its first delivery needs `key=`."
        raise bad_option(message, "Name the key columns.")
    if lacking := [new for new in request.rename.values() if new not in {column.name for column in columns}]:
        raise bad_option(
            f"`rename=` names {lacking[0]}, which the delivery does not have.",
            "Omit the rename: the table does not exist yet.",
        )
    columns, left_out = _assign_types(columns, empty, {}, request.retype)
    _require_key(key, columns)
    _refuse_unknown(request.retype, [column.name for column in columns], table)
    shape = Shape(table, (*columns, *OWN_COLUMNS), key, Layout.VERSIONS)
    types = ", ".join(f"{column.name} {column.type}" for column in columns)
    return EvolvedShape(shape, None, columns, {}, frozenset(), [f"new table: {types}"], left_out)


def evolve_shape(
    before: Shape,
    columns: tuple[Column, ...],
    empty: "Mapping[str, DataType]",
    request: DeliveryRequest,
    is_valueless: Callable[[str], bool] = lambda _name: False,
    is_taken_back: Callable[[str], bool] = lambda _name: False,
) -> EvolvedShape:
    """The table's shape after a later delivery. `empty` are delivered columns of unknown type.

    `is_valueless` returns whether a stored column has only NULLs. `is_taken_back` returns whether only
    withdrawn statements have values in the column. A column that is taken back is set aside if another column
    is renamed to its name. Raises UsageError for a rename of an unknown column. Raises Refused for a
    different key, and for a type change that is not a widening.
    """
    renamed = _renames(before, request.rename, {column.name for column in columns}, is_taken_back)
    stored = replace(
        before,
        columns=tuple(replace(col, name=renamed.get(col.name, col.name)) for col in before.columns),
        key=tuple(renamed.get(name, name) for name in before.key),
    )
    _refuse_other_case(stored, columns)
    if request.key is not None and set(request.key) != set(stored.key):
        raise Refused(
            "key-changed",
            f"The key of {stored.table} is ({', '.join(stored.key)}), "
            f"but ({', '.join(request.key)}) is given.",
            KEEPS_KEY,
        )
    retype = request.new_types
    columns, left_out = _assign_types(
        columns, empty, {column.name: column for column in stored.columns}, retype
    )
    _require_key(stored.key, columns, kept=True)
    valueless = _columns_without_values(stored, columns, retype, renamed, is_valueless)
    _refuse_retypes(stored, columns, retype, valueless)
    users = _widen_columns(stored, columns, retype, valueless, may_retype=request.may_retype)
    _refuse_fields_in_other_case(stored, users)
    added = [column for column in columns if stored.column(column.name) is None]
    own = tuple(column for column in stored.columns if column not in stored.user_columns)
    shape = replace(stored, columns=(*users, *added, *own))
    there = tuple(column for column in stored.columns if column.name not in valueless)
    retyped = {
        column.name: column.type
        for column, wider in zip(stored.user_columns, users, strict=True)
        if column.name not in valueless and not _grows(column.type, wider.type)
    }
    return EvolvedShape(
        shape,
        replace(stored, columns=there),
        columns,
        renamed,
        frozenset(column.name for column in added),
        Change(into=shape, renamed=renamed).lines(before),
        left_out,
        retyped,
        frozenset(new for old, new in renamed.items() if old not in request.rename),
    )


def _columns_without_values(
    stored: Shape,
    delivered: Sequence[Column],
    retype: Mapping[str, ColumnType],
    renamed: Mapping[str, str],
    is_valueless: Callable[[str], bool],
) -> set[str]:
    """The columns that can take any type, because all their stored values are NULL."""
    former = {new: old for old, new in renamed.items()}
    came = {column.name: column.type for column in delivered}
    valueless = set()
    for column in stored.user_columns:
        name, old = column.name, column.type
        new = retype.get(name, came.get(name, old))
        # If the new type is not wider, the column's values decide whether it gets the type.
        decides = not _grows(old, new) and (name in retype or not widens(new, old))
        if decides and is_valueless(former.get(name, name)):
            valueless.add(name)
    return valueless


def _refuse_unknown(retype: Mapping[str, ColumnType], names: Collection[str], table: TableName) -> None:
    if unknown := [name for name in retype if name not in names]:
        raise bad_option(
            f"There is no column {', '.join(unknown)} in {table}.",
            f"{spelling_hint(unknown, names)}Its columns are {', '.join(dict.fromkeys(names))}.",
        )


def _refuse_other_case(stored: Shape, delivered: Sequence[Column]) -> None:
    """Raise Refused for a new column whose name differs from a stored name only by case (E4)."""
    for column in delivered:
        if stored.column(column.name) is not None:
            continue
        if (other := other_spelling(column.name, stored.names)) is not None:
            raise Refused(
                "other-case",
                f"The delivery has column {column.name}, and {stored.table} has {other}: the names differ "
                "only in case.",
                f"Nothing was written; use {option('rename', {other: column.name})} of a full copy if it is "
                f"the same column, or call it {other} in the delivery.",
                [column.name],
            )


def _refuse_fields_in_other_case(stored: Shape, columns: Sequence[Column]) -> None:
    """Raise Refused for a new field of a struct if another field has the same name in another case."""
    for before, column in zip(stored.user_columns, columns, strict=True):
        if before.type == column.type or (alike := fields_alike(column.type)) is None:
            continue
        raise Refused(
            "other-case",
            f"Fields {' and '.join(alike)} of column {column.name} differ only in case.",
            "Nothing was written; spell the field in the delivery as the table does.",
            [column.name],
        )


def _assign_types(
    columns: Sequence[Column],
    empty: "Mapping[str, DataType]",
    stored: Mapping[str, Column],
    retype: Mapping[str, ColumnType],
) -> tuple[tuple[Column, ...], list[str]]:
    """The columns with types assigned to empty columns, and the names of columns of unknown type."""
    typed, left_out = [], []
    for column in columns:
        if column.name not in empty:
            typed.append(column)
        elif column.name in retype:
            typed.append(replace(column, type=retype[column.name]))
        elif (known := stored.get(column.name)) is not None:
            typed.append(replace(known, type=_filled_type(empty[column.name], known.type)))
        elif column.type.flat or _has_known_part(empty[column.name]):
            typed.append(column)
        else:
            left_out.append(column.name)
    return tuple(typed), left_out


def _grows(old: ColumnType, new: ColumnType) -> bool:
    """Whether values of the old type are also values of the new type, which is wider or has more fields."""
    return widens(old, new) or added_fields(old, new) is not None


def _shows_same_numbers(old: ColumnType, new: ColumnType) -> bool:
    """Whether a new type keeps the displayed decimal numbers, as when a FLOAT 72.1 becomes a DOUBLE 72.1."""
    return (old.kind, new.kind) == (Kind.FLOAT, Kind.DOUBLE)


def _refuse_retypes(
    stored: Shape, delivered: Sequence[Column], retype: Mapping[str, ColumnType], valueless: Collection[str]
) -> None:
    """Raise UsageError for new types for unknown columns, and for columns that keep their type."""
    users = (column.name for column in (*stored.user_columns, *delivered))
    _refuse_unknown(retype, [*users], stored.table)
    for name, type_ in retype.items():
        column = stored.column(name)
        if column is None or column.type == type_ or name in valueless:
            continue
        if name in stored.key:
            raise bad_option(f"Key column {name} keeps its type {column.type}.", "Use another table.")
        if not column.type.flat:
            raise bad_option(
                f"Nested column {name} keeps its type {column.type}.", "Give it another name in the copy."
            )


def _renames(
    before: Shape, rename: Mapping[str, str], delivered: Collection[str], is_taken_back: Callable[[str], bool]
) -> dict[str, str]:
    """The renames that the table does not have yet.

    A column that already has the new name gets another name, if it was added by mistake and taken back.
    """
    renames = {}
    for old, new in rename.items():
        is_there, is_taken = before.column(old) is not None, before.column(new) is not None
        if is_reserved(new, RESERVED) or is_reserved(old, RESERVED):
            raise Refused(
                "reserved-column",
                f"Column {old} cannot be renamed to {new}: a name is reserved.",
                "Use another name.",
                [old, new],
            )
        if not is_there and not is_taken:
            raise bad_option(
                f"There is no column {old} in {before.table}.",
                f"{spelling_hint([old], before.names)}Rename an existing column to a new name.",
            )
        others = [name for name in before.names if name != old and name not in rename]
        if is_there and not is_taken and (other := other_spelling(new, others)) is not None:
            raise bad_option(
                f"There already is a column {other} in {before.table}; {new} differs only in case.",
                "Rename an existing column to a new name.",
            )
        if is_there and old in delivered:
            raise bad_option(
                f"`rename=` renames {old} to {new}, but the delivery still has {old}.",
                f"Use {new} in the delivery as well, or omit the rename.",
            )
        if is_there and is_taken:
            if not is_taken_back(new):
                raise bad_option(
                    f"There already is a column {new} in {before.table}.",
                    f"If it is {old} under its new name, undo the delivery that added it with `backstory "
                    f"rewind`, then rename it; otherwise use another name.",
                )
            renames[new] = _free_name(f"{new}{_ASIDE}", {*before.names, *delivered})
        if is_there:
            renames[old] = new
    return renames


def _free_name(name: str, taken: Collection[str]) -> str:
    """The name, with a number appended if a column already has it."""
    numbered = (f"{name}_{number}" for number in count(2))
    return next(candidate for candidate in chain([name], numbered) if candidate not in taken)


def _require_key(key: Sequence[str], columns: Sequence[Column], *, kept: bool = False) -> None:
    names = {column.name: column.type for column in columns}
    refuse_lacking_key(key, names, kept=kept)
    if nested := [name for name in key if not names[name].flat]:
        raise nested_key_error(nested)


def _widen_columns(
    stored: Shape,
    delivered: Sequence[Column],
    retype: Mapping[str, ColumnType],
    valueless: Collection[str],
    *,
    may_retype: bool,
) -> list[Column]:
    """The user's columns in types that hold stored and delivered values.

    Raises Refused for columns whose stored and delivered types do not fit together.
    """
    came = {column.name: column.type for column in delivered}
    users, others = [], []
    for column in stored.user_columns:
        name, keeps = column.name, column.name in stored.key or not may_retype  # stored rows are unchanged
        type_ = retype.get(name, column.type)
        new = came.get(name, type_)
        if not widens(new, type_) and not _shows_same_numbers(new, type_):
            anew = not keeps and _shows_same_numbers(type_, new)  # rewrites all rows
            if name in retype or not (name in valueless or _grows(type_, new) or anew):
                others.append(TypeChange(name, type_, new, None if keeps else common_type(type_, new)))
            type_ = new
        users.append(replace(column, type=type_))
    if others:
        raise type_change_error(others)
    return users


@dataclass(frozen=True, slots=True)
class TypeChange:
    """A column whose delivered type differs from its stored type.

    `both` is the common type of the two, or None if the column cannot change to a common type.
    """

    name: str
    stored: ColumnType
    delivered: ColumnType
    both: ColumnType | None


def _holds_all(change: TypeChange) -> bool:
    """Whether the common type holds all stored and all delivered values exactly.

    A DOUBLE holds only integers and decimals of at most fifteen digits exactly.
    """
    if change.both is None or change.both.kind is not Kind.DOUBLE:
        return True
    sides = (change.stored, change.delivered)
    return not any(type_.kind is Kind.LONG or type_.precision > _DIGITS_OF_DOUBLE for type_ in sides)


def type_change_error(changes: Sequence[TypeChange]) -> Refused:
    """The error for columns whose delivered type does not fit the stored type (N2)."""
    names = [change.name for change in changes]
    remedy = "cast it to the table's type, or give it another name."
    if len(changes) > 1:
        remedy = "cast them to the table's types, or give them other names."
    types = {change.name: change.both for change in changes if change.both is not None}
    if types:
        retype = option("retype", {name: str(both) for name, both in types.items()})
        holds = "a type that holds both" if len(types) == 1 else "types that hold both"
        if not all(map(_holds_all, changes)):
            # Only the values show whether all numbers fit.
            texts = option("retype", dict.fromkeys(types, str(Kind.STRING)))
            holds = f"values that fit it, {texts} for all others"
        remedy = f"use {retype} for {holds}, {remedy}"
    # A string column gets a nested value, such as `{"k": 1}` after an `{}` without fields.
    if nested := [
        change.name
        for change in changes
        if change.stored.kind is Kind.STRING and change.delivered.kind in NESTED_KINDS
    ]:
        texts = option("type", dict.fromkeys(nested, str(Kind.STRING)))
        remedy = f"read it as a string with {texts} of JSON files or `to_json` of a frame, {remedy}"
    clauses = (
        f"olumn {change.name} has type {change.stored} in the table and {change.delivered}"
        for change in changes
    )
    return Refused(
        "type-changed",
        f"C{' in this delivery, c'.join(clauses)} in this delivery.",
        f"Nothing was written; {remedy}",
        names,
    )


def column_ids(table: IcebergTable | None, evolved: EvolvedShape) -> dict[str, int]:
    """The field id that each column will have.

    The commit assigns the next ids to new and retyped columns, in column order. A new table numbers its
    columns from 1.
    """
    if table is None:
        return {column.name: number for number, column in enumerate(evolved.shape.columns, 1)}
    stays = set() if evolved.stored is None else set(evolved.stored.names) - set(evolved.retyped)
    ids = {name: id_ for name, id_ in _stored_ids(table, evolved).items() if name in stays}
    last = int(table.metadata["last-column-id"])
    for column in evolved.shape.columns:
        if column.name not in ids:
            ids[column.name] = last + 1
            last += 1 + _count_parts(column.type)
    return ids


def delivered_ids(table: IcebergTable | None, evolved: EvolvedShape) -> tuple[int, ...]:
    """The field ids of the delivered columns. A full list excludes columns that are added later (V138)."""
    ids = column_ids(table, evolved)
    return tuple(sorted(ids[column.name] for column in evolved.delivered))


def data_column_ids(table: IcebergTable | None, evolved: EvolvedShape) -> dict[str, int]:
    """The field ids of the user's columns outside the key."""
    ids, shape = column_ids(table, evolved), evolved.shape
    return {column.name: ids[column.name] for column in shape.user_columns if column.name not in shape.key}


def moved_ids(table: IcebergTable, evolved: EvolvedShape) -> dict[int, int]:
    """The new field ids of retyped columns, by their old ids."""
    stored, ids = _stored_ids(table, evolved), column_ids(table, evolved)
    return {stored[name]: ids[name] for name in evolved.retyped}


def _stored_ids(table: IcebergTable, evolved: EvolvedShape) -> dict[str, int]:
    return {evolved.renamed.get(field["name"], field["name"]): field["id"] for field in table.fields}


def _count_parts(type_: ColumnType) -> int:
    """The number of fields within a type."""
    return sum(1 + _count_parts(part) for _, part in type_.parts)
