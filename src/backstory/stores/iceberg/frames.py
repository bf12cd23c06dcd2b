"""Arrow tables as Spark DataFrames, exactly.

Row lineage: a row that is written anew remains the row that it was (Iceberg's specification, Row Lineage).

Tables of format version 3 give each row an id. Who writes a row into another file copies its id beside it;
a row without one begins there and gets one from Iceberg. The sequence number of a row's last update is
copied for a row that only moves. Left empty it is that of the commit, which is right for one that changes.

The rows of Iceberg's scan tasks, with the file and the position of each.

Rows by bucket: those of one key are in one, and each is planned in one of Spark's tasks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.memory import UNPACKED, MemoryLease, TooLarge
from backstory.model.change import RowBatches
from backstory.model.layout import ROW_ID
from backstory.model.table import TableName
from backstory.spark.versions import arrow_of, frame_of_arrow, frame_of_plan
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.jvm import scanned_bytes
from backstory.stores.iceberg.literals import column, quote
from backstory.stores.iceberg.scripts import TASKS_OPTION
from backstory.stores.iceberg.store import Store, StoredTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UPDATED_IN: Final = "_last_updated_sequence_number"
FIELD_IDS: Final = {ROW_ID: 2147483540, UPDATED_IN: 2147483539}
LINEAGE_SINCE: Final = 3


def keeps_row_ids(table: StoredTable) -> bool:
    """Whether the rows of the table have ids, and no column of somebody's hides them."""
    return table.format_version >= LINEAGE_SINCE and ROW_ID not in table.shape.names


def with_row_ids(table: StoredTable, rows: "DataFrame") -> "DataFrame":
    """Rows that were read from the table, with their ids if it has any, to go back into it."""
    return rows.withColumn(ROW_ID, column(ROW_ID)) if keeps_row_ids(table) else rows


def without_row_ids(rows: Any) -> Any:
    """The rows, Arrow tables or a frame, as ones that begin where they are written to."""
    if isinstance(rows, RowBatches):
        return RowBatches(lambda: map(without_row_ids, rows.tables()))
    if not isinstance(rows, pa.Table):
        return rows.drop(ROW_ID)
    return rows.select([name for name in rows.column_names if name != ROW_ID])


if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType

SIDE: Final = "backstory side"
# Rows on their way to the driver are in Java's heap several times, and beside what its tasks hold.
OF_HEAP: Final = 8


def frame_of(store: Store, rows: pa.Table) -> "DataFrame":
    """The rows as a DataFrame; naive times stay naive, whatever the session's time zone."""
    whole = pa.Table.from_arrays([_rebase_chunks(column) for column in rows.columns], schema=rows.schema)
    return frame_of_arrow(store.spark, whole, spark_fields(rows.schema))


def _rebase_chunks(column: pa.ChunkedArray) -> pa.ChunkedArray:
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
    shared = {side: list(_shared_names(frame.schema, types)) for side, frame in sides.items()}
    frames = (
        frame.toDF(*shared[side]).selectExpr(f"{number} AS {quote(SIDE)}", "*")
        for number, (side, frame) in enumerate(sides.items())
    )
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    return TaggedRows(rows, shared)


def side_rows(rows: pa.Table, number: int, shared: Sequence[str], names: Sequence[str]) -> pa.Table:
    """The rows of the frame of this number, under its own names."""
    return rows.filter(pc.equal(rows[SIDE], number)).select(shared).rename_columns(names)


def hold_memory_of_rows(store: Store, lease: MemoryLease, what: str, size: int) -> None:
    """Hold the memory of rows that Spark collects; TooLarge for more than its Java or the lease can hold.

    The caller may have given his session a small heap, whatever the machine has.
    """
    if size > int(store.jvm.java.lang.Runtime.getRuntime().maxMemory()) // OF_HEAP:
        raise TooLarge
    lease.hold(what, size)


def collect_sides(sides: "Mapping[str, DataFrame]") -> dict[str, pa.Table]:
    """The rows of several frames, in one query."""
    if len(sides) == 1:
        return {side: _collect_frame(frame) for side, frame in sides.items()}
    together = tag_sides(sides)
    rows = arrow_of(together.rows)
    return {
        side: side_rows(rows, number, together.shared[side], frame.columns)
        for number, (side, frame) in enumerate(sides.items())
    }


def _collect_frame(frame: "DataFrame") -> pa.Table:
    """The rows of a frame, two of whose columns may be one to Spark but for the case of their letters."""
    names = list(_shared_names(frame.schema, {}))
    return arrow_of(frame.toDF(*names)).rename_columns(frame.columns)


def _shared_names(fields: "Iterable[StructField]", types: dict[str, int]) -> Iterator[str]:
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


if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def rows_of_tasks(store: Store, group: str, tables: tuple[Any, Any]) -> "DataFrame":
    """The rows of the tasks that are staged by this name, as `stage_tasks` gives the two tables.

    The table by which Iceberg's rewriting reads does not show places where rows have ids; the relation of an
    ordinary one does.
    """
    (ordinary, staged), none, sql = tables, store.jvm.scala.Option.empty(), store.jvm.org.apache.spark.sql
    relations = sql.execution.datasources.v2.DataSourceV2Relation
    if staged is None:
        options = sql.util.CaseInsensitiveStringMap({TASKS_OPTION: group})
        plan = relations.create(ordinary, none, none, options).withMetadataColumns()
    else:
        shown = relations.create(ordinary, none, none).withMetadataColumns()
        plan = shown.copy(staged, *(shown.productElement(place) for place in range(1, shown.productArity())))
    return frame_of_plan(store.spark, store.jvm, plan)


if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The bucket of a row. No column of a source is called so.
BUCKET: Final = "backstory bucket"
# A task holds a bucket in one piece, and Java one more: so many rows, fewer of wide ones, but not too few.
ROWS_IN_BUCKET: Final = 100_000
BYTES_IN_BUCKET: Final = 32 << 20
LEAST_ROWS: Final = 1000
# Of a plan that does not tell how many bytes it is.
UNKNOWN_SIZE: Final = 1 << 50


def bucket_of(key: "Sequence[Column]", buckets: int) -> "Column":
    """The bucket of a key among so many.

    Both zeros are one key, and any NaN.
    """
    from pyspark.sql.functions import lit, pmod, xxhash64

    return pmod(xxhash64(*key), lit(buckets)).alias(BUCKET)


def buckets_for(rows: int, size: int) -> int:
    """How many buckets there are for so many rows, of so many bytes together."""
    return 1 + max(rows // ROWS_IN_BUCKET, min(size // BYTES_IN_BUCKET, rows // LEAST_ROWS))


def bytes_of(rows: "DataFrame") -> int:
    """About how many bytes a frame's rows are made of: files unpacked, and what Spark keeps as it is."""
    leaves = rows.select("*")._jdf.queryExecution().optimizedPlan().collectLeaves()  # noqa: SLF001
    return sum(_bytes_of_leaf(leaves.apply(place)) for place in range(int(leaves.size())))


def _bytes_of_leaf(leaf: Any) -> int:
    planned = int(leaf.stats().sizeInBytes())
    planned = planned if planned < UNKNOWN_SIZE else 0
    if leaf.nodeName() == "LogicalRelation":
        return planned * UNPACKED
    files = scanned_bytes(leaf) if leaf.nodeName() == "DataSourceV2ScanRelation" else None
    return planned if files is None else max(planned, files * UNPACKED)
