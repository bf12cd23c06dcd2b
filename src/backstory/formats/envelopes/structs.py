"""Structs taken apart and put together."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.produced import refuse_repeated
from backstory.formats.values.exactly import plain_type


def whole_columns(rows: pa.Table, name: str) -> dict[str, pa.Array]:
    """The columns of a table, each whole and of a type of ours; Refused where two have one name."""
    refuse_repeated(name, rows.column_names)
    columns = {}
    for each, part in zip(rows.column_names, rows.columns, strict=True):
        type_ = plain_type(part.type, naive=True) or part.type
        columns[each] = pa.concat_arrays([pa.nulls(0, part.type), *part.chunks]).cast(type_)
    return columns


def fields_of(structs: pa.Array) -> dict[str, pa.Array]:
    """The fields of structs, NULL where the struct is; none of an array that is not of structs."""
    if not pa.types.is_struct(structs.type):
        return {}
    return dict(zip(structs.type.names, structs.flatten(), strict=True))


def struct_of(fields: Mapping[str, pa.Array], mask: pa.Array | None = None) -> pa.Array:
    """Structs of the fields, NULL where the mask is true."""
    return pa.StructArray.from_arrays(list(fields.values()), list(fields), mask=mask)


def with_field(structs: pa.Array, name: str, values: pa.Array) -> pa.Array:
    """The structs with another field, or with a field in another form."""
    return struct_of({**fields_of(structs), name: values}, structs.is_null())


def all_null(columns: Mapping[str, pa.Array], count: int) -> pa.Array:
    """Which rows have no value in any of the columns."""
    empty = pa.repeat(pa.scalar(True), count)
    for part in columns.values():
        empty = pc.and_(empty, part.is_null())
    return empty
