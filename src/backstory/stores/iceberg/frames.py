"""Arrow tables as Spark DataFrames, exactly."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.table import TableName
from backstory.spark.versions import arrow_of, frame_of_arrow
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.lineage import with_row_ids
from backstory.stores.iceberg.literals import quoted
from backstory.stores.iceberg.store import Store, StoredTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType

SIDE: Final = "backstory side"
# Rows on their way to the driver are in Java's heap several times, and beside what its tasks hold.
OF_HEAP: Final = 8


def frame_of(store: Store, rows: pa.Table) -> "DataFrame":
    """The rows as a DataFrame; naive times stay naive, whatever the session's time zone."""
    whole = pa.Table.from_arrays([_unsliced(column) for column in rows.columns], schema=rows.schema)
    return frame_of_arrow(store.spark, whole, spark_fields(rows.schema))


def _unsliced(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A nested column in chunks that begin where their memory does; PySpark takes no other, and not none."""
    if not pa.types.is_nested(column.type):
        return column
    chunks = [pa.concat_arrays([chunk]) for chunk in column.chunks]
    return pa.chunked_array(chunks or [pa.array([], column.type)])


def spark_fields(schema: pa.Schema) -> "StructType":
    """The columns of such a frame."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(each.name, from_arrow_type(each.type, True)) for each in schema])


@dataclass(frozen=True, slots=True)
class TaggedRows:
    """The rows of several frames in one, each with the number of its side in the column `SIDE`.

    `shared` are each side's columns in it.
    """

    rows: "DataFrame"
    shared: Mapping[str, Sequence[str]]


def tag_sides(sides: "Mapping[str, DataFrame]") -> TaggedRows:
    """The frames as one, in which the n-th columns of one type are one column."""
    types: dict[str, int] = {}
    shared = {side: list(_shared(frame.schema, types)) for side, frame in sides.items()}
    frames = (
        frame.toDF(*shared[side]).selectExpr(f"{number} AS {quoted(SIDE)}", "*")
        for number, (side, frame) in enumerate(sides.items())
    )
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    return TaggedRows(rows, shared)


def side_rows(rows: pa.Table, number: int, shared: Sequence[str], names: Sequence[str]) -> pa.Table:
    """The rows of the frame of this number, under its own names."""
    return rows.filter(pc.equal(rows[SIDE], number)).select(shared).rename_columns(names)


def hold_collected(store: Store, lease: MemoryLease, what: str, size: int) -> None:
    """Hold the memory of rows that Spark collects; TooLarge for more than its Java or the lease can hold.

    The caller may have given his session a small heap, whatever the machine has.
    """
    if size > int(store.jvm.java.lang.Runtime.getRuntime().maxMemory()) // OF_HEAP:
        raise TooLarge
    lease.hold(what, size)


def collected(sides: "Mapping[str, DataFrame]") -> dict[str, pa.Table]:
    """The rows of several frames, in one query."""
    if len(sides) == 1:
        return {side: _named_apart(frame) for side, frame in sides.items()}
    together = tag_sides(sides)
    rows = arrow_of(together.rows)
    return {
        side: side_rows(rows, number, together.shared[side], frame.columns)
        for number, (side, frame) in enumerate(sides.items())
    }


def _named_apart(frame: "DataFrame") -> pa.Table:
    """The rows of a frame, two of whose columns may be one to Spark but for the case of their letters."""
    names = list(_shared(frame.schema, {}))
    return arrow_of(frame.toDF(*names)).rename_columns(frame.columns)


def _shared(fields: "Iterable[StructField]", types: dict[str, int]) -> Iterator[str]:
    """A name for each column by its type's number, which Spark does not take for another in another case."""
    seen: Counter[int] = Counter()
    for field in fields:
        number = types.setdefault(field.dataType.simpleString(), len(types))
        seen[number] += 1
        yield f"{number} {seen[number]}"


def rows_of(store: Store, table: StoredTable) -> "DataFrame":
    """Every row of the table."""
    with translate_faults(table.shape.table):
        return store.spark.table(store.sql_name(table.shape.table))


def rows_at(store: Store, table: TableName, snapshot: int) -> "DataFrame":
    """Every row of a snapshot of the table, in the columns of then.

    In SQL: Spark 3.5 overlooks options of a reader that is asked for a table.
    """
    return store.spark.sql(f"SELECT * FROM {store.sql_name(table)} VERSION AS OF {snapshot}")  # noqa: S608


def rows_with_ids(store: Store, table: StoredTable) -> "DataFrame":
    """Every row of the table, with its `_row_id` if rows have one: a row written back keeps its id."""
    return with_row_ids(table, rows_of(store, table))
