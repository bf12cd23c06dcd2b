"""Columns of a Parquet file: one with a single value in all rows, as its statistics tell, is not decoded."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

# To repeat a longer text for each row may take more than to read it.
LONGEST: Final = 64
# How Parquet keeps the values that are repeated as they are: whole numbers, days, instants and truths.
KEPT_AS: Final = {"INT32": pa.int32(), "INT64": pa.int64(), "BOOLEAN": pa.bool_()}
ByPath = dict[str, pa.Scalar]


@dataclass(frozen=True, slots=True)
class Decoded:
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


def decode(file: pq.ParquetFile, paths: Collection[str], groups: Sequence[int]) -> Decoded:
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
    return Decoded(rows, count, repeated, leaves, fields)


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
