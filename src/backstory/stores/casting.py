"""Stored values in another type, exactly or not at all."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from backstory.errors import Refused
from backstory.formats.values.casts import DoesNotFit, cast
from backstory.formats.values.exact_casts import exact_cast
from backstory.model.schema import Column
from backstory.model.types import ColumnType

# Columns as they shall be, and the types that they had.
Changes = Sequence[tuple[Column, ColumnType]]
# What makes rows of them, or refuses.
CastBatch = Callable[[Changes, pa.RecordBatch], pa.RecordBatch]


def cast_batch(changes: Changes, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with the values of these columns cast; Refused, by the column's name, if one does not fit."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for column, old in changes:
        try:
            columns[column.name] = cast(columns[column.name], old, column.type)
        except DoesNotFit:
            raise Refused(
                "type-change",
                f"The column {column.source} cannot change from {old} to {column.type}: "
                "a stored value does not fit.",
                "The table is unchanged; add a column of the new type instead.",
            ) from None
    return pa.record_batch(columns)


def exact_batch(changes: Changes, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with the values of these columns exactly the same; Refused, by its name, where one is not."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for column, old in changes:
        try:
            columns[column.name] = exact_cast(columns[column.name], old, column.type)
        except DoesNotFit:
            raise Refused(
                "type-changed",
                f"Column {column.name} has a {old} value that does not fit {column.type} exactly.",
                "Nothing was written; use a type that holds all of its values.",
                [column.name],
            ) from None
    return pa.record_batch(columns)
