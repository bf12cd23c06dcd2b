"""A copy planned, wherever that was done: counts, keys of a few records, and the rows that go and come."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backstory.doors.native.receipts import COUNTS
from backstory.strategies.copies.sifted import CARRIED, VALUED
from backstory.strategies.copies.terms import CopyTerms
from backstory.strategies.copies.touched import (
    APPEARED,
    CHANGED,
    CLOSED,
    DRIVES,
    HAD,
    LOSES,
    TAKEN_BACK,
    UNCHANGED,
)

NEW, REOPENED = "new", "reopened"


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """Rows that go and come; None for none.

    `gone` is an Arrow table of places, or a frame in which files are numbers; `come` an Arrow table, `Pieces`
    or a frame. `removed` and `added` are how many they are.
    """

    gone: Any
    come: Any
    removed: int
    added: int


@dataclass(frozen=True, slots=True)
class PlannedCopy:
    """What a copy makes of its table.

    `counts` are those of the plan, `reopened` are the records that appear and were there before. `delivered`
    counts the copy's rows, of which `content` makes a number. `keys` gives up to ten keys of records of some
    kinds: those of the plan's samples, or `NEW` and `REOPENED` ones.
    """

    terms: CopyTerms
    counts: Mapping[str, int]
    reopened: int
    delivered: int
    content: Callable[[], int]
    keys: Callable[..., list[str]]
    rows: Callable[[], PlannedRows]

    @property
    def outcomes(self) -> dict[str, int]:
        """The records by outcome (V36)."""
        appeared, changed, closed, same = (
            self._count(name) for name in (APPEARED, CHANGED, CLOSED, UNCHANGED)
        )
        numbers = (appeared - self.reopened, changed, closed, self.reopened, same)
        return dict(zip(COUNTS, numbers, strict=True))

    @property
    def differing(self) -> int:
        """The records that are others than before."""
        return sum(number for name, number in self.outcomes.items() if name != "unchanged")

    @property
    def there(self) -> int:
        """The records that were there at the copy's instant."""
        return sum(self._count(name) for name in (CHANGED, CLOSED, UNCHANGED))

    @property
    def taken_back(self) -> int:
        """The statements that the table will not make any more."""
        return self._count(TAKEN_BACK)

    @property
    def losses(self) -> dict[str, tuple[int, int]]:
        """The columns that lose values: the records that do, of those that had one."""
        pairs = {
            name: (self._count(f"{LOSES}{name}"), self._count(f"{HAD}{name}")) for name in self.terms.compared
        }
        return {name: pair for name, pair in pairs.items() if pair[0]}

    @property
    def likeness(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Of columns that are missing, each with one that comes: records with one value in both, and any."""
        return {
            each: (self._count(f"{CARRIED}{number}"), self._count(f"{VALUED}{number}"))
            for number, each in enumerate(self.terms.successions)
        }

    @property
    def driving(self) -> dict[str, int]:
        """The records that change by the columns in which they do."""
        names = (*self.terms.compared, *self.terms.renewed)
        return {name: count for name in names if (count := self._count(f"{DRIVES}{name}"))}

    def keys_of_outcomes(self) -> dict[str, list[str]]:
        """Up to ten keys of each outcome but the unchanged."""
        kinds = {NEW: NEW, "changed": CHANGED, "closed": CLOSED, REOPENED: REOPENED}
        return {outcome: self.keys(kind) for outcome, kind in kinds.items()}

    def _count(self, name: str) -> int:
        return self.counts.get(name, 0)
