"""Keys as numbers, so that plans can sort, match and group by them."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Numbers are close where there are not so many times more of them than rows.
CLOSE = 4

Codes = np.ndarray


def key_codes(tables: Sequence[pa.Table], key: Sequence[str]) -> tuple[list[Codes], int]:
    """A number for each row of each table, equal exactly where the keys are; and the least above all.

    Keys compare exactly and NULL equals NULL (section 2.8): no case folding, no trimming.
    """
    codes = _column_codes(tables, key[0])
    for name in key[1:]:
        more = _column_codes(tables, name)
        pairs = codes * (int(more.max(initial=0)) + 1) + more
        codes = _codes(pa.chunked_array([pa.array(pairs)]))
    sizes = [table.num_rows for table in tables]
    return np.split(codes, np.cumsum(sizes)[:-1]), int(codes.max(initial=-1)) + 1


def _column_codes(tables: Sequence[pa.Table], name: str) -> Codes:
    chunks = [chunk for table in tables for chunk in table[name].chunks]
    return _codes(pa.chunked_array(chunks, type=tables[0].schema.field(name).type))


def _codes(values: pa.ChunkedArray) -> Codes:
    """Whole numbers that lie close to each other are their own codes."""
    if pa.types.is_integer(values.type) and len(values) and not values.null_count:
        bounds = pc.min_max(values)
        least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
        if greatest - least < CLOSE * len(values):
            return np.asarray(values).astype(np.int64) - least
    return _dense(values)


def _dense(values: pa.ChunkedArray) -> Codes:
    encoded = values.dictionary_encode(null_encoding="encode")
    chunks = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
    return np.concatenate([np.zeros(0, np.int64), *chunks]).astype(np.int64)


def last_of(codes: Codes, count: int) -> np.ndarray:
    """For each code the index of its last row, -1 where it has none."""
    last = np.full(count, -1, np.int64)
    last[codes] = np.arange(len(codes))
    return last


def flagged(codes: Codes, count: int) -> np.ndarray:
    """For each code whether it occurs."""
    flags = np.zeros(count, bool)
    flags[codes] = True
    return flags


def pair_codes(codes: Codes, times: np.ndarray) -> tuple[Codes, int]:
    """A number for each pair of a key's code and a time, and how many there are."""
    time = _dense(pa.chunked_array([pa.array(times)]))
    pairs = _dense(pa.chunked_array([pa.array(codes * (int(time.max(initial=0)) + 1) + time)]))
    return pairs, int(pairs.max(initial=-1)) + 1
