"""The logical hash of Arrow rows on the driver, which equals Spark's (section 6.5).

`row_hash` describes the form. SHA-256 and XXH64 are computed row by row. The strings of rows, and the sums of
hashes, are computed for all rows of a piece at once.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, reduce
from hashlib import sha256
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

from backstory.stores.metadata.table_metadata import Unreadable
from backstory.stores.metadata.table_rows import MOST_IN_ARROW, TableReader
from backstory.stores.metadata.values import whole_numbers

# The maximum number of rows, and of bytes, that are hashed at a time.
PIECE: Final = 1 << 16
LARGEST: Final = 1 << 26
# Arrow and NumPy release the interpreter's lock.
THREADS: Final = 2
WORDS: Final = 4
# Spark hashes a word's index with the seed 42, and then the row's hash with the result as the seed.
SEEDS: Final = [xxh64_intdigest(place.to_bytes(4, "little"), 42) for place in range(WORDS)]
# The two hexadecimal digits of each byte.
LOWER, UPPER = (
    np.frombuffer("".join(form % byte for byte in range(256)).encode(), np.uint16)
    for form in ("%02x", "%02X")
)
MANTISSA, HIDDEN = 52, 1023  # the bits of the fraction of a 64-bit float, and the bias of its exponent


def hash_of_table(rows: pa.Table, offset: str) -> str | None:
    """The hash of rows whose offsets are in the column `offset`, or None if there are no rows."""
    return hash_text(sum_of_words(rows, offset)) if len(rows) else None


def sum_of_words(rows: pa.Table, offset: str) -> np.ndarray:
    """The words of the hash of rows. Words of several tables are joined by exclusive or."""
    sums = (np.bitwise_xor.reduce(words, axis=1) for words in _words(rows, offset))
    return reduce(np.bitwise_xor, sums, np.zeros(WORDS, np.uint64))


def hash_text(words: np.ndarray) -> str:
    """The hash with these words, in hexadecimal digits."""
    return "".join(f"{int(each):016x}" for each in words)


def _words(rows: pa.Table, offset: str) -> Iterator[np.ndarray]:
    """The words of the rows, one piece at a time."""
    repeating = _repeating(rows.slice(0, PIECE))

    def words(piece: pa.Table) -> np.ndarray:
        texts = _texts(piece, offset, repeating).to_pylist()
        digests = [sha256(each).hexdigest().encode() for each in texts]
        return np.array([[xxh64_intdigest(each, seed) for each in digests] for seed in SEEDS], np.uint64)

    with ThreadPoolExecutor(THREADS) as pool:
        yield from pool.map(words, _pieces(rows, PIECE))


def _pieces(rows: pa.Table, size: int) -> Iterator[pa.Table]:
    """The rows in pieces. The strings of a piece fit into one array of 2 GiB."""
    for start in range(0, len(rows), size):
        piece = rows.slice(start, size)
        if piece.nbytes > LARGEST and len(piece) > 1:
            yield from _pieces(piece, -(-len(piece) // 2))
        else:
            yield piece


def _repeating(rows: pa.Table) -> frozenset[str]:
    """The columns with few distinct values. The string of each distinct value is computed only once."""
    flat = [name for name in rows.column_names if not pa.types.is_nested(rows[name].type)]
    counts = {name: len(pc.unique(rows[name])) for name in flat}
    return frozenset(name for name, count in counts.items() if count * 2 < len(rows))


def _texts(rows: pa.Table, offset: str, repeating: Collection[str]) -> pa.Array:
    """The string of each row, as bytes."""
    numbers = pc.coalesce(rows[offset].combine_chunks().cast(pa.string()), "~")
    columns = {name: rows[name].combine_chunks() for name in sorted(rows.column_names)}
    fields = [
        (_repeated_field_texts if name in repeating else _field_texts)(name, each)
        for name, each in columns.items()
    ]
    parts = [numbers, " ", *(each for each in fields if each is not None)]
    return pc.binary_join_element_wise(*parts, "", null_handling="replace").cast(pa.binary())


def _repeated_field_texts(name: str, values: pa.Array) -> pa.Array | None:
    """The same strings as `_field_texts`, computed only once for equal values."""
    encoded = values.dictionary_encode()
    texts = _field_texts(name, encoded.dictionary)
    return None if texts is None else texts.take(encoded.indices)


def _field_texts(name: str, values: pa.Array) -> pa.Array | None:
    """The strings of one column, NULL for NULL, or None if all values are NULL."""
    if values.null_count == len(values):
        return None
    return _join_texts(f"{len(name.encode())}:{name}", _value(values))


def _value(values: pa.Array) -> pa.Array:
    """The string of each value, after the letter of its kind, or NULL. `row_hash` uses the same rule."""
    if pa.types.is_struct(values.type):
        return pc.if_else(values.is_valid(), _join_texts("{", *_parts(values), "}"), None)
    if pa.types.is_map(values.type):
        return _several("m", values, *_entries(values))
    if pa.types.is_list(values.type):
        items = pc.coalesce(_value(values.flatten()), "~")
        return _several("l", values, items, np.asarray(pc.list_value_length(values).fill_null(0)))
    letter, texts = _kind_and_texts(values)
    return _join_texts(letter, pc.binary_length(texts).cast(pa.string()), ":", texts)


def _parts(values: pa.StructArray) -> Iterator[pa.Array]:
    """The strings of a struct's fields that are not NULL, sorted by the names of the fields."""
    names = [field.name for field in values.type]
    for name, part in sorted(zip(names, values.flatten(), strict=True), key=lambda each: each[0]):
        yield pc.coalesce(_join_texts(f"{len(name.encode())}:{name}", _value(part)), "")


def _entries(maps: pa.MapArray) -> tuple[pa.Array, np.ndarray]:
    """The strings of all map entries, sorted within each map, and the number of entries of each map."""
    whole = pa.concat_arrays([maps.drop_null()])  # offsets of the copied entries begin at 0
    lengths = np.zeros(len(maps), np.int64)
    lengths[np.asarray(maps.is_valid())] = np.diff(np.asarray(whole.offsets))
    entries = _join_texts(_value(whole.keys), pc.coalesce(_value(whole.items), "~"))
    owners = pa.array(np.repeat(np.arange(len(maps)), lengths))
    order = pc.sort_indices(
        pa.table([owners, entries], names=["map", "entry"]),
        sort_keys=[("map", "ascending"), ("entry", "ascending")],
    )
    return entries.take(order), lengths


def _several(letter: str, values: pa.Array, items: pa.Array, lengths: np.ndarray) -> pa.Array:
    """The string of each list or map, made from its items. `lengths` has the number of items in each."""
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    content = pc.binary_join(pa.ListArray.from_arrays(ends, items), "")
    texts = _join_texts(letter, pa.array(lengths).cast(pa.string()), ":", content)
    return pc.if_else(values.is_valid(), texts, None)


def _join_texts(*parts: str | pa.Array) -> pa.Array:
    """Concatenate strings. The result is NULL if one of them is NULL."""
    return pc.binary_join_element_wise(*parts, "")


def _kind_and_texts(values: pa.Array) -> tuple[str, pa.Array]:  # noqa: PLR0911 - a branch a kind
    """The letter of a column's kind, and the string of each value."""
    is_ = pa.types
    if is_.is_integer(values.type):
        return "i", values.cast(pa.string())
    if is_.is_floating(values.type):
        return "f", _floats(values)
    if is_.is_decimal(values.type):
        return "n", values.cast(pa.string())
    if is_.is_boolean(values.type):
        return "b", values.cast(pa.string())
    if is_.is_date32(values.type):
        return "d", values.cast(pa.int32()).cast(pa.string())
    if is_.is_timestamp(values.type):
        return "t" if values.type.tz else "w", values.cast(pa.int64()).cast(pa.string())
    if is_.is_binary(values.type):
        return "x", _hexadecimal(values)
    assert is_.is_string(values.type)
    return "s", values


def _hexadecimal(values: pa.Array) -> pa.Array:
    """The bytes of each value in hexadecimal digits."""
    lengths = np.asarray(pc.fill_null(pc.binary_length(values), 0))
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(2 * lengths, dtype=np.int64)]).astype(np.int32)
    content = b"".join(values.drop_null().to_pylist())
    digits = UPPER[np.frombuffer(content, np.uint8)]
    texts = pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(digits))
    return pc.if_else(values.is_valid(), texts, None)


def _floats(values: pa.Array) -> pa.Array:
    """Floats by their bits, in the form of Java's `%a`. The value -0.0 becomes 0.0."""
    wide = np.asarray(pc.fill_null(values.cast(pa.float64()), 0.0)) + 0.0
    bits = wide.view(np.uint64)
    parts = ((bits << np.uint64(64 - MANTISSA)).astype(">u8")).view(np.uint8)
    digits = LOWER[parts].view("S16")
    fraction = pc.utf8_rtrim(pa.array(digits, pa.binary()).cast(pa.string()), characters="0")
    fraction = pc.if_else(pc.equal(fraction, ""), "0", fraction)
    exponent = (bits >> np.uint64(MANTISSA)).astype(np.int64) & (2 * HIDDEN + 1)
    small = exponent == 0
    power = np.where(wide == 0, 0, np.where(small, 1 - HIDDEN, exponent - HIDDEN))
    sign = pc.if_else(pa.array(wide < 0), "-", "")
    whole = pc.if_else(pa.array(small), "0x0.", "0x1.")
    texts = pc.binary_join_element_wise(sign, whole, fraction, "p", pa.array(power).cast(pa.string()), "")
    texts = pc.if_else(pa.array(np.isinf(wide)), pc.binary_join_element_wise(sign, "Infinity", ""), texts)
    texts = pc.if_else(pa.array(np.isnan(wide)), "NaN", texts)
    return pc.if_else(values.is_valid(), texts, None)


class Slice(NamedTuple):
    """A slice of rows: their number, their hash, and their first and last offset."""

    rows: int = 0
    hash: str | None = None
    first: int | None = None
    last: int | None = None


# The number of a block, and its first and last offset.
Span = tuple[int, int, int]


@dataclass(frozen=True)
class SmallRows:
    """A small dataset, read from files. Raises Unreadable if only Spark can read or hash it."""

    files: TableReader

    def slices(self, spans: Sequence[Span], names: Mapping[str, str]) -> dict[int | None, Slice]:
        """The rows of each span and, under None, the rows in no span.

        `names` maps renamed columns to their names when the rows were written.
        """
        if self.files.table.snapshot is None:
            return {}
        offsets, words = _words_by_offset(self._rows, names)
        slices: dict[int | None, Slice] = {}
        outside = np.ones(words.shape[1], bool)
        for number, start, end in spans:
            first, last = np.searchsorted(offsets, [start, end + 1])
            slices[number] = _slice(offsets, words, np.arange(first, last))
            outside[first:last] = False
        if outside.any():
            slices[None] = _slice(offsets, words, np.flatnonzero(outside))
        return slices

    def count_repeated(self, start: int, end: int) -> int:
        """The number of rows in a span minus the number of their distinct offsets."""
        offsets = whole_numbers(self._rows.column(0))
        inside = offsets[(offsets >= start) & (offsets <= end)]
        return len(inside) - len(np.unique(inside))

    @cached_property
    def _rows(self) -> pa.Table:
        """The rows of the newest snapshot, with the current names of columns."""
        table, snapshot = self.files.table, self.files.table.snapshot
        assert snapshot is not None
        then = table.fields_then(snapshot.get("schema-id"))
        rows = self.files.rows(snapshot, then, [each["name"] for each in then], MOST_IN_ARROW)
        now = {each["id"]: each["name"] for each in table.fields}
        names = [now.get(each["id"], each["name"]) for each in then]
        if any(pa.types.is_nested(each.type) for each in rows.schema) or len(set(names)) < len(names):
            raise Unreadable("nested values, or two columns with one name")
        if not pa.types.is_integer(rows.schema[0].type):  # the offset is always the first column
            raise Unreadable("offsets that are not numbers")
        return rows.rename_columns(names)


def _words_by_offset(rows: pa.Table, names: Mapping[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """The sorted offsets of rows, and the rows' hash words. Rows without an offset have the last words."""
    renamed = rows.rename_columns([names.get(name, name) for name in rows.column_names])
    nothing = np.zeros((WORDS, 0), np.uint64)
    words = np.concatenate([nothing, *_words(renamed, renamed.column_names[0])], axis=1)
    has_offset, offsets = rows.column(0).is_valid().to_numpy(), whole_numbers(rows.column(0))
    order = np.argsort(offsets, kind="stable")
    in_order = np.concatenate([words[:, has_offset][:, order], words[:, ~has_offset]], axis=1)
    return offsets[order], in_order


def _slice(offsets: np.ndarray, words: np.ndarray, places: np.ndarray) -> Slice:
    """The slice that consists of the rows at these places."""
    if not len(places):
        return Slice()
    own = offsets[places[places < len(offsets)]].tolist()
    row_hash = hash_text(np.bitwise_xor.reduce(words[:, places], axis=1))
    return Slice(len(places), row_hash, *(own[0], own[-1]) if own else (None, None))
