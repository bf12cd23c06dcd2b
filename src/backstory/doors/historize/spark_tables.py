"""Base, history and log tables of a warehouse: shapes, schema changes, stage rows (section 4.5)."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from backstory.doors.historize.load import Load
from backstory.doors.historize.model import ColumnRole, ModelColumn, base_columns, user_columns
from backstory.doors.historize.stage import Stage, column_type, read_stage
from backstory.errors import Refused
from backstory.model.layout import DELETED, FILE, POSITION, Layout
from backstory.model.table import Column, Shape, TableName
from backstory.reading.frames.point_in_time import current_table_rows
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.iceberg.literals import cast_as_shown, column, quote
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.store import Store, load
from backstory.stores.iceberg.workers import carry_errors
from backstory.stores.sql import ddl

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

# Larger stage files are read where Spark runs.
ON_DRIVER = 64 << 20
LOAD_COLUMNS = (ColumnRole.LOAD_RUN_ID, ColumnRole.LOADED_AT)


def types_of(store: Store, table: TableName) -> dict[str, str] | None:
    """The columns of a table with Spark's types; None if there is no such table."""
    found = load(store, table)
    return None if found is None else _types(found.shape)


def _types(shape: Shape) -> dict[str, str]:
    return {each.name: spark_type(each.type) for each in shape.columns}


def base_shape(plan: Load) -> Shape:
    """The base table: a row for each record, by its business keys."""
    return _shape(plan, plan.dataset.name, base_columns(plan.dataset), Layout.BASE)


def hist_shape(plan: Load) -> Shape:
    """The history table; retired columns only stand in tables that have them."""
    return _shape(plan, plan.dataset.hist_name, plan.hist.target_columns, Layout.HIST)


def _shape(plan: Load, name: str, columns: Sequence[ModelColumn], layout: Layout) -> Shape:
    key = [each.name for each in columns if each.system_role is ColumnRole.BUSINESS_KEY and each.active]
    live = tuple(Column(each.name, column_type(each)) for each in columns if each.active)
    return Shape(TableName(plan.schema, name), live, tuple(key), layout)


def stage_rows_and_load_columns(
    store: Store, stage: Stage, plan: Load, beside: Mapping[str, str]
) -> tuple["DataFrame", frozenset[str]]:
    """The stage's rows under the base's names and types, and the load columns that it brings.

    Each has these values `beside`, which no plan shows.

    Of a table that keeps a history, or Fivetran's marks of deletion, they are the rows that are true now,
    unless the model itself takes the mark of deletion for one. Raises Refused for a missing table or column,
    and for a type that does not fit.
    """
    columns = user_columns(plan.dataset)
    if stage.path:
        return _file_rows(store, stage, columns, beside), frozenset()
    found = load(store, TableName(*stage.table))
    if found is None:
        raise Refused(
            "no-stage", f"There is no table {stage.name}.", "Load the stage first, or fix the model."
        )
    stored = _types(found.shape)
    for each in columns:
        source = each.input or each.name
        if source not in stored:
            raise Refused(
                "missing-column", f"{stage.name} has no column {source}.", "Fix the model.", [source]
            )
        if not ddl.fits(stored[source], each, plan.dialect):
            raise Refused(
                "STAGE_TYPE",
                f"{stage.name}.{source} is {stored[source]}, and {each.name} {plan.dialect.type_of(each)} "
                "cannot hold all of its values.",
                "Cast it in the stage, or widen the column.",
                [each.name],
            )
    brought = frozenset(name for name in LOAD_COLUMNS if name in stored)
    rows = (
        store.spark.table(store.sql_name(found.shape.table))
        if _marks_deletion(plan)
        else current_table_rows(store, found)
    )
    rows = rows.select(*_stage_columns(rows, columns), *(column(name) for name in sorted(brought)))
    return with_values(store, rows, beside), brought


def _marks_deletion(plan: Load) -> bool:
    """Whether the dataset's flag of deletion is Fivetran's own: then flagged rows are needed."""
    soft = plan.dataset.historization.soft_delete
    flags = [each for each in user_columns(plan.dataset) if soft and each.name == soft.column]
    return any((each.input or each.name) == DELETED for each in flags)


def _file_rows(
    store: Store, stage: Stage, columns: Sequence[ModelColumn], beside: Mapping[str, str]
) -> "DataFrame":
    assert stage.path is not None
    if not stage.path.exists() or stage.path.stat().st_size <= ON_DRIVER:
        rows = read_stage(stage, columns)
        for name, value in beside.items():
            rows = rows.append_column(name, pa.repeat(value, len(rows)))
        return frame_of(store, rows)
    typed = ", ".join(f"{quote(each.name)} {spark_type(column_type(each))}" for each in columns)
    once = store.spark.range(1, numPartitions=1)
    return with_values(store, once.mapInArrow(partial(_read, stage, list(columns)), typed), beside)


def _read(stage: Stage, columns: Sequence[ModelColumn], _: Any) -> Any:
    with carry_errors():
        yield from read_stage(stage, columns).to_batches(max_chunksize=1 << 16)


def _stage_columns(rows: "DataFrame", columns: Sequence[ModelColumn]) -> "list[SparkColumn]":
    """Stage columns as the base's; naive times are taken for UTC, which is the zone of a load's session."""
    sources = ((each, each.input or each.name) for each in columns)
    return [
        cast_as_shown(column(source), rows.schema[source].dataType, spark_type(column_type(each))).alias(
            each.name
        )
        for each, source in sources
    ]


def with_values(store: Store, rows: "DataFrame", beside: Mapping[str, str]) -> "DataFrame":
    """The rows, these values beside each; no plan shows them."""
    from pyspark.sql.functions import broadcast

    one = frame_of(store, pa.table({name: [value] for name, value in beside.items()}))
    return rows.crossJoin(broadcast(one))


def empty_rows(store: Store, shape: Shape) -> "DataFrame":
    """No rows of a table that is not there yet, with the places that rows have."""
    typed = [f"{quote(each.name)} {spark_type(each.type)}" for each in shape.columns]
    return store.spark.createDataFrame([], ", ".join([*typed, f"{FILE} string", f"{POSITION} bigint"]))
