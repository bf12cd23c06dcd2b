"""Casts of stored values to another type, exact or refused, in Arrow batches and in Spark's frames."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from backstory.errors import Refused
from backstory.formats.values.casts import DoesNotFit, cast, exact_cast
from backstory.model.layout import ROW_ID
from backstory.model.table import Column
from backstory.model.types import ColumnType
from backstory.stores.iceberg.literals import null_columns, quote
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.workers import carry_errors, map_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Columns in their new types, with their old types.
Changes = Sequence[tuple[Column, ColumnType]]
# A function that casts the columns of a batch, or raises Refused.
CastBatch = Callable[[Changes, pa.RecordBatch], pa.RecordBatch]


def cast_batch(changes: Changes, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with these columns cast. Raises Refused, naming the column, if a value does not fit."""
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
    """The rows with these columns cast exactly. Raises Refused, with the column, if a value would change."""
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


def retype_rows(
    rows: "DataFrame",
    columns: Sequence[Column],
    stored: Mapping[str, ColumnType],
    cast: CastBatch = cast_batch,
) -> "DataFrame":
    """The rows with these columns, cast from their stored types, and with ids. Missing columns are NULL.

    If a value does not fit, the job fails with Refused, which names the column.
    """
    ids = [ROW_ID] if ROW_ID in rows.columns else []
    names = [*(column.name for column in columns), *ids]
    rows = rows.withColumns(null_columns(columns, stored)).select(*map(quote, names))
    changed = [
        (column, stored[column.name])
        for column in columns
        if stored.get(column.name, column.type) != column.type
    ]
    types = [spark_type(column.type) for column in columns] + ["bigint" for _ in ids]
    schema = ", ".join(f"{quote(name)} {type_}" for name, type_ in zip(names, types, strict=True))
    return map_batches(rows, partial(_cast_batches, cast, changed), schema)


def _cast_batches(
    cast: CastBatch, changes: Changes, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        with carry_errors():
            yield cast(changes, batch)
