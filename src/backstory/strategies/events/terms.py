"""The settings of an event log: a dataset's merge strategy and options, and codes of events and problems."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any


class Strategy(StrEnum):
    """How a delivery is merged into the log (section 1.8)."""

    APPEND = "Append"
    LEDGER = "Ledger"
    SNAPSHOT = "Snapshot"
    UPSERT = "UpsertStream"
    CHANGELOG = "ChangelogStream"


class Op(IntEnum):
    """The operation of an event (section 2.1)."""

    APPEND = 0
    RETRACT = 1
    CORRECT_FROM = 2
    CORRECT_TO = 3

    @property
    def symbol(self) -> str:
        """The short symbol for the operation in output for people."""
        return ("+A", "-R", "-C", "+C")[self]


LETTERS = {Op.APPEND: "I", Op.RETRACT: "D", Op.CORRECT_TO: "U"}  # the `observed` encoding (decision O3)


class EventEncoding(StrEnum):
    """How the table stores operations."""

    OP = "op"
    OBSERVED = "observed"


class OnConflict(StrEnum):
    """The action for a ledger row with a known key and different content (decision O9)."""

    IGNORE = "ignore"
    ERROR = "error"
    CORRECT = "correct"


@dataclass(frozen=True, slots=True)
class EventTerms:
    """A merge strategy and its options, in terms of columns.

    `key` names data columns. If an event time is part of a record's identity, `time_at` is its position among
    these columns. If `time_required` is set, the event time must not be NULL. A difference in one of the
    columns `compare` is a change. None means all data columns. With `compare_time`, a difference in the event
    time is also a change. The column `sequence` orders the rows of an upsert; ties are ordered by arrival.
    """

    strategy: Strategy
    key: tuple[str, ...] = ()
    time_at: int | None = None
    time_required: bool = False
    compare: tuple[str, ...] | None = None
    compare_time: bool = True
    encoding: EventEncoding | None = None
    on_conflict: OnConflict = OnConflict.IGNORE
    max_retract: float | None = None
    strict: bool = True
    sequence: str | None = None

    @property
    def time_in_key(self) -> bool:
        """Whether the event time is part of a record's identity."""
        return self.time_at is not None

    @property
    def retracts_in_place(self) -> bool:
        """Whether a retraction has the event time of the event that it retracts, not of the delivery (O19).

        This is always so if the event time is part of the record's identity.
        """
        return self.pairs or self.time_in_key

    @property
    def looks_back(self) -> bool:
        """Whether the new events depend on the events in the log."""
        unchecked = self.strategy is Strategy.CHANGELOG and not self.strict
        return self.strategy is not Strategy.APPEND and not unchecked

    @property
    def pairs(self) -> bool:
        """Whether a correction is written as two events: the old row and the new row."""
        return self.encoding is not EventEncoding.OBSERVED


@dataclass(frozen=True, slots=True)
class Moment:
    """The times and the first offset for a delivery's events.

    `fallback` is the event time of rows that have none, `watermark` the greatest event time so far, and
    `start` the next offset.
    """

    system_time: Any
    fallback: Any
    watermark: Any = None
    start: int = 0


class RowProblem(StrEnum):
    """A problem with a row. A delivery with any problem is refused."""

    NULL_KEY = "null-key"
    WRONG_OP = "wrong-op"
    NULL_SEQUENCE = "null-sequence"
    CONFLICTING = "conflicting-rows"
    KNOWN_CONFLICT = "ledger-conflict"
    PRESENT = "already-present"  # V3
    ABSENT = "not-present"  # V4
    UNLIKE = "unlike-current"  # V4
    UNPAIRED = "unpaired-correction"  # V5
