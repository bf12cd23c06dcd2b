"""Which values have one canonical text in Spark and in DuckDB: hashes of those are computed by either."""

from datetime import date
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_date, is_timestamp

from backstory.stores.sql.columns import Datatype

# Spark's tables hold the others as texts.
ALIKE: Final = frozenset(Datatype) - {Datatype.FLOAT, Datatype.TIME, Datatype.UUID}
# Beyond these days the two write years in another way.
FIRST, LAST = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))


def in_years(values: pa.ChunkedArray) -> bool:
    """Whether days and instants lie in years of four digits."""
    if not (is_date(values.type) or is_timestamp(values.type)):
        return True
    days = pc.min_max(values.cast(pa.date32()).cast(pa.int32())).as_py()
    return days["min"] is None or FIRST <= days["min"] <= days["max"] <= LAST
