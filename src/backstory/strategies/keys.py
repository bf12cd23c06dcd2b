"""Keys as numbers, so that plans can sort, match and group by them."""

from collections.abc import Sequence
from functools import reduce
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Numbers are close where there are not so many times more of them than rows.
CLOSE = 4
# A text tells its part by so many of its first bytes, a word at a time.
MOST_BYTES, WORD = 64, 8
LOW_BYTES = np.array([(1 << (8 * count)) - 1 for count in range(WORD + 1)], np.uint64)

Codes = np.ndarray
Values = TypeVar("Values", pa.Array, pa.ChunkedArray)


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
    return dense_codes(values)


def dense_codes(values: pa.ChunkedArray) -> Codes:
    """A number for each value, in the order in which they first occur; NULL is one."""
    encoded = values.dictionary_encode(null_encoding="encode")
    chunks = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
    return np.concatenate([np.zeros(0, np.int64), *chunks]).astype(np.int64)


def normalize_floats(values: Values) -> Values:
    """The values with one zero and one NaN, so that bits tell them apart as Spark's comparisons do."""
    if not pa.types.is_floating(values.type):
        return values
    one = pc.if_else(pc.is_nan(values), pa.scalar(np.nan, values.type), values)
    return pc.add(one, pa.scalar(0.0, values.type))


def rank_values(values: pa.Array) -> np.ndarray:
    """Numbers in the order of the values, the same for those that are one; NULL is -1."""
    encoded = normalize_floats(pa.chunked_array([values])).combine_chunks().dictionary_encode()
    found = np.full(len(encoded.dictionary) + 1, -1, np.int64)
    found[np.asarray(pc.sort_indices(encoded.dictionary))] = np.arange(len(encoded.dictionary))
    return found[np.asarray(pc.fill_null(encoded.indices, -1))]


def keys_by_value(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The key's columns, floats with one zero and one NaN."""
    return pa.table([normalize_floats(rows[name]) for name in key], names=list(key))


def without_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows in which a column of the key is NULL."""
    lacks = np.zeros(len(rows), bool)
    for name in key:
        lacks |= np.asarray(rows[name].combine_chunks().is_null())
    return rows.filter(pa.array(lacks)) if lacks.any() else rows.slice(0, 0)


def last_of(codes: Codes, count: int) -> np.ndarray:
    """For each code the index of its last row, -1 where it has none."""
    last = np.full(count, -1, np.int64)
    last[codes] = np.arange(len(codes))
    return last


def flags_of(codes: Codes, count: int) -> np.ndarray:
    """For each code whether it occurs."""
    flags = np.zeros(count, bool)
    flags[codes] = True
    return flags


def pair_codes(codes: Codes, times: np.ndarray) -> tuple[Codes, int]:
    """A number for each pair of a key's code and a time, and how many there are."""
    time = dense_codes(pa.chunked_array([pa.array(times)]))
    pairs = dense_codes(pa.chunked_array([pa.array(codes * (int(time.max(initial=0)) + 1) + time)]))
    return pairs, int(pairs.max(initial=-1)) + 1


def key_parts(rows: pa.Table, key: Sequence[str], count: int, salt: int = 0) -> np.ndarray:
    """For each row one of so many parts, by a hash of its key; rows of one key are in one part, of any table.

    The columns have one type wherever they are compared; another `salt` parts them in another way.
    """
    return (key_numbers(rows, key, salt) % np.uint64(count)).astype(np.uint8)


def key_numbers(rows: pa.Table, key: Sequence[str], salt: int = 0) -> np.ndarray:
    """A number of 64 bits for the key of each row: keys that are one have one, others hardly ever."""
    numbers = np.full(len(rows), salt, np.uint64)
    for name in key:
        numbers = mix_bits(numbers ^ _numbers(normalize_floats(rows[name]).combine_chunks()))
    return numbers


def find_places(numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """For each wanted number its place among others that ascend; -1 for one that is not there."""
    if len(wanted) < len(numbers):
        places = np.searchsorted(numbers, wanted)
        places[numbers[np.minimum(places, len(numbers) - 1)] != wanted] = -1
        return places
    # By their hashes many are found in a fraction of that time.
    return _indices(wanted, numbers)


def _indices(wanted: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    found = pc.index_in(pa.array(wanted), value_set=pa.array(numbers))
    return np.asarray(pc.fill_null(found, -1)).astype(np.int64)


def _numbers(values: pa.Array) -> np.ndarray:
    """A number for each value, the same one for values that are one; NULL is 0."""
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
    """Of lists: what their items add up to, each with its place, and their length."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(values), 0)).astype(np.int64)
    ends = np.cumsum(lengths)
    places = np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
    items = mix_bits(_numbers(normalize_floats(values.flatten())) ^ mix_bits(places.astype(np.uint64)))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(items, dtype=np.uint64)])
    return sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64)


def _text_numbers(values: pa.Array) -> np.ndarray:
    """Of texts and bytes: their first 64 bytes, eight at a time, their last eight, and their length."""
    values = pc.fill_null(values.cast(pa.binary()), b"").cast(pa.large_binary())
    _, ends, content = values.buffers()
    ends = np.frombuffer(ends, np.int64)[values.offset : values.offset + len(values) + 1]
    # Padded, so that eight bytes can be read wherever a text begins, and the last eight of any.
    padding = np.zeros(WORD, np.uint8)
    data = np.concatenate([padding, np.frombuffer(content or b"", np.uint8)[ends[0] : ends[-1]], padding])
    words = np.ndarray(len(data) - WORD + 1, "<u8", data, 0, (1,))
    starts, lengths = ends[:-1] - ends[0] + WORD, np.diff(ends)
    found, most = lengths.astype(np.uint64), int(lengths.max(initial=0))
    if most == lengths.min(initial=most):  # texts of one length lie at equal distances
        for first in range(0, min(most, MOST_BYTES), WORD):
            word = np.ndarray(len(found), "<u8", data, WORD + first, (most,))
            found = mix_bits(found ^ (word & LOW_BYTES[min(most - first, WORD)]))
    else:
        for first in range(0, min(most, MOST_BYTES), WORD):
            there = np.flatnonzero(lengths > first)
            low = LOW_BYTES[np.minimum(lengths[there] - first, WORD)]
            found[there] = mix_bits(found[there] ^ (words[starts[there] + first] & low))
    longer = np.flatnonzero(lengths > MOST_BYTES)
    found[longer] = mix_bits(found[longer] ^ words[starts[longer] + lengths[longer] - WORD])
    return found


def mix_bits(numbers: np.ndarray) -> np.ndarray:
    """Numbers whose bits all depend on all bits of the former ones (the finalizer of MurmurHash3)."""
    mixed = numbers.copy()
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(33)
    return mixed
