"""A batch as Arrow, where its columns are those of its dataset already: Spark need not make them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.odf.event_times import DAYS, INSTANTS
from backstory.strategies.events.arrow.sides import ArrowSide

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField

INSTANT: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class TakenColumns:
    """Which columns of a batch become those of a side; None stands for one that is all NULL, or 0 for `op`.

    `data` has the types that they get, `required` those of them that must not be NULL.
    """

    data: Mapping[str, tuple[str | None, pa.DataType]]
    op: str | None
    time: str | None
    dated: bool
    required: Sequence[str]


def taken_columns(
    batch: "Mapping[str, StructField]",
    names: Mapping[str, str],
    data: "Sequence[StructField]",
    system: Sequence[str | None],
    required: Sequence[str],
    *,
    dated: bool,
) -> TakenColumns | None:
    """What to take of a batch; None where Spark makes something else of a column.

    `names` are those that the columns have where they are read, `system` the ones for `op` (None where each
    row adds) and for the event time.
    """
    from pyspark.sql import types as spark
    from pyspark.sql.pandas.types import to_arrow_type

    op, time = (None if name is None else batch.get(name) for name in system)
    if op is not None and not isinstance(op.dataType, spark.ByteType | spark.ShortType | spark.IntegerType):
        return None
    void = {name for name, field in batch.items() if isinstance(field.dataType, spark.NullType)}
    if time is not None and time.name not in void:
        kind = spark.DateType if dated else spark.TimestampType
        if not isinstance(time.dataType, kind):
            return None
    if not all(each.name in void or _widens(batch[each.name].dataType, each.dataType) for each in data):
        return None
    return TakenColumns(
        {
            each.name: (None if each.name in void else names[each.name], to_arrow_type(each.dataType))
            for each in data
        },
        None if op is None else names[op.name],
        None if time is None or time.name in void else names[time.name],
        dated,
        required,
    )


def _widens(found: "DataType", wanted: "DataType") -> bool:
    """Whether a cast is of no consequence."""
    from pyspark.sql import types as spark

    match found, wanted:
        case spark.DecimalType(), spark.DecimalType():
            return found.scale == wanted.scale and found.precision <= wanted.precision
        case (
            (spark.ByteType() | spark.ShortType() | spark.IntegerType()),
            (spark.IntegerType() | spark.LongType()),
        ):
            return True
        case spark.FloatType(), spark.DoubleType():
            return True
    return bool(found == wanted)


def side_of_batch(rows: pa.Table, taken: TakenColumns) -> tuple[ArrowSide, Mapping[str, int]] | None:
    """The rows as a side, and the NULLs in required columns; None where an event time is of no year."""
    type_ = pa.date32() if taken.dated else INSTANT
    times = _column(rows, taken.time, type_)
    bounds, (first, last) = pc.min_max(times), DAYS if taken.dated else INSTANTS
    for each in bounds.values():
        count = each.cast(pa.int32() if taken.dated else pa.int64()).as_py()
        if count is not None and not first <= count <= last:
            return None
    data = pa.table({name: _column(rows, source, kind) for name, (source, kind) in taken.data.items()})
    ops = (
        _column(rows, taken.op, pa.int32()) if taken.op else pa.chunked_array([np.zeros(len(rows), np.int32)])
    )
    places = pa.chunked_array([np.arange(len(rows))])
    return ArrowSide(data, ops, times, places), {name: data[name].null_count for name in taken.required}


def _column(rows: pa.Table, name: str | None, type_: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(len(rows), type_)]) if name is None else rows[name].cast(type_)
