"""The rows of a table with the values of some columns in another type."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from backstory.errors import Refused
from backstory.files.casts import DoesNotFit, cast
from backstory.model.column import Column, ColumnType
from backstory.tables.literals import absent, quoted
from backstory.tables.schema import spark_type
from backstory.tables.workers import carrying

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Types = Mapping[str, tuple[ColumnType, ColumnType]]


def retyped(rows: "DataFrame", columns: Sequence[Column], stored: Mapping[str, ColumnType]) -> "DataFrame":
    """The rows with these columns, each cast from its stored type; one without is added as NULL.

    A value that does not fit ends the job with Refused, which names the column.
    """
    rows = rows.withColumns(absent(columns, stored)).select(*(quoted(column.name) for column in columns))
    changed = {
        column.name: (stored[column.name], column.type)
        for column in columns
        if stored.get(column.name, column.type) != column.type
    }
    schema = ", ".join(f"{quoted(column.name)} {spark_type(column.type)}" for column in columns)
    return rows.mapInArrow(partial(_cast_batches, changed), schema)


def _cast_batches(types: Types, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        with carrying():
            yield _cast_batch(types, batch)


def _cast_batch(types: Types, batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, (old, new) in types.items():
        try:
            columns[name] = cast(columns[name], old, new)
        except DoesNotFit:
            raise Refused(
                "type-change",
                f"The column {name} cannot change from {old} to {new}: a stored value does not fit.",
                "The table is unchanged; add a column of the new type instead.",
            ) from None
    return pa.record_batch(columns)
