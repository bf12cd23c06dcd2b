"""The rows of a feed as events: order, kind, time, and the columns that each event sets (V13, V45 to V51).

A local time that clocks repeat denotes two instants, and a local time that clocks skip denotes none.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.options import ApplyRequest, Expression
from backstory.errors import MAX_KEYS, Refused, UsageError, bad_option
from backstory.formats.delivered import arrow_schema
from backstory.formats.expected import first_unfit_row
from backstory.formats.rows import KEEPS, arrow_type
from backstory.formats.values.cells import UnreadableCell, parse
from backstory.formats.values.exactly import cast_same
from backstory.model.table import Column
from backstory.model.types import ColumnType, Kind, widens
from backstory.model.versions_layout import ORDERED_BY, SEQUENCE, FactKind
from backstory.strategies.feeds.terms import ASSERTED, AT, BEFORE_IMAGE, FURTHER, KIND

_WORD: Final = re.compile(r"\bto_utc_timestamp\b", re.IGNORECASE)
_LOCAL: Final = re.compile(
    r"\s*to_utc_timestamp\s*\(\s*(?P<time>.+?)\s*,\s*'(?P<zone>[^',]+)'"
    r"\s*(?:,\s*'(?P<side>earlier|later)'\s*)?\)\s*",
    re.IGNORECASE | re.DOTALL,
)
_SIDES: Final = {"earlier": "earliest", "later": "latest"}

INSTANT: Final = ColumnType(Kind.UTC_DATETIME)
DAY: Final = r"^\s*\d{4}-\d{2}-\d{2}$"
_NOT_WRITTEN: Final = "Nothing was written;"
# The part of a position with the number of the log; a table can have several logs in turn.
LOG_NUMBER: Final = "log"


@dataclass(frozen=True, slots=True)
class LocalTimes:
    """Local times in a zone.

    `side` chooses between two instants. Without a side, ambiguous times are refused.
    """

    expression: str
    time: str
    zone: str
    side: str | None

    def instants(self, times: pa.Array, *, counted: bool) -> pa.Array:
        """The instants of local times. Their own zone is ignored: 02:10 means 02:10 on the zone's clocks.

        If a side is set, a skipped time becomes the first instant after the gap. Otherwise, raises Refused
        for skipped and repeated times. The error contains the row's number if `counted` is true.
        """
        clock = pa.timestamp("us")
        local = times.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).cast(clock)
        try:
            if self.side is not None:
                return pc.assume_timezone(
                    local, self.zone, ambiguous=_SIDES[self.side], nonexistent="latest"
                ).cast(pa.timestamp("us", "UTC"))
            first = pc.assume_timezone(local, self.zone, ambiguous="earliest", nonexistent="earliest")
            last = pc.assume_timezone(local, self.zone, ambiguous="latest", nonexistent="latest")
        except pa.ArrowInvalid:
            unknown = f"{self.zone} is not a time zone."
            raise bad_option(unknown, "Name one such as `Europe/Paris`.") from None
        unsure = pc.not_equal(first, last)
        if pc.any(unsure).as_py():
            # A skipped time was moved: the zone's clocks show another time at its instant.
            row = pc.index(unsure, True).as_py()
            skipped = pc.local_timestamp(last)[row] != local[row]
            raise self._time_error(row, counted=counted, skipped=skipped)
        return first.cast(pa.timestamp("us", "UTC"))

    def _time_error(self, row: int, *, counted: bool, skipped: bool) -> Refused:
        where = f"Row {row + 1} of the source" if counted else "A row of the source"
        call = f"to_utc_timestamp({self.time}, '{self.zone}', 'earlier')"
        takes = "the first instant after the gap" if skipped else "the earlier one (or `'later'`)"
        return Refused(
            "skipped-time" if skipped else "repeated-time",
            f"{where} has a time in {self.expression} that means "
            f"{'no instant' if skipped else 'two instants'}, because clocks in {self.zone} "
            f"{'skip' if skipped else 'repeat'} it.",
            "Nothing was written; write times with their offset at the source, or take "
            f'{takes} with `sequence_by=["{call}"]`, and order changes of that hour by further columns.',
        )


def local_times(expression: Expression) -> LocalTimes | None:
    """The local times of an expression, or None if it has no local times.

    Raises UsageError if local times are part of a larger expression, for which Spark would guess the instant.
    """
    if not _WORD.search(str(expression)):
        return None
    text = expression if isinstance(expression, str) else ""  # a Spark column has no text
    match = _LOCAL.fullmatch(text)
    if match is None or _WORD.search(match["time"]) or not _is_one(match["time"]):
        raise bad_option(
            f"{expression} has local times in a larger expression; some of them are two instants, or none.",
            "Let `to_utc_timestamp(time, 'Europe/Paris')` be the whole expression, as a string, with the "
            "name of a zone.",
        )
    return LocalTimes(text, match["time"], match["zone"], match["side"] and match["side"].lower())


def only_adds_side(stored: str, requested: str) -> bool:
    """Whether the new expression only adds a side to the local times of the stored expression."""
    before, now = local_times(stored), local_times(requested)
    if before is None or now is None or before.side is not None:
        return False
    return (before.time, before.zone) == (now.time, now.zone)


def _is_one(text: str) -> bool:
    """Whether a string is a single expression, with balanced brackets and no top-level commas."""
    depth = 0
    for letter in re.sub(r"'[^']*'", "", text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth < 0 or (letter == "," and not depth):
            return False
    return depth == 0


def refuse_no_instant(type_: ColumnType, expression: Expression, *, zoned: bool) -> None:
    """Raise UsageError for types that are not times, and for times without a zone unless `zoned` is true.

    If `zoned` is true, times without a zone are in UTC, as in files.
    """
    if type_.kind is Kind.NAIVE_DATETIME and not zoned:
        raise UsageError(
            "naive-time",
            f"{expression} has times without a zone.",
            f"Give their zone: `sequence_by=[\"to_utc_timestamp({expression}, 'Europe/Paris')\"]`.",
        )
    if type_.kind not in {Kind.NAIVE_DATE, Kind.NAIVE_DATETIME, Kind.UTC_DATETIME, Kind.STRING}:
        raise UsageError(
            "no-instant",
            f"{expression} has values of type {type_}, which are not times.",
            f'Convert them by their unit: `sequence_by=["timestamp_millis({expression})"]`, '
            "`timestamp_seconds` or `timestamp_micros`; a log position comes second.",
        )


def instants_of(values: pa.ChunkedArray, expression: Expression, *, counted: bool) -> pa.Array:
    """The times as instants: local times in their zone, dates as their first instant in UTC.

    Strings are ISO 8601, in UTC if they have no offset. Raises Refused `unreadable-instant` for other
    strings. The error contains the row's number if `counted` is true.
    """
    if (local := local_times(expression)) is not None:
        return local.instants(instants_of(values, local.time, counted=counted), counted=counted)
    one = values.combine_chunks()
    row: int | None
    if pa.types.is_string(one.type):
        day = pc.match_substring_regex(one, DAY)
        try:
            return parse(pc.if_else(day, pc.binary_join_element_wise(one, "T00:00:00Z", ""), one), INSTANT)
        except UnreadableCell as cell:
            row = cell.row
    else:
        if pa.types.is_timestamp(one.type) and one.type.tz is None:
            one = one.cast(pa.timestamp("us")).cast(pa.int64())  # in UTC
        instants = one.cast(arrow_type(INSTANT))
        # A row outside the years 1 to 9999.
        row = first_unfit_row(instants, pa.field(str(expression), instants.type))
        if row is None:
            return instants
    raise Refused(
        "unreadable-instant",
        f"{f'Row {row + 1}' if counted else 'A row'} of the source has no time in {expression}.",
        f"{_NOT_WRITTEN} write times as 2026-01-31T12:00:00Z.",
    )


@dataclass(frozen=True, slots=True)
class Ordering:
    """The expressions of the order, beginning with the time, and the types of the further expressions.

    In messages of a `log`, the further expressions are the position in the log, after the log's number.
    """

    expressions: tuple[str, ...]
    types: tuple[ColumnType, ...]
    log: bool = False

    @property
    def memory_part(self) -> tuple[tuple[str, ColumnType], ...]:
        """The field of `_memory` for the further values. The tuple is empty if the order has none (V2)."""
        number = ((LOG_NUMBER, ColumnType(Kind.LONG)),) if self.log else ()
        parts = (*number, *((f"s{place}", type_) for place, type_ in enumerate(self.types, 1)))
        return ((SEQUENCE, ColumnType(Kind.STRUCT, parts=parts)),) if parts else ()

    def as_property(self) -> str:
        """The expressions and their types, as JSON for the table's property."""
        types = ["TIMESTAMP", *(type_.stored_name for type_ in self.types)]
        pairs = zip(self.expressions, types, strict=True)
        return json.dumps(
            [{"expression": expression, "type": type_} for expression, type_ in pairs], ensure_ascii=False
        )


def stored_expressions(properties: Mapping[str, str]) -> tuple[str, ...] | None:
    """The expressions in a table's properties, or None if the table has had no feed yet."""
    text = properties.get(ORDERED_BY)
    return None if text is None else tuple(entry["expression"] for entry in json.loads(text))


def stored_types(properties: Mapping[str, str]) -> list[ColumnType]:
    """The types of the further values in a table's properties, or an empty list before the first feed."""
    return [ColumnType.parse(entry["type"]) for entry in json.loads(properties.get(ORDERED_BY, "[]"))[1:]]


def agree_expressions(properties: Mapping[str, str], request: ApplyRequest) -> tuple[str, ...]:
    """The table's expressions, or else the requested expressions. Raises Refused if they differ."""
    stored = stored_expressions(properties)
    requested = None if request.sequence_by is None else tuple(map(str, request.sequence_by))
    if stored is None and requested is None:
        raise bad_option(
            "The order of the changes is unknown.",
            "Name the columns that order them with `sequence_by=`, the time of the change first.",
        )
    if stored is None or requested is None:
        return stored or requested or ()
    if len(stored) == len(requested):
        pairs = zip(stored, requested, strict=True)
        stored = tuple(new if only_adds_side(old, new) else old for old, new in pairs)
    if requested != stored:
        raise Refused(
            "settings-changed",
            f"The changes of this table are ordered by {', '.join(stored)}, "
            f"but {', '.join(requested)} is given.",
            "Nothing was written; omit `sequence_by=`, because the table keeps it, or use another table.",
        )
    return stored


def refuse_other_types(properties: Mapping[str, str], ordering: Ordering) -> None:
    """Raise Refused if the types of further values, and thus the order, differ from the table's."""
    if ORDERED_BY not in properties:
        return
    for name, old, new in zip(
        ordering.expressions[1:], stored_types(properties), ordering.types, strict=True
    ):
        if old != new:
            raise Refused(
                "type-changed",
                f"{name} orders changes as {old} in the table, but has type {new} in this delivery.",
                "Nothing was written; cast it to the table's type at the source.",
                [name],
            )


def orders_alike(one: ColumnType, other: ColumnType) -> bool:
    """Whether values of two types have the same order, because one of the types widens to the other."""
    return widens(one, other) or widens(other, one)


# Extra columns with the order of the rows, and with the rows that delete; no source has such names.
ORDER: Final = "backstory: order {}"
DELETES: Final = "backstory: deletes"
TRUNCATES: Final = "backstory: truncates"
LIST: Final = pa.list_(pa.int32())

_LIST: Final = ColumnType(Kind.LIST, parts=(("element", ColumnType(Kind.INT)),))


@dataclass(frozen=True, slots=True)
class UnmodifiedCells:
    """The cells of an upsert that leave their column unmodified (V50).

    `nulls` contains the columns in which NULL means unmodified, or is True for all columns. `text` marks
    unmodified cells in string columns. `names` is a column whose array names the columns that are set.
    Readers and envelopes flag unmodified cells in extra columns.
    """

    nulls: frozenset[str] | bool = False
    text: str | None = None
    names: str | None = None

    def cells(self, rows: pa.Table, name: str) -> np.ndarray:
        """A mask of the rows that leave a column unmodified."""
        values, cells = rows[name], np.zeros(len(rows), bool)
        if self.names is not None:
            cells |= _rows_without_name(rows[self.names], name)
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
    true, errors contain the row's number in the source. `before` are the columns of before-images.
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
        images, names = rows[BEFORE_IMAGE].combine_chunks(), [column.name for column in terms.before]
        parts = [cast_same(images.field(col.name), arrow_type(col.type)) for col in terms.before]
        events[BEFORE_IMAGE] = pa.StructArray.from_arrays(parts, names=names, mask=images.is_null())
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
    """The distinct rows of a boolean matrix, and the index of each row among them."""
    count, width = sets.shape
    packed = np.packbits(
        np.column_stack([sets, np.ones(count, bool)]), axis=1
    )  # at least a byte, even without columns
    type_ = pa.binary(packed.shape[1])
    encoded = pa.Array.from_buffers(type_, count, [None, pa.py_buffer(packed)]).dictionary_encode()
    differing = np.frombuffer(b"".join(encoded.dictionary.to_pylist()), np.uint8)
    bits = np.unpackbits(differing.reshape(-1, packed.shape[1]), axis=1, count=width)
    return bits.astype(bool), encoded.indices


def _further_sequence(rows: pa.Table, ordering: Ordering, *, counted: bool) -> pa.StructArray:
    ((_, struct),) = ordering.memory_part
    parts = [
        instants_of(rows[ORDER.format(number)], text, counted=counted)
        if local_times(text)
        else _cast_to_order(rows[ORDER.format(number)].combine_chunks(), text, type_)
        for number, (text, type_) in enumerate(zip(ordering.expressions[1:], ordering.types, strict=True), 1)
    ]
    if ordering.log:  # the number of the log is known only after all messages are read
        parts = [pa.nulls(len(rows), pa.int64()), *parts]
    return pa.StructArray.from_arrays(parts, names=[name for name, _ in struct.parts])


def _cast_to_order(values: pa.Array, expression: str, type_: ColumnType) -> pa.Array:
    """The values in the order's type. Raises Refused for values that do not fit the type."""
    try:
        return values.cast(arrow_type(type_))
    except pa.ArrowInvalid:
        raise Refused(
            "type-changed",
            f"{expression} orders changes as {type_} in the table, which cannot hold a delivered value.",
            f"{_NOT_WRITTEN} apply these changes to another table.",
            [expression],
        ) from None


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
    """Events from Spark, with their Arrow types."""
    schema = arrow_schema(event_columns(terms))
    return events.select(schema.names).cast(schema)
