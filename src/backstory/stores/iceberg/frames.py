"""Spark DataFrames: exact conversions from and to Arrow, row ids, scan tasks, and buckets.

In tables of format version 3, each row has an id (Iceberg's specification, Row Lineage). A writer that moves
a row to another file writes its id as well. A row without an id is new, and Iceberg assigns one. The sequence
number of the last update is written for rows that only move. If it is NULL, the commit's number applies.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
from backstory.stores.iceberg.store import IcebergStore, IcebergTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

UPDATED_IN: Final = "_last_updated_sequence_number"
FIELD_IDS: Final = {ROW_ID: 2147483540, UPDATED_IN: 2147483539}
LINEAGE_SINCE: Final = 3


def keeps_row_ids(table: IcebergTable) -> bool:
    """Whether the table's rows have ids, and no user column has the name of the id column."""
    return table.format_version >= LINEAGE_SINCE and ROW_ID not in table.shape.names


def with_row_ids(table: IcebergTable, rows: "DataFrame") -> "DataFrame":
    """The rows of a table with their ids, if they have ids, so that rewritten rows keep their ids."""
    return rows.withColumn(ROW_ID, column(ROW_ID)) if keeps_row_ids(table) else rows


def without_row_ids(rows: Any) -> Any:
    """Rows without ids, as Arrow tables or a frame.

    The rows are new in the table to which they are written.
    """
    if isinstance(rows, RowBatches):
        return RowBatches(lambda: map(without_row_ids, rows.tables()))
    if not isinstance(rows, pa.Table):
        return rows.drop(ROW_ID)
    return rows.select([name for name in rows.column_names if name != ROW_ID])


SIDE: Final = "backstory side"
# Rows on their way to the driver may use Java's heap divided by this number. The heap contains them several
# times.
OF_HEAP: Final = 8


def frame_of(store: IcebergStore, rows: pa.Table) -> "DataFrame":
    """The rows as a DataFrame. Naive times stay naive in any session time zone."""
    whole = pa.Table.from_arrays([_rebase_chunks(column) for column in rows.columns], schema=rows.schema)
    return frame_of_arrow(store.spark, whole, spark_fields(rows.schema))


def _rebase_chunks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A nested column in one or more chunks, each at offset 0. PySpark cannot read other chunks."""
    if not pa.types.is_nested(column.type):
        return column
    chunks = [pa.concat_arrays([chunk]) for chunk in column.chunks]
    return pa.chunked_array(chunks or [pa.array([], column.type)])


def spark_fields(schema: pa.Schema) -> "StructType":
    """The columns of the frame that `frame_of` makes from rows with this Arrow schema."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, from_arrow_type(field.type, True)) for field in schema])


def tag_sides(sides: "Mapping[str, DataFrame]") -> "tuple[DataFrame, dict[str, list[str]]]":
    """The union of the frames, with each row's side number in the column `SIDE`, and each side's columns.

    The n-th column of a type is the same column for every side.
    """
    types: dict[str, int] = {}
    shared = {side: list(shared_names(_types_of(frame), types)) for side, frame in sides.items()}
    frames = (
        frame.toDF(*shared[side]).selectExpr(f"{number} AS {quote(SIDE)}", "*")
        for number, (side, frame) in enumerate(sides.items())
    )
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames), shared


def side_rows(rows: pa.Table, number: int, shared: Sequence[str], names: Sequence[str]) -> pa.Table:
    """The rows of the side with this number, with its own column names."""
    return rows.filter(pc.equal(rows[SIDE], number)).select(shared).rename_columns(names)


def hold_memory_of_rows(store: IcebergStore, lease: MemoryLease, what: str, size: int) -> None:
    """Reserve memory for rows that Spark collects.

    Raises TooLarge if Java's heap or the lease cannot hold them. A caller's session may have a small heap on
    a large machine.
    """
    if store.has_java and size > int(store.jvm.java.lang.Runtime.getRuntime().maxMemory()) // OF_HEAP:
        raise TooLarge
    lease.hold(what, size)


def collect_sides(sides: "Mapping[str, DataFrame]") -> dict[str, pa.Table]:
    """The rows of several frames, collected in one query."""
    if len(sides) == 1:  # the names of its columns may differ only in case
        ((side, frame),) = sides.items()
        return {side: arrow_of(frame.toDF(*shared_names(_types_of(frame), {}))).rename_columns(frame.columns)}
    together, shared = tag_sides(sides)
    rows = arrow_of(together)
    return {
        side: side_rows(rows, number, shared[side], frame.columns)
        for number, (side, frame) in enumerate(sides.items())
    }


def _types_of(frame: "DataFrame") -> list[str]:
    return [field.dataType.simpleString() for field in frame.schema]


def shared_names(types: Iterable[str], numbers: dict[str, int]) -> Iterator[str]:
    """A name for each column, made of two numbers: its type's, and its own among the columns of that type.

    `numbers` has the numbers of known types, and is extended by new types.
    """
    seen: Counter[int] = Counter()
    for type_ in types:
        number = numbers.setdefault(type_, len(numbers))
        seen[number] += 1
        yield f"{number} {seen[number]}"


def rows_of(store: IcebergStore, table: IcebergTable) -> "DataFrame":
    """Every row of the table."""
    with translate_faults(table.shape.table):
        return store.spark.table(store.sql_name(table.shape.table))


def rows_at(store: IcebergStore, table: TableName, snapshot: int) -> "DataFrame":
    """Every row of a snapshot, in its own columns. Uses SQL, because Spark 3.5 ignores a reader's options."""
    name = replace(store, branch=None).sql_name(table)
    return store.spark.sql(f"SELECT * FROM {name} VERSION AS OF {snapshot}")  # noqa: S608


def metadata_rows(store: IcebergStore, table: TableName, name: str) -> "DataFrame":
    """The rows of a metadata table such as `data_files`."""
    whole = store.sql_name(table, name)
    if store.branch is None:
        return store.spark.table(whole)
    return store.spark.sql(f"SELECT * FROM {whole} VERSION AS OF '{store.branch}'")  # noqa: S608


def rows_with_ids(store: IcebergStore, table: IcebergTable) -> "DataFrame":
    """Every row of the table, with its `_row_id` if it has one, so that rewritten rows keep their ids."""
    return with_row_ids(table, rows_of(store, table))


def rows_of_tasks(store: IcebergStore, group: str, tables: tuple[Any, Any]) -> "DataFrame":
    """The rows of scan tasks staged under a name, with file and position. `tables` are from `stage_tasks`.

    Iceberg's table for staged tasks lacks these columns if rows have ids. They are then taken from its
    ordinary table.
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


# The column of a row's bucket, a name that no source uses.
BUCKET: Final = "backstory bucket"
# A task holds a whole bucket, and Java holds it once more. It has up to this many rows, or fewer wide ones.
ROWS_IN_BUCKET: Final = 100_000
BYTES_IN_BUCKET: Final = 32 << 20
LEAST_ROWS: Final = 1000
# Spark's estimate for a plan of unknown size is larger than this.
UNKNOWN_SIZE: Final = 1 << 50


def bucket_of(key: "Sequence[Column]", buckets: int) -> "Column":
    """The bucket of a key. 0.0 and -0.0 count as one key, and all NaNs count as one key."""
    from pyspark.sql.functions import lit, pmod, xxhash64

    return pmod(xxhash64(*key), lit(buckets)).alias(BUCKET)


def buckets_for(rows: int, size: int) -> int:
    """The number of buckets for this number of rows and this total size in bytes."""
    return 1 + max(rows // ROWS_IN_BUCKET, min(size // BYTES_IN_BUCKET, rows // LEAST_ROWS))


def bytes_of(rows: "DataFrame") -> int:
    """An estimate of the bytes that a frame reads: unpacked files, and rows that Spark holds."""
    leaves = rows.select("*")._jdf.queryExecution().optimizedPlan().collectLeaves()  # noqa: SLF001
    return sum(_bytes_of_leaf(leaves.apply(place)) for place in range(int(leaves.size())))


def is_kept(rows: "DataFrame") -> bool:
    """Whether Spark keeps the computed rows of a frame, so that their exact size is available."""
    leaves = rows._jdf.queryExecution().optimizedPlan().collectLeaves()  # noqa: SLF001
    return int(leaves.size()) == 1 and leaves.apply(0).nodeName() == "InMemoryRelation"


def _bytes_of_leaf(leaf: Any) -> int:
    estimate = int(leaf.stats().sizeInBytes())
    estimate = estimate if estimate < UNKNOWN_SIZE else 0
    if leaf.nodeName() == "LogicalRelation":
        return estimate * UNPACKED
    files = scanned_bytes(leaf) if leaf.nodeName() == "DataSourceV2ScanRelation" else None
    return estimate if files is None else max(estimate, files * UNPACKED)
