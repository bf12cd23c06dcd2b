"""The row groups of a Parquet file that rows may lie in, and the places of these.

Columns of a Parquet file: one with a single value in all rows, as its statistics tell, is not decoded.

Columns of a Parquet file as columns of the table that it is of, by the ids of their fields.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backstory.formats.rows import arrow_type
from backstory.model.instant import EPOCH
from backstory.model.table import Column
from backstory.stores.iceberg.schema import FIELD_ID, columns_of_fields, spark_type
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.values import booleans

Field = Mapping[str, Any]
# Statistics of a row group by a field's name; None where they tell no least and greatest.
Statistics = Callable[[str], Any]
MayHave = Callable[[Statistics], bool]
OF_INSTANTS: Final = ("timestamp", "timestamptz")


def field_id(field: pa.Field) -> int | None:
    """The id of a file's field; None for one that has none."""
    told = (field.metadata or {}).get(FIELD_ID)
    return None if told is None else int(told)


def matching_groups(file: pq.ParquetFile, fields: Iterable[Field], may_have: MayHave) -> list[int]:
    """The row groups of which `may_have` says yes; it may ask for the statistics of these fields."""
    names, metadata = {field_id(each): each.name for each in file.schema_arrow}, file.metadata
    paths = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    places = {each["name"]: paths.get(names.get(each["id"], "")) for each in fields}

    def statistics(group: int, name: str) -> Any:
        if (place := places[name]) is None:
            return None
        told = metadata.row_group(group).column(place).statistics
        return told if told is not None and told.has_min_max else None

    return [group for group in range(metadata.num_row_groups) if may_have(partial(statistics, group))]


@dataclass(frozen=True, slots=True)
class InstantBounds:
    """The least and the greatest instant of a row group."""

    min: datetime
    max: datetime
    null_count: int


def bounds_of_instants(told: Any, type_: str) -> InstantBounds | None:
    """What statistics tell of a column of `timestamp` or `timestamptz`; to ask Arrow would load pandas.

    None for another unit than Iceberg's.
    """
    if "microseconds" not in str(told.logical_type):
        return None
    zero = EPOCH if type_ == "timestamptz" else EPOCH.replace(tzinfo=None)
    least, greatest = (zero + timedelta(microseconds=each) for each in (told.min_raw, told.max_raw))
    return InstantBounds(least, greatest, told.null_count)


def greatest_in_groups(file: pq.ParquetFile, field: Field, greatest: Any) -> list[tuple[Any, int]]:
    """For each row group the greatest value of a field, or that of the file, and the number of its rows."""
    told: list[Any] = []

    def note(statistics: Statistics) -> bool:
        found = statistics(field["name"])
        told.append(found.max if found is not None and type(found.max) is type(greatest) else greatest)
        return False

    matching_groups(file, [field], note)
    return [(most, file.metadata.row_group(number).num_rows) for number, most in enumerate(told)]


def positions_in(metadata: pq.FileMetaData, groups: Sequence[int]) -> np.ndarray:
    """The positions in a file of the rows of these groups of it."""
    ends = np.cumsum([0, *(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))])
    parts = [np.arange(ends[number], ends[number + 1], dtype=np.int64) for number in groups]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def groups_at(metadata: pq.FileMetaData, positions: np.ndarray) -> list[int]:
    """The row groups of a file that the rows at these positions lie in."""
    ends = np.cumsum([metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)])
    return np.unique(np.searchsorted(ends, positions, side="right")).tolist()


def groups_with(
    metadata: pq.FileMetaData, groups: Sequence[int], rows: np.ndarray
) -> tuple[list[int], pa.Array]:
    """Those of the groups that have one of the rows, and which of theirs are; `rows` tells of all."""
    ends = np.cumsum([metadata.row_group(number).num_rows for number in groups])
    parts = np.split(rows, ends[:-1])
    kept = [place for place, part in enumerate(parts) if part.any()]
    these = np.concatenate([rows[:0], *(parts[place] for place in kept)])
    return [groups[place] for place in kept], booleans(these)


# To repeat a longer text for each row may take more than to read it.
LONGEST: Final = 64
# How Parquet keeps the values that are repeated as they are: whole numbers, days, instants and truths.
KEPT_AS: Final = {"INT32": pa.int32(), "INT64": pa.int64(), "BOOLEAN": pa.bool_()}
ByPath = dict[str, pa.Scalar]


@dataclass(frozen=True, slots=True)
class DecodedColumns:
    """Columns of row groups: `rows` are those that had to be decoded, the others are repeated in the end."""

    rows: pa.Table
    count: int
    repeated: ByPath
    leaves: Collection[str]
    fields: Sequence[pa.Field]

    def length(self, kept: pa.Array | None = None) -> int:
        """How many rows there are, or are kept."""
        return self.count if kept is None else int(kept.true_count)

    def whole(self, kept: pa.Array | None = None) -> pa.Table:
        """All columns, in the order of the file, of all rows or of those that are `kept`."""
        rows, count = self.rows, self.length(kept)
        if kept is not None and rows.num_columns:
            rows = rows.filter(kept)
        if not self.repeated:
            return rows
        there = dict(zip(rows.column_names, rows.columns, strict=True))
        columns = [
            _column(self.repeated, self.leaves, each, each.name, there.get(each.name), count)
            for each in self.fields
        ]
        schema = [each.with_type(values.type) for each, values in zip(self.fields, columns, strict=True)]
        return pa.table(columns, schema=pa.schema(schema))


def decode(file: pq.ParquetFile, paths: Collection[str], groups: Sequence[int]) -> DecodedColumns:
    """These columns, or parts of structs, of some row groups, as `file.read_row_groups` gives them."""
    fields = [each for each in file.schema_arrow if any(_is_below(path, each.name) for path in paths)]
    leaves = {
        path: type_
        for each in fields
        for path, type_ in _leaves(each.name, each.type)
        if any(_is_below(path, asked) for asked in paths)
    }
    repeated = _only_values(file.metadata, leaves, groups)
    for each in fields:
        _keep_certain(repeated, leaves, each.name, each.type)
    unknown = [path for path in leaves if path not in repeated]
    rows = file.read_row_groups(groups, columns=unknown) if unknown or not repeated else pa.table({})
    count = sum(file.metadata.row_group(number).num_rows for number in groups)
    return DecodedColumns(rows, count, repeated, leaves, fields)


def _is_below(path: str, other: str) -> bool:
    """Whether a column is another one, or a part of it."""
    return path == other or path.startswith(f"{other}.")


def _leaves(path: str, type_: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """The parts of a column that are no structs."""
    if not pa.types.is_struct(type_):
        yield path, type_
        return
    for each in type_:
        yield from _leaves(f"{path}.{each.name}", each.type)


def _only_values(
    metadata: pq.FileMetaData, leaves: Mapping[str, pa.DataType], groups: Sequence[int]
) -> ByPath:
    """The value of each column that has only one in these row groups; a list has no statistics of its own."""
    places = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    if len(places) < metadata.num_columns:
        return {}  # a name with a point in it is that of a part, too
    found = {}
    for path, type_ in leaves.items():
        if path in places:
            chunks = (metadata.row_group(number).column(places[path]) for number in groups)
            value = _only_value(chunks, type_)
            if value is not None:
                found[path] = value
    return found


def _only_value(chunks: Iterable[Any], type_: pa.DataType) -> pa.Scalar | None:
    """The value of all rows, as a scalar that may be NULL; None where there are more, or nobody tells."""
    values, kept = set[Any](), None
    for each in chunks:
        told, kept = each.statistics, each.physical_type
        if told is None or not told.has_null_count:
            return None
        if told.null_count == each.num_values:
            values.add(None)
        elif not told.null_count and told.has_min_max and told.min_raw == told.max_raw:
            values.add(told.min_raw)
        else:
            return None
        if len(values) > 1:
            return None
    return _scalar(values.pop(), kept, type_) if values else None


def _scalar(value: Any, kept: str | None, type_: pa.DataType) -> pa.Scalar | None:
    if value is None:
        return pa.scalar(None, type_)
    if pa.types.is_string(type_):
        return pa.scalar(value.decode(), type_) if len(value) <= LONGEST else None
    stored = KEPT_AS.get(kept or "")
    if stored == type_ or (stored and (pa.types.is_timestamp(type_) or pa.types.is_date32(type_))):
        return pa.array([value], stored).view(type_)[0]
    return None


def _keep_certain(repeated: ByPath, leaves: Collection[str], path: str, type_: pa.DataType) -> None:
    """Leave out a part of each struct of which all parts are NULL: read, it says where the struct is."""
    if not pa.types.is_struct(type_):
        return
    for each in type_:
        _keep_certain(repeated, leaves, f"{path}.{each.name}", each.type)
    below = [each for each in leaves if _is_below(each, path)]
    if below and all(each in repeated and not repeated[each].is_valid for each in below):
        del repeated[below[0]]


def _column(
    repeated: ByPath, leaves: Collection[str], field: pa.Field, path: str, read: Any, rows: int
) -> pa.Array | pa.ChunkedArray:
    """A column, of what was read of it and of the values that are repeated."""
    if path in repeated:
        return pa.repeat(repeated[path], rows)
    if not any(_is_below(each, path) for each in repeated):
        return read
    there, absent = {}, None
    if read is not None:
        whole = read.combine_chunks() if isinstance(read, pa.ChunkedArray) else read
        there = dict(zip((each.name for each in whole.type), whole.flatten(), strict=True))
        absent = whole.is_null()
    fields, parts = list[pa.Field](), list[pa.Array | pa.ChunkedArray]()
    for each in field.type:
        inner = f"{path}.{each.name}"
        if any(_is_below(leaf, inner) for leaf in leaves):
            parts.append(_column(repeated, leaves, each, inner, there.get(each.name), rows))
            fields.append(each.with_type(parts[-1].type))
    return pa.StructArray.from_arrays(parts, fields=fields, mask=absent)


Values: TypeAlias = pa.Array | pa.ChunkedArray


def arrow_of(told: Any) -> pa.DataType:
    """The Arrow type in which Spark gives values of a type of Iceberg's; Unreadable for others."""
    if isinstance(told, str):
        return arrow_type(_flat_column(told).type)
    if told["type"] == "list":
        return pa.list_(arrow_of(told["element"]))
    if told["type"] == "map":
        return pa.map_(arrow_of(told["key"]), arrow_of(told["value"]))
    return pa.struct([(each["name"], arrow_of(each["type"])) for each in told["fields"]])


def spark_name(told: Any) -> str:
    """What Spark calls a type of Iceberg's, as its `simpleString` does; Unreadable for others."""
    if isinstance(told, str):
        return spark_type(_flat_column(told).type).replace(" ", "")
    if told["type"] == "list":
        return f"array<{spark_name(told['element'])}>"
    if told["type"] == "map":
        return f"map<{spark_name(told['key'])},{spark_name(told['value'])}>"
    fields = (f"{each['name']}:{spark_name(each['type'])}" for each in told["fields"])
    return f"struct<{','.join(fields)}>"


def _flat_column(told: str) -> Column:
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
    fields = {field_id(each): each for each in file.schema_arrow}
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
    values = [project_field(each, found.get(each["id"]), rows) for each in wanted]
    return pa.table(values, names=[each["name"] for each in wanted])


def _paths(told: Field, field: pa.Field) -> list[str]:
    """What is read of a file's column: of a struct the parts that are told, all of it where it has none."""
    if isinstance(told["type"], str) or not pa.types.is_struct(field.type):
        return [field.name]
    there, wanted = list(field.type), {each["id"] for each in told["type"].get("fields", ())}
    found = [each.name for each in there if field_id(each) in wanted]
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


def partition_ids(told: Mapping[str, Any]) -> set[int]:
    """The ids of the fields that a table's partitions are of, or were."""
    specs = told.get("partition-specs") or []
    return {each["source-id"] for spec in specs for each in spec["fields"]}


def project_field(told: Field, values: Values | None, rows: int) -> Values:
    """A file's values as those of a field of the table; NULLs where the file is older than the field.

    Raises Unreadable where that would not be exact.
    """
    if values is None:
        if told.get("initial-default") is not None or told.get("required"):
            raise Unreadable("a field with a default")
        return pa.nulls(rows, arrow_of(told["type"]))
    return _cast_field(told["type"], values)


def _cast_field(told: Any, values: Values) -> Values:
    wanted, stored = arrow_of(told), values.type
    if isinstance(told, str):
        if not widens(stored, wanted):
            raise Unreadable(f"{stored} as {told}")
        return values.cast(wanted)
    if told["type"] == "struct":
        whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        return _struct(told, whole, wanted)
    if not _is_same_type(told, stored):
        raise Unreadable("a nested column that has changed")
    return values.cast(wanted)


def _struct(told: Field, values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A struct by the ids of its fields: a younger one is NULL."""
    if not pa.types.is_struct(values.type):
        raise Unreadable(f"{values.type} as a struct")
    children = {field_id(each): part for each, part in zip(values.type, values.flatten(), strict=True)}
    if None in children:
        raise Unreadable("a field without an id")
    parts = [project_field(each, children.get(each["id"]), len(values)) for each in told["fields"]]
    return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=values.is_null())


def _is_same_type(told: Any, stored: pa.DataType) -> bool:
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
        field_id(field) == number and _is_same_type(type_, field.type) for number, type_, field in parts
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
