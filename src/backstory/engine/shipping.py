"""Batch files where Spark's tasks can open them."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.formats.wrapping.batch_file import BatchFile
from backstory.stores.iceberg.store import Store
from backstory.stores.iceberg.workers import freeze_imports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Shipped:
    """A file of a kind: its own path, or its bytes as they were delivered, still encrypted."""

    kind: str
    file: BatchFile
    content: Any = None

    @contextmanager
    def opened(self) -> Iterator[BatchFile]:
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
def ship_files(store: Store, parts: Sequence[tuple[str, BatchFile]]) -> Iterator[list[Shipped]]:
    """The files as tasks may have them: on a cluster their bytes go with the tasks.

    Executors on other machines do not see the paths. One file at a time is in this process's
    memory; Spark keeps the rest, encrypted as they were, and forgets them at the end.
    """
    context = store.spark.sparkContext
    if str(context.master).startswith("local"):
        yield [Shipped(kind, file) for kind, file in parts]
        return
    sent = []
    try:
        for kind, file in parts:
            with file.delivered() as delivered:
                sent.append(Shipped(kind, file, context.broadcast(delivered.read())))
        yield sent
    finally:
        for each in sent:
            each.content.destroy()


def parquet_frame(store: Store, files: Sequence[Shipped], schema: pa.Schema) -> "DataFrame":
    """The rows of Parquet files that have this schema: a task for each file, in their order."""
    from pyspark.sql.pandas.types import from_arrow_schema

    numbers = store.spark.range(len(files), numPartitions=len(files))
    return numbers.mapInArrow(partial(_rows_of, files), from_arrow_schema(schema, prefer_timestamp_ntz=True))


def _rows_of(files: Sequence[Shipped], numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    freeze_imports()
    for number in (number for part in numbers for number in part["id"].to_pylist()):
        with files[number].opened() as file:
            yield from pq.ParquetFile(file.path).iter_batches()
