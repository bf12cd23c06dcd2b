"""The facts of touched records, the order in which they are folded, and marks (V20, V21, V30, V31, V72, V78).

In a log, the order is determined by positions instead of times (V130 to V135). A mark records a copy or a
truncate, and may not apply to every record.
"""

import json
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.layout import VALID_FROM
from backstory.model.versions_layout import COLUMNS, SCOPE, FactKind
from backstory.strategies.copies.version_rows import OPEN, instants, memory_field, micros
from backstory.strategies.feeds.records import StoredRecords, is_of, own_times
from backstory.strategies.feeds.terms import FIRST, FURTHER, FeedTerms, Scope
from backstory.strategies.keys import ParallelArrays, pair_codes, rank_values

# The kinds of facts. The first fact of a record is its state before all other facts.
BEFORE, UPSERT, CLEAR, COPY = range(4)
# The index of a missing entry.
NONE: Final = -1

Interval = tuple[int | None, int] | tuple[()]


@dataclass(frozen=True)
class RecordFacts(ParallelArrays):
    """Facts of records as parallel arrays. A missing index is `NONE`.

    `source` is the index of the fact's values in the pool; a copy has values only if it lists the record.
    `columns` is the index of the fact's list of columns, and `stored` the index of its live row. `event` and
    `truncate` are the indexes of its delivered event or truncate, and `mark` is the index of its stored mark.
    `order` is its order within its instant and log. `own` is a log message's own time, or `FIRST` for other
    facts. `read` is true for reads of a snapshot.
    """

    record: np.ndarray
    at: np.ndarray
    kind: np.ndarray
    order: np.ndarray
    source: np.ndarray
    columns: np.ndarray
    stored: np.ndarray
    event: np.ndarray
    truncate: np.ndarray
    mark: np.ndarray
    own: np.ndarray
    read: np.ndarray

    def __len__(self) -> int:
        return len(self.record)

    @property
    def new(self) -> np.ndarray:
        """A mask of the delivered facts."""
        return (self.event >= 0) | (self.truncate >= 0)


def make_facts(record: np.ndarray, at: np.ndarray, kind: np.ndarray | int, **more: np.ndarray) -> RecordFacts:
    """Make facts from these arrays. Missing indexes are `NONE`, and missing orders are 0."""
    nothing = np.full(len(record), NONE, np.int64)
    count = len(record)
    values = {
        "order": np.zeros(count, np.int64),
        "own": np.full(count, FIRST),
        "read": np.zeros(count, bool),
        **more,
    }
    names = [field.name for field in fields(RecordFacts)][3:]
    return RecordFacts(
        record, at, np.broadcast_to(kind, len(record)), *(values.get(name, nothing) for name in names)
    )


def sort_facts(joined: RecordFacts) -> RecordFacts:
    """The facts sorted by record, instant and order. Events precede copies (V21)."""
    phase = joined.kind == COPY
    return joined.take(np.lexsort((joined.order, phase, joined.at, joined.record)))


def first_facts(stored: StoredRecords, records: np.ndarray, since: np.ndarray) -> RecordFacts:
    """The state of each record just before its first new fact: the version at that time, or nothing."""
    base = stored.covering(records, since - 1)
    return make_facts(records, np.full(len(records), FIRST), BEFORE, source=base, stored=base)


def settled_facts(
    terms: FeedTerms, stored: StoredRecords, records: np.ndarray, since: np.ndarray
) -> RecordFacts:
    """The facts of settled states. Each settled instant at which a record changes counts as a copy (V30)."""
    settled = terms.settled if terms.following is None else (terms.following, OPEN - 1)
    if not settled or settled[0] is None:
        return make_facts(records[:0], since[:0], COPY)
    first, last = settled
    early = since <= first
    touched = np.zeros(int(max(records.max(initial=-1), stored.record.max(initial=-1))) + 1, bool)
    touched[records[early]] = True
    moves = stored.version & touched[stored.record]
    instants = [(stored.record[moves], times[moves]) for times in (stored.start, stored.end)]
    pairs = [(records[early], np.full(int(early.sum()), first)), *instants]
    record, at = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    inside = (at >= first) & (at <= last)
    record, at = distinct_pairs(record[inside], at[inside])
    versions = stored.covering(record, at)
    return make_facts(record, at, COPY, source=versions, stored=versions_that_begin(stored, versions, at))


def distinct_pairs(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct pairs of two arrays, in their order."""
    order = np.lexsort((other, one))
    one, other = one[order], other[order]
    is_new = np.append(True, (one[1:] != one[:-1]) | (other[1:] != other[:-1]))[: len(one)]
    return one[is_new], other[is_new]


def versions_that_begin(stored: StoredRecords, versions: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The given indexes of versions, with `NONE` for versions that do not begin at the given instants."""
    if not len(stored.rows):
        return np.full(len(versions), NONE)
    return np.where((versions >= 0) & (stored.start[versions] == at), versions, NONE)


def copy_facts(stored: StoredRecords, record: np.ndarray, at: np.ndarray, **more: np.ndarray) -> RecordFacts:
    """The facts of stored copies: each record as it was in the table at the copy's instant (V31).

    A version that an event began at that instant belongs to the event.
    """
    versions = stored.covering(record, at)
    begins = versions_that_begin(stored, versions, at)
    if len(stored.rows):
        begins = np.where(stored.upsert[begins], NONE, begins)
    return make_facts(record, at, COPY, source=versions, stored=begins, **more)


def pair_with_instants(
    records: np.ndarray, since: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of a record and an instant at or after the record's first new fact, as two index arrays."""
    order = np.argsort(at, kind="stable")
    first = np.searchsorted(at[order], since)
    counts = len(at) - first
    owners = np.repeat(np.arange(len(records)), counts)
    ends = np.cumsum(counts)
    steps = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
    return owners, order[np.repeat(first, counts) + steps]


def times_to_store(own: np.ndarray) -> pa.Array:
    """The own times as they are stored: NULL for facts without a position in a log."""
    return instants(np.where(own == FIRST, OPEN, own))


def has_position(terms: FeedTerms, delivered: pa.Table) -> np.ndarray:
    """A mask of the delivered events that have a position in a log."""
    if not terms.log:
        return np.zeros(len(delivered), bool)
    position = delivered[FURTHER].combine_chunks()
    parts = [np.asarray(pc.struct_field(position, name).is_valid()) for name in terms.sequence]
    return np.logical_or.reduce(parts)


def are_reads(terms: FeedTerms, positions: pa.Array | None, count: int) -> np.ndarray:
    """A mask of the positions that belong to reads. A read shows the state before any later change."""
    if not terms.log or positions is None:
        return np.zeros(count, bool)
    change = pc.struct_field(positions, positions.type.get_field_index(terms.sequence[-1]))
    return np.asarray(pc.fill_null(pc.invert(change), False))


def place_in_order(at: np.ndarray, own: np.ndarray) -> np.ndarray:
    """The instants that identify facts, or `FIRST` in a log, where only positions identify facts (V133)."""
    return np.where(own == FIRST, at, FIRST)


def in_interval(at: np.ndarray, interval: Interval) -> np.ndarray:
    """A mask of the instants in an interval, including its bounds. A start of None is unbounded."""
    if not interval:
        return np.zeros(len(at), bool)
    first, last = interval
    return (at <= last) & (True if first is None else at >= first)


def move_past_settled(at: np.ndarray, interval: Interval) -> np.ndarray:
    """The instants, with settled instants moved to just after the interval."""
    return np.where(in_interval(at, interval), interval[1] + 1, at) if interval else at


def place_facts(facts: RecordFacts, interval: Interval) -> tuple[RecordFacts, np.ndarray]:
    """The facts at their instants, and a mask of the settled facts (V131).

    A message of a log is raised to the greatest time of its record's earlier messages. Facts without a
    position raise no other facts and are not raised. Settled facts raise nothing. A read has at most the time
    of the next change, so it raises no change.
    """
    settled = np.zeros(len(facts), bool)
    log = np.flatnonzero(facts.own != FIRST)
    if not len(log):
        return facts, settled
    log = log[np.lexsort((facts.order[log], facts.record[log]))]
    record, own, read = facts.record[log], facts.own[log], facts.read[log]
    inside = in_interval(own, interval)
    last = interval[1] if interval else FIRST
    late = ~read & inside & (_greatest(record, own, ~read & ~inside) <= last)
    time = np.minimum(own, np.where(read, _next_change(record, own, ~read & ~late), OPEN))
    inside = in_interval(time, interval)
    greatest = _greatest(record, time, ~late & ~inside)
    late |= inside & (greatest <= last)
    settled[log] = late
    at = facts.at.copy()
    at[log] = np.where(inside & (greatest > last), greatest, np.maximum(time, greatest))
    return replace(facts, at=at), settled


def _greatest(record: np.ndarray, times: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """For each fact, the greatest counted time of its record so far, or `FIRST` without one."""
    values, ranks = np.unique(times, return_inverse=True)
    width = len(values) + 1
    reached = np.maximum.accumulate(record * width + np.where(counts, ranks + 1, 0)) - record * width
    return np.where(reached > 0, values[reached - 1], FIRST)


def _next_change(record: np.ndarray, times: np.ndarray, change: np.ndarray) -> np.ndarray:
    """For each fact, the time of its record's next change, or `OPEN` without one."""
    count = len(record)
    place = np.minimum.accumulate(np.where(change, np.arange(count), count)[::-1])[::-1]
    there = np.minimum(place, count - 1)
    return np.where((place < count) & (record[there] == record), times[there], OPEN)


@dataclass(frozen=True)
class Marks:
    """Marks as parallel arrays: instant, kind, and order within their instant.

    `own` are the own times of truncates of a log, or `FIRST` for other marks. `scopes` are the scopes of
    copies. `silent` are pairs of a record and a mark that does not apply to it, as numbers. `withdrawn` are
    the indexes of stored voids of delivered marks, which apply to every record.
    """

    at: np.ndarray
    own: np.ndarray
    truncate: np.ndarray
    order: np.ndarray
    scopes: list[Scope | None]
    silent: np.ndarray
    withdrawn: np.ndarray

    def __len__(self) -> int:
        return len(self.at)

    def applies(self, record: np.ndarray, mark: np.ndarray) -> np.ndarray:
        """For each pair of a record and a mark, whether the mark applies to the record."""
        return ~np.isin(record * len(self) + mark, self.silent)


def marks_of(
    rows: pa.Table, first: int, codes: np.ndarray, stored: StoredRecords, stored_codes: np.ndarray
) -> Marks:
    """The marks in `rows`, and the records for which voids in stored rows cancel them.

    `first` is the index of the first delivered mark. `codes` and `stored_codes` are the numbers of the
    further sequences of both sides.
    """
    voids = np.flatnonzero(stored.void)
    scopes = pa.concat_arrays([memory_field(rows, SCOPE), stored.scope.take(pa.array(voids))])
    order = rank_values(scopes)
    truncate = np.concatenate([is_of(rows, FactKind.TRUNCATE), are_truncate_voids(stored.rows)[voids]])
    own = np.concatenate([own_times(rows), stored.own_times[voids]])
    at = np.concatenate([micros(rows[VALID_FROM]), stored.start[voids]])
    at, instants = place_in_order(at, own), at
    identity, _ = pair_codes(at, np.concatenate([codes, stored_codes[voids]]))
    identity, _ = pair_codes(identity, order)
    identity, size = pair_codes(identity, truncate.astype(np.int64))
    count = len(rows)
    mark = np.full(size, -1)
    mark[identity[:count]] = np.arange(count)
    of_void = mark[identity[count:]]
    silent = (stored.record[voids] * count + of_void)[(of_void >= 0) & (of_void < first)]
    of_copies = order[:count] + 1
    scopes_of_marks = [scope_of(text) for text in scopes.slice(0, count).to_pylist()]
    orders = np.where(truncate[:count], codes, of_copies)
    again = voids[of_void >= first]
    return Marks(instants[:count], own[:count], truncate[:count], orders, scopes_of_marks, silent, again)


def scope_of(text: str | None) -> Scope | None:
    """The scope in a mark, parsed from JSON, or None if the mark has no scope."""
    return None if text is None else tuple(sorted(json.loads(text).items()))


def are_truncate_voids(rows: pa.Table) -> np.ndarray:
    """A mask of the voids that cancel truncates. Their column lists are empty; voids of copies have NULL."""
    lengths = pc.list_value_length(memory_field(rows, COLUMNS))
    return np.asarray(pc.fill_null(pc.equal(lengths, 0), False))
