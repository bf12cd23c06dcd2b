"""A batch as Arrow, where its columns are those of its dataset already: Spark need not make them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.odf.event_times import DAYS, INSTANTS
from backstory.engine.staging import StagedRows
from backstory.stores.metadata.hidden import Unreadable
from backstory.strategies.events.sides import OP, PLACE, TIME

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField


@dataclass(frozen=True, slots=True)
class TakenColumns:
    """The columns of a batch for those of a side; None stands for one that is all NULL, or 0 for `op`."""

    data: Mapping[str, str | None]
    op: str | None
    time: str | None


def taken_columns(
    batch: "Mapping[str, StructField]",
    names: Mapping[str, str],
    data: "Sequence[StructField]",
    system: Sequence[str | None],
    *,
    dated: bool,
) -> TakenColumns | None:
    """What to take of a batch; None where Spark makes something else of a column.

    `names` are those that the columns have where they are read, `system` the ones for `op` (None where each
    row adds) and for the event time.
    """
    from pyspark.sql import types as spark

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
        {each.name: None if each.name in void else names[each.name] for each in data},
        None if op is None else names[op.name],
        None if time is None or time.name in void else names[time.name],
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
    return bool(found == wanted)


def side_tables(read: StagedRows, taken: TakenColumns, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows as a side of these columns, some at a time.

    Raises Unreadable for a file that is spoilt, and for an event time of no year: Spark tells of them.
    """
    assert read.tables is not None
    sources = {OP: taken.op, TIME: taken.time, **taken.data}
    wanted = {name: source for name, source in sources.items() if name in schema.names and source}
    first = 0
    try:
        for rows in read.tables(list(wanted.values())):
            size = len(rows)
            made = {OP: np.zeros(size, np.int32), PLACE: np.arange(first, first + size)}
            made |= {name: rows[source] for name, source in wanted.items()}
            values = [made.get(each.name, pa.nulls(size, each.type)) for each in schema]
            side = pa.table(values, names=schema.names).cast(schema)
            if TIME in schema.names:
                _require_years(side[TIME])
            first += size
            yield side
    except (OSError, pa.ArrowException) as fault:
        raise Unreadable(str(fault)) from fault


def _require_years(times: pa.ChunkedArray) -> None:
    dated = pa.types.is_date32(times.type)
    first, last = DAYS if dated else INSTANTS
    for each in pc.min_max(times).values():
        count = each.cast(pa.int32() if dated else pa.int64()).as_py()
        if count is not None and not first <= count <= last:
            raise Unreadable("an event time of no year")
