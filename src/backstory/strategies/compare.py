"""Whether values differ, NULL and NaN included."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def differing(left: pa.Table, right: pa.Table) -> np.ndarray:
    """For each row whether any column differs; NULL equals NULL, and floats compare by their bits."""
    differs = np.zeros(left.num_rows, bool)
    for name in left.column_names:
        differs |= _column_differs(left[name], right[name])
    return differs


def _column_differs(left: pa.ChunkedArray, right: pa.ChunkedArray) -> np.ndarray:
    unlike = pc.not_equal(_comparable(left), _comparable(right))
    one_null = pc.xor(left.is_null(), right.is_null())
    return np.asarray(pc.or_(pc.fill_null(unlike, False), one_null))


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    bits = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(column.type)
    if bits is None:
        return column
    return pa.chunked_array([chunk.view(bits) for chunk in column.chunks], type=bits)


def take_or_null(column: pa.ChunkedArray, rows: np.ndarray) -> pa.Array:
    """The values at these rows, NULL where the row is -1."""
    whole = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return whole.take(pa.array(rows, mask=rows < 0))
