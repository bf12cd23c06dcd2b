"""Columns of a Parquet file as columns of the table that it is of, by the ids of their fields."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.formats.rows import arrow_type
from backstory.model.schema import Column
from backstory.stores.iceberg.schema import columns_of_fields, spark_type
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.repeated_values import decode
from backstory.stores.metadata.row_groups import Field, id_of

Values: TypeAlias = pa.Array | pa.ChunkedArray


def arrow_of(told: Any) -> pa.DataType:
    """The Arrow type in which Spark gives values of a type of Iceberg's; Unreadable for others."""
    if isinstance(told, str):
        return arrow_type(_flat(told).type)
    if told["type"] == "list":
        return pa.list_(arrow_of(told["element"]))
    if told["type"] == "map":
        return pa.map_(arrow_of(told["key"]), arrow_of(told["value"]))
    return pa.struct([(each["name"], arrow_of(each["type"])) for each in told["fields"]])


def spark_name(told: Any) -> str:
    """What Spark calls a type of Iceberg's, as its `simpleString` does; Unreadable for others."""
    if isinstance(told, str):
        return spark_type(_flat(told).type).replace(" ", "")
    if told["type"] == "list":
        return f"array<{spark_name(told['element'])}>"
    if told["type"] == "map":
        return f"map<{spark_name(told['key'])},{spark_name(told['value'])}>"
    fields = (f"{each['name']}:{spark_name(each['type'])}" for each in told["fields"])
    return f"struct<{','.join(fields)}>"


def _flat(told: str) -> Column:
    (column,) = columns_of_fields([{"name": "value", "type": told}], {})
    if column.type.foreign:
        raise Unreadable(f"the type {told}")
    return column


def read_fields(
    file: pq.ParquetFile,
    wanted: Sequence[Field],
    parted: Collection[int],
    held: Callable[[int], None],
    groups: Sequence[int] | None = None,
    kept: pa.Array | None = None,
) -> pa.Table:
    """The rows of an opened file, or of some of its row groups, with these fields of its table.

    With `kept`, a truth for each row, those that are kept. `parted` are the ids of the fields that partitions
    are of. `held` is told how many bytes all rows take, first at least, then in truth; it may refuse. Raises
    Unreadable where the rows would not be exact.
    """
    fields = {id_of(each): each for each in file.schema_arrow}
    if None in fields:
        raise Unreadable("fields without ids")
    if any(each["id"] in parted and each["id"] not in fields for each in wanted):
        raise Unreadable("a column with values in the partition alone")
    asked = [fields[each["id"]].name for each in wanted if each["id"] in fields]
    paths = [path for each in wanted if each["id"] in fields for path in _paths(each, fields[each["id"]])]
    chosen = range(file.metadata.num_row_groups) if groups is None else groups
    held(packed_size(file.metadata, asked, chosen))
    decoded = decode(file, paths, chosen)
    held(decoded.rows.nbytes)
    read, rows = decoded.whole(kept), decoded.length(kept)
    columns = dict(zip(read.column_names, read.columns, strict=True))
    found = {each["id"]: columns[fields[each["id"]].name] for each in wanted if each["id"] in fields}
    values = [projected(each, found.get(each["id"]), rows) for each in wanted]
    return pa.table(values, names=[each["name"] for each in wanted])


def _paths(told: Field, field: pa.Field) -> list[str]:
    """What is read of a file's column: of a struct the parts that are told, all of it where it has none."""
    if isinstance(told["type"], str) or not pa.types.is_struct(field.type):
        return [field.name]
    there, wanted = list(field.type), {each["id"] for each in told["type"].get("fields", ())}
    found = [each.name for each in there if id_of(each) in wanted]
    return [field.name] if len(found) in (0, len(there)) else [f"{field.name}.{name}" for name in found]


def packed_size(
    metadata: pq.FileMetaData, names: Collection[str], groups: Iterable[int] | None = None
) -> int:
    """The bytes of columns as a file has them, unpacked but for dictionaries: no more than they take here."""
    places = [
        place
        for place in range(metadata.num_columns)
        if metadata.schema.column(place).path.partition(".")[0] in names
    ]
    chosen = map(metadata.row_group, range(metadata.num_row_groups) if groups is None else groups)
    return sum(each.column(place).total_uncompressed_size for each in chosen for place in places)


def parted_ids(told: Mapping[str, Any]) -> set[int]:
    """The ids of the fields that a table's partitions are of, or were."""
    specs = told.get("partition-specs") or []
    return {each["source-id"] for spec in specs for each in spec["fields"]}


def projected(told: Field, values: Values | None, rows: int) -> Values:
    """A file's values as those of a field of the table; NULLs where the file is older than the field.

    Raises Unreadable where that would not be exact.
    """
    if values is None:
        if told.get("initial-default") is not None or told.get("required"):
            raise Unreadable("a field with a default")
        return pa.nulls(rows, arrow_of(told["type"]))
    return _as(told["type"], values)


def _as(told: Any, values: Values) -> Values:
    wanted, stored = arrow_of(told), values.type
    if isinstance(told, str):
        if not widens(stored, wanted):
            raise Unreadable(f"{stored} as {told}")
        return values.cast(wanted)
    if told["type"] == "struct":
        whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        return _struct(told, whole, wanted)
    if not _same(told, stored):
        raise Unreadable("a nested column that has changed")
    return values.cast(wanted)


def _struct(told: Field, values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A struct by the ids of its fields: a younger one is NULL."""
    if not pa.types.is_struct(values.type):
        raise Unreadable(f"{values.type} as a struct")
    children = {id_of(each): part for each, part in zip(values.type, values.flatten(), strict=True)}
    if None in children:
        raise Unreadable("a field without an id")
    parts = [projected(each, children.get(each["id"]), len(values)) for each in told["fields"]]
    return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=values.is_null())


def _same(told: Any, stored: pa.DataType) -> bool:
    """Whether a file's nested type is that of the table, field for field."""
    if isinstance(told, str):
        return widens(stored, arrow_of(told))
    if told["type"] == "list":
        parts = (
            [(told["element-id"], told["element"], stored.value_field)] if pa.types.is_list(stored) else []
        )
    elif told["type"] == "map":
        keyed = [("key", stored.key_field), ("value", stored.item_field)] if pa.types.is_map(stored) else []
        parts = [(told[f"{name}-id"], told[name], field) for name, field in keyed]
    else:
        fields = list(stored) if pa.types.is_struct(stored) else []
        if [each.name for each in fields] != [each["name"] for each in told["fields"]]:
            return False
        parts = [
            (each["id"], each["type"], field) for each, field in zip(told["fields"], fields, strict=True)
        ]
    return bool(parts) and all(
        id_of(field) == number and _same(type_, field.type) for number, type_, field in parts
    )


def widens(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of the stored type is one of the wanted type, and Iceberg reads it so."""
    t = pa.types
    if t.is_timestamp(wanted):
        return t.is_timestamp(stored) and stored.unit == "us" and bool(stored.tz) == bool(wanted.tz)
    if t.is_decimal(wanted):
        wider = t.is_decimal(stored) and stored.precision <= wanted.precision
        return wider and stored.scale == wanted.scale
    pairs = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}
    long = {(pa.large_string(), pa.string()), (pa.large_binary(), pa.binary())}
    return stored == wanted or (stored, wanted) in pairs | long
