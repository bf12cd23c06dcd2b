"""The words of an event log: what a dataset's merge strategy says, and the codes of its events."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any


class Strategy(StrEnum):
    """How a delivery joins what is stored (odf-ingest.md, section 1.8)."""

    APPEND = "Append"
    LEDGER = "Ledger"
    SNAPSHOT = "Snapshot"
    UPSERT = "UpsertStream"
    CHANGELOG = "ChangelogStream"


class Op(IntEnum):
    """What an event does (section 2.1)."""

    APPEND = 0
    RETRACT = 1
    CORRECT_FROM = 2
    CORRECT_TO = 3

    @property
    def symbol(self) -> str:
        """As people read it."""
        return ("+A", "-R", "-C", "+C")[self]


LETTERS = {Op.APPEND: "I", Op.RETRACT: "D", Op.CORRECT_TO: "U"}  # the `observed` encoding (decision O3)


class EventEncoding(StrEnum):
    """How the table says what an event does."""

    OP = "op"
    OBSERVED = "observed"


class OnConflict(StrEnum):
    """What a known ledger row with other content does (decision O9)."""

    IGNORE = "ignore"
    ERROR = "error"
    CORRECT = "correct"


@dataclass(frozen=True, slots=True)
class EventTerms:
    """A strategy and its options, in terms of columns.

    `key` names data columns; `time_at` is the place among them of an event time that belongs to the
    identity of a record, `time_required` says that it must not be NULL then. `compare` are the data
    columns that make a change, None for all; `compare_time` whether the event time does. `sequence`
    orders the rows of an upsert before their arrival does.
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
        """Whether the event time belongs to the identity of a record."""
        return self.time_at is not None

    @property
    def retracts_in_place(self) -> bool:
        """Whether a retraction has the event time of what it retracts, not that of the delivery (O19).

        A record that is known by its event time has no other.
        """
        return self.pairs or self.time_in_key

    @property
    def looks_back(self) -> bool:
        """Whether what is stored has a say in what a delivery adds."""
        told = self.strategy is Strategy.CHANGELOG and not self.strict
        return self.strategy is not Strategy.APPEND and not told

    @property
    def pairs(self) -> bool:
        """Whether a change is told by two events, the old row and the new one."""
        return self.encoding is not EventEncoding.OBSERVED


@dataclass(frozen=True, slots=True)
class Moment:
    """When a delivery is taken in: one system time for its events, and the time of those without one.

    `watermark` is the greatest event time so far, `start` the next offset.
    """

    system_time: Any
    fallback: Any
    watermark: Any = None
    start: int = 0


# What can be wrong with a row; the delivery is refused then.
NULL_KEY = "null-key"
CONFLICTING = "conflicting-rows"
WRONG_OP = "wrong-op"
NULL_SEQUENCE = "null-sequence"
KNOWN_CONFLICT = "ledger-conflict"
PRESENT = "already-present"  # V3
ABSENT = "not-present"  # V4
UNLIKE = "unlike-current"  # V4
UNPAIRED = "unpaired-correction"  # V5
PROBLEMS = (NULL_KEY, WRONG_OP, NULL_SEQUENCE, CONFLICTING, KNOWN_CONFLICT, PRESENT, ABSENT, UNLIKE, UNPAIRED)
TOO_MANY_RETRACTED = "too-many-retracted"
