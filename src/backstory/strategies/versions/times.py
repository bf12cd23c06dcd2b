"""Instants as whole microseconds, so that versions can be sorted and compared as numbers."""

import numpy as np
import pyarrow as pa

TMAX = 253_402_300_799_999_000  # 9999-12-31T23:59:59.999Z, the end of an active version (F10)
NO_TIME = np.iinfo(np.int64).min  # stands for NULL: earlier than every instant
NEVER = np.iinfo(np.int64).max

_INSTANT = pa.timestamp("us", tz="UTC")


def micros(column: pa.ChunkedArray) -> np.ndarray:
    """Microseconds from 1970-01-01T00:00:00Z, NO_TIME where NULL."""
    numbers = column.cast(pa.int64()).fill_null(NO_TIME)
    return numbers.to_numpy() if numbers.num_chunks else np.zeros(0, np.int64)


def timestamps(numbers: np.ndarray) -> pa.Array:
    """The opposite of `micros`."""
    return pa.array(numbers, mask=numbers == NO_TIME).cast(_INSTANT)
