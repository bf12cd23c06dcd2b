"""The laws about several rows of a record in layout `versions`, and the smallest repair, in plain Python.

The rules are V3, V6, V114, V117 and V118 of native.md. If the only fault is that versions contradict their
facts, the facts are folded again. Otherwise the steps of a repair are, in this order:

* if rows are identical in all columns, only the oldest is kept;
* if versions have the same start, only the one written last is kept;
* versions without length are removed;
* a version ends where the next one begins;
* flags and states are set to match the ends;
* impossible recorded times, and past statements that overlap, are withdrawn.

Healthy rows stay as they are.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any

from backstory.model.versions_layout import FactKind, Role
from backstory.upkeep.laws.terms import CHANGED, DELETED, INFINITY, NEW, WORDS, Law, LawTerms, RecordRow

EVENTS = frozenset({FactKind.UPSERT, FactKind.DELETE})
# The tracked values of a record, None while it does not exist.
State = Mapping[str, Any] | None


def broken_together(rows: Sequence[RecordRow], terms: LawTerms) -> Iterator[Law]:
    """The laws about several rows of a record, each as often as the rows break it."""
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
    """The statements of a row, each with its recorded and its valid interval (V6)."""
    if row.role == Role.FACT or row.start is None or row.written is None:
        return []
    end, before = (INFINITY if each is None else each for each in (row.end, row.end_before))
    stated = [(row.written, INFINITY, row.start, end)]
    if row.ended_at is not None:
        stated = [(row.written, row.ended_at, row.start, before), (row.ended_at, INFINITY, row.start, end)]
    return [statement for statement in stated if statement[0] < statement[1] and statement[2] < statement[3]]


def count_overlaps(rows: Sequence[RecordRow]) -> int:
    """Count the pairs of a record's rows that stated something about one instant at one recorded time."""
    overlaps = 0
    open_: list[list[Statement]] = []
    for row in sorted(rows, key=lambda row: row.start or 0):
        start, stated = row.start or 0, statements(row)
        open_ = [each for each in open_ if max((one[3] for one in each), default=0) > start]
        overlaps += sum(
            any(
                max(a[0], b[0]) < min(a[1], b[1]) and max(a[2], b[2]) < min(a[3], b[3])
                for a in each
                for b in stated
            )
            for each in open_
        )
        open_.append(stated)
    return overlaps


def is_fact(row: RecordRow) -> bool:
    """Whether a row is a fact that still holds (V4)."""
    if row.role is None:
        return row.kind == FactKind.UPSERT
    return row.role == Role.FACT and row.ended_at is None


def _is_event(row: RecordRow) -> bool:
    """Whether a row is a change or a delete of one record."""
    return row.keyed and row.kind in EVENTS and is_fact(row)


def _count_repeated(rows: Sequence[RecordRow], terms: LawTerms) -> int:
    """Count the events and marks that have the same identity as another (V43, V53).

    A truncate is a fact of every key.
    """
    facts = [row for row in rows if _is_event(row) or (is_fact(row) and not row.keyed)]
    cleared = {_place(mark) for mark in _marks_of(rows, terms) if mark.kind == FactKind.TRUNCATE}
    events = {_place(row) for row in facts if row.keyed}
    return len(facts) - len({_fact_identity(row) for row in facts}) + len(cleared & events)


def _place(row: RecordRow) -> tuple[Any, ...]:
    """The place of a fact of a record: instant and sequence, or in a log only the position (V133)."""
    return (row.start if row.time is None else None, row.time is not None, row.sequence)


def _fact_identity(row: RecordRow) -> tuple[Any, ...]:
    """The identity of a fact: its place, and for a mark also kind and scope."""
    return (_place(row), *(() if _is_event(row) else (row.kind, row.scope)))


def _marks_of(rows: Sequence[RecordRow], terms: LawTerms) -> list[RecordRow]:
    """The marks that apply to a record and are not void for it (V72)."""
    # The void of a truncate has an empty list of columns, and the void of a copy has no list.
    voided = {
        (_place(row), row.columns is not None and not row.columns, row.scope)
        for row in rows
        if is_fact(row) and row.kind == FactKind.VOID
    }
    marks = ((mark, mark.kind == FactKind.TRUNCATE) for mark in terms.marks)
    return [mark for mark, clears in marks if (_place(mark), clears, mark.scope) not in voided]


@dataclass(frozen=True, slots=True)
class LifeFacts:
    """The facts of a record: its versions, its changes by instant, and the instants of copies.

    A change has a sequence, and an event or, for a truncate, None.
    """

    versions: Sequence[RecordRow]
    changes: Mapping[int, Sequence[tuple[tuple[Any, ...], RecordRow | None]]]
    copied: Collection[int]
    terms: LawTerms

    @property
    def begun(self) -> set[int]:
        """The instants at which versions begin."""
        return {row.start for row in self.versions if row.start is not None}

    @property
    def instants(self) -> set[int]:
        """The instants of changes, and the instants at which versions begin and end."""
        return self.begun | {row.end for row in self.versions if row.end is not None} | set(self.changes)

    def at(self, instant: int) -> State:
        """The values of the version that covers an instant, or None if no version does."""
        covering = [
            row
            for row in self.versions
            if (row.start or 0) <= instant and (row.end is None or instant < row.end)
        ]
        return {name: covering[-1].values.get(name) for name in self.terms.tracked} if covering else None

    def after(self, state: State, instant: int) -> State:
        """The state after the changes of an instant, in the order of their sequences (V22).

        At the instant of a copy, or in the settled interval, it is the stored state (V31).
        """
        if instant in self.copied or is_settled(instant, self.terms):
            return self.at(instant)
        for _, row in sorted(self.changes.get(instant, ()), key=lambda change: change[0]):
            if row is None or row.kind == FactKind.DELETE:
                state = None
                continue
            state = dict(state or dict.fromkeys(self.terms.tracked))
            for name in self.terms.tracked:
                if row.columns is None or self.terms.numbers.get(name) in row.columns:
                    state[name] = row.values.get(name)
        return state


def facts_of_record(rows: Sequence[RecordRow], terms: LawTerms) -> LifeFacts:
    """The versions and facts of a record, and the marks that apply to every key."""
    versions = sorted(
        (row for row in rows if row.role is None),
        key=lambda row: (row.start or 0, row.start is None, INFINITY if row.end is None else row.end),
    )
    changes = defaultdict[int, list[tuple[tuple[Any, ...], RecordRow | None]]](list)
    for row in filter(_is_event, rows):
        if row.start is not None:
            changes[row.start].append((row.sequence, row))
    marks = _marks_of(rows, terms)
    for mark in marks:
        at = _instant_in_log(mark, marks, rows, terms) if mark.kind == FactKind.TRUNCATE else None
        if at is not None:
            changes[at].append((mark.sequence, None))
    return LifeFacts(
        versions, changes, {mark.start or 0 for mark in marks if mark.kind == FactKind.COPY}, terms
    )


def _instant_in_log(
    mark: RecordRow, marks: Sequence[RecordRow], rows: Sequence[RecordRow], terms: LawTerms
) -> int | None:
    """The instant of a truncate for this record, or None if the record is settled beyond it (V131, V135)."""
    if mark.time is None:
        return mark.start
    log = [row for row in rows if _is_event(row) and row.time is not None]
    if any(row.sequence > mark.sequence and is_settled(row.start, terms) for row in log):
        return None
    before = [*log, *(each for each in marks if each.time is not None)]
    starts = (each.start or 0 for each in before if each.sequence < mark.sequence)
    return max([mark.start or 0, *starts])


def same_state(one: State, other: State) -> bool:
    """Whether two states are equal, even if they contain NaN (V16)."""
    return one == other or repr(one) == repr(other)


def _count_unfolded(rows: Sequence[RecordRow], terms: LawTerms) -> int:
    """Count the instants at which the stored state does not follow from the facts (V23, V24)."""
    facts = facts_of_record(rows, terms)
    begun, wrong = facts.begun, 0
    for at in facts.instants:
        if not is_settled(at, terms):
            before, after = facts.at(at - 1), facts.at(at)
            wrong += not same_state(facts.after(before, at), after) or (
                at in begun and same_state(before, after)
            )
    return wrong


def _folded_versions(facts: LifeFacts) -> Iterator[tuple[int, int | None, Mapping[str, Any]]]:
    """The longest intervals without a change of values (V23). Settled times keep their stored values."""
    settled = {each for each in facts.terms.settled or () if each is not None}
    state: State = None
    changes: list[tuple[int, State]] = []
    for at in sorted({*facts.instants, *facts.copied, *settled}):
        after = facts.after(state, at)
        if not same_state(state, after):
            changes.append((at, after))
        state = after
    for (at, values), following in zip_longest(changes, changes[1:]):
        if values is not None:
            yield at, following and following[0], values


def _refold(rows: Sequence[RecordRow], terms: LawTerms) -> list[RecordRow]:
    """The rows with the versions that follow from their facts, or unchanged if the facts do not suffice.

    Any other stored version becomes a silent fact if it is an event (V24). Otherwise the version is removed.
    """
    facts = facts_of_record(rows, terms)
    stored = {row.start: row for row in facts.versions}
    versions: dict[int, RecordRow] = {}
    for start, end, values in _folded_versions(facts):
        events = [row for _, row in facts.changes.get(start, ()) if row and row.kind == FactKind.UPSERT]
        row = stored.get(start) or max(events, key=lambda row: row.sequence, default=None)
        if row is None:
            return list(rows)
        merged = row.values if same_state(row.values, values) else {**row.values, **values}
        versions[row.place] = replace(row, role=None, end=end, flag=end is None, values=merged)
    others = [
        row
        if row.role is not None
        else replace(row, role=Role.FACT, end=row.start, flag=False, ended_at=None, end_before=None)
        for row in rows
        if row.place not in versions and (row.role is not None or row.kind == FactKind.UPSERT)
    ]
    after = _without_overlaps([versions[row.place] for row in rows if row.place in versions], others)
    return list(rows) if any(broken_together(after, terms)) else after


def mend_rows(rows: Sequence[RecordRow], terms: LawTerms, broken: Collection[Law]) -> list[RecordRow]:
    """The rows as they should have been written. Stored rows that the result lacks are to be removed.

    Rows without a key are removed, because no query finds them. A wrong hash, an unknown end, and a version
    whose row is missing cannot be repaired and stay as they are.
    """
    if not broken:
        return list(rows)
    if set(broken) == {Law.FOLD}:
        return _refold(rows, terms)
    keyed = [row for row in _without_twins(rows) if row.keyed or is_mark(row)]
    if not terms.remembers:
        return _one_after_another(keyed, terms)
    keyed = [
        replace(row, role=None, scope=None, kind=None)
        if Law.MEMORY in row.broken and is_version(row)
        else row
        for row in keyed
    ]
    versions = _one_after_another([row for row in keyed if row.role is None], terms)
    others = [
        row
        for row in keyed
        if row.role is not None and not row.broken & {Law.MEMORY, Law.RECORDED}
        if row.role != Role.FACT or not is_settled(row.start, terms)
    ]
    after = _without_overlaps(_with_recorded_times(versions, terms), _without_repeated(versions, others))
    return _refold(after, terms) if set(broken_together(after, terms)) == {Law.FOLD} else after


def is_mark(row: RecordRow) -> bool:
    """Whether a row is the mark of a copy or truncate, which applies to all keys (V3)."""
    return row.role == "fact" and row.kind in {"copy", "truncate"}


def is_version(row: RecordRow) -> bool:
    """Whether a row is a version: it has no role, or it has a length despite its role (V116)."""
    return row.role is None or (row.start is not None and (row.end is None or row.end > row.start))


def is_open(row: RecordRow, terms: LawTerms) -> bool:
    """Whether the version is open: it has no end, or the far-future end that the layout uses instead."""
    if terms.span.far is not None and row.end is not None:
        return row.end >= terms.span.far
    return row.end is None and not terms.span.grain


def until(row: RecordRow, terms: LawTerms) -> int:
    """The first instant after a version, or its start if its end is unknown."""
    if is_open(row, terms):
        return INFINITY
    return (row.start or 0) if row.end is None else row.end


def has_length(row: RecordRow, terms: LawTerms) -> bool:
    """Whether the version was true at some instant. Its end is one grain before the next version's start."""
    if row.start is None or (row.end is None and not is_open(row, terms)):
        return False
    return row.start < until(row, terms) + terms.span.grain


def _without_twins(rows: Iterable[RecordRow]) -> list[RecordRow]:
    """The rows, with only the oldest of identical rows."""
    oldest: dict[object, RecordRow] = {}
    for row in rows:
        twin = oldest.setdefault(row.place if row.twin is None else row.twin, row)
        if row.row_id is not None and twin.row_id is not None and row.row_id < twin.row_id:
            oldest[row.twin] = row
    return list(oldest.values())


def _one_after_another(rows: Sequence[RecordRow], terms: LawTerms) -> list[RecordRow]:
    """The versions, adjusted so that each has its own start, has a length, and does not overlap the next."""
    by_time = sorted(rows, key=lambda row: (row.written or 0, until(row, terms), row.place))
    starts = {row.start: row for row in by_time if row.start is not None}
    ordered = [starts[start] for start in sorted(starts)]
    ended = [_with_end(row, after, terms) for row, after in zip_longest(ordered, ordered[1:])]
    lasting = [row for row in ended if has_length(row, terms) or (row.end is None and terms.span.grain)]
    for place, (row, after) in enumerate(pairwise(lasting)):
        if after.start is not None and until(row, terms) > after.start:
            lasting[place] = replace(row, end=after.start - terms.span.grain)
    return _with_markers(lasting, {row.place: row for row in rows}, terms)


def _with_end(row: RecordRow, after: RecordRow | None, terms: LawTerms) -> RecordRow:
    """The version. A Fivetran version without an end gets an end from its successor or its flag."""
    if not terms.span.grain or row.end is not None:
        return row
    if row.flag and after is None:
        return replace(row, end=terms.span.far)
    return row if after is None else replace(row, end=(after.start or 0) - terms.span.grain)


def _with_markers(
    rows: Sequence[RecordRow], before: dict[int, RecordRow], terms: LawTerms
) -> list[RecordRow]:
    """The rows with the flags and states that fit their ends."""
    if terms.span.flag:
        endless = {row.place for row in rows if row.end is None and terms.span.grain}
        return [row if row.place in endless else replace(row, flag=is_open(row, terms)) for row in rows]
    if not terms.span.state or not {row.state for row in rows} <= WORDS | {None}:
        return list(rows)
    marked = list(rows)
    for place, row in enumerate(rows):
        contrary = {None, DELETED if is_open(row, terms) else NEW}
        if row.state not in contrary and row.end == before[row.place].end:
            continue
        follows = place > 0 and rows[place - 1].end == row.start
        followed = place + 1 < len(rows) and rows[place + 1].start == row.end
        state = (CHANGED if follows else NEW) if is_open(row, terms) else (CHANGED if followed else DELETED)
        marked[place] = replace(row, state=state)
    return marked


def _with_recorded_times(rows: Sequence[RecordRow], terms: LawTerms) -> list[RecordRow]:
    """The versions, with impossible recorded times corrected, or withdrawn if they belong to an end."""
    known = [each.written for each in rows if each.written is not None]
    newest = max(known, default=0) if terms.newest is None else terms.newest
    last = INFINITY if terms.newest is None else newest
    versions = list(rows)
    for place, row in enumerate(rows):
        if Law.RECORDED in row.broken:
            written = newest if row.written is None else min(row.written, newest)
            versions[place] = replace(row, written=written)
            if row.ended_at is not None and not written < row.ended_at <= last:
                versions[place] = replace(versions[place], ended_at=None, end_before=None)
    return versions


def _without_repeated(versions: Sequence[RecordRow], others: Sequence[RecordRow]) -> list[RecordRow]:
    """Keep one fact for each identity: the version, or else the fact recorded last."""
    by_time = sorted(others, key=lambda row: (row.written or 0, row.place))
    kept = {_fact_identity(row): row.place for row in (*by_time, *versions) if is_fact(row)}
    return [row for row in others if not is_fact(row) or kept[_fact_identity(row)] == row.place]


def _without_overlaps(versions: Sequence[RecordRow], others: Sequence[RecordRow]) -> list[RecordRow]:
    """The rows without overlapping statements: past rows are removed, and versions lose their earlier end."""
    kept_rows = list(versions)
    for place, row in enumerate(versions):
        later = kept_rows[place + 1 :]
        if row.ended_at is not None and count_overlaps([row, *later]) > count_overlaps(later):
            kept_rows[place] = replace(row, ended_at=None, end_before=None)
    for row in sorted(others, key=lambda row: (row.written or 0, row.place)):
        if row.role != Role.PAST or not count_overlaps([*kept_rows, row]):
            kept_rows.append(row)
    return kept_rows
