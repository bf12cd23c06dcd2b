"""Numbers for keys, by which plans sort, match and group rows."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Integers are numbered by their distance from the least if their range is less than this many times the
# number of rows.
CLOSE = 4
# The hash of a string covers this many of its first bytes, one word at a time.
MOST_BYTES, WORD = 64, 8
LOW_BYTES = np.array([(1 << (8 * count)) - 1 for count in range(WORD + 1)], np.uint64)

Codes = np.ndarray


@dataclass(frozen=True)
class ParallelArrays:
    """The base of dataclasses whose fields are arrays of the same length."""

    def take(self, places: np.ndarray) -> Self:
        """The entries at these indexes in this order, or the entries that a mask selects."""
        return type(self)(*(getattr(self, field.name)[places] for field in fields(self)))

    @classmethod
    def join(cls, *parts: Self) -> Self:
        """The entries of all parts."""
        return cls(*(np.concatenate([getattr(part, of.name) for part in parts]) for of in fields(cls)))


Values = TypeVar("Values", pa.Array, pa.ChunkedArray)


def key_codes(tables: Sequence[pa.Table], key: Sequence[str]) -> tuple[list[Codes], int]:
    """A number for each row of each table, and the exclusive upper bound of the numbers.

    Two numbers are equal exactly if the keys are equal. Keys are compared exactly, without case folding or
    trimming, and NULL equals NULL (section 2.8).
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
    """A number for each value. Integers in a small range are numbered by their distance from the least."""
    if pa.types.is_integer(values.type) and len(values) and not values.null_count:
        bounds = pc.min_max(values)
        least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
        if greatest - least < CLOSE * len(values):
            return np.asarray(values).astype(np.int64) - least
    return dense_codes(values)


def dense_codes(values: pa.ChunkedArray) -> Codes:
    """A number for each value, in the order of first occurrence. NULL has a number, too."""
    encoded = values.dictionary_encode(null_encoding="encode")
    chunks = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
    return np.concatenate([np.zeros(0, np.int64), *chunks]).astype(np.int64)


def normalize_floats(values: Values) -> Values:
    """The values with a single zero and a single NaN, so that equal bits mean equality in Spark."""
    if not pa.types.is_floating(values.type):
        return values
    one = pc.if_else(pc.is_nan(values), pa.scalar(np.nan, values.type), values)
    return pc.add(one, pa.scalar(0.0, values.type))


def rank_values(values: pa.Array) -> np.ndarray:
    """Numbers in the order of the values. Equal values have equal numbers, and NULL has -1."""
    encoded = normalize_floats(pa.chunked_array([values])).combine_chunks().dictionary_encode()
    numbers = np.full(len(encoded.dictionary) + 1, -1, np.int64)
    numbers[np.asarray(pc.sort_indices(encoded.dictionary))] = np.arange(len(encoded.dictionary))
    return numbers[np.asarray(pc.fill_null(encoded.indices, -1))]


def keys_by_value(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The key's columns, with a single zero and a single NaN in floats."""
    return pa.table([normalize_floats(rows[name]) for name in key], names=list(key))


def without_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows in which a column of the key is NULL."""
    lacks = np.zeros(len(rows), bool)
    for name in key:
        lacks |= np.asarray(rows[name].combine_chunks().is_null())
    return rows.filter(pa.array(lacks)) if lacks.any() else rows.slice(0, 0)


def last_of(codes: Codes, count: int) -> np.ndarray:
    """For each code, the index of its last row, or -1 if it has no rows."""
    last = np.full(count, -1, np.int64)
    last[codes] = np.arange(len(codes))
    return last


def latest_at(codes: Codes, times: np.ndarray, wanted: Codes, at: np.ndarray) -> np.ndarray:
    """For each pair of a wanted code and a time, the code's latest row at or before the time, or -1.

    `codes` and `times` have the code and the time of each row. If several rows share the time, the last one
    counts.
    """
    count = len(codes)
    code, time = np.concatenate([codes, wanted]), np.concatenate([times, at])
    order = np.lexsort((np.arange(len(code)) >= count, time, code))
    is_row = order < count
    latest = np.maximum.accumulate(np.where(is_row, np.arange(len(order)), -1))[~is_row]
    rows = np.full(len(wanted), -1)
    rows[order[~is_row] - count] = np.where(latest >= 0, order[latest], -1)
    there = rows >= 0
    there[there] = codes[rows[there]] == wanted[there]
    return np.where(there, rows, -1)


def flags_of(codes: Codes, count: int) -> np.ndarray:
    """For each code below `count`, whether it occurs."""
    flags = np.zeros(count, bool)
    flags[codes] = True
    return flags


def pair_codes(codes: Codes, times: np.ndarray) -> tuple[Codes, int]:
    """A number for each pair of a key's code and a time, and the number of distinct pairs."""
    time = dense_codes(pa.chunked_array([pa.array(times)]))
    pairs = dense_codes(pa.chunked_array([pa.array(codes * (int(time.max(initial=0)) + 1) + time)]))
    return pairs, int(pairs.max(initial=-1)) + 1


def key_parts(rows: pa.Table, key: Sequence[str], count: int, salt: int = 0) -> np.ndarray:
    """The part number of each row, below `count`, by a hash of its key.

    Equal keys have the same part in all tables whose key columns have the same types. A different `salt`
    results in different parts.
    """
    return (key_numbers(rows, key, salt) % np.uint64(count)).astype(np.uint8)


def key_numbers(rows: pa.Table, key: Sequence[str], salt: int = 0) -> np.ndarray:
    """A 64-bit hash of each row's key. Equal keys have equal hashes; different keys rarely do."""
    numbers = np.full(len(rows), salt, np.uint64)
    for name in key:
        numbers = mix_bits(numbers ^ _numbers(normalize_floats(rows[name]).combine_chunks()))
    return numbers


def find_places(numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The index of each wanted number in the sorted `numbers`, or -1 if it is missing."""
    if len(wanted) < len(numbers):
        places = np.searchsorted(numbers, wanted)
        places[numbers[np.minimum(places, len(numbers) - 1)] != wanted] = -1
        return places
    # For many numbers, a hash lookup is several times faster.
    indices = pc.index_in(pa.array(wanted), value_set=pa.array(numbers))
    return np.asarray(pc.fill_null(indices, -1)).astype(np.int64)


def _numbers(values: pa.Array) -> np.ndarray:
    """A number for each value. Equal values have equal numbers, and NULL has 0."""
    type_ = values.type
    if pa.types.is_struct(type_):
        parts = map(_numbers, map(normalize_floats, values.flatten()))
        return reduce(lambda one, more: mix_bits(one ^ more), parts, np.zeros(len(values), np.uint64))
    if pa.types.is_list(type_):
        return _list_numbers(values)
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return _text_numbers(values)
    if pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_):
        return _text_numbers(values.cast(pa.string() if pa.types.is_decimal(type_) else pa.binary()))
    if pa.types.is_floating(type_):
        values = pa.array(np.asarray(pc.fill_null(values, 0.0)).astype(np.float64).view(np.int64))
    if pa.types.is_date32(type_) or pa.types.is_time32(type_):
        values = values.cast(pa.int32())
    return np.asarray(pc.fill_null(values.cast(pa.int64()), 0)).view(np.uint64)


def _list_numbers(values: pa.ListArray) -> np.ndarray:
    """A number for each list: its length, and the sum of its items' hashes with their positions."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(values), 0)).astype(np.int64)
    ends = np.cumsum(lengths)
    places = np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
    items = mix_bits(_numbers(normalize_floats(values.flatten())) ^ mix_bits(places.astype(np.uint64)))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(items, dtype=np.uint64)])
    return sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64)


def _text_numbers(values: pa.Array) -> np.ndarray:
    """A number for each string: a hash of its first 64 bytes, its last eight, and its length."""
    values = pc.fill_null(values.cast(pa.binary()), b"").cast(pa.large_binary())
    _, ends, content = values.buffers()
    ends = np.frombuffer(ends, np.int64)[values.offset : values.offset + len(values) + 1]
    # Padded, so that eight bytes can be read at the start and before the end of each string.
    padding = np.zeros(WORD, np.uint8)
    data = np.concatenate([padding, np.frombuffer(content or b"", np.uint8)[ends[0] : ends[-1]], padding])
    words = np.ndarray(len(data) - WORD + 1, "<u8", data, 0, (1,))
    starts, lengths = ends[:-1] - ends[0] + WORD, np.diff(ends)
    numbers, most = lengths.astype(np.uint64), int(lengths.max(initial=0))
    if most == lengths.min(initial=most):  # strings of equal length begin at equal distances
        for first in range(0, min(most, MOST_BYTES), WORD):
            word = np.ndarray(len(numbers), "<u8", data, WORD + first, (most,))
            numbers = mix_bits(numbers ^ (word & LOW_BYTES[min(most - first, WORD)]))
    else:
        for first in range(0, min(most, MOST_BYTES), WORD):
            longer_texts = np.flatnonzero(lengths > first)
            low = LOW_BYTES[np.minimum(lengths[longer_texts] - first, WORD)]
            numbers[longer_texts] = mix_bits(
                numbers[longer_texts] ^ (words[starts[longer_texts] + first] & low)
            )
    longer = np.flatnonzero(lengths > MOST_BYTES)
    numbers[longer] = mix_bits(numbers[longer] ^ words[starts[longer] + lengths[longer] - WORD])
    return numbers


def mix_bits(numbers: np.ndarray) -> np.ndarray:
    """Numbers whose bits depend on all bits of the given numbers (the finalizer of MurmurHash3)."""
    mixed = numbers.copy()
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(33)
    return mixed
