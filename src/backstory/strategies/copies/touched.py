"""Records that a copy may change, side by side with their stored versions."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.strategies.alike import Values
from backstory.strategies.copies.rows import micros

# Outcomes, which are counted; of records that appear the plan has all keys, of others a few.
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
