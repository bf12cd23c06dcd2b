"""Rows that readers give become a DataFrame: through Parquet files, sent to tasks that do not see them.

Batch files where Spark's tasks can open them.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backstory.formats.memory import TooLarge, unpacked_size
from backstory.formats.produced import ProducedRows
from backstory.formats.unchanged import Stamp, require_unchanged
from backstory.formats.wrapping.batch_file import BatchFile
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.iceberg.store import Store
from backstory.stores.iceberg.workers import freeze_imports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class ShippedFile:
    """A file of a kind: its own path, or its bytes as they were delivered, still encrypted."""

    kind: str
    file: BatchFile
    content: Any = None

    @contextmanager
    def open_file(self) -> Iterator[BatchFile]:
        """In a task: the file at a path; shipped bytes stand in memory that has a path."""
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
def ship_files(store: Store, parts: Sequence[tuple[str, BatchFile]]) -> Iterator[list[ShippedFile]]:
    """The files as tasks may have them: on a cluster their bytes go with the tasks.

    Executors on other machines do not see the paths. One file at a time is in this process's
    memory; Spark keeps the rest, encrypted as they were, and forgets them at the end.
    """
    context = store.spark.sparkContext
    if str(context.master).startswith("local"):
        yield [ShippedFile(kind, file) for kind, file in parts]
        return
    sent = []
    try:
        for kind, file in parts:
            with file.delivered() as delivered:
                sent.append(ShippedFile(kind, file, context.broadcast(delivered.read())))
        yield sent
    finally:
        for each in sent:
            each.content.destroy()


def parquet_frame(store: Store, files: Sequence[ShippedFile], schema: pa.Schema) -> "DataFrame":
    """The rows of Parquet files that have this schema: a task for each file, in their order."""
    from pyspark.sql.pandas.types import from_arrow_schema

    numbers = store.spark.range(len(files), numPartitions=len(files))
    return numbers.mapInArrow(partial(_rows_of, files), from_arrow_schema(schema, prefer_timestamp_ntz=True))


def _rows_of(files: Sequence[ShippedFile], numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    freeze_imports()
    for number in (number for part in numbers for number in part["id"].to_pylist()):
        with files[number].open_file() as file:
            yield from pq.ParquetFile(file.path).iter_batches()


if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

# The place of a row among all. No column of a source is called so.
ARRIVAL: Final = "backstory arrival"
# Metadata of a column whose lists or structs hold nothing that tells a type: a schema of it, with void types.
PARTLY_VOID: Final = "backstory partly void"
# The file of the rows, where tasks see it.
STAGED: Final = "rows.parquet"
ROWS_IN_GROUP: Final = 1 << 17
# Bytes and number of rows that go to Spark as they are, in place of a file.
FEW: Final = 4 << 20
FEW_ROWS: Final = 20_000
PATTERN: Final = re.compile(r"[\\\[\]{}*?]")


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows with their `ARRIVAL` as a frame, and whether they are few.

    `size` is what they may take of the driver's memory, None where nobody knows; `tables` reads columns of
    these names without Spark, some rows at a time, in their order: None where it must read them.
    """

    frame: "DataFrame"
    few: bool
    size: int | None = None
    tables: "Callable[[Sequence[str]], Iterable[pa.Table]] | None" = None


def is_local(store: Store) -> bool:
    """Whether tasks see the files of this machine."""
    return str(store.setting("spark.master")).startswith("local")


def copy_whole(path: Path, stamp: Stamp, folder: Path) -> Path:
    """A copy of the file, which nobody writes while Spark reads it; Failed if it is another than was stamped.

    Its name is ours: Spark passes over files that are called `_a` or `.a`.
    """
    whole = folder / "delivered.parquet"
    if not whole.exists():
        shutil.copyfile(path, whole)
        require_unchanged([stamp])
    return whole


def local_parquet(store: Store, path: Path, schema: pa.Schema) -> "DataFrame":
    """A file of ours; in the names of its folders no letter is one of a pattern."""
    literal = PATTERN.sub(r"\\\g<0>", str(path))
    return store.spark.read.schema(local_fields(schema)).parquet(literal)


def local_fields(schema: pa.Schema) -> "StructType":
    """The columns of such a frame."""
    return _spark_schema(storable_schema(schema))


def storable_schema(schema: pa.Schema) -> pa.Schema:
    """Such columns as files and tasks have them: optional, and texts where no value tells a type."""
    return pa.schema(map(_storable, schema))


def stage_rows(
    store: Store, rows: ProducedRows, folder: Path, held: ExitStack
) -> "tuple[StructType, Callable[[], DataFrame]]":
    """The rows, each column of the type that tables have for it: their fields, and a maker of a frame.

    Every row is read here, so that whatever is malformed is refused before Spark begins. A column
    without any value is one of Spark's void type.
    """
    schema = _with_arrival(rows.schema)
    batches, there = _number_rows(rows, schema), None
    if is_local(store):
        _write_parquet(batches, schema, folder)
    else:
        there = send_rows(store, batches, schema, folder, held)

    def frame() -> "DataFrame":
        laid = local_parquet(store, folder / STAGED, schema) if there is None else there
        return with_void_columns(laid, rows.schema).drop(ARRIVAL)

    told = there is None and not any(_holds_null(field.type) for field in rows.schema)
    return local_fields(rows.schema) if told else frame().schema, frame


def stage_or_hold(
    store: Store, rows: ProducedRows, folder: Path, held: ExitStack, *, queried: bool = False
) -> StagedRows:
    """The same; rows that are few go as they are, unless they are `queried`.

    The plan of a query would tell how many they are: one row is not sorted.
    """
    schema = _with_arrival(rows.schema)
    batches, kept, few = _number_rows(rows, schema), list[pa.RecordBatch](), True
    for batch in batches:
        kept.append(batch)
        if sum(each.nbytes for each in kept) > FEW or sum(map(len, kept)) > FEW_ROWS:
            few = False
            break
    if few and not queried:
        table = pa.Table.from_batches(kept, schema)
        frame = with_void_columns(frame_of(store, table), rows.schema)
        return StagedRows(frame, few, max(1, table.nbytes), lambda names: [table.select(names)])
    frame = with_void_columns(_write_or_send(store, _drain(kept, batches), schema, folder, held), rows.schema)
    path = folder / STAGED
    return rows_of_staged_file(frame, path, few=few) if path.exists() else StagedRows(frame, few)


def rows_of_staged_file(frame: "DataFrame", path: Path, *, few: bool = False) -> StagedRows:
    """A frame whose rows are those of a Parquet file of this machine."""
    told = pq.read_metadata(path)
    size = unpacked_size(told.num_rows, told.num_columns, path.stat().st_size)
    few = few or (size <= FEW and told.num_rows <= FEW_ROWS)
    return StagedRows(frame, few, size, partial(parquet_tables, path))


def parquet_tables(path: Path, names: Sequence[str]) -> Iterator[pa.Table]:
    """Columns of a Parquet file, some rows at a time."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(ROWS_IN_GROUP, columns=[*names]):
            yield pa.Table.from_batches([batch]).select(names)


def _with_arrival(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*map(_storable, schema), pa.field(ARRIVAL, pa.int64(), False)])


def _write_or_send(
    store: Store, batches: Iterator[pa.RecordBatch], schema: pa.Schema, folder: Path, held: ExitStack
) -> "DataFrame":
    if not is_local(store):
        return send_rows(store, batches, schema, folder, held)
    return local_parquet(store, _write_parquet(batches, schema, folder), schema)


def _write_parquet(batches: Iterator[pa.RecordBatch], schema: pa.Schema, folder: Path) -> Path:
    path = folder / STAGED
    with pq.ParquetWriter(path, schema, compression="snappy", store_schema=False) as writer:
        for batch in batches:
            writer.write_batch(batch, row_group_size=ROWS_IN_GROUP)
    return path


def send_rows(
    store: Store, batches: Iterator[pa.RecordBatch], schema: pa.Schema, folder: Path, held: ExitStack
) -> "DataFrame":
    """The rows for tasks that do not see this machine's files.

    Few go as they are. More than deliveries may hold (`driver-memory`) go as Parquet files, of which Spark
    keeps the bytes.
    """
    lease = held.enter_context(store.memory.lease())
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        kept.append(batch)
        size += batch.nbytes
        try:
            lease.hold(str(folder), size)
        except TooLarge:
            break
    else:
        return frame_of(store, pa.Table.from_batches(kept, schema))
    files = [BatchFile(path) for path in _write_parts(_drain(kept, batches), schema, folder, size)]
    lease.hold(str(folder), 0)
    there = held.enter_context(ship_files(store, [("rows", each) for each in files]))
    return parquet_frame(store, there, schema)


def _drain(kept: list[pa.RecordBatch], more: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches that are kept, each forgotten when it is given, and those behind them."""
    kept.reverse()
    while kept:
        yield kept.pop()
    yield from more


def _write_parts(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, folder: Path, size: int
) -> Iterator[Path]:
    """Files of the rows in their order, each of about so many bytes of memory."""
    for number, first in enumerate(batches):
        path, held = folder / f"rows-{number}.parquet", 0
        with pq.ParquetWriter(path, schema, compression="snappy", store_schema=False) as writer:
            for batch in chain([first], batches):
                writer.write_batch(batch, row_group_size=ROWS_IN_GROUP)
                held += batch.nbytes
                if held >= size:
                    break
        yield path


def _number_rows(rows: ProducedRows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in rows.batches:
        values = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=False)]
        places = pa.array(np.arange(first, first + batch.num_rows))
        first += batch.num_rows
        yield pa.RecordBatch.from_arrays([*values, places], schema=schema)


def _storable(field: pa.Field) -> pa.Field:
    return field.with_metadata(None).with_type(_storable_type(field.type))


def _storable_type(type_: pa.DataType) -> pa.DataType:
    """The type with texts for what has no values, and all that is in it optional.

    Neither Parquet nor a table has a type of NULL alone, and Arrow asks a struct that is NULL for its
    required fields; whether they are there, readers have seen.
    """
    if pa.types.is_null(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(_storable_type(type_.value_type))
    if pa.types.is_map(type_):
        return pa.map_(_storable_type(type_.key_type), _storable_type(type_.item_type))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _storable_type(field.type)) for field in type_])
    return type_


def with_void_columns(frame: "DataFrame", schema: pa.Schema) -> "DataFrame":
    """A frame of storable rows, with the columns that have no values in Spark's void type."""
    from pyspark.sql.functions import lit

    void = [field.name for field in schema if pa.types.is_null(field.type)]
    for field in schema:
        if field.name not in void and _holds_null(field.type):
            told = _spark_schema(pa.schema([field.with_metadata(None)])).json()
            frame = frame.withMetadata(field.name, {PARTLY_VOID: told})
    return frame.withColumns({name: lit(None) for name in void}) if void else frame


def _holds_null(type_: pa.DataType) -> bool:
    inner = (type_.field(place).type for place in range(type_.num_fields))
    return pa.types.is_null(type_) or any(map(_holds_null, inner))


def _spark_schema(schema: pa.Schema) -> "StructType":
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)
