"""The outcome of each row under the rules of the merge strategy, computed for all rows at once.

A condition is an array with one truth value for each row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from backstory.strategies.events.sides import NO_ROW, EventSides, Mask, Neighbours, Places, neighbours
from backstory.strategies.events.terms import EventTerms, OnConflict, Op, RowProblem, Strategy
from backstory.strategies.values import LACKING, rows_alike

# The outcome of a row of a changelog: an event with the row's own operation.
AS_DELIVERED: Final = "as-delivered"

Rules = Mapping[str, Mask]


class RowFacts:
    """Facts about each row, whether logged or delivered. A fact is false if it does not apply."""

    def __init__(self, sides: EventSides, adjacent: Neighbours, terms: EventTerms, fallback: int) -> None:
        self.sides, self._neighbours, self._terms = sides, adjacent, terms
        self.times_before = np.where(sides.times == LACKING, fallback, sides.times)[adjacent.before]
        self.times_before[adjacent.before == NO_ROW] = fallback

    def does(self, *operations: Op) -> Mask:
        """Whether the row has one of these operations."""
        return np.isin(self.sides.ops, operations)

    @property
    def is_delivered(self) -> Mask:
        """Whether the row was delivered. Otherwise it is an event of the log."""
        return self.sides.is_delivered

    @property
    def without_key(self) -> Mask:
        """Whether part of the key is NULL."""
        lacking = self.sides.times == LACKING if self._terms.time_required else np.zeros(self._size, bool)
        for name in self._terms.key:
            lacking = lacking | self._lacks(name)
        return lacking

    @property
    def without_place(self) -> Mask:
        """Whether the row has no value in the sequence column."""
        return self._lacks(self._terms.sequence) if self._terms.sequence else np.zeros(self._size, bool)

    @property
    def follows(self) -> Mask:
        """Whether the record's previous row was delivered."""
        return self._neighbours.before >= self.sides.logged

    @property
    def repeats(self) -> Mask:
        """Whether the record's previous row was delivered and has the same content as this row."""
        before = self._neighbours.before
        return self._alike(None, self.follows, before) & (self.sides.times == self.sides.times[before])

    @property
    def is_followed(self) -> Mask:
        """Whether a later row of the same record exists."""
        return self._neighbours.after != NO_ROW

    @property
    def in_log(self) -> Mask:
        """Whether the record is in the log and is not retracted."""
        return self._there(self._neighbours.stored)

    @property
    def same(self) -> Mask:
        """Whether the row equals the record's last event. A missing event time counts as equal."""
        stored, times = self._neighbours.stored, self.sides.times
        equal = self._alike(self._terms.compare, self.is_delivered & (stored != NO_ROW), stored)
        if not self._terms.compare_time:
            return equal
        return equal & ((times == LACKING) | (times == times[stored]))

    @property
    def present(self) -> Mask:
        """Whether the record exists just before this row."""
        return self._there(self._neighbours.before)

    @property
    def resembles(self) -> Mask:
        """Whether the record's state just before this row equals the row."""
        before = self._neighbours.before
        same_time = self.sides.times == self.times_before
        return same_time & self._alike(None, self.is_delivered & (before != NO_ROW), before)

    @property
    def is_paired(self) -> Mask:
        """Whether the adjacent row is the other half of a correction."""
        before, after = self._neighbours.before, self._neighbours.after
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
        """For each row in `these`, whether it equals the row at its place, in `names` or in all columns."""
        rows, data = np.flatnonzero(these), self.sides.data
        wanted = data.column_names if names is None else names
        sides = (_values_of(data, each, wanted, self._terms.key) for each in (rows, places[rows]))
        equal = these.copy()
        equal[rows] = rows_alike(zip(*sides, strict=True), len(rows))
        return equal


def outcomes(rows: RowFacts, terms: EventTerms) -> Rules:
    """The possible outcomes, each with a mask of the rows that meet its condition.

    The first condition that is true decides. An outcome is appended, corrected, retracted, unchanged,
    conflicts, absent, as-delivered, nothing, or a problem. Corrections and retractions apply to the record's
    last event.
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
        OnConflict.ERROR: RowProblem.KNOWN_CONFLICT,
        OnConflict.CORRECT: "corrected",
    }[terms.on_conflict]
    # Every unchanged row is counted. If identical rows make an event, they make it only once.
    makes = rows.is_delivered if terms.on_conflict is OnConflict.CORRECT else ~rows.in_log
    return {
        RowProblem.NULL_KEY: rows.is_delivered & rows.without_key,
        RowProblem.CONFLICTING: rows.is_delivered & makes & rows.follows & ~rows.repeats,
        "nothing": ~rows.is_delivered | (makes & ~(rows.in_log & rows.same) & rows.repeats),
        "unchanged": rows.in_log & rows.same,
        again: rows.in_log,
        "appended": rows.is_delivered,
    }


def _snapshot(rows: RowFacts, _terms: EventTerms) -> Rules:
    return {
        RowProblem.NULL_KEY: rows.is_delivered & rows.without_key,
        "retracted": ~rows.is_delivered & ~rows.is_followed & rows.in_log,
        "nothing": ~rows.is_delivered | rows.repeats,
        RowProblem.CONFLICTING: rows.follows,
        "appended": ~rows.in_log,
        "unchanged": rows.same,
        "corrected": rows.is_delivered,
    }


def _upsert(rows: RowFacts, _terms: EventTerms) -> Rules:
    retracts = rows.does(Op.RETRACT)
    return {
        RowProblem.NULL_KEY: rows.is_delivered & rows.without_key,
        RowProblem.WRONG_OP: rows.is_delivered & ~rows.does(Op.APPEND, Op.RETRACT, Op.CORRECT_TO),
        RowProblem.NULL_SEQUENCE: rows.is_delivered & rows.without_place,
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
        return {RowProblem.WRONG_OP: wrong, AS_DELIVERED: rows.is_delivered}
    takes = rows.does(Op.RETRACT, Op.CORRECT_FROM)
    return {
        RowProblem.NULL_KEY: rows.is_delivered & rows.without_key,
        RowProblem.WRONG_OP: wrong,
        "nothing": ~rows.is_delivered,
        RowProblem.PRESENT: rows.does(Op.APPEND) & rows.present,
        RowProblem.ABSENT: takes & ~rows.present,
        RowProblem.UNLIKE: takes & ~rows.resembles,
        RowProblem.UNPAIRED: rows.does(Op.CORRECT_FROM, Op.CORRECT_TO) & ~rows.is_paired,
        AS_DELIVERED: rows.is_delivered,
    }


@dataclass(frozen=True, slots=True)
class JudgedSides:
    """The sides, the row number of each record's last event, and the row numbers for each outcome."""

    sides: EventSides
    stored: Places
    outcomes: dict[str, Places]


def judge(sides: EventSides, terms: EventTerms, fallback: int) -> JudgedSides:
    """Decide the outcome of each row. `fallback` is the event time of rows that have none."""
    adjacent = neighbours(sides, terms)
    facts = RowFacts(sides, adjacent, terms, fallback)
    if terms.strategy is Strategy.CHANGELOG and terms.strict:
        # A retraction without an event time repeats the stored one.
        takes = sides.is_delivered & facts.does(Op.RETRACT, Op.CORRECT_FROM) & (sides.times == LACKING)
        facts = RowFacts(
            replace(sides, times=np.where(takes, facts.times_before, sides.times)), adjacent, terms, fallback
        )
    rules = outcomes(facts, terms)
    decisions = np.select(list(rules.values()), range(len(rules)), NO_ROW)
    rows = {name: np.flatnonzero(decisions == place) for place, name in enumerate(rules)}
    return JudgedSides(facts.sides, adjacent.stored, rows)


def _values_of(
    data: pa.Table, rows: Places, names: Sequence[str], key: Sequence[str]
) -> Iterator[pa.ChunkedArray]:
    """The columns of the rows, except the key's columns, which are equal anyway."""
    whole = len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all())
    for name in names:
        if name not in key:
            yield data[name].slice(int(rows[0]), len(rows)) if whole else data[name].take(pa.array(rows))
