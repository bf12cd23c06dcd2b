"""Operations on Arrow structs, and the common type of a field across messages and images."""

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import Refused
from backstory.formats.produced import refuse_repeated
from backstory.formats.rows import type_of_arrow
from backstory.formats.values.exactly import plain_type, wider_type


def whole_columns(rows: pa.Table, name: str) -> dict[str, pa.Array]:
    """The columns of a table, each in one array of a table type. Raises Refused if a name is repeated."""
    refuse_repeated(name, rows.column_names)
    columns = {}
    for column, part in zip(rows.column_names, rows.columns, strict=True):
        type_ = plain_type(part.type, naive=True) or part.type
        columns[column] = pa.concat_arrays([pa.nulls(0, part.type), *part.chunks]).cast(type_)
    return columns


def fields_of(structs: pa.Array) -> dict[str, pa.Array]:
    """The fields of structs by name, NULL in a NULL struct. An array of another type has no fields."""
    if not pa.types.is_struct(structs.type):
        return {}
    return dict(zip(structs.type.names, structs.flatten(), strict=True))


def struct_of(fields: Mapping[str, pa.Array], mask: pa.Array | None = None) -> pa.Array:
    """Structs made of the fields, with NULL where the mask is true."""
    return pa.StructArray.from_arrays(list(fields.values()), list(fields), mask=mask)


def with_field(structs: pa.Array, name: str, values: pa.Array) -> pa.Array:
    """The structs with a field added or replaced."""
    return struct_of({**fields_of(structs), name: values}, structs.is_null())


def all_null(columns: Mapping[str, pa.Array], count: int) -> pa.Array:
    """Whether each row is NULL in all columns."""
    empty = pa.repeat(pa.scalar(True), count)
    for part in columns.values():
        empty = pc.and_(empty, part.is_null())
    return empty


def joint_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both types, or None if there is no such type.

    Structs have the fields of both.
    """
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            type_ = joint_type(fields.get(field.name, pa.null()), field.type)
            if type_ is None:
                return None
            fields[field.name] = type_
        return pa.struct(list(fields.items()))
    if pa.types.is_list(one) and pa.types.is_list(other):
        item = joint_type(one.value_type, other.value_type)
        return None if item is None else pa.list_(item)
    numbers = sorted(map(_number, (one, other)))
    return pa.float64() if numbers == ["float", "integer"] else wider_type(one, other)


def _number(type_: pa.DataType) -> str:
    """The kind of a number type: `integer`, `float`, or empty for any other type."""
    return "integer" if pa.types.is_integer(type_) else "float" if pa.types.is_floating(type_) else ""


def joint_column(name: str, types: Iterable[pa.DataType], where: str) -> pa.DataType:
    """The common type of a column.

    Raises Refused (`mixed-types`) with both types if two contradict each other.
    """
    joint = pa.null()
    for type_ in types:
        both = joint_type(joint, type_)
        if both is None:
            raise _contradiction(name, joint, type_, where)
        joint = both
    return joint


def _contradiction(name: str, one: pa.DataType, other: pa.DataType, where: str) -> Refused:
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        theirs = {field.name: field.type for field in other}
        for field in one:
            if field.name in theirs and joint_type(field.type, theirs[field.name]) is None:
                return _contradiction(f"{name}.{field.name}", field.type, theirs[field.name], where)
    return Refused(
        "mixed-types",
        f"{where}: `{name}` has type {type_of_arrow(one)} in some messages "
        f"and {type_of_arrow(other)} in others.",
        "Nothing was written; apply the messages before and after the change of type separately.",
        [name],
    )


def as_type(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast the values to a `joint_type` of their own type and others. Missing fields are NULL."""
    if values.type == type_:
        return values
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), type_)
    if pa.types.is_struct(type_):
        own = dict(zip([field.name for field in values.type], values.flatten(), strict=True))
        parts = [
            as_type(own[field.name], field.type) if field.name in own else pa.nulls(len(values), field.type)
            for field in type_
        ]
        if not parts:
            return values
        return pa.StructArray.from_arrays(parts, fields=list(type_), mask=values.is_null())
    if pa.types.is_list(type_):
        return with_items(values, as_type(values.flatten(), type_.value_type))
    return values.cast(type_)


def with_items(lists: pa.ListArray, items: pa.Array) -> pa.ListArray:
    """The lists with other items, in the order of `flatten`."""
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    ends = pa.array([0, *lengths.cumsum()], pa.int32())
    return pa.ListArray.from_arrays(ends, items, mask=lists.is_null())
