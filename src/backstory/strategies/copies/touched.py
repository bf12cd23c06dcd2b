"""Records that a copy may change, side by side with their stored versions, and what a plan makes of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.strategies.alike import Values
from backstory.strategies.copies.rows import micros

APPEARED: Final = "appeared"
CHANGED: Final = "changed"
CLOSED: Final = "closed"
UNCHANGED: Final = "unchanged"
TAKEN_BACK: Final = "taken back"
# Of a column: the records that change in it, those that lose their value, and those that had one.
DRIVES: Final = "drives "
LOSES: Final = "loses "
HAD: Final = "had "


@dataclass(frozen=True)
class Side:
    """Rows beside each other with those of other sides; `has` says where there is one, else all is NULL."""

    rows: pa.Table
    has: np.ndarray

    def __getitem__(self, name: str) -> Values:
        return self.rows[name]

    def at(self, rows: np.ndarray) -> pa.Table:
        """The rows where this is true."""
        return self.rows.filter(pa.array(rows))

    @cached_property
    def start(self) -> np.ndarray:
        """When the versions begin, in microseconds."""
        return micros(self.rows[VALID_FROM])

    @cached_property
    def end(self) -> np.ndarray:
        """When they end, `OPEN` where they have not."""
        return micros(self.rows[VALID_TO])


@dataclass(frozen=True, slots=True)
class Touched:
    """Records that a copy may change, a row of each side for each of them."""

    delivered: Side
    before: Side
    replaced: Side
    next: Side


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What becomes of touched records.

    `gone` are places of stored rows, `come` the rows to write with the ids that they keep; a row that is
    written anew is in both. `counts` are records by outcome, and by column those with a new value (`DRIVES`)
    and those that lose theirs (`LOSES`), of those that `HAD` one. `samples` are a few keys of each kind,
    `appeared` the keys of all records that were not there at the copy's instant.
    """

    gone: pa.Table
    come: pa.Table
    counts: Mapping[str, int]
    samples: Mapping[str, pa.Table]
    appeared: pa.Table
