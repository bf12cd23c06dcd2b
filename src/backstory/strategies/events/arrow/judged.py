"""What is known of the rows of a log and a delivery side by side, and what becomes of each."""

from dataclasses import dataclass, replace

import numpy as np

from backstory.strategies.events.arrow.codes import LACKING, identities
from backstory.strategies.events.arrow.sides import NOBODY, EventSides, Neighbours, Places, Truths, neighbours
from backstory.strategies.events.outcomes import outcomes
from backstory.strategies.events.terms import EventTerms, Op, Strategy


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
        return self.follows & self._alike(self._content(), self._beside.before) & self._simultaneous

    @property
    def followed(self) -> Truths:
        return self._beside.after != NOBODY

    @property
    def known(self) -> Truths:
        return self._there(self._beside.stored)

    @property
    def same(self) -> Truths:
        names = self._terms.compare
        content = self._content() if names is None else identities(self.sides.data, names)
        equal = self._alike(content, self._beside.stored)
        if not self._terms.compare_time:
            return equal
        times = self.sides.times
        return equal & ((times == LACKING) | self._alike(times, self._beside.stored))

    @property
    def present(self) -> Truths:
        return self._there(self._beside.before)

    @property
    def resembles(self) -> Truths:
        told = self.sides.times == self.times_before
        return self._alike(self._content(), self._beside.before) & told

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

    @property
    def _simultaneous(self) -> Truths:
        return self._alike(self.sides.times, self._beside.before)

    def _content(self) -> np.ndarray:
        return identities(self.sides.data, self.sides.data.column_names)

    def _lacks(self, name: str) -> Truths:
        return np.asarray(self.sides.data[name].is_null())

    def _there(self, places: Places) -> Truths:
        return (places != NOBODY) & (self.sides.ops[places] != Op.RETRACT)

    def _alike(self, numbers: np.ndarray, places: Places) -> Truths:
        """Whether rows have the numbers of the rows at these places."""
        return (places != NOBODY) & (numbers == numbers[places])
