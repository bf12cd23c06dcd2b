"""The Parquet files of a table: row groups, columns by their field ids, and chosen rows.

Chosen rows are read from few row groups, and most of their columns from even fewer.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backstory.formats.memory import MemoryLease
from backstory.formats.rows import arrow_type
from backstory.model.instant import EPOCH
from backstory.stores.iceberg.schema import FIELD_ID, columns_of_fields
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.stores.metadata.values import truths_of

Field = Mapping[str, Any]
# A row group's statistics by a field's name, or None if they lack the least and the greatest value.
Statistics = Callable[[str], Any]
MayHave = Callable[[Statistics], bool]
OF_INSTANTS: Final = ("timestamp", "timestamptz")


def field_id(field: pa.Field) -> int | None:
    """The id of a field in a file's schema, or None if it has no id."""
    number = (field.metadata or {}).get(FIELD_ID)
    return None if number is None else int(number)


def matching_groups(file: pq.ParquetFile, fields: Iterable[Field], may_have: MayHave) -> list[int]:
    """The row groups for which `may_have` returns true. `may_have` may use the statistics of these fields."""
    names, metadata = {field_id(field): field.name for field in file.schema_arrow}, file.metadata
    paths = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    places = {field["name"]: paths.get(names.get(field["id"], "")) for field in fields}

    def statistics(group: int, name: str) -> Any:
        if (place := places.get(name)) is None:
            return None
        column_statistics = metadata.row_group(group).column(place).statistics
        return column_statistics if column_statistics is not None and column_statistics.has_min_max else None

    return [group for group in range(metadata.num_row_groups) if may_have(partial(statistics, group))]


@dataclass(frozen=True, slots=True)
class ValueBounds:
    """The least and the greatest value of a file's column, in fields named as in Parquet's statistics."""

    min: Any
    max: Any
    null_count: int | None


def bounds_of_instants(statistics: Any, type_: str) -> ValueBounds | None:
    """The bounds of a column of instants, computed without pandas.

    Returns None for a unit other than Iceberg's, and for instants that Python cannot represent.
    """
    if "microseconds" not in str(statistics.logical_type):
        return None
    zero = EPOCH if type_ == "timestamptz" else EPOCH.replace(tzinfo=None)
    try:
        least, greatest = (
            zero + timedelta(microseconds=micros) for micros in (statistics.min_raw, statistics.max_raw)
        )
    except OverflowError:
        return None
    return ValueBounds(least, greatest, statistics.null_count)


def greatest_in_groups(file: pq.ParquetFile, field: Field, greatest: Any) -> list[tuple[Any, int]]:
    """For each row group, the greatest value of a field and the number of rows.

    `greatest` is the value if the row group's statistics lack it.
    """
    values: list[Any] = []

    def note(statistics: Statistics) -> bool:
        bounds = statistics(field["name"])
        values.append(bounds.max if bounds is not None and type(bounds.max) is type(greatest) else greatest)
        return False

    matching_groups(file, [field], note)
    return [(most, file.metadata.row_group(number).num_rows) for number, most in enumerate(values)]


def positions_in(metadata: pq.FileMetaData, groups: Sequence[int]) -> np.ndarray:
    """The positions in the file of the rows in these row groups."""
    ends = np.cumsum([0, *(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))])
    parts = [np.arange(ends[number], ends[number + 1], dtype=np.int64) for number in groups]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def groups_at(metadata: pq.FileMetaData, positions: np.ndarray) -> list[int]:
    """The row groups with the rows at these positions."""
    ends = np.cumsum([metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)])
    return np.unique(np.searchsorted(ends, positions, side="right")).tolist()


def groups_with(
    metadata: pq.FileMetaData, groups: Sequence[int], rows: np.ndarray
) -> tuple[list[int], pa.Array]:
    """The groups that contain a chosen row, and the mask of their rows. `rows` is the mask of all groups."""
    ends = np.cumsum([metadata.row_group(number).num_rows for number in groups])
    parts = np.split(rows, ends[:-1])
    places = [place for place, part in enumerate(parts) if part.any()]
    mask = np.concatenate([rows[:0], *(parts[place] for place in places)])
    return [groups[place] for place in places], pa.array(mask)


def _count_rows(metadata: pq.FileMetaData, groups: Sequence[int], mask: pa.Array | None) -> int:
    """The number of rows in row groups, or the number of rows that the mask selects."""
    return sum(metadata.row_group(number).num_rows for number in groups) if mask is None else mask.true_count


Values: TypeAlias = pa.Array | pa.ChunkedArray


def arrow_type_of(type_: Any) -> pa.DataType:
    """Spark's Arrow type for an Iceberg type. Raises Unreadable for unknown types."""
    (column,) = columns_of_fields([{"name": "value", "type": type_}], {})
    for foreign in column.type.foreign_parts:
        raise Unreadable(f"the type {foreign}")
    return arrow_type(column.type)


def read_fields(
    file: pq.ParquetFile,
    wanted: Sequence[Field],
    partition_fields: Collection[int],
    hold: Callable[[int], None],
    groups: Sequence[int],
    mask: pa.Array | None = None,
) -> pa.Table:
    """The rows of some row groups of an open file, with these fields of its table.

    `mask` selects the rows to return. `partition_fields` are the ids of partition source fields. `hold` is
    called with the size of all rows, first a lower bound, then the exact size, and may raise TooLarge. Raises
    Unreadable if the rows would not be exact.
    """
    fields = {field_id(field): field for field in file.schema_arrow}
    if None in fields:
        raise Unreadable("fields without ids")
    if any(field["id"] in partition_fields and field["id"] not in fields for field in wanted):
        raise Unreadable("a column whose values are only in the partition")
    present = [field for field in wanted if field["id"] in fields]
    names = [fields[field["id"]].name for field in present]
    paths = [path for field in present for path in _paths(field, fields[field["id"]])]
    hold(packed_size(file.metadata, names, groups))
    read, rows = file.read_row_groups(groups, columns=paths), _count_rows(file.metadata, groups, mask)
    hold(read.nbytes)
    if mask is not None and read.num_columns:
        read = read.filter(mask)
    columns = dict(zip(read.column_names, read.columns, strict=True))
    by_id = {field["id"]: columns[fields[field["id"]].name] for field in present}
    values = [project_field(field, by_id.get(field["id"]), rows) for field in wanted]
    return pa.table(values, names=[field["name"] for field in wanted])


def _paths(wanted: Field, field: pa.Field) -> list[str]:
    """The paths to read in a file's column: the wanted parts of a struct, or the whole column."""
    if isinstance(wanted["type"], str) or not pa.types.is_struct(field.type):
        return [field.name]
    parts, ids = list(field.type), {part["id"] for part in wanted["type"].get("fields", ())}
    names = [part.name for part in parts if field_id(part) in ids]
    return [field.name] if len(names) in (0, len(parts)) else [f"{field.name}.{name}" for name in names]


def packed_size(metadata: pq.FileMetaData, names: Collection[str], groups: Iterable[int]) -> int:
    """The uncompressed size of columns in row groups. It is a lower bound of the columns' size in memory."""
    places = [
        place
        for place in range(metadata.num_columns)
        if metadata.schema.column(place).path.partition(".")[0] in names
    ]
    chosen = map(metadata.row_group, groups)
    return sum(group.column(place).total_uncompressed_size for group in chosen for place in places)


def partition_ids(specs: Iterable[Mapping[str, Any]]) -> set[int]:
    """The ids of the source fields of a table's current and former partition specs."""
    return {field["source-id"] for spec in specs for field in spec["fields"]}


def project_field(field: Field, values: Values | None, rows: int) -> Values:
    """A file's values as values of a field of the table, or NULLs if the file is older than the field.

    Raises Unreadable if they would not be exact.
    """
    if values is None:
        if field.get("initial-default") is not None or field.get("required"):
            raise Unreadable("a field with a default")
        return pa.nulls(rows, arrow_type_of(field["type"]))
    return _cast_field(field["type"], values)


def _cast_field(type_: Any, values: Values) -> Values:
    wanted, stored = arrow_type_of(type_), values.type
    if isinstance(type_, str):
        if not widens(stored, wanted):
            raise Unreadable(f"{stored} as {type_}")
        return values.cast(wanted)
    if type_["type"] == "struct":
        whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        return _struct(type_, whole, wanted)
    if not _is_same_type(type_, stored):
        raise Unreadable("a nested column that has changed")
    return values.cast(wanted)


def _struct(type_: Field, values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A struct, whose fields are matched by their ids. Fields that the file lacks are NULL."""
    if not pa.types.is_struct(values.type):
        raise Unreadable(f"{values.type} as a struct")
    children = {field_id(part): child for part, child in zip(values.type, values.flatten(), strict=True)}
    if None in children:
        raise Unreadable("a field without an id")
    parts = [project_field(field, children.get(field["id"]), len(values)) for field in type_["fields"]]
    return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=values.is_null())


def _is_same_type(wanted: Any, stored: pa.DataType) -> bool:
    """Whether a file's nested type has the table's fields, with types that widen to the table's."""
    if isinstance(wanted, str):
        return widens(stored, arrow_type_of(wanted))
    if wanted["type"] == "list":
        parts = (
            [(wanted["element-id"], wanted["element"], stored.value_field)]
            if pa.types.is_list(stored)
            else []
        )
    elif wanted["type"] == "map":
        keyed = [("key", stored.key_field), ("value", stored.item_field)] if pa.types.is_map(stored) else []
        parts = [(wanted[f"{name}-id"], wanted[name], field) for name, field in keyed]
    else:
        fields = list(stored) if pa.types.is_struct(stored) else []
        if [field.name for field in fields] != [field["name"] for field in wanted["fields"]]:
            return False
        parts = [(one["id"], one["type"], field) for one, field in zip(wanted["fields"], fields, strict=True)]
    return bool(parts) and all(
        field_id(field) == number and _is_same_type(type_, field.type) for number, type_, field in parts
    )


def widens(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of the stored type is a value of the wanted type, as Iceberg reads it."""
    t = pa.types
    if t.is_timestamp(wanted):
        return t.is_timestamp(stored) and stored.unit == "us" and bool(stored.tz) == bool(wanted.tz)
    if t.is_decimal(wanted):
        wider = t.is_decimal(stored) and stored.precision <= wanted.precision
        return wider and stored.scale == wanted.scale
    pairs = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}
    long = {(pa.large_string(), pa.string()), (pa.large_binary(), pa.binary())}
    return stored == wanted or (stored, wanted) in pairs | long


# Up to this many rows or bytes of a file are read together, or one larger row group.
AT_ONCE: Final = 1 << 20
BYTES_AT_ONCE: Final = 1 << 28
ChooseRows = Callable[[pa.Table], Values]


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The `fields` and rows to read in each file. `choose` computes a mask of the rows from `filter_fields`.

    `may_have` returns whether a row group may contain selected rows, according to its statistics.
    `partition_ids` are the ids of partition source fields.
    """

    fields: Sequence[Field]
    partition_ids: Collection[int]
    filter_fields: Sequence[Field] = ()
    choose: ChooseRows | None = None
    may_have: MayHave = lambda _: True

    def parts(
        self, file: pq.ParquetFile, live_mask: Callable[[], pa.Array | None], hold: Callable[[int], None]
    ) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """The rows of a file and their positions, for some row groups at a time.

        `live_mask` returns the mask of the file's rows that are not deleted, or None if all are live. `hold`
        is called with the size of a part, first a lower bound, then the exact size, and may raise TooLarge.
        """
        for groups in combine_groups(
            file.metadata, matching_groups(file, self.filter_fields, self.may_have), AT_ONCE
        ):
            if (part := self._rows(file, groups, live_mask, hold)) is not None:
                yield part

    def _rows(
        self,
        file: pq.ParquetFile,
        groups: Sequence[int],
        live_mask: Callable[[], pa.Array | None],
        hold: Callable[[int], None],
    ) -> tuple[pa.Table, np.ndarray] | None:
        first, mask = pa.table({}), None
        if self.choose is not None:
            first = read_fields(file, self.filter_fields, self.partition_ids, hold, groups)
            mask = truths_of(self.choose(first))
        if (live := live_mask()) is not None:
            visible = truths_of(live.take(positions_in(file.metadata, groups)))
            mask = visible if mask is None else mask & visible
        if mask is None:
            rows = read_fields(file, self.fields, self.partition_ids, hold, groups)
            return rows, positions_in(file.metadata, groups)
        if not mask.any():
            return None
        groups, group_mask = groups_with(file.metadata, groups, mask)
        # The filter fields are not read again, except for structs, which may have been read in part.
        known = {
            name: first[name].filter(pa.array(mask))
            for name in (field["name"] for field in self.fields if field in self.filter_fields)
            if name in first.column_names
        }
        del first
        size = sum(values.nbytes for values in known.values())
        rest = [field for field in self.fields if field["name"] not in known]
        some = None if group_mask.true_count == len(group_mask) else group_mask
        rows = read_fields(file, rest, self.partition_ids, lambda more: hold(size + more), groups, some)
        columns = known | dict(zip(rows.column_names, rows.columns, strict=True))
        places = positions_in(file.metadata, groups)[truths_of(group_mask)]
        return pa.table({field["name"]: columns[field["name"]] for field in self.fields}), places


@dataclass(slots=True)
class HeldParts:
    """Parts of a file's rows that are kept in memory, and their lease."""

    lease: MemoryLease
    name: str
    parts: list[pa.Table] = field(default_factory=list)
    kept: int = 0

    def hold(self, size: int) -> None:
        """Hold the kept bytes and `size` more bytes. Raises TooLarge if the lease cannot hold them."""
        self.lease.hold(self.name, self.kept + size)

    def keep(self, rows: pa.Table) -> None:
        """Keep the remaining rows of a part."""
        self.parts.append(rows)
        self.kept += rows.nbytes

    def whole(self) -> list[pa.Table]:
        """All parts. From now on, the lease only holds these parts."""
        self.hold(0)
        return self.parts


def combine_groups(metadata: pq.FileMetaData, groups: Sequence[int], at_once: int) -> Iterator[list[int]]:
    """Batches of row groups to read together. Rows that are not selected are released after each batch."""
    batch, rows, size = list[int](), 0, 0
    for number in groups:
        group = metadata.row_group(number)
        batch.append(number)
        rows += group.num_rows
        size += group.total_byte_size
        if rows >= at_once or size >= BYTES_AT_ONCE:
            yield batch
            batch, rows, size = [], 0, 0
    if batch:
        yield batch
