"""Structs taken apart and put together."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc


def fields_of(structs: pa.Array) -> dict[str, pa.Array]:
    """The fields of structs, NULL where the struct is; none of an array that has no type."""
    if pa.types.is_null(structs.type):
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
