"""What becomes of each row, by the rules of each strategy; a condition is an array of truth values.

What is known of the rows of a log and a delivery side by side, and what becomes of each.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from backstory.strategies.events.sides import NO_ROW, EventSides, Mask, Neighbours, Places, neighbours
from backstory.strategies.events.terms import (
    ABSENT,
    CONFLICTING,
    KNOWN_CONFLICT,
    NULL_KEY,
    NULL_SEQUENCE,
    PRESENT,
    UNLIKE,
    UNPAIRED,
    WRONG_OP,
    EventTerms,
    OnConflict,
    Op,
    Strategy,
)
from backstory.strategies.matching import differ
from backstory.strategies.values import LACKING

Condition = Any
Rules = Mapping[str, Condition]


class RowFacts(Protocol):
    """What is known of each row, stored or delivered; where nothing is known, it is not so."""

    def does(self, *operations: Op) -> Condition:
        """Whether the row says that it does one of these."""

    @property
    def is_delivered(self) -> Condition:
        """Whether it was delivered; else it is an event of the log."""

    @property
    def without_key(self) -> Condition:
        """Whether a part of its key is NULL."""

    @property
    def without_place(self) -> Condition:
        """Whether it has no value in the column that orders the rows."""

    @property
    def follows(self) -> Condition:
        """Whether the row before it is a delivered one of the same record."""

    @property
    def repeats(self) -> Condition:
        """Whether that row has the same content."""

    @property
    def is_followed(self) -> Condition:
        """Whether another row of the same record comes after it."""

    @property
    def in_log(self) -> Condition:
        """Whether the log has the record, and has not retracted it."""

    @property
    def same(self) -> Condition:
        """Whether nothing changed since the record's last event; no event time is no change."""

    @property
    def present(self) -> Condition:
        """Whether the record is there right before this row."""

    @property
    def resembles(self) -> Condition:
        """Whether the record is just as this row says right before it."""

    @property
    def is_paired(self) -> Condition:
        """Whether the other half of a correction stands right beside it."""


def outcomes(rows: RowFacts, terms: EventTerms) -> Rules:
    """What can become of a row, each with its condition; the first that holds is it.

    It is appended, corrected, retracted, unchanged, conflicts, absent, told, nothing, or a problem; a
    correction or a retraction is one of the record's last event.
    """
    rules = {
        Strategy.APPEND: _append,
        Strategy.LEDGER: _ledger,
        Strategy.SNAPSHOT: _snapshot,
        Strategy.UPSERT: _upsert,
        Strategy.CHANGELOG: _changelog,
    }
    return rules[terms.strategy](rows, terms)


def _append(rows: RowFacts, _terms: EventTerms) -> Rules:
    return {"appended": rows.is_delivered}


def _ledger(rows: RowFacts, terms: EventTerms) -> Rules:
    again = {
        OnConflict.IGNORE: "conflicts",
        OnConflict.ERROR: KNOWN_CONFLICT,
        OnConflict.CORRECT: "corrected",
    }[terms.on_conflict]
    # Each known row is counted; of those that make events one stands for all that are like it.
    makes = rows.is_delivered if terms.on_conflict is OnConflict.CORRECT else ~rows.in_log
    return {
        NULL_KEY: rows.is_delivered & rows.without_key,
        CONFLICTING: rows.is_delivered & makes & rows.follows & ~rows.repeats,
        "nothing": ~rows.is_delivered | (makes & ~(rows.in_log & rows.same) & rows.repeats),
        "unchanged": rows.in_log & rows.same,
        again: rows.in_log,
        "appended": rows.is_delivered,
    }


def _snapshot(rows: RowFacts, _terms: EventTerms) -> Rules:
    return {
        NULL_KEY: rows.is_delivered & rows.without_key,
        "retracted": ~rows.is_delivered & ~rows.is_followed & rows.in_log,
        "nothing": ~rows.is_delivered | rows.repeats,
        CONFLICTING: rows.follows,
        "appended": ~rows.in_log,
        "unchanged": rows.same,
        "corrected": rows.is_delivered,
    }


def _upsert(rows: RowFacts, _terms: EventTerms) -> Rules:
    retracts = rows.does(Op.RETRACT)
    return {
        NULL_KEY: rows.is_delivered & rows.without_key,
        WRONG_OP: rows.is_delivered & ~rows.does(Op.APPEND, Op.RETRACT, Op.CORRECT_TO),
        NULL_SEQUENCE: rows.is_delivered & rows.without_place,
        "nothing": ~rows.is_delivered | rows.is_followed,
        "absent": retracts & ~rows.in_log,
        "retracted": retracts,
        "appended": ~rows.in_log,
        "unchanged": rows.same,
        "corrected": rows.is_delivered,
    }


def _changelog(rows: RowFacts, terms: EventTerms) -> Rules:
    wrong = rows.is_delivered & ~rows.does(*Op)
    if not terms.strict:
        return {WRONG_OP: wrong, "told": rows.is_delivered}
    takes = rows.does(Op.RETRACT, Op.CORRECT_FROM)
    return {
        NULL_KEY: rows.is_delivered & rows.without_key,
        WRONG_OP: wrong,
        "nothing": ~rows.is_delivered,
        PRESENT: rows.does(Op.APPEND) & rows.present,
        ABSENT: takes & ~rows.present,
        UNLIKE: takes & ~rows.resembles,
        UNPAIRED: rows.does(Op.CORRECT_FROM, Op.CORRECT_TO) & ~rows.is_paired,
        "told": rows.is_delivered,
    }


@dataclass(frozen=True, slots=True)
class JudgedSides:
    """The sides, the place of each record's last event, and the rows by what becomes of them."""

    sides: EventSides
    stored: Places
    becomes: dict[str, Places]


def judge(sides: EventSides, terms: EventTerms, fallback: int) -> JudgedSides:
    """What becomes of each row; `fallback` is the event time of those without one."""
    beside = neighbours(sides, terms)
    facts = _ArrayFacts(sides, beside, terms, fallback)
    if terms.strategy is Strategy.CHANGELOG and terms.strict:
        # A retraction without an event time repeats the stored one.
        takes = sides.is_delivered & facts.does(Op.RETRACT, Op.CORRECT_FROM) & (sides.times == LACKING)
        facts = _ArrayFacts(
            replace(sides, times=np.where(takes, facts.times_before, sides.times)), beside, terms, fallback
        )
    rules = outcomes(facts, terms)
    chosen = np.select(list(rules.values()), range(len(rules)), NO_ROW)
    found = {name: np.flatnonzero(chosen == place) for place, name in enumerate(rules)}
    return JudgedSides(facts.sides, beside.stored, found)


class _ArrayFacts:
    """The facts as truth values, a number for each row."""

    def __init__(self, sides: EventSides, beside: Neighbours, terms: EventTerms, fallback: int) -> None:
        self.sides, self._beside, self._terms, self._fallback = sides, beside, terms, fallback
        self.times_before = np.where(sides.times == LACKING, fallback, sides.times)[beside.before]
        self.times_before[beside.before == NO_ROW] = fallback

    def does(self, *operations: Op) -> Mask:
        return np.isin(self.sides.ops, operations)

    @property
    def is_delivered(self) -> Mask:
        return self.sides.is_delivered

    @property
    def without_key(self) -> Mask:
        found = self.sides.times == LACKING if self._terms.time_required else np.zeros(self._size, bool)
        for name in self._terms.key:
            found = found | self._lacks(name)
        return found

    @property
    def without_place(self) -> Mask:
        return self._lacks(self._terms.sequence) if self._terms.sequence else np.zeros(self._size, bool)

    @property
    def follows(self) -> Mask:
        return self._beside.before >= self.sides.logged

    @property
    def repeats(self) -> Mask:
        before = self._beside.before
        return self._alike(None, self.follows, before) & (self.sides.times == self.sides.times[before])

    @property
    def is_followed(self) -> Mask:
        return self._beside.after != NO_ROW

    @property
    def in_log(self) -> Mask:
        return self._there(self._beside.stored)

    @property
    def same(self) -> Mask:
        stored, times = self._beside.stored, self.sides.times
        equal = self._alike(self._terms.compare, self.is_delivered & (stored != NO_ROW), stored)
        if not self._terms.compare_time:
            return equal
        return equal & ((times == LACKING) | (times == times[stored]))

    @property
    def present(self) -> Mask:
        return self._there(self._beside.before)

    @property
    def resembles(self) -> Mask:
        before = self._beside.before
        told = self.sides.times == self.times_before
        return told & self._alike(None, self.is_delivered & (before != NO_ROW), before)

    @property
    def is_paired(self) -> Mask:
        before, after = self._beside.before, self._beside.after
        ops, places = self.sides.ops, self.sides.places
        goes_on = (after != NO_ROW) & (ops[after] == Op.CORRECT_TO) & (places[after] == places + 1)
        ends = self.follows & (ops[before] == Op.CORRECT_FROM) & (places[before] == places - 1)
        return np.where(self.does(Op.CORRECT_FROM), goes_on, ends)

    @property
    def _size(self) -> int:
        return len(self.sides.ops)

    def _lacks(self, name: str) -> Mask:
        return np.asarray(self.sides.data[name].is_null())

    def _there(self, places: Places) -> Mask:
        return (places != NO_ROW) & (self.sides.ops[places] != Op.RETRACT)

    def _alike(self, names: Sequence[str] | None, these: Mask, places: Places) -> Mask:
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
