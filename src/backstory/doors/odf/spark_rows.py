"""Both sides of a merge for the driver, where Spark must read or make them: as far as they can be held."""

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from backstory.doors.odf.sides import MergeSides
from backstory.engine.staging import FEW_ROWS
from backstory.formats.memory import MemoryLease, TooLarge, unpacked_size
from backstory.strategies.events.sides import PLACE
from backstory.strategies.events.tasks import number_columns
from backstory.strategies.observed import observed_by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Spark is asked for the delivered keys of a longer log.
SHORT: Final = 20_000
# Of the delivered keys it has no more events than these, or Spark's tasks merge.
MANY: Final = 200_000


def collect_delivery(sides: MergeSides, lease: MemoryLease) -> tuple[pa.Table, Counter[str]]:
    """The delivered rows in one query, and what was counted of them.

    Raises TooLarge for more than can be held, and for more than a query of few rows promised.
    """
    read, arrived = sides.read, sides.arrived
    if read is None or not (read.size if arrived.placed else read.few):
        raise TooLarge
    size = read.size or 0 if arrived.placed else unpacked_size(FEW_ROWS, len(arrived.data), 0)
    lease.hold("batch", size)
    frame = _numbered(sides, arrived.rows if arrived.placed else arrived.rows.limit(FEW_ROWS + 1))
    rows = _collected(sides, frame)
    if not arrived.placed and len(rows) > FEW_ROWS:
        raise TooLarge
    lease.hold("batch", 0)  # whoever takes the rows counts them
    # A correction's two halves stand right beside each other.
    places = pa.array(np.argsort(np.argsort(rows[PLACE])))
    rows = rows.set_column(rows.column_names.index(PLACE), PLACE, places)
    return rows, observed_by(frame)[arrived.seen]


def collect_log(sides: MergeSides, keys: pa.Table | None, lease: MemoryLease) -> pa.Table:
    """The log, of a long one what has these keys. Raises TooLarge for more than can be held."""
    table = sides.dataset.table
    assert table is not None
    few = keys is not None and sides.stored > SHORT
    if few and keys is not None and not keys.num_columns:
        raise TooLarge
    size = (MANY, 0) if few else (sides.stored, table.bytes)
    lease.hold("log", unpacked_size(size[0], len(sides.schema), size[1]))
    log = sides.logged(keys if few else None)
    assert log is not None
    rows = _collected(sides, _numbered(sides, log.limit(MANY + 1) if few else log))
    if few and len(rows) > MANY:
        raise TooLarge
    lease.hold("log", 0)
    return rows


def _numbered(sides: MergeSides, rows: "DataFrame") -> "DataFrame":
    from pyspark.sql.types import StructType

    return number_columns(rows, StructType(list(sides.arrived.data)))


def _collected(sides: MergeSides, rows: "DataFrame") -> pa.Table:
    return rows.toArrow().rename_columns(sides.schema.names).cast(sides.schema)
