"""The rows of a feed as events: kind, time, and the columns that each event sets (V45 to V51)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.feeds.ordering import Ordering, instants_of, local_times
from backstory.errors import MAX_KEYS, Refused
from backstory.formats.delivered import arrow_schema
from backstory.formats.rows import KEEPS, arrow_type
from backstory.formats.values.exactly import cast_same
from backstory.model.table import Column
from backstory.model.types import ColumnType, Kind
from backstory.model.versions_layout import FactKind
from backstory.strategies.feeds.terms import ASSERTED, AT, BEFORE_IMAGE, FURTHER, KIND

# Extra columns with the order of the rows, and with the rows that delete; no source has such names.
ORDER: Final = "backstory: order {}"
DELETES: Final = "backstory: deletes"
TRUNCATES: Final = "backstory: truncates"
LIST: Final = pa.list_(pa.int32())

_LIST: Final = ColumnType(Kind.LIST, parts=(("element", ColumnType(Kind.INT)),))


@dataclass(frozen=True, slots=True)
class UnmodifiedCells:
    """The cells of an upsert that leave their column unmodified (V50).

    `nulls` are the columns whose NULLs are unmodified, or True for all. `text` marks unmodified cells in
    string columns. `names` is a column whose array names the columns that are set. Readers and envelopes flag
    unmodified cells in extra columns.
    """

    nulls: frozenset[str] | bool = False
    text: str | None = None
    names: str | None = None

    def cells(self, rows: pa.Table, name: str) -> np.ndarray:
        """A mask of the rows that leave a column unmodified."""
        values = rows[name]
        if self.names is not None:
            return _rows_without_name(rows[self.names], name)
        cells = np.zeros(len(rows), bool)
        if KEEPS.format(name) in rows.column_names:
            cells |= np.asarray(pc.fill_null(rows[KEEPS.format(name)], False))
        if self.nulls is True or (self.nulls and name in self.nulls):
            cells |= np.asarray(pc.is_null(values))
        if self.text is not None and pa.types.is_string(values.type):
            cells |= np.asarray(pc.fill_null(pc.equal(values, self.text), False))
        return cells


def _rows_without_name(lists: pa.ChunkedArray, name: str) -> np.ndarray:
    """A mask of the rows whose array of names lacks a column. A row without an array sets all columns."""
    rows = lists.cast(pa.list_(pa.string())).combine_chunks()
    named = pc.fill_null(pc.equal(pc.list_flatten(rows), name), False)
    lacking = np.array(rows.is_valid())
    lacking[np.asarray(pc.list_parent_indices(rows).filter(named))] = False
    return lacking


def _refuse_unknown_names(rows: pa.Table, names: str) -> None:
    """Raise Refused for rows that set a column that the source lacks, because the change would be lost."""
    lists = rows[names].combine_chunks()
    if pa.types.is_null(lists.type):
        return
    named = pc.unique(pc.list_flatten(lists).cast(pa.string())).to_pylist()
    if unknown := sorted({*filter(None, named)} - {*rows.column_names}):
        raise Refused(
            "unknown-column",
            f"{names} names the column {unknown[0]}, which the source does not have.",
            "Nothing was written; name columns of the source, exactly as they are written there.",
            unknown[:MAX_KEYS],
        )


@dataclass(frozen=True, slots=True)
class EventMapping:
    """The mapping of rows to events: the delivered columns in the table's types, and the table's field ids.

    `numbers` has all columns outside the key. Columns that are not delivered are unmodified. If `counted` is
    true, rows have a number in their source. `before` are the columns of before-images.
    """

    delivered: tuple[Column, ...]
    key: tuple[str, ...]
    numbers: Mapping[str, int]
    ordering: Ordering
    unmodified: UnmodifiedCells
    counted: bool = True
    before: tuple[Column, ...] = ()


def events_of(rows: pa.Table, terms: EventMapping) -> pa.Table:
    """An event for each row: the record's columns in the table's types, and the columns of the strategy.

    `rows` have the source's columns and the columns of its expressions. Raises Refused for unreadable times,
    and for rows that set columns that the source lacks.
    """
    if terms.unmodified.names is not None:
        _refuse_unknown_names(rows, terms.unmodified.names)
    kinds = _kinds(rows)
    upserts = np.asarray(pc.equal(kinds, FactKind.UPSERT.value))
    at = instants_of(rows[ORDER.format(0)], terms.ordering.expressions[0], counted=terms.counted)
    asserted, unmodified = _asserted_columns(rows, terms, upserts)
    schema = arrow_schema({column.name: column.type for column in terms.delivered})
    values = {
        field.name: _values(rows[field.name], field.type, unmodified.get(field.name)) for field in schema
    }
    events = {**values, AT: at, KIND: kinds, ASSERTED: asserted}
    if terms.ordering.types:
        events[FURTHER] = _further_sequence(rows, terms.ordering, counted=terms.counted)
    if terms.before:
        events[BEFORE_IMAGE] = _before_images(rows[BEFORE_IMAGE].combine_chunks(), terms.before)
    return pa.table(events)


def _kinds(rows: pa.Table) -> pa.Array:
    """The kind of each row.

    NULL in a condition is false, and truncates take precedence over deletes (V48).
    """
    deletes, truncates = (
        pc.fill_null(rows[name].cast(pa.bool_()).combine_chunks(), False)
        if name in rows.column_names
        else pa.repeat(False, len(rows))
        for name in (DELETES, TRUNCATES)
    )
    return pc.if_else(
        truncates, FactKind.TRUNCATE.value, pc.if_else(deletes, FactKind.DELETE.value, FactKind.UPSERT.value)
    )


def _values(values: pa.ChunkedArray, type_: pa.DataType, unmodified: np.ndarray | None) -> pa.ChunkedArray:
    if unmodified is not None:
        values = pc.if_else(pa.chunked_array([unmodified]), pa.scalar(None, values.type), values)
    return values.cast(type_)


def _asserted_columns(
    rows: pa.Table, terms: EventMapping, upserts: np.ndarray
) -> tuple[pa.Array, Mapping[str, np.ndarray]]:
    """The field ids of the columns that each row sets (NULL for all), and the unmodified cells by column."""
    names = [column.name for column in terms.delivered if column.name not in terms.key]
    unmodified = {name: terms.unmodified.cells(rows, name) & upserts for name in names}
    unmodified = {name: cells for name, cells in unmodified.items() if cells.any()}
    if not unmodified and len(names) == len(terms.numbers):
        return pa.nulls(len(rows), LIST), {}
    sets = np.ones((len(rows), len(names)), bool)
    for place, name in enumerate(names):
        if name in unmodified:
            sets[:, place] = ~unmodified[name]
    patterns, places = _patterns(sets)
    numbers = np.array([terms.numbers[name] for name in names], np.int32)
    lists = pa.array([sorted(numbers[pattern].tolist()) for pattern in patterns], LIST)
    whole = pa.array([len(ids) == len(terms.numbers) for ids in lists.to_pylist()], pa.bool_())
    lists = pc.if_else(whole, pa.scalar(None, LIST), lists)
    chosen = lists.take(places)
    return pc.if_else(pa.array(upserts), chosen, pa.scalar(None, LIST)), unmodified


def _patterns(sets: np.ndarray) -> tuple[np.ndarray, pa.Array]:
    """The distinct rows of a boolean matrix, and for each row the number of its pattern."""
    count, width = sets.shape
    packed = np.packbits(
        np.column_stack([sets, np.ones(count, bool)]), axis=1
    )  # at least a byte, even without columns
    type_ = pa.binary(packed.shape[1])
    encoded = pa.Array.from_buffers(type_, count, [None, pa.py_buffer(packed)]).dictionary_encode()
    differing = np.frombuffer(b"".join(encoded.dictionary.to_pylist()), np.uint8)
    bits = np.unpackbits(differing.reshape(-1, packed.shape[1]), axis=1, count=width)
    return bits.astype(bool), encoded.indices


def _before_images(images: pa.StructArray, columns: Sequence[Column]) -> pa.StructArray:
    """The before-images, in the table's types."""
    parts = [cast_same(images.field(column.name), arrow_type(column.type)) for column in columns]
    return pa.StructArray.from_arrays(parts, names=[column.name for column in columns], mask=images.is_null())


def _further_sequence(rows: pa.Table, ordering: Ordering, *, counted: bool) -> pa.StructArray:
    ((_, struct),) = ordering.memory_part
    parts = [
        instants_of(rows[ORDER.format(number)], text, counted=counted)
        if local_times(text)
        else rows[ORDER.format(number)].combine_chunks().cast(arrow_type(type_))
        for number, (text, type_) in enumerate(zip(ordering.expressions[1:], ordering.types, strict=True), 1)
    ]
    if ordering.log:  # the number of the log is known only after all messages are read
        parts = [pa.nulls(len(rows), pa.int64()), *parts]
    return pa.StructArray.from_arrays(parts, names=[name for name, _ in struct.parts])


def event_columns(terms: EventMapping) -> dict[str, ColumnType]:
    """The type of each column of events, in their order."""
    own = {AT: ColumnType(Kind.UTC_DATETIME), KIND: ColumnType(Kind.STRING), ASSERTED: _LIST}
    if terms.ordering.types:
        ((_, own[FURTHER]),) = terms.ordering.memory_part
    if terms.before:
        parts = tuple((column.name, column.type) for column in terms.before)
        own[BEFORE_IMAGE] = ColumnType(Kind.STRUCT, parts=parts)
    return {**{column.name: column.type for column in terms.delivered}, **own}


def typed_events(terms: EventMapping, events: pa.Table) -> pa.Table:
    """Events from Spark, in the types of Arrow."""
    schema = arrow_schema(event_columns(terms))
    return events.select(schema.names).cast(schema)
