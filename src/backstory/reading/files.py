"""A table at a recorded time, read from its files. DuckDB finds the positions and times of its versions.

The differences between two states are kept as positions of rows, which can be counted, grouped and shown in
pages.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache, reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.instant import EPOCH
from backstory.model.layout import VALID_FROM, VALID_TO, Layout, Span
from backstory.model.table import Shape
from backstory.model.types import Kind
from backstory.reading import lifetimes, questions
from backstory.reading.lifetimes import ANSWER, CHANGED, DUCKDB, KINDS_OF_INSTANTS, SIDES, STATED_FROM
from backstory.reading.options import Comparison, Selection, key_of
from backstory.reading.questions import SIDE_COLUMNS, TIMES, KnownTable, Query, TableState
from backstory.reading.timelines import VersionRow, value_text
from backstory.stores.metadata import table_rows
from backstory.stores.metadata.parquet_files import arrow_type_of
from backstory.stores.metadata.searches import AnyOf, Between, EqualTo, OneOf, Search, Searches
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.stores.metadata.table_rows import MOST_VALUES, TableReader
from backstory.stores.metadata.values import rows_of, truths_of, whole_numbers
from backstory.strategies.fingerprints import duckdb_in_memory
from backstory.strategies.values import identities, ranks, sorted_by

# Rows are in memory twice while they are sorted.
SORT_MEMORY: Final = 2


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """The columns that a DuckDB query reads.

    The columns are numbered, because DuckDB does not distinguish `a` from `A`.
    """

    numbers: dict[tuple[str, ...], str] = field(default_factory=dict)

    def __call__(self, *path: str) -> str:
        """The number of a column, or of a field of a struct."""
        return self.numbers.setdefault(path, f"c{len(self.numbers)}")

    @property
    def names(self) -> list[str]:
        """The table's columns that the query reads."""
        return [path[0] for path in self.numbers]

    def read(self, rows: pa.Table) -> dict[str, Any]:
        """The columns of rows, by their numbers."""
        return {
            number: without_zone(reduce(pc.struct_field, fields, rows[name]))
            for (name, *fields), number in self.numbers.items()
        }


def without_zone(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Instants as times in UTC without a zone, as DuckDB expects them."""
    return values.cast(pa.timestamp("us")) if pa.types.is_timestamp(values.type) else values


@contextmanager
def hold_memory(lease: MemoryLease, what: str, size: int) -> Iterator[None]:
    """Reserve `size` bytes of memory until the block ends. Raises Unreadable if fewer bytes are free."""
    try:
        lease.hold(what, size)
    except TooLarge:
        raise Unreadable("more than the memory may hold") from None
    try:
        yield
    finally:
        lease.hold(what, 0)


def query_rows(rows: pa.Table, query: str) -> pa.Table:
    """DuckDB's answer to a query on the relation `recorded`."""
    with _database().cursor() as connection:
        connection.register(DUCKDB.rows, rows)
        return connection.sql(query).to_arrow_table()


_database = cache(duckdb_in_memory)


def sort_in_lease(lease: MemoryLease, what: str, rows: pa.Table, query: str) -> pa.Table:
    """The answer to a query that sorts the relation `recorded`. Raises Unreadable if memory is short."""
    with hold_memory(lease, what, SORT_MEMORY * rows.nbytes):
        return query_rows(rows, query)


def sort_rows(rows: pa.Table, first: Sequence[str]) -> pa.Table:
    """Sort rows by the columns of `first` that they have, then by all others."""
    names = [name for name in first if name in rows.column_names]
    others = (ranks(rows[name]) for name in rows.column_names if name not in names)
    places = sort_places([ranks(rows[name]) for name in names], rows.num_rows, lambda: others)
    return rows.take(places)


def sort_places(
    numbers: Sequence[np.ndarray], size: int, others: Callable[[], Iterable[np.ndarray]]
) -> np.ndarray:
    """The positions of `size` rows, sorted by `numbers`, then by `others` if some rows have equal numbers."""
    order = sorted_by(numbers, size)
    if equals_next([each[order] for each in numbers], size).any():
        order = sorted_by([*numbers, *others()], size)
    return order


def equals_next(numbers: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Whether each of `size` rows, except the last, has the same numbers as the next row."""
    same = np.ones(max(size - 1, 0), bool)
    for each in numbers:
        same &= each[1:] == each[:-1]
    return same


def are_after(rows: pa.Table, values: Mapping[str, Any]) -> pa.Array:
    """A mask of the rows that sort after these values."""
    behind, same = np.zeros(rows.num_rows, bool), np.ones(rows.num_rows, bool)
    for name, value in values.items():
        type_ = rows.schema.field(name).type
        border = pa.array([value], type_)
        numbers = ranks(pa.chunked_array([*rows[name].chunks, border], type_))
        behind |= same & (numbers[:-1] > numbers[-1])
        same &= numbers[:-1] == numbers[-1]
    return pa.array(behind)


Row = Mapping[str, Any]
Difference = dict[str, Any]
# The place of a missing row.
NO_ROW: Final = -1
# The places of rows in the records.
_PLACES: Final = ("row", *SIDES)
# The number of a row's record.
_RECORD: Final = "record"


@dataclass(frozen=True, slots=True)
class CommonChange:
    """A change of a column from one value to another, as text, and the number of records with this change."""

    count: int
    column: str
    before: str
    after: str


@dataclass(frozen=True)
class Differences:
    """The records that differ, as positions of rows. Each array has an element for each record.

    `rows` returns the rows at some places, and `values` has the compared values of all rows. `records` has
    the kind of `change`, the places of `row`, `before` and `after`, and, if it is known, whether the record
    was `away` in between. `changed` has a mask for each column outside the key.
    """

    rows: Callable[[np.ndarray], Sequence[Row]]
    values: pa.Table
    key: Sequence[str]
    records: Mapping[str, np.ndarray]
    changed: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.records["change"])

    def kinds(self) -> Counter[str]:
        """The number of records by kind of change."""
        return Counter(self.records["change"].tolist())

    def common_changes(self, most: int) -> list[CommonChange]:
        """The changes of values that several records have in common, the most frequent first."""
        groups = list[CommonChange]()
        for name, mask in self.changed.items():
            sides = [self.records[side][mask] for side in SIDES]
            one, other = _codes(self.values, name, *sides)
            pairs = one * (int(other.max(initial=0)) + 1) + other
            _, firsts, counts = np.unique(pairs, return_index=True, return_counts=True)
            frequent = [place for place in np.argsort(-counts, kind="stable")[:most] if counts[place] > 1]
            rows = (self.rows(side[firsts[frequent]]) for side in sides)
            groups += (
                CommonChange(int(counts[place]), name, value_text(before[name]), value_text(after[name]))
                for place, before, after in zip(frequent, *rows, strict=True)
            )
        return sorted(groups, key=lambda each: -each.count)[:most]

    def page(self, begin: int = 0, end: int | None = None) -> list[Difference]:
        """A range of records: `key`, `change`, `before`, `after`, `changed`, and `away` if it is known."""
        part = self.at(np.arange(len(self))[begin:end])
        changed: list[list[str]] = [[] for _ in range(len(part))]
        for name, mask in part.changed.items():
            for number in np.flatnonzero(mask):
                changed[number].append(name)
        kinds, sides = part.records["change"].tolist(), (part.rows_at(part.records[each]) for each in _PLACES)
        records = list[Difference]()
        for change, row, before, after, names in zip(kinds, *sides, changed, strict=True):
            one = before or after or row
            key = _with_positive_zeros({name: one[name] for name in self.key or one})
            shown = [before, after]
            if not self.key:  # one row represents its copies, whose zeros may have other signs
                shown = [each and _with_positive_zeros(each) for each in shown]
            values = dict(zip(SIDES, shown, strict=True))
            records.append({"key": key, "change": change, **values, "changed": names})
        for record, away in zip(records, part.records.get("away", ()), strict=False):
            record["away"] = bool(away)
        return records

    def rows_at(self, places: np.ndarray) -> list[Row | None]:
        """The rows at these places, with None for `NO_ROW`."""
        rows = iter(self.rows(places[places != NO_ROW]))
        return [None if place == NO_ROW else next(rows) for place in places]

    def at(self, places: np.ndarray) -> "Differences":
        """The records at these places, in this order."""
        records = {name: each[places] for name, each in self.records.items()}
        changed = {name: each[places] for name, each in self.changed.items()}
        return replace(self, records=records, changed=changed)


def _with_positive_zeros(row: Row) -> dict[str, Any]:
    """The row with 0.0 in place of -0.0."""
    return {name: value + 0.0 if isinstance(value, float) else value for name, value in row.items()}


def differences(
    values: pa.Table,
    key: Sequence[str],
    sides: pa.Table,
    comparison: Comparison,
    rows: Callable[[np.ndarray], Sequence[Row]] | None = None,
    *,
    timed: bool = False,
) -> Differences:
    """The records whose rows differ in these values, in key order.

    `sides` has `SIDE_COLUMNS`: whether a row was true before, and after. If `comparison.through` is set, it
    also has `valid_from` and `valid_to`. For `timed` events, it has `valid_from`. `rows` returns the rows to
    show instead of `values`.
    """
    internal = lifetimes.internal_name
    times = {name: time for name, time in TIMES.items() if time in sides.column_names}
    relation = {internal("row"): pa.array(np.arange(values.num_rows))}
    relation |= {internal(side): sides[internal(side)] for side in SIDES}
    relation |= {name: without_zone(sides[time]) for name, time in times.items()}
    if key:
        relation[_RECORD] = pa.array(identities(values, key))
    if comparison.through or not key:
        relation[internal("values")] = pa.array(identities(values, values.column_names))
    record = [_RECORD] if key else []
    query = lifetimes.differences_query(DUCKDB, record, through=comparison.through, timed=timed)
    listed = ", ".join(f'{DUCKDB.name(internal(each))} AS "{each}"' for each in ANSWER)
    answer = query_rows(pa.table(relation), f"SELECT {listed} FROM ({query}) AS answer")
    change, otherwise = (_words(answer[each]) for each in ANSWER[:2])
    row, before, after = (whole_numbers(answer[each].fill_null(NO_ROW)) for each in ANSWER[2:5])
    both = np.flatnonzero(change == CHANGED)
    changed = {name: np.zeros(len(change), bool) for name in values.column_names if name not in key}
    for name, mask in changed.items():
        one, other = _codes(values, name, before[both], after[both])
        mask[both] = one != other
    differ = np.any([np.zeros(len(change), bool), *changed.values()], axis=0)
    change = np.where((change == CHANGED) & ~differ | (change == None), otherwise, change)  # noqa: E711 - of an array
    records = {"change": change, "row": row, "before": before, "after": after}
    if comparison.through:
        records["away"] = truths_of(answer[ANSWER[5]])
    shown = rows or (lambda some: rows_of(values.take(some)))
    every = Differences(shown, values, key, records, changed)
    every = every.at(np.flatnonzero(change != None))  # noqa: E711 - of an array
    every = every.at(_order(every))
    kind = comparison.change
    return every if kind is None else every.at(np.flatnonzero(every.records["change"] == kind))


def _codes(values: pa.Table, name: str, *sides: np.ndarray) -> list[np.ndarray]:
    """Numbers for the values at the places of each side. Equal values have equal numbers."""
    column = values.select([name]).take(np.concatenate(sides))
    return np.split(identities(column, [name]), [len(sides[0])])


def _words(column: pa.ChunkedArray) -> np.ndarray:
    """The strings of a column with few distinct strings, with None for NULL."""
    encoded = column.combine_chunks().dictionary_encode("encode")
    return np.array([*encoded.dictionary.to_pylist(), None], object)[np.asarray(encoded.indices)]


def _order(every: Differences) -> np.ndarray:
    """The order of the records by their keys, then by their kinds and rows."""
    values = every.values
    change, row, before, after = (every.records[each] for each in ("change", *_PLACES))
    some = np.where(before != NO_ROW, before, np.where(after != NO_ROW, after, row))
    keys = values.select(every.key or values.column_names).take(some)

    def others() -> Iterator[np.ndarray]:
        yield np.unique(change, return_inverse=True)[1]
        for side in (before, after):
            yield from map(ranks, values.take(pa.array(side, mask=side == NO_ROW)).columns)

    return sort_places([ranks(column) for column in keys.columns], len(every), others)


_PLACE: Final = "place"
_LEAST: Final = timedelta(microseconds=1)
INSTANT: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class KnownFiles(KnownTable[pa.Table, Differences]):
    """A table at a recorded time, and the reader of its files. `searches` restricts the rows that are read.

    Every answer raises Unreadable if only Spark can read the rows.
    """

    files: TableReader
    fields: Sequence[Mapping[str, Any]]
    snapshot: Mapping[str, Any] | None
    searches: Searches | None = None

    def at(self, known_at: datetime | None) -> "KnownFiles":
        return table_in_files(self.files, questions.state_at(self.stored, known_at))

    def unite(self, before: pa.Table, after: pa.Table) -> pa.Table:
        try:
            rows = pa.concat_tables([before, after], promote_options="default")
        except pa.ArrowException:
            raise Unreadable("columns of other types then") from None
        is_after = np.arange(rows.num_rows) >= before.num_rows
        for name, side in zip(SIDE_COLUMNS, (~is_after, is_after), strict=True):
            rows = rows.append_column(name, pa.array(side))
        return rows

    def differences(self, rows: pa.Table, comparison: Comparison) -> Differences:
        key, hidden = questions.shown_key(self.shape), {VALID_FROM, VALID_TO, *SIDE_COLUMNS}
        shown = [each for each in rows.column_names if each not in hidden]
        names = comparison.names(self.shape.table, key, shown)
        if any(pa.types.is_map(each.type) for each in rows.schema if each.name in (key or names)):
            raise Unreadable("maps in a key")
        if not set(key) <= set(names):
            raise Unreadable("a key of other columns then")
        timed = bool(self.system.get("events"))
        with hold_memory(self.files.lease, "differences", SORT_MEMORY * len(names) * rows.num_rows * 8):
            return differences(rows.select(names), key, rows, comparison, timed=timed)

    def in_order(self, rows: pa.Table) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
        first = questions.order_columns(self.shape, rows.column_names)
        return rows.schema, sort_rows(rows, first).to_batches()

    def values(self, rows: pa.Table) -> Sequence[VersionRow]:
        return rows_of(rows)

    def read(self, names: Sequence[str]) -> pa.Table:
        """The rows with these columns, as stored."""
        distinct = list(dict.fromkeys(names))
        return self.files.rows(self.snapshot, self.fields, distinct, table_rows.MOST_IN_ARROW, self.searches)

    def ask(self, query: Query, *more: str) -> pa.Table:
        shape, names, shown = self.shape, self.system, self.shown_names(*more)
        successive = shape.layout in {Layout.ODF, Layout.FIVETRAN_HISTORY}
        identity = questions.identity_names(names, shape) if successive else []
        remembered = self.until is not None or STATED_FROM in more
        stored, record = StoredColumns(), [_RECORD] if identity else []
        text = query(self.recorded_rows(replace(DUCKDB, stored=stored), record, remembered=remembered))
        _require_times(shape, names)
        users = {name: as_ for as_, name in shown.items() if name not in more}
        rows = self.read([*users, *stored.names, *identity])
        _require_ends(shape, rows)
        relation = {_PLACE: pa.array(np.arange(rows.num_rows)), **stored.read(rows)}
        if identity:
            relation[_RECORD] = pa.array(identities(rows, identity))
        listed = ", ".join([_PLACE, *map(DUCKDB.name, more)])
        order = ", ".join([_PLACE, *(DUCKDB.name(each) for each in more if each == STATED_FROM)])
        text = f"SELECT {listed} FROM ({text}) AS answer ORDER BY {order}"
        times = sort_in_lease(self.files.lease, "lifetimes", pa.table(relation), text)
        rows = rows.select([*users])
        if not times[_PLACE].equals(pa.chunked_array([relation[_PLACE]])):  # all rows are not copied
            rows = rows.take(times[_PLACE])
        answer = {as_: rows[name] for name, as_ in users.items()}
        for name in more:
            values = times[name]
            if pa.types.is_timestamp(values.type):  # without a zone, in UTC
                values = values.cast(pa.int64()).cast(INSTANT)
            answer[TIMES.get(name, name)] = values
        return pa.table(answer)

    def shown_names(self, *more: str) -> dict[str, str]:
        if len(dict(self.columns)) < max(len(self.columns), 1):
            raise Unreadable("columns that share a name")
        return KnownTable.shown_names(self, *more)

    def of(self, selection: Selection) -> "KnownFiles":
        known = KnownTable.of(self, selection)
        if selection.key is None:
            return known
        values = key_of(self.shape, selection.key)
        types = {each["name"]: arrow_type_of(each["type"]) for each in self.fields}
        if any(pa.types.is_fixed_size_binary(types[name]) for name in values):
            raise Unreadable("a key that is not read here")
        return replace(known, searches={name: EqualTo(value) for name, value in values.items()})

    def near(self, between: tuple[int, int]) -> "KnownFiles":
        """The table restricted to the rows that begin or end after one instant, up to and including another.

        In a Fivetran history, the end of a version depends on its successor, so all rows of the changing
        records are read.
        """
        span = self.utc_span
        if span is None or self.until is not None or self.searches:
            return self
        first, last = (EPOCH + timedelta(microseconds=each) for each in sorted(between))
        moved = Between(_least_end(first, span), last)
        moving = AnyOf({span.start: moved, span.end: moved})
        if self.shape.layout is not Layout.FIVETRAN_HISTORY:
            return replace(self, searches=moving)
        if not self.shape.key:
            return self
        name = self.shape.key[0]
        keys = self.files.rows(self.snapshot, self.fields, [name], MOST_VALUES, moving)[name]
        if keys.null_count:
            raise Unreadable("NULL in a key")
        return replace(self, searches={name: OneOf(keys)})

    @property
    def utc_span(self) -> Span | None:
        """The columns with the start and the end of each row, or None unless they are instants in UTC."""
        span = self.shape.layout.span
        if span is None or self.snapshot is None:
            return None
        kinds = {each.name: each.type.kind for each in self.shape.columns}
        return span if all(kinds.get(name) is Kind.UTC_DATETIME for name in (span.start, span.end)) else None

    def searches_at(self, time: datetime) -> Mapping[str, Search]:
        """Searches that match all rows true at an instant, and few others. Empty without a `utc_span`."""
        span = self.utc_span
        if span is None:
            return {}
        started = {span.start: Between(greatest=time)}
        if self.until is not None:  # another end may have been known then
            return started
        return {**started, span.end: Between(least=_least_end(time, span), null=True)}


def _least_end(instant: datetime, span: Span) -> datetime:
    """The least end that counts as later than an instant, given the grain of ends."""
    try:
        return instant - (timedelta(microseconds=span.grain) - _LEAST)
    except OverflowError:
        return instant


def _require_times(shape: Shape, names: Mapping[str, Any]) -> None:
    """Raise Unreadable if a column of times has another type, or naive times that Spark shows unchanged."""
    span, layout = shape.layout.span, shape.layout
    if layout not in questions.HISTORIES:
        return
    times = [span.start, span.end] if span else [names["event_time"], names["system_time"]]
    fitting = KINDS_OF_INSTANTS if layout.is_adopted or layout is Layout.ODF else {Kind.UTC_DATETIME}
    columns = (shape.column(name) for name in times)
    if any(each is None or each.type.kind not in fitting for each in columns):
        raise Unreadable("spans in other times")


def _require_ends(shape: Shape, rows: pa.Table) -> None:
    """Raise Refused if a version of a Fivetran history has no end and is not open."""
    span = shape.layout.span
    if shape.layout is not Layout.FIVETRAN_HISTORY or span is None:
        return
    flags = pc.fill_null(rows[span.open], False)
    if pc.any(pc.and_(pc.invert(flags), pc.is_null(rows[span.end]))).as_py():
        raise questions.no_end_error(shape, span)


def table_in_files(files: TableReader, state: TableState | None = None) -> KnownFiles:
    """A table in the given state, by default its current state."""
    state = state or questions.state_at(files.table, None)
    return KnownFiles(files.table, state.shape, state.until, files, state.fields, state.snapshot)
