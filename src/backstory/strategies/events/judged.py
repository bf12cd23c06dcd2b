"""What is known of the rows of a log and a delivery side by side, and what becomes of each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from backstory.strategies.events.outcomes import outcomes
from backstory.strategies.events.sides import NOBODY, EventSides, Neighbours, Places, Truths, neighbours
from backstory.strategies.events.terms import EventTerms, Op, Strategy
from backstory.strategies.matching import differ
from backstory.strategies.values import LACKING


@dataclass(frozen=True, slots=True)
class JudgedSides:
    """The sides, the place of each record's last event, and the rows by what becomes of them."""

    sides: EventSides
    stored: Places
    becomes: dict[str, Places]


def judge(sides: EventSides, terms: EventTerms, fallback: int) -> JudgedSides:
    """What becomes of each row; `fallback` is the event time of those without one."""
    beside = neighbours(sides, terms)
    facts = _Facts(sides, beside, terms, fallback)
    if terms.strategy is Strategy.CHANGELOG and terms.strict:
        # A retraction without an event time repeats the stored one.
        takes = sides.delivered & facts.does(Op.RETRACT, Op.CORRECT_FROM) & (sides.times == LACKING)
        facts = _Facts(
            replace(sides, times=np.where(takes, facts.times_before, sides.times)), beside, terms, fallback
        )
    rules = outcomes(facts, terms)
    chosen = np.select(list(rules.values()), range(len(rules)), NOBODY)
    found = {name: np.flatnonzero(chosen == place) for place, name in enumerate(rules)}
    return JudgedSides(facts.sides, beside.stored, found)


class _Facts:
    """The facts as truth values, a number for each row."""

    def __init__(self, sides: EventSides, beside: Neighbours, terms: EventTerms, fallback: int) -> None:
        self.sides, self._beside, self._terms, self._fallback = sides, beside, terms, fallback
        self.times_before = np.where(sides.times == LACKING, fallback, sides.times)[beside.before]
        self.times_before[beside.before == NOBODY] = fallback

    def does(self, *operations: Op) -> Truths:
        return np.isin(self.sides.ops, operations)

    @property
    def delivered(self) -> Truths:
        return self.sides.delivered

    @property
    def without_key(self) -> Truths:
        found = self.sides.times == LACKING if self._terms.time_required else np.zeros(self._size, bool)
        for name in self._terms.key:
            found = found | self._lacks(name)
        return found

    @property
    def without_place(self) -> Truths:
        return self._lacks(self._terms.sequence) if self._terms.sequence else np.zeros(self._size, bool)

    @property
    def follows(self) -> Truths:
        return self._beside.before >= self.sides.logged

    @property
    def repeats(self) -> Truths:
        before = self._beside.before
        return self._alike(None, self.follows, before) & (self.sides.times == self.sides.times[before])

    @property
    def followed(self) -> Truths:
        return self._beside.after != NOBODY

    @property
    def in_log(self) -> Truths:
        return self._there(self._beside.stored)

    @property
    def same(self) -> Truths:
        stored, times = self._beside.stored, self.sides.times
        equal = self._alike(self._terms.compare, self.delivered & (stored != NOBODY), stored)
        if not self._terms.compare_time:
            return equal
        return equal & ((times == LACKING) | (times == times[stored]))

    @property
    def present(self) -> Truths:
        return self._there(self._beside.before)

    @property
    def resembles(self) -> Truths:
        before = self._beside.before
        told = self.sides.times == self.times_before
        return told & self._alike(None, self.delivered & (before != NOBODY), before)

    @property
    def paired(self) -> Truths:
        before, after = self._beside.before, self._beside.after
        ops, places = self.sides.ops, self.sides.places
        goes_on = (after != NOBODY) & (ops[after] == Op.CORRECT_TO) & (places[after] == places + 1)
        ends = self.follows & (ops[before] == Op.CORRECT_FROM) & (places[before] == places - 1)
        return np.where(self.does(Op.CORRECT_FROM), goes_on, ends)

    @property
    def _size(self) -> int:
        return len(self.sides.ops)

    def _lacks(self, name: str) -> Truths:
        return np.asarray(self.sides.data[name].is_null())

    def _there(self, places: Places) -> Truths:
        return (places != NOBODY) & (self.sides.ops[places] != Op.RETRACT)

    def _alike(self, names: Sequence[str] | None, these: Truths, places: Places) -> Truths:
        """Whether these rows have the values of others of their records, in all columns or in those named."""
        rows, data = np.flatnonzero(these), self.sides.data
        wanted = data.column_names if names is None else names
        others = _values_of(data, places[rows], wanted, self._terms.key)
        apart = differ(zip(_values_of(data, rows, wanted, self._terms.key), others, strict=True))
        found = these.copy()
        if apart is not None:
            found[rows] = ~np.asarray(apart)
        return found


def _values_of(
    data: pa.Table, rows: Places, names: Sequence[str], key: Sequence[str]
) -> Iterator[pa.ChunkedArray]:
    """The columns of rows, but for those of the key, which is the same."""
    whole = len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all())
    for name in names:
        if name not in key:
            yield data[name].slice(int(rows[0]), len(rows)) if whole else data[name].take(pa.array(rows))
