"""The laws of several rows of a record of layout `versions`, in plain Python (native.md V3, V6, V114)."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backstory.model.versions_layout import FactKind, Role
from backstory.upkeep.laws.terms import INFINITY, Law, LawTerms, RecordRow

MARKS = frozenset({FactKind.COPY, FactKind.TRUNCATE})
EVENTS = frozenset({FactKind.UPSERT, FactKind.DELETE})
# The tracked values of a record, None while it does not exist.
State = Mapping[str, Any] | None


def broken_together(rows: Sequence[RecordRow], terms: LawTerms) -> Iterator[Law]:
    """One law for each row, or pair of rows, that breaks a law about several rows of a record."""
    keyed = [row for row in rows if row.keyed]
    yield from [Law.ONE_BELIEF] * count_overlaps(keyed)
    yield from [Law.ONE_FACT] * _count_repeated(rows, terms)
    if keyed and (terms.marks or any(is_fact(row) for row in keyed)):
        yield from [Law.FOLD] * _count_unfolded(keyed, terms)


def is_settled(at: int | None, terms: LawTerms) -> bool:
    """Whether an instant is in the settled interval, including its bounds (V29)."""
    if terms.settled is None or at is None:
        return False
    first, last = terms.settled
    return at <= last and (first is None or first <= at)


Statement = tuple[int, int, int, int]


def statements(row: RecordRow) -> list[Statement]:
    """The statements of a row: recorded from and to, valid from and to (V6)."""
    if row.role == Role.FACT or row.start is None or row.written is None:
        return []
    end = INFINITY if row.end is None else row.end
    if row.ended_at is None:
        stated = [(row.written, INFINITY, row.start, end)]
    else:
        before = INFINITY if row.end_before is None else row.end_before
        stated = [(row.written, row.ended_at, row.start, before), (row.ended_at, INFINITY, row.start, end)]
    return [statement for statement in stated if statement[0] < statement[1] and statement[2] < statement[3]]


def count_overlaps(rows: Sequence[RecordRow]) -> int:
    """Count the pairs of a record's rows that stated something about one instant at one recorded time."""
    ordered = sorted(
        ((row.start or 0, place, row) for place, row in enumerate(rows)), key=lambda each: each[:2]
    )
    overlaps = 0
    open_: list[RecordRow] = []
    for start, _, row in ordered:
        open_ = [each for each in open_ if max((one[3] for one in statements(each)), default=0) > start]
        overlaps += sum(_overlap(each, row) for each in open_)
        open_.append(row)
    return overlaps


def _overlap(one: RecordRow, other: RecordRow) -> bool:
    return any(
        max(a[0], b[0]) < min(a[1], b[1]) and max(a[2], b[2]) < min(a[3], b[3])
        for a in statements(one)
        for b in statements(other)
    )


def is_fact(row: RecordRow) -> bool:
    """Whether a row is a fact that still holds (V4)."""
    if row.role is None:
        return row.kind == FactKind.UPSERT
    return row.role == Role.FACT and row.ended_at is None


def _count_repeated(rows: Sequence[RecordRow], terms: LawTerms) -> int:
    """Count the facts with the same instant and sequence as another (V53); a truncate is a fact of every key.

    Marks have no key: they are repeated if kind, instant, sequence and scope are the same (V43).
    """
    facts = [row for row in rows if is_fact(row)]
    events = Counter(_place(row) for row in facts if row.keyed and row.kind in EVENTS)
    marks = Counter((_place(row), row.kind, row.scope) for row in facts if not row.keyed)
    cleared = {_place(mark) for mark in _marks_of(rows, terms) if mark.kind == FactKind.TRUNCATE}
    repeated = sum(times - 1 for counted in (events, marks) for times in counted.values())
    return repeated + len(cleared & set(events))


def _place(row: RecordRow) -> tuple[Any, ...]:
    """The identity of a fact of a record: instant and sequence, or in a log only the position (V133)."""
    return (row.start if row.time is None else None, row.time is not None, row.sequence)


@dataclass(frozen=True, slots=True)
class LifeFacts:
    """The facts of a record: its versions, events and truncates by instant, and the instants of copies."""

    versions: Sequence[RecordRow]
    events: Mapping[int, Sequence[RecordRow]]
    copied: Collection[int]
    cleared: Mapping[int, Sequence[tuple[Any, ...]]]

    @property
    def begun(self) -> set[int]:
        """The instants at which versions begin."""
        return {row.start for row in self.versions if row.start is not None}

    @property
    def instants(self) -> set[int]:
        """The instants of events and truncates, and at which versions begin and end."""
        ended = {row.end for row in self.versions if row.end is not None}
        return self.begun | ended | set(self.events) | set(self.cleared)

    def at(self, instant: int, terms: LawTerms) -> State:
        """The values of the version that covers an instant."""
        covering = [
            row
            for row in self.versions
            if (row.start or 0) <= instant and (row.end is None or instant < row.end)
        ]
        return {name: covering[-1].values.get(name) for name in terms.tracked} if covering else None

    def after(self, state: State, instant: int, terms: LawTerms) -> State:
        """The state after the facts of an instant.

        At the instant of a copy, or in the settled interval, it is the stored state (V31).
        """
        if instant in self.copied or is_settled(instant, terms):
            return self.at(instant, terms)
        return _state_after(state, self.events.get(instant, []), self.cleared.get(instant, []), terms)


def facts_of_record(rows: Sequence[RecordRow], terms: LawTerms) -> LifeFacts:
    """The versions and facts of a record, and the marks that apply to every key."""
    versions = sorted(
        (row for row in rows if row.role is None),
        key=lambda row: (row.start or 0, row.start is None, INFINITY if row.end is None else row.end),
    )
    events: dict[int, list[RecordRow]] = {}
    for row in rows:
        if is_fact(row) and row.start is not None and row.kind in EVENTS:
            events.setdefault(row.start, []).append(row)
    marks = _marks_of(rows, terms)
    copied = {mark.start or 0 for mark in marks if mark.kind == FactKind.COPY}
    cleared: dict[int, list[tuple[Any, ...]]] = {}
    for mark in marks:
        if mark.kind == FactKind.TRUNCATE:
            at = _instant_in_log(mark, marks, rows, terms)
            if at is not None:
                cleared.setdefault(at, []).append(mark.sequence)
    return LifeFacts(versions, events, copied, cleared)


def _instant_in_log(
    mark: RecordRow, marks: Sequence[RecordRow], rows: Sequence[RecordRow], terms: LawTerms
) -> int | None:
    """The instant of a truncate for this record; None if the record is settled beyond it (V131, V135)."""
    if mark.time is None:
        return mark.start
    log = [row for row in rows if is_fact(row) and row.kind in EVENTS and row.time is not None]
    if any(row.sequence > mark.sequence and is_settled(row.start, terms) for row in log):
        return None
    before = [*log, *(each for each in marks if each.time is not None)]
    starts = (each.start or 0 for each in before if each.sequence < mark.sequence)
    return max([mark.start or 0, *starts])


def _marks_of(rows: Sequence[RecordRow], terms: LawTerms) -> list[RecordRow]:
    """The marks that apply to a record and are not void for it (V72)."""
    # The void of a truncate has an empty list of columns, and the void of a copy none.
    voided = {
        (_place(row), row.columns is not None and not row.columns, row.scope)
        for row in rows
        if is_fact(row) and row.kind == FactKind.VOID
    }
    marks = ((mark, mark.kind == FactKind.TRUNCATE) for mark in terms.marks)
    return [mark for mark, clears in marks if (_place(mark), clears, mark.scope) not in voided]


def same_state(one: State, other: State) -> bool:
    """Whether two states are equal, even if they contain NaN (V16)."""
    return one == other or repr(one) == repr(other)


def _count_unfolded(rows: Sequence[RecordRow], terms: LawTerms) -> int:
    """Count the instants at which the stored state does not follow from the facts (V23, V24)."""
    facts = facts_of_record(rows, terms)
    begun, wrong = facts.begun, 0
    for at in sorted(facts.instants):
        if is_settled(at, terms):
            continue
        before, after = facts.at(at - 1, terms), facts.at(at, terms)
        expected = facts.after(before, at, terms)
        wrong += not same_state(expected, after) or (at in begun and same_state(before, after))
    return wrong


def _state_after(
    state: State, events: Sequence[RecordRow], cleared: Sequence[tuple[Any, ...]], terms: LawTerms
) -> State:
    """The state after the events and truncates of one instant, in the order of their sequences (V22)."""
    steps: list[tuple[tuple[Any, ...], RecordRow | None]] = [(row.sequence, row) for row in events]
    steps += [(sequence, None) for sequence in cleared]
    for _, row in sorted(steps, key=lambda each: each[0]):
        if row is None or row.kind == FactKind.DELETE:
            state = None
            continue
        asserted = row.columns
        assigned = {
            name: row.values.get(name)
            for name in terms.tracked
            if asserted is None or terms.numbers.get(name) in asserted
        }
        state = {**(state or dict.fromkeys(terms.tracked)), **assigned}
    return state
