"""Events of change feeds in the same form for every envelope, and operations on their Arrow structs.

Debezium 3.3 writes a placeholder (`UnchangedToastedPlaceholder`) for an unchanged value that is stored out of
line. The placeholder has the column's type: a string, bytes, an hstore, or a list of strings, bytes, numbers
or ids. An id is `UUID.nameUUIDFromBytes` of the string. For lists of other types, Debezium writes NULL, which
then counts as the value.
"""

import base64
import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import Refused
from backstory.formats.produced import refuse_repeated
from backstory.formats.rows import type_of_arrow
from backstory.formats.values.exactly import merge_types, plain_type, wider_type

# The name of a feed in messages.
FEED: Final = "The feed"
UPSERT: Final = "upsert"
DELETE: Final = "delete"
TRUNCATE: Final = "truncate"
INSTANT: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class LogSource:
    """The connectors, servers and tables that messages name (V136, V137).

    One log has at most one of each; reads of a snapshot may lack the server.
    """

    connectors: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()

    def join(self, other: "LogSource") -> "LogSource":
        """The connectors, servers and tables of two parts of one delivery."""
        return LogSource(
            self.connectors | other.connectors, self.servers | other.servers, self.tables | other.tables
        )


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """Events as parallel tables and arrays. Row i of each belongs to event i.

    Attributes:
        rows: the record's columns, with the values of an upsert or the key of a delete. Other columns
            are NULL.
        kinds: `upsert`, `delete` or `truncate`.
        instants: the times of the events in UTC; NULL if the envelope has no time.
        sequence: the positions of the events in their log, as sort columns. Numbers and booleans sort by
            value, texts by code point. The last column is true for changes and false for reads. A read
            without a position is NULL in all columns. The table has no columns if the envelope has no order.
        unmodified: for each column of `rows` that some event leaves unchanged, flags of these events (V50).
        before: the values before the events, in columns of `rows`; or None if no event has such values.
        has_before: whether each event has a row in `before`; all other rows of `before` are NULL.
        places: the input row of each event, counted from 0.
        unordered: the connector whose log positions are unknown, so that the caller must pass `sequence_by`;
            otherwise empty.
        source: the origin of the log.
    """

    rows: pa.Table
    kinds: pa.Array
    instants: pa.Array
    sequence: pa.Table
    unmodified: pa.Table
    before: pa.Table | None
    has_before: pa.Array
    places: pa.Array
    unordered: str = ""
    source: LogSource = field(default_factory=LogSource)


def whole_columns(rows: pa.Table, name: str) -> dict[str, pa.Array]:
    """The columns of a table, each in one array of a table type. Raises Refused if a name is repeated."""
    refuse_repeated(name, rows.column_names)
    columns = {}
    for column, part in zip(rows.column_names, rows.columns, strict=True):
        type_ = plain_type(part.type, naive=True) or part.type
        columns[column] = pa.concat_arrays([pa.nulls(0, part.type), *part.chunks]).cast(type_)
    return columns


def fields_of(structs: pa.Array) -> dict[str, pa.Array]:
    """The fields of structs by name, NULL in a NULL struct. An array of another type has no fields."""
    if not pa.types.is_struct(structs.type):
        return {}
    return dict(zip(structs.type.names, structs.flatten(), strict=True))


def struct_of(fields: Mapping[str, pa.Array], mask: pa.Array | None = None) -> pa.Array:
    """Structs made of the fields, with NULL where the mask is true."""
    return pa.StructArray.from_arrays(list(fields.values()), list(fields), mask=mask)


def with_field(structs: pa.Array, name: str, values: pa.Array) -> pa.Array:
    """The structs with a field added or replaced."""
    return struct_of({**fields_of(structs), name: values}, structs.is_null())


def all_null(columns: Mapping[str, pa.Array], count: int) -> pa.Array:
    """Whether each row is NULL in all columns."""
    empty = pa.repeat(pa.scalar(True), count)
    for part in columns.values():
        empty = pc.and_(empty, part.is_null())
    return empty


def joint_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both types, or None if no type does."""
    try:
        return merge_types(one, other, _joint_leaf)
    except pa.ArrowTypeError:
        return None


def _joint_leaf(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    t = pa.types
    mixed = any(t.is_integer(a) and t.is_floating(b) for a, b in ((one, other), (other, one)))
    if (type_ := pa.float64() if mixed else wider_type(one, other)) is None:
        raise pa.ArrowTypeError
    return type_


def joint_column(name: str, types: Iterable[pa.DataType], where: str) -> pa.DataType:
    """The common type of a column. Raises Refused (`mixed-types`), with both types, if two types conflict."""
    joint = pa.null()
    for type_ in types:
        both = joint_type(joint, type_)
        if both is None:
            raise _contradiction(name, joint, type_, where)
        joint = both
    return joint


def _contradiction(name: str, one: pa.DataType, other: pa.DataType, where: str) -> Refused:
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        theirs = {field.name: field.type for field in other}
        for field in one:
            if field.name in theirs and joint_type(field.type, theirs[field.name]) is None:
                return _contradiction(f"{name}.{field.name}", field.type, theirs[field.name], where)
    return Refused(
        "mixed-types",
        f"{where}: `{name}` has type {type_of_arrow(one)} in some messages "
        f"and {type_of_arrow(other)} in others.",
        "Nothing was written; apply the messages before and after the change of type separately.",
        [name],
    )


UNAVAILABLE: Final = "__debezium_unavailable_value"


def unavailable_cells(values: pa.Array, placeholder: str) -> pa.Array:
    """Whether each cell is the placeholder for an unavailable value. A NULL cell is not a placeholder."""
    t, type_ = pa.types, values.type
    if t.is_string(type_) or t.is_large_string(type_):
        return pc.is_in(values, pa.array(_texts(placeholder), type_))
    if t.is_binary(type_) or t.is_large_binary(type_):
        return pc.is_in(values, pa.array([placeholder.encode()], type_))
    if t.is_list(type_):
        return pa.array(_unavailable_lists(values, placeholder))
    if t.is_map(type_) and t.is_string(type_.key_type) and t.is_string(type_.item_type):
        ours = [(placeholder, placeholder)]
        return pa.array([entries == ours for entries in values.to_pylist()], pa.bool_())
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
