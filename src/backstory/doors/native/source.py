"""The rows of a source: a frame, an Arrow table, or a table of the warehouse."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.memory import unpacked_size
from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.model.table import TableName
from backstory.reading.frames.point_in_time import current, keeps_all
from backstory.reading.frames.versions import HISTORIES
from backstory.spark.versions import frame_fields
from backstory.stores.iceberg.frames import frame_of, spark_fields
from backstory.stores.iceberg.local_rows import LocalRows
from backstory.stores.iceberg.search_bounds import without
from backstory.stores.iceberg.spark_types import spark_schema
from backstory.stores.iceberg.store import Store, StoredTable, existing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

# Rows that are read or taken together.
ROWS_AT_ONCE: Final = 1 << 17
# Reads columns, some rows at a time, each time anew; raises Unreadable for what Spark must read.
Reading = Callable[[Sequence[str]], Iterable[pa.Table]]


@dataclass(frozen=True, slots=True)
class Source:
    """The rows of a copy; `size` is what they take of the driver's memory, None where only a plan tells.

    `frame` makes a frame of them, of these `fields`; `batches` gives them, in columns of these names, without
    Spark: None where it must read them. `with_commas` are texts that are numbers with decimal commas,
    `images` the columns of images of what was before; `instant` is the time that the rows are of, where the
    source tells it.
    """

    fields: "StructType"
    frame: "Callable[[], DataFrame]"
    size: int | None = None
    batches: Reading | None = None
    with_commas: frozenset[str] = frozenset()
    images: frozenset[str] = frozenset()
    instant: datetime | None = None


def rows_of_frame(frame: "DataFrame", size: int | None = None) -> Source:
    """The rows of a frame."""
    return Source(frame_fields(frame), lambda: frame, size)


def rows_of_table(store: Store, table: TableName) -> Source:
    """What is true now in a table of the warehouse, in the source's columns."""
    from pyspark.sql.types import StructField, StructType

    stored = existing(store, table)
    size = unpacked_size(stored.rows, len(stored.shape.columns), stored.bytes)
    in_files = stored.shape.layout is Layout.VERSIONS  # whose rows alone say whether they are true now
    if stored.shape.layout in HISTORIES and not in_files:
        return rows_of_frame(_current(store, table), size)
    if not in_files and not keeps_all(stored.shape):
        return rows_of_frame(current(store, table), size)
    told = spark_schema(store, stored.iceberg.schema())
    fields = [
        StructField(each.source, told[each.name].dataType, metadata=told[each.name].metadata)
        for each in stored.shape.user_columns
    ]
    return Source(
        StructType(fields), partial(_current, store, table), size, partial(_read_table, store, stored)
    )


def _current(store: Store, table: TableName) -> "DataFrame":
    return current(store, table).drop(VALID_FROM, VALID_TO)


def _read_table(store: Store, stored: StoredTable, names: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a table that are true now: those without an end, or all where no row says so."""
    called = {each.source: each.name for each in stored.shape.user_columns}
    wanted = [called[name] for name in names]
    with store.memory.lease() as lease:
        here = LocalRows(store, stored, lease)
        if stored.shape.layout is Layout.VERSIONS:
            read = here.batches(wanted, [VALID_TO], _is_open, where=without(VALID_TO))
        else:
            read = here.batches(wanted)
        for rows in read:
            yield rows.rename_columns(names)


def _is_open(rows: pa.Table) -> pa.ChunkedArray:
    return pc.is_null(rows[VALID_TO])


def rows_of_arrow(store: Store, rows: pa.Table) -> Source:
    """The rows of an Arrow table."""
    bare = rows.replace_schema_metadata()

    def batches(names: Sequence[str]) -> Iterable[pa.Table]:
        few = bare.select(names)
        return [few.slice(first, ROWS_AT_ONCE) for first in range(0, len(few), ROWS_AT_ONCE)]

    return Source(spark_fields(bare.schema), partial(frame_of, store, bare), max(1, rows.nbytes), batches)
