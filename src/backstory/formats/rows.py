"""Delivered rows: typed values, a flag for each cell, the readers' corrections, and a digest.

The flag is false if a cell was left unmodified. Corrections are reported as counts, never with a value (F11,
F18).
"""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Self

import pyarrow as pa
import structlog

from backstory.model.types import ColumnType, Kind

log = structlog.get_logger()

# Counts of corrected values by file, column (empty for the whole file) and correction.
Mended = Counter[tuple[str, str, str]]
ROUNDED, RAW = "rounded", "raw"


def log_mended(mended: Mended) -> None:
    """Log a warning for each column with rounded decimals, and each file with invalid base64 in BINARY."""
    for (file, column, correction), values in sorted(mended.items()):
        if correction == ROUNDED:
            log.warning(
                "decimals with more digits than their column were rounded",
                file=file,
                column=column,
                values=values,
            )
        else:
            log.warning("values that are not base64 were stored as they are", file=file, cells=values)


def with_mended(counts: Mapping[str, int], mended: Mended) -> dict[str, int]:
    """The counts of a commit, including `rounded` if any decimal was rounded."""
    rounded = sum(values for (_, _, correction), values in mended.items() if correction == ROUNDED)
    return {**counts, **({ROUNDED: rounded} if rounded else {})}


# No source has a column with a name like this.
KEEPS: Final = "backstory: keeps {}"
_BEFORE: Final = KEEPS.format("")


def column_of_kept(name: str) -> str | None:
    """The column whose unmodified cells a flag column marks, or None if `name` is not a flag column."""
    return name.removeprefix(_BEFORE) if name.startswith(_BEFORE) else None


def digest(rows: pa.Table) -> int:
    """A number that is equal for equal rows in the same order."""
    read = _Read()
    with pa.PythonFile(read, "w") as sink, pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows.combine_chunks())
    return int.from_bytes(read.hash.digest(), "big", signed=True)


class _Read(io.RawIOBase):
    """A writable file that hashes the bytes without storing them."""

    def __init__(self) -> None:
        self.hash = blake2b(digest_size=8)

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.hash.update(content)
        return memoryview(content).nbytes


_ARROW = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.SHORT: pa.int32(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.NAIVE_DATE: pa.date32(),
    Kind.NAIVE_DATETIME: pa.timestamp("us"),
    Kind.UTC_DATETIME: pa.timestamp("us", tz="UTC"),
    Kind.BINARY: pa.binary(),
}


def arrow_type(type_: ColumnType) -> pa.DataType:
    """The Arrow type for planning and storing a column's values.

    SHORT is 32 bits wide because Iceberg has no smaller integer; NAIVE_TIME, XML and JSON are text.
    """
    if type_.kind is Kind.DECIMAL:
        return pa.decimal128(type_.precision, type_.scale)
    parts = [(name, arrow_type(part)) for name, part in type_.parts]
    if type_.kind is Kind.STRUCT:
        return pa.struct(parts)
    if type_.kind is Kind.LIST:
        return pa.list_(parts[0][1])
    if type_.kind is Kind.MAP:
        return pa.map_(parts[0][1], parts[1][1])
    return _ARROW.get(type_.kind, pa.string())


KINDS = {type_: kind for kind, type_ in _ARROW.items() if kind is not Kind.SHORT}


def type_of_arrow(type_: pa.DataType) -> ColumnType:
    """The column type for an Arrow type, as the inverse of `arrow_type`.

    An Arrow type that `arrow_type` never returns becomes STRING, with its name in `foreign`.
    """
    if pa.types.is_decimal128(type_):
        return ColumnType(Kind.DECIMAL, type_.precision, type_.scale)
    if pa.types.is_struct(type_):
        parts = tuple((field.name, type_of_arrow(field.type)) for field in type_)
        return ColumnType(Kind.STRUCT, parts=parts)
    if pa.types.is_list(type_):
        return ColumnType(Kind.LIST, parts=(("element", type_of_arrow(type_.value_type)),))
    if pa.types.is_map(type_):
        key, value = type_of_arrow(type_.key_type), type_of_arrow(type_.item_type)
        return ColumnType(Kind.MAP, parts=(("key", key), ("value", value)))
    if type_ in KINDS:
        return ColumnType(KINDS[type_])
    return ColumnType(Kind.STRING, foreign="" if pa.types.is_string(type_) else str(type_))


def is_list(type_: pa.DataType) -> bool:
    """Whether the values are lists, with offsets of any size or of a fixed length."""
    t = pa.types
    return bool(t.is_list(type_) or t.is_large_list(type_) or t.is_fixed_size_list(type_))


def map_leaves(type_: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with `change` applied to its parts that are not nested. All nested fields become optional."""
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, map_leaves(field.type, change)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(map_leaves(type_.key_type, change), map_leaves(type_.item_type, change))
    return pa.list_(map_leaves(type_.value_type, change)) if is_list(type_) else change(type_)


def leaf_types(type_: pa.DataType) -> Iterator[pa.DataType]:
    """The parts of a type that are not nested, in their order."""
    if not pa.types.is_nested(type_):
        yield type_
    for place in range(type_.num_fields):
        yield from leaf_types(type_.field(place).type)


def leaf_values(values: pa.Array) -> Iterator[pa.Array]:
    """The values themselves, or the values that are nested in them."""
    t = pa.types
    if t.is_dictionary(values.type):
        yield from leaf_values(values.dictionary_decode())
    elif t.is_nested(values.type):
        whole = (values.keys, values.items) if t.is_map(values.type) else values.flatten()
        for part in whole if t.is_map(values.type) or t.is_struct(values.type) else [whole]:
            yield from leaf_values(part)
    else:
        yield values


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a delivery.

    `values` has the delivered columns of the table. For each of these columns, `known` has a boolean column
    with the same name. A flag is false if its cell was left unmodified. A column that is missing from both
    tables was not delivered. `mended` counts the corrections of values that did not fit exactly.
    """

    values: pa.Table
    known: pa.Table
    mended: Mended = field(default_factory=Counter)

    @classmethod
    def concat(cls, parts: Iterable[Self], empty: pa.Schema) -> Self:
        """All rows in order, with the columns of `empty`.

        A column that a part lacks is unknown in that part's rows.
        """
        parts = [part.align(empty) for part in parts]
        if not parts:
            nothing = empty.empty_table()
            return cls(nothing, _flags(nothing.schema).empty_table())
        return cls.join(parts)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """All rows in order. The parts must have the same columns."""
        return cls(
            pa.concat_tables(part.values for part in parts),
            pa.concat_tables(part.known for part in parts),
            sum((part.mended for part in parts), Counter()),
        )

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self.values.num_rows)

    def rename(self, names: Mapping[str, str]) -> Self:
        """The same rows with their columns renamed."""
        new = [names[name] for name in self.values.column_names]
        return type(self)(self.values.rename_columns(new), self.known.rename_columns(new), self.mended)

    def align(self, schema: pa.Schema) -> Self:
        """The same rows with exactly the columns of `schema`. Columns that were not delivered are unknown."""
        values, known, unknown = self.values, self.known, pa.repeat(pa.scalar(False), self.count)
        for column in schema:
            if column.name not in self.values.column_names:
                values = values.append_column(column, pa.nulls(self.count, column.type))
                known = known.append_column(column.name, unknown)
        values = pa.table(values.select(schema.names).columns, schema=schema)
        return type(self)(values, known.select(schema.names), self.mended)


def _flags(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, pa.bool_()) for field in schema])
