"""Rows of a source's file become a DataFrame."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.doors.odf.manifest.read import Parquet, Reading
from backstory.doors.odf.preparing import Prepared
from backstory.doors.odf.read_options import read_options
from backstory.engine.staging import (
    ARRIVAL,
    StagedRows,
    copied_whole,
    is_local,
    local_parquet,
    rows_of_staged_file,
    stage_or_hold,
)
from backstory.formats.parquet.plain import plain_parquet
from backstory.formats.produced import UNTOLD, Told
from backstory.formats.reading import rows_of
from backstory.formats.unchanged import stamp_of
from backstory.spark.versions import metadata_column
from backstory.stores.iceberg.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def read_batch(
    store: Store,
    ready: Prepared,
    read: Reading,
    schema: pa.Schema | None,
    folder: Path,
    told: Told = UNTOLD,
    *,
    held: ExitStack,
    queried: bool = False,
) -> StagedRows | None:
    """The rows of a prepared file.

    There are none if it has neither rows nor columns. They can be read until `held` is closed. `schema` is
    what the source declares, `told` the types of columns without it. A Parquet file that needs no look at its
    values is copied into `folder` and read there. `queried` tells that a query reads them. Refused is
    raised for whatever is malformed.
    """
    stamp = stamp_of(ready.path)
    if isinstance(read, Parquet) and is_local(store) and plain_parquet(ready.path, schema, told):
        whole = copied_whole(ready.path, stamp, folder)
        return rows_of_staged_file(
            _placed_by_spark(local_parquet(store, whole, pq.read_schema(whole))), whole
        )
    rows = rows_of(ready.path, ready.name, read_options(read), schema, told, ready.bound)
    return stage_or_hold(store, rows, folder, held, queried=queried) if rows.schema.names else None


def _placed_by_spark(frame: "DataFrame") -> "DataFrame":
    # Asked for in this way, it is Spark's even if a column has the same name.
    place = metadata_column(frame, "_metadata")["row_index"]
    return frame.select("*", place.alias(ARRIVAL))
