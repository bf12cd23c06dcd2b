"""Identify the rows of tables without a key by a digest of all their values, and count equal rows.

The digest is stored, so the string that is hashed never changes. The string has an entry for each value that
is not NULL, sorted by column name. An entry has the column's name and the value, each after its length. A
column with NULL therefore counts as a missing column. Values are equal as in V16: NaN is NaN, -0.0 is 0.0,
maps have no order. Equal integers of any width have the same string. So do a FLOAT and a DOUBLE that print as
the same number.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.values.cells import shortest_texts
from backstory.strategies.keys import key_codes, normalize_floats
from backstory.strategies.values import distinct, entries

# The number of hexadecimal digits of a key: 128 bits (E9).
DIGITS: Final = 32
# This many rows are processed at a time, which bounds the memory for their strings.
ROWS_AT_ONCE: Final = 1 << 14
_TEXT: Final = pa.large_binary()
_NULL_ITEM: Final = pa.scalar(b"-", _TEXT)  # every other item begins with a digit


def row_keys(rows: pa.Table) -> pa.ChunkedArray:
    """The key of each row: a digest of its values. Keys are equal exactly if the rows are equal."""
    chunks = (
        pa.array([sha256(text).hexdigest()[:DIGITS] for text in _row_texts(part).to_pylist()], pa.string())
        for part in (rows.slice(first, ROWS_AT_ONCE) for first in range(0, len(rows), ROWS_AT_ONCE))
    )
    return pa.chunked_array(chunks, pa.string())


def count_equal_rows(rows: pa.Table, key: Sequence[str], copies: str) -> tuple[pa.Table, pa.Table]:
    """One row of each key, with the number of its rows in `copies`, and conflicting rows as in `distinct`."""
    ones, conflicts = distinct(rows, key)
    if len(ones) == len(rows):
        return rows, conflicts
    (of_all, of_ones), count = key_codes([rows, ones], key)
    numbers = pa.array(np.bincount(of_all, minlength=count)[of_ones], pa.int64())
    return ones.set_column(ones.schema.get_field_index(copies), copies, numbers), conflicts


def _row_texts(rows: pa.Table) -> pa.Array:
    columns = ((name, rows[name].combine_chunks()) for name in rows.column_names)
    return _entries_of_row(columns, len(rows))


def _entries_of_row(columns: Iterable[tuple[str, pa.Array]], count: int) -> pa.Array:
    """For each row, the joined entries of the values that are not NULL."""
    texts = [_entries(name, values) for name, values in sorted(columns, key=lambda column: column[0])]
    nothing = pa.repeat(pa.scalar(b"", _TEXT), count)
    return pc.binary_join_element_wise(nothing, *texts, pa.scalar(b"", _TEXT))


def _entries(name: str, values: pa.Array) -> pa.Array:
    """The entry for each value in a column, or an empty string for NULL."""
    encoded = name.encode()
    named = pa.scalar(b"%d:%s" % (len(encoded), encoded), _TEXT)
    empty = pa.scalar(b"", _TEXT)
    return pc.binary_join_element_wise(
        named, _with_length(_texts(values)), empty, null_handling="emit_null"
    ).fill_null(empty)


def _with_length(texts: pa.Array) -> pa.Array:
    """The strings, each after its length in bytes. NULL stays NULL."""
    lengths = pc.binary_length(texts).cast(pa.string()).cast(_TEXT)
    return pc.binary_join_element_wise(lengths, texts, pa.scalar(b":", _TEXT))


def _texts(values: pa.Array) -> pa.Array:
    """The string of each value, or NULL for NULL. Equal values have equal strings."""
    type_ = values.type
    if pa.types.is_struct(type_):
        fields = zip((field.name for field in type_), values.flatten(), strict=True)
        return pc.if_else(values.is_valid(), _entries_of_row(fields, len(values)), pa.scalar(None, _TEXT))
    if pa.types.is_map(type_):
        return _texts(entries(values))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _list_texts(values)
    if pa.types.is_floating(type_):
        values = shortest_texts(normalize_floats(values))
    elif pa.types.is_date32(type_):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(type_):
        values = values.cast(pa.int64())
    if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
        values = values.cast(pa.string())
    return values.cast(_TEXT)


def _list_texts(values: pa.ListArray) -> pa.Array:
    """The items of each list, joined in their order."""
    items = _with_length(_texts(values.flatten())).fill_null(_NULL_ITEM)
    ends = np.cumsum(np.append(0, np.asarray(pc.list_value_length(values).fill_null(0))))
    lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items)
    return pc.if_else(values.is_valid(), pc.binary_join(lists, pa.scalar(b"", _TEXT)), pa.scalar(None, _TEXT))
