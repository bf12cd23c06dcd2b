"""The action of a load on each record: the table of section 9.1, as data.

The rule, the statements, the MERGE, the plan on Spark, the counts of receipts and the page on states are
derived from it. Cases that the table does not contain cannot occur.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    """How a version began or ended. Records are counted under the same names."""

    NEW = "new"
    CHANGED = "changed"
    DELETED = "deleted"
    REAPPEARED = "reappeared"


UNCHANGED: Final = "unchanged"
# The counts of a receipt, in their order.
OUTCOMES: Final = (*(state.value for state in State), UNCHANGED)
# The stored states unless the model has its own: a record that returns is new again (section 3.4).
WORDS: Final[Mapping[State, str]] = MappingProxyType(
    {state: (State.NEW if state is State.REAPPEARED else state).value for state in State}
)


class Past(StrEnum):
    """The versions that the history has of a record before the load.

    The first case that is true applies. A load by four statements may be interrupted after the first
    statement. It has then closed the changed versions, at its own instant, without beginning the next
    versions. Closed versions count regardless of their state, including archived versions.
    """

    OPEN = "an open version"
    INTERRUPTED = "a version that this very load closed as changed, none open"
    CLOSED = "closed or archived versions, none open"
    NOTHING = "no version"


class Now(StrEnum):
    """The state of a record in the base. A row that is flagged as deleted counts as no row (section 7.3)."""

    SAME = "a row with the same hash"
    OTHER = "a row with another hash"
    PRESENT = "a row"
    ABSENT = "no row"
    SPARED = "no row, and the version is out of the scope of deletes"


@dataclass(frozen=True, slots=True)
class Step:
    """The state in which the open version closes, the state of the new version, and the count's name."""

    closes: State | None = None
    begins: State | None = None
    counted: str | None = None

    @property
    def closing(self) -> str | None:
        """The name of the statement that closes the version."""
        return self.closes and f"close_{WORDS[self.closes]}"

    @property
    def beginning(self) -> str | None:
        """The name of the statement that begins a version."""
        return self.begins and f"insert_{WORDS[self.begins]}"


Case = tuple[Past, Now]

TRANSITIONS: Final[Mapping[Case, Step]] = MappingProxyType(
    {
        (Past.OPEN, Now.SAME): Step(counted=UNCHANGED),
        (Past.OPEN, Now.OTHER): Step(State.CHANGED, State.CHANGED, State.CHANGED),
        (Past.OPEN, Now.ABSENT): Step(State.DELETED, None, State.DELETED),
        (Past.OPEN, Now.SPARED): Step(),
        (Past.INTERRUPTED, Now.PRESENT): Step(None, State.CHANGED, State.CHANGED),
        (Past.INTERRUPTED, Now.ABSENT): Step(),
        (Past.CLOSED, Now.PRESENT): Step(None, State.REAPPEARED, State.REAPPEARED),
        (Past.CLOSED, Now.ABSENT): Step(),
        (Past.NOTHING, Now.PRESENT): Step(None, State.NEW, State.NEW),
        (Past.NOTHING, Now.ABSENT): Step(),
    }
)
# The four statements, in their order: versions close before others begin.
CLOSINGS: Final = tuple(dict.fromkeys(step.closing for step in TRANSITIONS.values() if step.closing))
BEGINNINGS: Final = tuple(dict.fromkeys(step.beginning for step in TRANSITIONS.values() if step.beginning))


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of records in each case of the table."""

    cases: Counter[Case] = field(default_factory=Counter)

    @property
    def counts(self) -> dict[str, int]:
        """The number of records by outcome, as in a receipt."""
        counts = dict.fromkeys(OUTCOMES, 0)
        for case, number in self.cases.items():
            if (counted := TRANSITIONS[case].counted) is not None:
                counts[counted] += number
        return counts

    @property
    def base_records(self) -> int:
        """The number of records in the base."""
        missing = {Now.ABSENT, Now.SPARED}
        return sum(number for (_, now), number in self.cases.items() if now not in missing)

    @property
    def open_records(self) -> int:
        """The number of records with an open version before the load."""
        return sum(number for (past, _), number in self.cases.items() if past is Past.OPEN)

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows that each of the four statements affects."""
        rows = dict.fromkeys((*CLOSINGS, *BEGINNINGS), 0)
        for case, number in self.cases.items():
            for statement in (TRANSITIONS[case].closing, TRANSITIONS[case].beginning):
                if statement is not None:
                    rows[statement] += number
        return rows
