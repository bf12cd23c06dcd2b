"""Recognition of Debezium's placeholder for unchanged values that are stored out of line.

Debezium 3.3 writes the placeholder in the column's type (`UnchangedToastedPlaceholder`): as a string, bytes,
hstore, or a list of strings, bytes, numbers or ids. An id is `UUID.nameUUIDFromBytes` of the string. In lists
of other types Debezium writes NULL, which then counts as the value.
"""

import base64
import hashlib
import json
import uuid
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

UNAVAILABLE: Final = "__debezium_unavailable_value"


def unavailable_cells(values: pa.Array, placeholder: str) -> pa.Array:
    """Whether each cell is the placeholder. NULL is not."""
    t, type_ = pa.types, values.type
    if t.is_string(type_) or t.is_large_string(type_):
        return pc.is_in(values, pa.array(_texts(placeholder), type_))
    if t.is_binary(type_) or t.is_large_binary(type_):
        return pc.is_in(values, pa.array([placeholder.encode()], type_))
    if t.is_list(type_):
        return pa.array(_unavailable_lists(values, placeholder))
    if t.is_map(type_) and t.is_string(type_.key_type) and t.is_string(type_.item_type):
        entries = values.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))
        ours = pa.scalar([{"key": placeholder, "value": placeholder}], entries.type)
        alike = [entry == ours for entry in entries]
        return pa.array(alike, pa.bool_())
    return pa.repeat(pa.scalar(False), len(values))


def _texts(placeholder: str) -> list[str]:
    """The placeholder as a string, as bytes in JSON, and as an hstore in JSON."""
    encoded = base64.b64encode(placeholder.encode()).decode()
    return [placeholder, encoded, json.dumps({placeholder: placeholder}, separators=(",", ":"))]


def _unavailable_lists(lists: pa.ListArray, placeholder: str) -> np.ndarray:
    t, item = pa.types, lists.type.value_type
    if t.is_string(item):
        named = uuid.UUID(bytes=hashlib.md5(placeholder.encode(), usedforsecurity=False).digest(), version=3)
        return _lists_of(lists, [[text] for text in (*_texts(placeholder), str(named))])
    if t.is_binary(item):
        return _lists_of(lists, [[placeholder.encode()], [bytes([byte]) for byte in placeholder.encode()]])
    if t.is_integer(item) or t.is_floating(item):
        return _lists_of(lists, [list(placeholder.encode())])
    return np.zeros(len(lists), bool)


def _lists_of(lists: pa.ListArray, patterns: list[list[object]]) -> np.ndarray:
    """Whether each list equals one of the patterns."""
    alike = np.zeros(len(lists), bool)
    lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy()
    for pattern in patterns:
        rows = np.flatnonzero(lengths == len(pattern))
        if len(rows):
            items = lists.take(pa.array(rows)).flatten()
            wanted = pa.array(pattern * len(rows), items.type)
            same = pc.fill_null(pc.equal(items, wanted), False).to_numpy(zero_copy_only=False)
            alike[rows] |= same.reshape(len(rows), -1).all(axis=1)
    return alike
