"""Rows of a file become a DataFrame: through a Parquet file, or at once where no task would see that."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.doors.odf.formats.reading import Rows, plain_parquet, rows_of
from backstory.doors.odf.manifest.read import Parquet, Reading
from backstory.doors.odf.preparing import Prepared
from backstory.tables.frames import frame_of
from backstory.tables.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

# The place of a row in its file. No column of a source is called so.
ARRIVAL: Final = "backstory arrival"
ROWS_IN_GROUP: Final = 1 << 17


def read_batch(
    store: Store, ready: Prepared, read: Reading, schema: pa.Schema | None, folder: Path
) -> "DataFrame | None":
    """The rows of a prepared file; None if it has neither rows nor columns.

    `schema` is what the manifest declares. A Parquet file that needs no look at its values is read
    where it lies. Raises Refused for whatever is malformed.
    """
    if isinstance(read, Parquet) and _is_local(store) and plain_parquet(ready.path, schema):
        stored = pq.read_schema(ready.path)
        return store.spark.read.schema(_spark(pa.schema(map(_storable, stored)))).parquet(str(ready.path))
    rows = rows_of(ready.path, ready.name, read, schema)  # type: ignore[arg-type]
    return staged(store, rows, folder) if rows.schema.names else None


def _is_local(store: Store) -> bool:
    """Whether tasks see the files of this machine."""
    return str(store.spark.sparkContext.master).startswith("local")


def staged(store: Store, rows: Rows, folder: Path) -> "DataFrame":
    """The rows with their `ARRIVAL`, each column of the type that tables have for it.

    Every row is read here, so that whatever is malformed is refused before Spark begins. A column
    without any value is one of Spark's void type.
    """
    schema = pa.schema([*map(_storable, rows.schema), pa.field(ARRIVAL, pa.int64(), False)])
    if not _is_local(store):
        return _voided(frame_of(store, pa.Table.from_batches(_placed(rows, schema), schema)), rows.schema)
    path = folder / "rows.parquet"
    with pq.ParquetWriter(path, schema, compression="snappy", store_schema=False) as writer:
        for batch in _placed(rows, schema):
            writer.write_batch(batch, row_group_size=ROWS_IN_GROUP)
    return _voided(store.spark.read.schema(_spark(schema)).parquet(str(path)), rows.schema)


def _placed(rows: Rows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in rows.batches:
        values = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=False)]
        places = pa.array(range(first, first + batch.num_rows), pa.int64())
        first += batch.num_rows
        yield pa.RecordBatch.from_arrays([*values, places], schema=schema)


def _storable(field: pa.Field) -> pa.Field:
    plain = field.with_metadata(None)
    return plain.with_type(pa.string()) if pa.types.is_null(field.type) else plain


def _voided(frame: "DataFrame", schema: pa.Schema) -> "DataFrame":
    from pyspark.sql.functions import lit

    void = [field.name for field in schema if pa.types.is_null(field.type)]
    return frame.withColumns({name: lit(None) for name in void}) if void else frame


def _spark(schema: pa.Schema) -> "StructType":
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
