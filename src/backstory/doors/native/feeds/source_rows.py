"""The rows of a feed with what its expressions say of each, read here where nothing asks for Spark."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from backstory.doors.native.feeds.expressions import computed_by_spark, computed_here
from backstory.doors.native.feeds.options import Expression
from backstory.doors.native.source import Source
from backstory.engine.frame_size import few_rows, hold_frame
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.store import Store
from backstory.stores.metadata.hidden import Unreadable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def read_rows(
    store: Store, source: Source, computed: Mapping[str, Expression], lease: MemoryLease
) -> pa.Table:
    """All rows, with a column more for each expression; TooLarge for more than the lease can hold."""
    with suppress(Unreadable):
        rows = _read_here(source, computed, lease)
        if rows is not None:
            return rows
    frame, few = frame_of_feed(source, computed), few_rows(store, len(source.fields))
    sure = hold_frame(store, frame, source.size, "feed", lease)
    rows = arrow_of(frame if sure else frame.limit(few + 1))
    if not sure and len(rows) > few:
        raise TooLarge
    lease.hold("feed", rows.nbytes)
    return rows


def with_key(source: Source, key: Sequence[str]) -> Source:
    """The source with NULL in columns of the key that it lacks: truncates have none (V48)."""
    from pyspark.sql.functions import lit
    from pyspark.sql.types import NullType, StructField, StructType

    lacking = [name for name in key if name not in source.fields.names]
    if not lacking:
        return source
    fields = StructType([*source.fields, *(StructField(name, NullType()) for name in lacking)])
    frame, read = source.frame, source.batches

    def batches(names: Sequence[str]) -> Iterator[pa.Table]:
        assert read is not None
        for rows in read([name for name in names if name not in lacking]):
            nothing = pa.nulls(len(rows))
            yield pa.table({name: nothing if name in lacking else rows[name] for name in names})

    return replace(
        source,
        fields=fields,
        frame=lambda: frame().withColumns(dict.fromkeys(lacking, lit(None))),
        batches=None if read is None else batches,
    )


def frame_of_feed(source: Source, computed: Mapping[str, Expression]) -> "DataFrame":
    """The same as a frame."""
    return computed_by_spark(source.frame(), computed)


def _read_here(source: Source, computed: Mapping[str, Expression], lease: MemoryLease) -> pa.Table | None:
    if source.batches is None:
        return None
    parts: list[pa.Table] = []
    for rows in source.batches(source.fields.names):
        makes = {name: computed_here(each, rows.schema) for name, each in computed.items()}
        columns = {}
        for name, make in makes.items():
            if make is None:
                return None
            columns[name] = make(rows)
        parts.append(pa.table({**{name: rows[name] for name in rows.column_names}, **columns}))
        lease.hold("feed", sum(each.nbytes for each in parts))
    if not parts:
        return None
    return pa.concat_tables(parts, promote_options="permissive")
