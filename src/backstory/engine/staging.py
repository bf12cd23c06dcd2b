"""Bring rows and files to Spark, as local Parquet files or by sending them to tasks on other machines."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backstory.engine.row_buffers import drain
from backstory.formats.batch_file import BatchFile, Stamp, require_unchanged
from backstory.formats.memory import TooLarge, unpacked_size
from backstory.formats.produced import ProducedRows
from backstory.formats.rows import leaf_types, map_leaves
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.iceberg.literals import column, path_literal
from backstory.stores.iceberg.store import IcebergStore
from backstory.stores.iceberg.workers import freeze_imports

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType


@dataclass(frozen=True, slots=True)
class ShippedFile:
    """A file and its kind: its path or, on a cluster, its bytes as they were delivered, still encrypted."""

    kind: str
    file: BatchFile
    content: Any = None

    @contextmanager
    def open_file(self) -> Iterator[BatchFile]:
        """Open the file in a task. Shipped bytes are available under a path in memory."""
        if self.content is None:
            yield self.file
            return
        memory = os.memfd_create("batch")
        try:
            with open(memory, "wb", closefd=False) as copy:
                copy.write(self.content.value)
            yield replace(self.file, path=Path(f"/proc/self/fd/{memory}"), told_as=self.file.name)
        finally:
            os.close(memory)


@contextmanager
def ship_files(store: IcebergStore, parts: Sequence[tuple[str, BatchFile]]) -> Iterator[list[ShippedFile]]:
    """Make the files available to tasks, as a context.

    On a cluster, the files' bytes are broadcast, because executors on other machines cannot see the paths.
    This process's memory holds one file at a time. Spark keeps the bytes encrypted until the end.
    """
    context = store.spark.sparkContext
    if str(context.master).startswith("local"):
        yield [ShippedFile(kind, file) for kind, file in parts]
        return
    broadcasts = []
    try:
        for kind, file in parts:
            with file.delivered_bytes() as delivered:
                broadcasts.append(ShippedFile(kind, file, context.broadcast(delivered.read())))
        yield broadcasts
    finally:
        for shipped in broadcasts:
            shipped.content.destroy()


def parquet_frame(store: IcebergStore, files: Sequence[ShippedFile], schema: pa.Schema) -> "DataFrame":
    """The rows of Parquet files with this schema, in their order. One task reads each file."""
    numbers = store.spark.range(len(files), numPartitions=len(files))
    return numbers.mapInArrow(partial(_rows_of, files), _spark_schema(schema))


def _rows_of(files: Sequence[ShippedFile], numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    freeze_imports()
    for number in (number for part in numbers for number in part["id"].to_pylist()):
        with files[number].open_file() as file:
            yield from pq.ParquetFile(file.path).iter_batches()


# The column for the row number in all rows. No column of a source has this name.
ARRIVAL: Final = "backstory arrival"
# Column metadata: the schema with void types, for lists or structs that have no value to show their type.
PARTLY_VOID: Final = "backstory partly void"
# The file name of the staged rows.
STAGED: Final = "rows.parquet"
ROWS_IN_GROUP: Final = 1 << 17
# Up to this many bytes and rows are sent to Spark without a file.
FEW: Final = 4 << 20
FEW_ROWS: Final = 20_000


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows with their `ARRIVAL` as a frame.

    `size` is the memory in bytes that they may need on the driver, or None if it is unknown. `tables` reads
    the named columns without Spark, in row order; it is None if only Spark can read them.
    """

    frame: "DataFrame"
    size: int | None = None
    tables: "Callable[[Sequence[str]], Iterable[pa.Table]] | None" = None


def is_local(store: IcebergStore) -> bool:
    """Whether tasks can see the files of this machine."""
    return store.has_java and str(store.setting("spark.master")).startswith("local")


def _sends(store: IcebergStore) -> bool:
    """Whether rows are sent to tasks. Without Java, only the driver reads rows."""
    return store.has_java and not is_local(store)


def copy_whole(path: Path, stamp: Stamp, folder: Path) -> Path:
    """Copy a file, so that no other program can change it while Spark reads it.

    Raises Failed if the file has changed. The copy has a new name, because Spark ignores files named `_a` or
    `.a`.
    """
    whole = folder / "delivered.parquet"
    if not whole.exists():
        shutil.copyfile(path, whole)
        require_unchanged([stamp])
    return whole


def local_parquet(store: IcebergStore, path: Path, schema: pa.Schema) -> "DataFrame":
    """Read a local Parquet file with this schema. Pattern characters in its path are escaped."""
    if not store.has_java:  # the server may be on another machine
        return frame_of(store, pq.read_table(path, schema=storable_schema(schema)))
    return store.spark.read.schema(local_fields(schema)).parquet(path_literal(str(path)))


def local_fields(schema: pa.Schema) -> "StructType":
    """The Spark fields of a staged file with this schema."""
    return _spark_schema(storable_schema(schema))


def storable_schema(schema: pa.Schema) -> pa.Schema:
    """The schema for files and tasks.

    All columns are optional, and a column without values, whose type is unknown, is text.
    """
    return pa.schema(map(_storable, schema))


def stage_rows(
    store: IcebergStore, rows: ProducedRows, folder: Path, stack: ExitStack
) -> "tuple[StructType, Callable[[], DataFrame]]":
    """Stage rows with the types of tables.

    Returns their fields, and a function that makes the frame. Every row is read here, so that malformed rows
    are refused before Spark starts. A column without values has Spark's void type.
    """
    schema = _with_arrival(rows.schema)
    batches, sent = _number_rows(rows, schema), None
    if not _sends(store):
        _write_parquet(batches, schema, folder)
    else:
        sent = send_rows(store, batches, schema, folder, stack)

    def frame() -> "DataFrame":
        staged = local_parquet(store, folder / STAGED, schema) if sent is None else sent
        return with_void_columns(staged, rows.schema).drop(ARRIVAL)

    typed = sent is None and not any(_holds_null(field.type) for field in rows.schema)
    return local_fields(rows.schema) if typed else frame().schema, frame


def stage_or_hold(
    store: IcebergStore, rows: ProducedRows, folder: Path, stack: ExitStack, *, queried: bool = False
) -> StagedRows:
    """Stage rows, or send few rows directly unless they are `queried`.

    Rows for a query are always staged: if rows are sent directly, Spark's plan contains their number, and a
    single row would not be sorted.
    """
    schema = _with_arrival(rows.schema)
    batches, buffered, few = _number_rows(rows, schema), list[pa.RecordBatch](), True
    for batch in batches:
        buffered.append(batch)
        if sum(one.nbytes for one in buffered) > FEW or sum(map(len, buffered)) > FEW_ROWS:
            few = False
            break
    if few and not queried:
        table = pa.Table.from_batches(buffered, schema)
        frame = with_void_columns(frame_of(store, table), rows.schema)
        return StagedRows(frame, max(1, table.nbytes), lambda names: [table.select(names)])
    drained = drain(buffered, batches)
    if _sends(store):
        return StagedRows(with_void_columns(send_rows(store, drained, schema, folder, stack), rows.schema))
    path = _write_parquet(drained, schema, folder)
    return rows_of_staged_file(with_void_columns(local_parquet(store, path, schema), rows.schema), path)


def rows_of_staged_file(frame: "DataFrame", path: Path) -> StagedRows:
    """A frame that reads a Parquet file on this machine, with the memory that its rows may need."""
    metadata = pq.read_metadata(path)
    size = unpacked_size(metadata.num_rows, metadata.num_columns, path.stat().st_size)
    return StagedRows(frame, size, partial(parquet_tables, path))


def parquet_tables(path: Path, names: Sequence[str]) -> Iterator[pa.Table]:
    """The named columns of a Parquet file, in several tables."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(ROWS_IN_GROUP, columns=[*names]):
            yield pa.Table.from_batches([batch]).select(names)


def _with_arrival(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*map(_storable, schema), pa.field(ARRIVAL, pa.int64(), False)])


def _write_parquet(batches: Iterator[pa.RecordBatch], schema: pa.Schema, folder: Path) -> Path:
    return _write_file(folder / STAGED, batches, schema)


def _write_file(path: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema, size: float = inf) -> Path:
    """Write rows to a Parquet file until they have `size` bytes in memory."""
    with pq.ParquetWriter(path, schema, compression="snappy", store_schema=False) as writer:
        for batch in batches:
            writer.write_batch(batch, row_group_size=ROWS_IN_GROUP)
            size -= batch.nbytes
            if size <= 0:
                break
    return path


def send_rows(
    store: IcebergStore, batches: Iterator[pa.RecordBatch], schema: pa.Schema, folder: Path, stack: ExitStack
) -> "DataFrame":
    """Send rows to tasks on other machines.

    Rows that fit into `driver-memory` are sent directly. More rows are sent as Parquet files, whose bytes
    Spark keeps.
    """
    lease = stack.enter_context(store.memory.lease())
    buffered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        buffered.append(batch)
        size += batch.nbytes
        try:
            lease.hold(str(folder), size)
        except TooLarge:
            break
    else:
        return frame_of(store, pa.Table.from_batches(buffered, schema))
    files = [BatchFile(path) for path in _write_parts(drain(buffered, batches), schema, folder, size)]
    lease.hold(str(folder), 0)
    shipped = stack.enter_context(ship_files(store, [("rows", file) for file in files]))
    return parquet_frame(store, shipped, schema)


def _write_parts(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, folder: Path, size: int
) -> Iterator[Path]:
    """Write the rows in their order to files, each with rows of about `size` bytes in memory."""
    for number, first in enumerate(batches):
        yield _write_file(folder / f"rows-{number}.parquet", chain([first], batches), schema, size)


def _number_rows(rows: ProducedRows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in rows.batches:
        values = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=False)]
        places = pa.array(np.arange(first, first + batch.num_rows))
        first += batch.num_rows
        yield pa.RecordBatch.from_arrays([*values, places], schema=schema)


def _storable(field: pa.Field) -> pa.Field:
    """The field with text in place of NULL types, which neither Parquet nor a table has.

    All nested fields are optional. Readers have already checked the values of required fields.
    """
    type_ = map_leaves(field.type, lambda leaf: pa.string() if pa.types.is_null(leaf) else leaf)
    return field.with_metadata(None).with_type(type_)


def with_void_columns(frame: "DataFrame", schema: pa.Schema) -> "DataFrame":
    """A frame of storable rows, in which columns without values have Spark's void type."""
    from pyspark.sql.functions import lit

    def with_void_type(field: pa.Field) -> "Column":
        if pa.types.is_null(field.type):
            return lit(None).alias(field.name)
        if not _holds_null(field.type):
            return column(field.name)
        with_void_types = _spark_schema(pa.schema([field.with_metadata(None)])).json()
        # `withMetadata` parses dots in the name. With Spark Connect, `withColumns` drops metadata.
        return column(field.name).alias(field.name, metadata={PARTLY_VOID: with_void_types})

    if not any(_holds_null(field.type) for field in schema):
        return frame
    others = [name for name in frame.columns if name not in schema.names]
    return frame.select(*map(with_void_type, schema), *map(column, others))


def type_with_void(field: "StructField") -> "DataType":
    """The type of a staged column, with void types for parts without values."""
    from pyspark.sql.types import StructType

    text = field.metadata.get(PARTLY_VOID)
    return field.dataType if text is None else StructType.fromJson(json.loads(text))[0].dataType


def _holds_null(type_: pa.DataType) -> bool:
    return any(map(pa.types.is_null, leaf_types(type_)))


def _spark_schema(schema: pa.Schema) -> "StructType":
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)
