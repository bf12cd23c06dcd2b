"""The sides of a plan: the rows of a delivery, and the stored rows that they meet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from backstory.engine.parts import Rows
from backstory.formats.memory import MemoryLease
from backstory.strategies.part_plan import Whole, as_they_are

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class LocalSide:
    """Rows of a side that the driver reads from files or memory; reading raises Unreadable where it cannot.

    `rows` may lack columns that `whole` gives for some of them. `columns` gives all rows in fewer columns of
    these names: with it large sides are sifted. `chosen` gives those that a function chooses by their keys;
    it is there where columns are computed. `is_empty` is true only where nothing is stored.
    """

    rows: Rows
    whole: Whole = as_they_are
    columns: Callable[[Sequence[str]], Rows] | None = None
    chosen: Callable[[Callable[[pa.Table], pa.Array]], Rows] | None = None
    is_empty: bool = False


def nowhere(_lease: MemoryLease, _met: LocalSide | None) -> LocalSide | None:
    """The rows of a side that only Spark reads."""
    return None


@dataclass(frozen=True, slots=True)
class Side:
    """The rows of one side of a plan.

    `frame` makes a frame of the columns of `schema`, in their order. `local` gives the rows without Spark,
    None where only Spark reads them; it is called with the side that this one meets. `size` is what the rows
    of the frame may take of the driver's memory, None where only the frame's plan tells; `count` is about how
    many they are, None where Spark must count. `meets` names a side before this one: of this one only rows
    count that have a key of that one. `cached` is true if the frame's rows are computed once however often
    they are read.
    """

    schema: pa.Schema
    frame: "Callable[[], DataFrame]"
    local: Callable[[MemoryLease, LocalSide | None], LocalSide | None] = nowhere
    size: int | None = None
    count: int | None = None
    meets: str | None = None
    cached: bool = False


def nothing(schema: pa.Schema) -> LocalSide:
    """A side without rows."""
    return LocalSide(Rows(schema, lambda: ()), is_empty=True)
