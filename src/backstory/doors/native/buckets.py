"""Delivered and stored rows of native tables by bucket of their key, each planned in one of Spark's tasks."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from backstory.doors.native.acts import ACT
from backstory.formats.delivered import arrow_schema, in_schema
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.schema import Column
from backstory.stores.iceberg.buckets import plan_buckets
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.positions import coded_file
from backstory.stores.iceberg.schema import spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Beside the numbered columns of stored rows.
_PLACES: Final = {"file": FILE, "position": POSITION, "id": ROW_ID}


def numbered_rows(rows: "DataFrame", columns: Sequence[Column], salt: int) -> "DataFrame":
    """Stored rows in the table's columns by number, those that they lack NULL; files are numbers, too."""
    from pyspark.sql.functions import lit

    there = set(rows.columns)
    own = (
        column(each.name) if each.name in there else lit(None).cast(spark_type(each.type)) for each in columns
    )
    values = [value.alias(f"c{number}") for number, value in enumerate(own)]
    id_ = column(ROW_ID) if ROW_ID in there else lit(None).cast("bigint")
    return rows.select(
        *values, coded_file(salt).alias("file"), column(POSITION).alias("position"), id_.alias("id")
    )


def slice_of_bucket(stored: pa.Table, columns: Sequence[Column], *, ids: bool) -> pa.Table:
    """The same rows in a task, under their own names; a bucket without any has no columns."""
    names = {f"c{number}": each.name for number, each in enumerate(columns)}
    names |= {new: name for new, name in _PLACES.items() if name != ROW_ID or ids}
    places = [(name, pa.int64()) for name in _PLACES.values() if name in names.values()]
    schema = pa.schema([*arrow_schema({each.name: each.type for each in columns}), *places])
    if not stored.num_columns:
        return schema.empty_table()
    return in_schema(stored.select(list(names)).rename_columns(list(names.values())), schema)


def acts_of_buckets(
    sides: "Sequence[tuple[DataFrame, Sequence[str]]]",
    rows: int,
    columns: Sequence[Column],
    plan: Callable[[pa.Table, pa.Table], pa.Table],
) -> "DataFrame":
    """What `plan` decides of each bucket, as acts; each of two sides comes with the columns of its key.

    There are buckets for so many `rows`; those of one key are in one.
    """
    declared = ", ".join(f"c{number} {spark_type(each.type)}" for number, each in enumerate(columns))
    by_key = [(side, [column(name) for name in key]) for side, key in sides]
    return plan_buckets(by_key, rows, plan, f"{ACT}, {declared}")
