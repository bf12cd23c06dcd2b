"""The rows of a table with the values of some columns in another type."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from backstory.model.places import ROW_ID
from backstory.model.schema import Column
from backstory.model.types import ColumnType
from backstory.stores.casting import CastBatch, Changes, cast_batch
from backstory.stores.iceberg.literals import absent, quoted
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.workers import carrying, map_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def retype_rows(
    rows: "DataFrame",
    columns: Sequence[Column],
    stored: Mapping[str, ColumnType],
    cast: CastBatch = cast_batch,
) -> "DataFrame":
    """The rows with these columns and their ids, each cast from its stored type; one without is NULL.

    A value that does not fit ends the job with Refused, which names the column.
    """
    ids = [ROW_ID] if ROW_ID in rows.columns else []
    names = [*(column.name for column in columns), *ids]
    rows = rows.withColumns(absent(columns, stored)).select(*map(quoted, names))
    changed = [
        (column, stored[column.name])
        for column in columns
        if stored.get(column.name, column.type) != column.type
    ]
    types = [spark_type(column.type) for column in columns] + ["bigint" for _ in ids]
    schema = ", ".join(f"{quoted(name)} {type_}" for name, type_ in zip(names, types, strict=True))
    return map_batches(rows, partial(_cast_batches, cast, changed), schema)


def _cast_batches(
    cast: CastBatch, changes: Changes, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        with carrying():
            yield cast(changes, batch)
