"""The fold of a record's facts (native.md V20 to V26): the known state after each, and the record's life."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from backstory.model.values import comparison_key
from backstory.model.versions_layout import FactKind
from specification.stored import Instant, Key, Scope, StoredRow, StoredVersions, Values
from specification.values import equal_in


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement about one record (V20).

    For a copy, `values` are the listed values of the record, or None if the copy did not list it. `columns`
    are the columns that an upsert sets or a copy delivers, or None for all. `row` is the live row of a stored
    fact, and `event` is the event of a new fact. A message of a log has its `own` time. Its `sequence` is its
    position, which ends with whether it is a change instead of a read (V130).
    """

    kind: FactKind
    at: Instant
    values: Values | None = None
    columns: tuple[str, ...] | None = None
    sequence: tuple[object, ...] = ()
    scope: Scope | None = None
    row: StoredRow | None = None
    event: object = None
    own: Instant | None = None

    @property
    def new(self) -> bool:
        """Whether the fact is part of the delivery."""
        return self.event is not None

    @property
    def is_read(self) -> bool:
        """Whether the fact is a read of a snapshot, which shows the state before any later change (V131)."""
        return self.own is not None and not self.sequence[-1]

    @property
    def place(self) -> tuple[Instant, bool, bool, tuple[object, ...]]:
        """The sort key among the record's facts. Copies follow the events of their instant (V21)."""
        if self.kind is FactKind.COPY:
            return (self.at, True, False, self.scope or ())
        return (self.at, False, self.own is not None, self.sequence)


@dataclass(frozen=True, slots=True)
class Step:
    """A fact, the known states before and after it, and whether a version begins or ends with it (V24)."""

    fact: Fact
    before: Values | None
    after: Values | None
    begins: bool = False
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the folded life, and the fact with which it begins."""

    start: Instant
    end: Instant | None
    values: Values
    fact: Fact


@dataclass(frozen=True, slots=True)
class Life:
    """A record's life that results from its facts, and the steps of the fold."""

    versions: tuple[Version, ...]
    steps: tuple[Step, ...]

    def as_of(self, instant: Instant) -> Values | None:
        """The values of the record at an instant, or None if it did not exist then."""
        covering = (
            each.values
            for each in self.versions
            if each.start <= instant and (each.end is None or instant < each.end)
        )
        return next(covering, None)


def same(table: StoredVersions, one: Values | None, other: Values | None, names: Iterable[str]) -> bool:
    """Whether two states are equal in the tracked ones of these columns."""
    if one is None or other is None:
        return one is other
    return equal_in((name for name in names if name in table.tracked), one, other)


def lies_in(table: StoredVersions, scope: Scope | None, key: Key, state: Values | None) -> bool:
    """Whether an existing record is in a scope (V41)."""
    values = None if state is None else {**state, table.key: key}
    return values is not None and all(
        comparison_key(values.get(name)) == comparison_key(value) for name, value in scope or ()
    )


def state_after(table: StoredVersions, key: Key, state: Values | None, fact: Fact) -> Values | None:
    """The known state of the record after a fact (V22)."""
    names = table.columns if fact.columns is None else fact.columns
    if fact.kind in {FactKind.DELETE, FactKind.TRUNCATE}:
        return None
    if fact.values is None:
        return None if lies_in(table, fact.scope, key, state) else state
    values = {name: fact.values.get(name) for name in names}
    if fact.kind is FactKind.UPSERT:
        return {**(state or dict.fromkeys(table.columns)), **values}
    if state is not None and same(table, state, values, names):
        return {**state, **{name: values[name] for name in names if name in table.overwritten}}
    return {**dict.fromkeys(table.columns), **values}


def folded(table: StoredVersions, key: Key, facts: Sequence[Fact], since: Instant) -> Life:
    """The life that results from the facts of a record, which may be in any order (V23).

    Before the first new fact, columns that make no version have the values of the stored version (V18).
    """
    stored = next((row.values for row in table.life(key) if _reaches(row, since)), None)
    steps: list[Step] = []
    versions: list[Version] = []
    state: Values | None = None
    for instant, group in groupby(sorted(facts, key=lambda fact: fact.place), key=lambda fact: fact.at):
        if state is not None and stored is not None and instant >= since:
            state, stored = _as_stored(table, state, stored), None
            versions[-1] = replace(versions[-1], values=state)
        new_steps = list(_steps(table, key, state, list(group)))
        after = new_steps[-1].after
        if same(table, state, after, table.columns):
            # A fact without a version changes only columns without history (V18).
            state = None if state is None or after is None else _renewed(table, state, after)
        else:
            last = max(place for place, step in enumerate(new_steps) if _changes(table, step))
            if state is not None:
                versions[-1] = replace(versions[-1], end=instant)
                new_steps = [_ending(step) for step in new_steps]
            if after is not None:
                state = _renewed(table, new_steps[last].after or after, after)
                versions.append(Version(instant, None, state, new_steps[last].fact))
                new_steps[last] = replace(new_steps[last], begins=True)
            else:
                state = None
        steps += new_steps
    if versions and state is not None:
        if stored is not None:  # no fact is left from then on
            state = _as_stored(table, state, stored)
            versions[-1] = replace(versions[-1], values=state)
        versions[-1] = replace(versions[-1], values=_renewed(table, versions[-1].values, state))
    return Life(tuple(versions), tuple(steps))


def _as_stored(table: StoredVersions, state: Values, stored: Values) -> Values:
    """A state, with the stored version's values in columns that make no version."""
    return {**state, **{name: stored[name] for name in table.columns if name not in table.tracked}}


def _reaches(row: StoredRow, instant: Instant) -> bool:
    """Whether a version was the known state just before an instant (V78)."""
    return bool(row.start < instant and (row.end is None or row.end >= instant))


def _steps(table: StoredVersions, key: Key, state: Values | None, facts: Sequence[Fact]) -> Iterator[Step]:
    for fact in facts:
        after = state_after(table, key, state, fact)
        yield Step(fact, state, after)
        state = after


def _changes(table: StoredVersions, step: Step) -> bool:
    return not same(table, step.before, step.after, table.columns)


def _renewed(table: StoredVersions, state: Values, newest: Values) -> Values:
    """A state, with the newest values in columns without history."""
    return {**state, **{name: newest[name] for name in table.overwritten}}


def _ending(step: Step) -> Step:
    """A step at whose instant a version ends. A delete or truncate that removed the record ends it (V58)."""
    takes = step.fact.kind in {FactKind.DELETE, FactKind.TRUNCATE} and step.before is not None
    return replace(step, ends=takes)
