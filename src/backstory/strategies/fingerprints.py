"""Fingerprints of rows: 128-bit numbers that differ if a value differs (E9).

They are computed from 64-bit words. Fixed-width values are their own words, DuckDB hashes strings, and one
bit for each value records whether it is NULL. They are not stored, but the token of a copy depends on them:
with another formula, a repeated copy is planned again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.strategies.keys import mix_bits, normalize_floats
from backstory.strategies.values import Values

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# This many rows are processed at a time, so that their words stay in the processor's cache.
ROWS_AT_ONCE: Final = 1 << 16
# DuckDB only needs memory for the hashes of strings.
DUCKDB_MEMORY: Final = "256MB"
_WORD: Final = 64
_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


def duckdb_in_memory(threads: int | None = None) -> "DuckDBPyConnection":
    """A database in memory that writes no temporary files and downloads no extensions.

    Without a number of `threads`, it uses all cores.
    """
    import duckdb

    never = ("autoinstall_known_extensions", "autoload_known_extensions")
    own = {} if threads is None else {"threads": threads}
    return duckdb.connect(config={"temp_directory": "", **dict.fromkeys(never, False), **own})


@dataclass(frozen=True)
class Fingerprints:
    """A calculator of fingerprints with one connection to DuckDB, for one thread at a time."""

    @cached_property
    def _duckdb(self) -> "DuckDBPyConnection":
        import duckdb

        return duckdb.connect(config={"threads": pa.cpu_count(), "memory_limit": DUCKDB_MEMORY})

    def of(
        self, rows: pa.Table, key: Sequence[str], values_by_salt: Mapping[int, Sequence[str]]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """A 64-bit hash of each row's key, and for each salt fingerprints of the key and some columns.

        `values_by_salt` has these columns. Fingerprints are an array of two rows, one for each half. A
        different salt results in different fingerprints.
        """
        keys = np.empty(len(rows), np.uint64)
        prints = [np.empty((2, len(rows)), np.uint64) for _ in values_by_salt]
        names = dict.fromkeys([*key, *(name for values in values_by_salt.values() for name in values)])
        texts, first = [name for name in names if _is_text(rows.schema.field(name).type)], 0
        for hashes in self._text_hashes([rows[name] for name in texts], len(rows)):
            part, hashed = rows.slice(first, len(hashes[0])), dict(zip(texts, hashes, strict=False))
            own = slice(first, first + len(part))
            of_key = _Halves.of_rows(len(part))
            self._absorb_all(of_key, part.select([*key]), hashed)
            keys[own] = mix_bits(of_key.first)
            for each, (salt, values) in zip(prints, values_by_salt.items(), strict=True):
                halves = _Halves(of_key.first.copy(), of_key.second.copy())
                halves.absorb(np.full(len(part), salt, np.uint64))
                self._absorb_all(halves, part.select([*values]), hashed)
                each[0, own], each[1, own] = mix_bits(halves.first), mix_bits(halves.second)
            first += len(part)
        return keys, prints

    def _text_hashes(self, columns: Sequence[Values], count: int) -> Iterator[list[np.ndarray]]:
        """The hashes of string columns for some rows at a time, one array per column.

        Without string columns, there is one array of zeros.
        """
        if not columns:
            for first in range(0, count, ROWS_AT_ONCE):
                yield [np.zeros(min(ROWS_AT_ONCE, count - first))]
            return
        names = [f"c{place}" for place in range(len(columns))]
        texts = self._duckdb.from_arrow(
            pa.table([column.cast(pa.binary()) for column in columns], names=names)
        )
        hashes = texts.project(", ".join(f"hash({name})" for name in names)).to_arrow_table()
        for batch in hashes.to_batches(max_chunksize=ROWS_AT_ONCE):
            yield [np.asarray(column) for column in batch.columns]

    def _absorb_all(self, halves: "_Halves", rows: pa.Table, hashes: Mapping[str, np.ndarray]) -> None:
        nulls = _NullBits(halves)
        for name in rows.column_names:
            values = rows[name].combine_chunks()
            nulls.absorb(values)
            if name in hashes:
                halves.absorb(hashes[name])
                halves.absorb(_words(pc.fill_null(pc.binary_length(values), 0)))
            else:
                self._absorb(halves, nulls, values)
        nulls.finish()

    def _absorb(self, halves: "_Halves", nulls: "_NullBits", values: pa.Array) -> None:
        """Mix the values of a column that is not text, and their NULL bits, into the fingerprints."""
        type_ = values.type
        if pa.types.is_struct(type_):
            for part in values.flatten():
                nulls.absorb(part)
                self._absorb(halves, nulls, part)
        elif pa.types.is_map(type_) or pa.types.is_list(type_) or pa.types.is_large_list(type_):
            for word in self._sums(values):
                halves.absorb(word)
        elif _is_text(type_):
            parts = [each[0] for each in self._text_hashes([values], len(values))]
            halves.absorb(np.concatenate(parts or [np.zeros(0, np.uint64)]))
            halves.absorb(_words(pc.fill_null(pc.binary_length(values), 0)))
        elif not pa.types.is_null(type_):
            for word in _fixed_words(values):
                halves.absorb(word)

    def _sums(self, values: pa.Array) -> Iterator[np.ndarray]:
        """The number of items in each list or map, and both halves of the sum of its items' hashes.

        The items of lists are hashed together with their positions.
        """
        whole = pa.concat_arrays([values.drop_null()])  # a copy, whose offsets begin at 0
        lengths = np.zeros(len(values), np.int64)
        lengths[np.asarray(values.is_valid())] = np.diff(np.asarray(whole.offsets))
        yield lengths.view(np.uint64)
        ends, count = np.cumsum(lengths), int(lengths.sum())
        halves = _Halves.of_rows(count)
        if pa.types.is_map(values.type):
            items = [whole.keys, whole.items]
        else:
            items = [whole.flatten()]
            halves.absorb((np.arange(count) - np.repeat(ends - lengths, lengths)).view(np.uint64))
        nulls = _NullBits(halves)
        for each in items:
            nulls.absorb(each)
            self._absorb(halves, nulls, each)
        nulls.finish()
        for half in (halves.first, halves.second):
            sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mix_bits(half), dtype=np.uint64)])
            yield sums[ends] - sums[ends - lengths]


@dataclass(frozen=True, slots=True)
class _Halves:
    """The two halves of the fingerprints, as computed so far."""

    first: np.ndarray
    second: np.ndarray

    @classmethod
    def of_rows(cls, count: int) -> "_Halves":
        return cls(np.full(count, _SECOND), np.full(count, _FIRST))

    def absorb(self, words: np.ndarray) -> None:
        """Mix a word of each row into both halves, in different ways."""
        first, second = self.first, self.second
        first ^= words
        first *= _FIRST
        first ^= first >> np.uint64(32)
        second += words
        second *= _SECOND
        second ^= second >> np.uint64(29)


@dataclass(slots=True)
class _NullBits:
    """Words whose bits record which values of a row are NULL."""

    halves: _Halves
    bits: np.ndarray | None = None
    count: int = 0

    def absorb(self, values: pa.Array) -> None:
        """Add a bit to the word of each row: whether its value is NULL."""
        if values.null_count:
            bit = np.asarray(values.is_null()).astype(np.uint64) << np.uint64(self.count)
            self.bits = bit if self.bits is None else self.bits | bit
        self.count += 1
        if self.count == _WORD:
            self.finish()

    def finish(self) -> None:
        """Mix the bits into the fingerprints."""
        none = np.zeros(len(self.halves.first), np.uint64)
        self.halves.absorb(none if self.bits is None else self.bits)
        self.bits, self.count = None, 0


def _is_text(type_: pa.DataType) -> bool:
    tests = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
    )
    return any(test(type_) for test in tests)


def _fixed_words(values: pa.Array) -> Iterator[np.ndarray]:
    """The 64-bit words of fixed-width values. The words of NULL are 0."""
    type_ = values.type
    if pa.types.is_decimal(type_):
        width = type_.bit_width // _WORD
        content = values.buffers()[1]
        words = np.frombuffer(content, np.uint64)[
            values.offset * width : (values.offset + len(values)) * width
        ]
        words = words.reshape(-1, width)
        if values.null_count:
            words = np.where(np.asarray(values.is_null())[:, None], np.uint64(0), words)
        yield from words.T
        return
    if pa.types.is_floating(type_):
        plain = np.asarray(pc.fill_null(normalize_floats(values), 0.0).cast(pa.float64()))
        yield plain.view(np.uint64)
        return
    if pa.types.is_date32(type_) or pa.types.is_time32(type_):
        values = values.cast(pa.int32())
    yield _words(pc.fill_null(values.cast(pa.int64()), 0))


def _words(values: Values) -> np.ndarray:
    return np.asarray(values.cast(pa.int64())).view(np.uint64)
