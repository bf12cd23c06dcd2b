"""Delivered rows: typed values, and for each cell whether it carries one."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa

from backstory.formats.values.mended import Mended
from backstory.model.types import ColumnType, Kind

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
    """The Arrow type in which values of a column are planned and stored.

    SHORT is 32 bits wide because Iceberg has nothing smaller; NAIVE_TIME, XML and JSON are text.
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


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a delivery.

    `values` has a column for each column of the table that the rows speak of, `known` a boolean
    column of the same name that is false where a cell was left unmodified. A column that is in
    neither was not delivered at all. `mended` tells what was done to values that did not quite fit.
    """

    values: pa.Table
    known: pa.Table
    mended: Mended = field(default_factory=Counter)

    @classmethod
    def concat(cls, parts: Iterable[Self], empty: pa.Schema) -> Self:
        """All rows in order, with the columns of `empty`; a column a part lacks is unknown there."""
        parts = [part.aligned(empty) for part in parts]
        if not parts:
            nothing = empty.empty_table()
            return cls(nothing, _flags(nothing.schema).empty_table())
        return cls.joined(parts)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """All rows in order, of parts that have the same columns."""
        return cls(
            pa.concat_tables(part.values for part in parts),
            pa.concat_tables(part.known for part in parts),
            sum((part.mended for part in parts), Counter()),
        )

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self.values.num_rows)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The same rows with other names for their columns."""
        new = [names[name] for name in self.values.column_names]
        return type(self)(self.values.rename_columns(new), self.known.rename_columns(new), self.mended)

    def aligned(self, schema: pa.Schema) -> Self:
        """The same rows with exactly the columns of `schema`; what was not delivered is unknown."""
        count = self.count
        here = set(self.values.column_names)
        values = [
            self.values[field.name] if field.name in here else pa.nulls(count, field.type) for field in schema
        ]
        known = [
            self.known[field.name] if field.name in here else pa.repeat(pa.scalar(False), count)
            for field in schema
        ]
        return type(self)(
            pa.table(values, schema=schema), pa.table(known, schema=_flags(schema)), self.mended
        )


def _flags(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, pa.bool_()) for field in schema])
