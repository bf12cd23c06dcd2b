"""What becomes of each row, by the rules of each strategy; a condition is an array of truth values."""

from collections.abc import Mapping
from typing import Any, Protocol

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

Condition = Any
Rules = Mapping[str, Condition]


class Facts(Protocol):
    """What is known of each row, stored or delivered; where nothing is known, it is not so."""

    def does(self, *operations: Op) -> Condition:
        """Whether the row says that it does one of these."""

    @property
    def delivered(self) -> Condition:
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
    def followed(self) -> Condition:
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
    def paired(self) -> Condition:
        """Whether the other half of a correction stands right beside it."""


def outcomes(rows: Facts, terms: EventTerms) -> Rules:
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


def _append(rows: Facts, _terms: EventTerms) -> Rules:
    return {"appended": rows.delivered}


def _ledger(rows: Facts, terms: EventTerms) -> Rules:
    again = {
        OnConflict.IGNORE: "conflicts",
        OnConflict.ERROR: KNOWN_CONFLICT,
        OnConflict.CORRECT: "corrected",
    }[terms.on_conflict]
    # Each known row is counted; of those that make events one stands for all that are like it.
    makes = rows.delivered if terms.on_conflict is OnConflict.CORRECT else ~rows.in_log
    return {
        NULL_KEY: rows.delivered & rows.without_key,
        CONFLICTING: rows.delivered & makes & rows.follows & ~rows.repeats,
        "nothing": ~rows.delivered | (makes & ~(rows.in_log & rows.same) & rows.repeats),
        "unchanged": rows.in_log & rows.same,
        again: rows.in_log,
        "appended": rows.delivered,
    }


def _snapshot(rows: Facts, _terms: EventTerms) -> Rules:
    return {
        NULL_KEY: rows.delivered & rows.without_key,
        "retracted": ~rows.delivered & ~rows.followed & rows.in_log,
        "nothing": ~rows.delivered | rows.repeats,
        CONFLICTING: rows.follows,
        "appended": ~rows.in_log,
        "unchanged": rows.same,
        "corrected": rows.delivered,
    }


def _upsert(rows: Facts, _terms: EventTerms) -> Rules:
    retracts = rows.does(Op.RETRACT)
    return {
        NULL_KEY: rows.delivered & rows.without_key,
        WRONG_OP: rows.delivered & ~rows.does(Op.APPEND, Op.RETRACT, Op.CORRECT_TO),
        NULL_SEQUENCE: rows.delivered & rows.without_place,
        "nothing": ~rows.delivered | rows.followed,
        "absent": retracts & ~rows.in_log,
        "retracted": retracts,
        "appended": ~rows.in_log,
        "unchanged": rows.same,
        "corrected": rows.delivered,
    }


def _changelog(rows: Facts, terms: EventTerms) -> Rules:
    wrong = rows.delivered & ~rows.does(*Op)
    if not terms.strict:
        return {WRONG_OP: wrong, "told": rows.delivered}
    takes = rows.does(Op.RETRACT, Op.CORRECT_FROM)
    return {
        NULL_KEY: rows.delivered & rows.without_key,
        WRONG_OP: wrong,
        "nothing": ~rows.delivered,
        PRESENT: rows.does(Op.APPEND) & rows.present,
        ABSENT: takes & ~rows.present,
        UNLIKE: takes & ~rows.resembles,
        UNPAIRED: rows.does(Op.CORRECT_FROM, Op.CORRECT_TO) & ~rows.paired,
        "told": rows.delivered,
    }
