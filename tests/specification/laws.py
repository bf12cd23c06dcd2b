"""How often the rows of one record break each law, in plain Python, slow and obvious.

Sources: native.md V114 and V116; fivetran-destination.md section 5.1 (a version ends a millisecond before its
successor begins, so a shorter version ends before its own start); historization.md sections 2.2, 2.4;
odf-ingest.md section 2.10.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from backstory.model.layout import Layout
from backstory.model.table import Shape, TableName
from backstory.model.versions_layout import FactKind, Role
from backstory.strategies.events.terms import Op
from backstory.upkeep.laws.mending import (
    EVENTS,
    broken_together,
    has_length,
    is_mark,
    is_open,
    is_settled,
    is_version,
    until,
)
from backstory.upkeep.laws.terms import DELETED, NEW, WORDS, Law, LawTerms, RecordRow


def terms_of_layout(layout: Layout, **facts: Any) -> LawTerms:
    """The facts about a table of a layout that has no columns of its own."""
    return LawTerms(Shape(TableName("some", "rows"), (), ("k",), layout), **facts)


HASH = re.compile("[0-9a-f]{64}|erased")
MARKS = frozenset({FactKind.COPY, FactKind.TRUNCATE})


def violations(rows: Sequence[RecordRow], terms: LawTerms) -> Counter[Law]:
    """How often the rows of one record break each law. Rows without a key belong to no record."""
    counts: Counter[Law] = Counter()
    if terms.remembers:
        counts.update(broken_memory(rows, terms))
    lives = [row for row in rows if row.keyed]
    counts[Law.NULL_KEY] += sum(not row.keyed and not is_mark(row) for row in rows)
    versions = [row for row in lives if is_version(row)]
    counts.update(spans(versions, terms))
    counts[Law.OPEN_MARKER] += sum(not agrees_with_end(row, versions, terms) for row in versions)
    if terms.has_hashes:
        counts[Law.ROW_HASH] += sum(not is_hashed(row) for row in lives)
    return +counts


@dataclass(frozen=True, slots=True)
class HashedRow(RecordRow):
    """A row with a hash. `rightly` is whether it fits the values, and None if the way of hashing is unknown."""

    hash: str | None = None
    rightly: bool | None = None


def is_hashed(row: RecordRow) -> bool:
    """Whether a row has the hash of its values, or records that they were erased."""
    if not isinstance(row, HashedRow):
        return False
    return HASH.fullmatch(row.hash or "") is not None and row.rightly is not False


def broken_memory(rows: Sequence[RecordRow], terms: LawTerms) -> Iterator[Law]:
    """A law for each row, or pair of rows, that breaks one of the six laws of memory."""
    for row in rows:
        if not is_of_its_kind(row):
            yield Law.MEMORY
        if not is_recorded(row, terms.newest):
            yield Law.RECORDED
        # In a log the last position of a record stays (V135), and so do truncates, each with its own instant.
        if row.role == Role.FACT and row.time is None and is_settled(row.start, terms):
            yield Law.SETTLED
    yield from broken_together(rows, terms)


def is_of_its_kind(row: RecordRow) -> bool:
    """Whether the row has a combination of role, kind and length that V3 lists.

    A version without length breaks another law.
    """
    without_length = row.start is not None and row.end == row.start
    if row.role is None:
        return row.kind in {None, FactKind.UPSERT} and row.scope is None
    if not without_length:
        return False
    if row.role == Role.PAST:
        return row.keyed and row.kind in {None, FactKind.UPSERT}
    marked = not row.keyed and row.kind in MARKS
    return row.role == Role.FACT and (marked or (row.keyed and row.kind in {*EVENTS, FactKind.VOID}))


def is_recorded(row: RecordRow, newest: int | None) -> bool:
    """Whether the row's recorded times are possible: in order, and not after the newest commit."""
    if row.written is None:
        return False
    times = [row.written, *([] if row.ended_at is None else [row.ended_at])]
    known = newest is None or times[-1] <= newest
    return known and times == sorted(set(times))


def in_order(rows: Sequence[RecordRow], terms: LawTerms) -> list[RecordRow]:
    """The versions whose length is not zero, sorted by start."""
    return sorted(
        (row for row in rows if has_length(row, terms)), key=lambda row: (row.start or 0, until(row, terms))
    )


def spans(versions: Sequence[RecordRow], terms: LawTerms) -> Iterator[Law]:
    """A law for each version whose start or end breaks the law."""
    starts = Counter(row.start for row in versions if row.start is not None)
    for times in starts.values():
        yield from [Law.UNIQUE_START] * (times - 1)
    # A version from Fivetran without an end breaks the law of the marker.
    endless = {
        row.place for row in versions if row.end is None and terms.span.grain and row.start is not None
    }
    for row in versions:
        if not has_length(row, terms) and row.place not in endless:
            yield Law.START_BEFORE_END
    ordered = in_order(versions, terms)
    for place, row in enumerate(ordered):
        if any((row.start or 0) < until(before, terms) for before in ordered[:place]):
            yield Law.NO_OVERLAP
    open_ = sum(is_open(row, terms) or (bool(terms.span.grain) and row.flag is True) for row in versions)
    yield from [Law.ONE_OPEN] * (open_ - 1)


def agrees_with_end(row: RecordRow, versions: Sequence[RecordRow], terms: LawTerms) -> bool:
    """Whether flag, state and end agree. A state is checked unless the model has its own words for states."""
    if terms.span.flag:
        return row.flag is is_open(row, terms)
    if not terms.span.state:
        return True
    if row.state is None or not {version.state for version in versions} <= WORDS | {None}:
        return row.state is not None
    return row.state != (DELETED if is_open(row, terms) else NEW)


def broken_keys(rows: Sequence[RecordRow], terms: LawTerms) -> Counter[Law]:
    """How often the rows of one key break each law, in a table that has each record only once."""
    counts: Counter[Law] = Counter()
    keyed = [row for row in rows if row.keyed]
    counts[Law.NULL_KEY] += len(rows) - len(keyed)
    counts[Law.UNIQUE_KEY] += max(len(keyed) - 1, 0)
    if terms.has_hashes:
        counts[Law.ROW_HASH] += sum(not is_hashed(row) for row in rows)
    return +counts


# The operations that may follow an operation of the same record. Before the first operation, there is none.
FOLLOWING = {
    None: frozenset({Op.APPEND}),
    Op.APPEND: frozenset({Op.CORRECT_FROM, Op.RETRACT}),
    Op.CORRECT_FROM: frozenset({Op.CORRECT_TO}),
    Op.CORRECT_TO: frozenset({Op.CORRECT_FROM, Op.RETRACT}),
    Op.RETRACT: frozenset({Op.APPEND}),
}
# A log without a row for the values before a correction.
UNPAIRED = {
    **FOLLOWING,
    Op.APPEND: frozenset({Op.CORRECT_TO, Op.RETRACT}),
    Op.CORRECT_TO: frozenset({Op.CORRECT_TO, Op.RETRACT}),
    Op.CORRECT_FROM: frozenset[Op](),
}
# A ledger has many events of a key. A correction removes the old event before it adds the new one.
LEDGER = {
    None: frozenset({Op.APPEND}),
    Op.APPEND: frozenset({Op.APPEND, Op.CORRECT_FROM}),
    Op.CORRECT_FROM: frozenset({Op.CORRECT_TO}),
    Op.CORRECT_TO: frozenset({Op.APPEND, Op.CORRECT_FROM}),
    Op.RETRACT: frozenset[Op](),
}


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The settings of a log: whether its rows have keys, how it writes corrections, and its watermark.

    A log that is not `strict` contains a changelog as delivered, whose operations follow no law (section
    2.6). A log that `corrects` is a ledger with corrections. In such a log, a key has an event for each time,
    and a correction may move the event to another time.
    """

    keyed: bool
    paired: bool
    strict: bool = True
    watermark: int | None = None
    corrects: bool = False


def follows(log: LogFacts, before: Op | None, op: Op) -> bool:
    """Whether an event may follow the event `before` of its record, or be the first event."""
    if log.corrects:
        return op in LEDGER[before]
    if not log.keyed:
        return op is Op.APPEND
    return not log.strict or op in (FOLLOWING if log.paired else UNPAIRED)[before]


@dataclass(frozen=True, slots=True)
class LogRow:
    """A row of the log, in the order of offsets. `op` is None if its code is none of the four operations."""

    op: int | None
    time: int | None
    keyed: bool = True


def broken_events(events: Sequence[LogRow], log: LogFacts) -> Counter[Law]:
    """How often the events of one record break each law."""
    counts: Counter[Law] = Counter()
    before: Op | None = None
    there: set[int | None] = set()
    for event in events:
        op = Op(event.op) if event.op in set(Op) else None
        counts[Law.NULL_KEY] += log.keyed and not event.keyed
        counts[Law.OPERATIONS] += op is None or not (
            follows(log, before, op) and _fits(log, op, event, there)
        )
        late = log.watermark is not None and (event.time is None or event.time > log.watermark)
        counts[Law.WATERMARK] += late
        before = op
    half = log.keyed and log.paired and log.strict and before is Op.CORRECT_FROM
    counts[Law.OPERATIONS] += half
    return +counts


def _fits(log: LogFacts, op: Op, event: LogRow, there: set[int | None]) -> bool:
    """Whether a ledger's event fits: a correction needs an event of its time, an addition must have none.

    `there` has the existing times, and is updated.
    """
    fits = not log.corrects or (event.time in there) is (op is Op.CORRECT_FROM)
    (there.discard if op is Op.CORRECT_FROM else there.add)(event.time)
    return fits
