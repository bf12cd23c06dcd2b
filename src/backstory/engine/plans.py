"""The input of a plan, which a door passes to the runner, and the plan's result."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from uuid import uuid4

import pyarrow as pa

from backstory.engine.sides import LocalSide, Side
from backstory.engine.sift import SiftTerms
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.change import RowBatches
from backstory.model.table import TableName
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.iceberg.store import IcebergStore
from backstory.stores.port import Store, StoredTable
from backstory.strategies.part_plan import PartPlan, PlanSums, Whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


RowsToWrite: TypeAlias = "pa.Table | RowBatches | DataFrame | None"


def join_rows(store: Store, *rows: RowsToWrite) -> Any:
    """Concatenate rows with the same columns. Returns None if there are no rows."""
    nonempty: list[Any] = [one for one in rows if one is not None and not _is_empty(one)]
    if not nonempty:
        return None
    if all(isinstance(one, pa.Table) for one in nonempty):
        return pa.concat_tables(nonempty)
    if all(isinstance(one, pa.Table | RowBatches) for one in nonempty):
        return RowBatches(lambda: chain.from_iterable(map(tables_of, nonempty)))
    assert isinstance(store, IcebergStore)
    frames = [frame_of(store, one) if isinstance(one, pa.Table) else one for one in nonempty]
    return reduce(lambda one, other: one.unionByName(other), frames)


def tables_of(rows: pa.Table | RowBatches) -> Iterable[pa.Table]:
    """The driver's rows as one or more tables."""
    return rows.tables() if isinstance(rows, RowBatches) else [rows]


def _is_empty(rows: Any) -> bool:
    return isinstance(rows, pa.Table) and not len(rows)


class PlanResult(Protocol):
    """The result of the plans of all parts."""

    @property
    def sums(self) -> PlanSums:
        """The counts and samples of all parts."""

    def rows(self, kind: str) -> RowsToWrite:
        """The rows of one kind, or None if the plan has no such rows."""

    def places(self, kind: str, table: StoredTable) -> Any:
        """The positions of the stored rows of one kind, as a Change needs them, or None if there are none."""


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The rows for an empty table, as one frame for each kind, with the counts and samples of their plan."""

    sums: PlanSums
    rows: "Mapping[str, DataFrame]"


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """A delivery to one table, ready to be planned.

    `sides` are its rows, the delivered rows first. `plan` is a function that plans a part: rows by side, with
    all rows of the part's keys. The function is sent to tasks. Its second argument is a function that
    completes the rows of a side that lacks columns. `kinds` are the columns of the planned rows, by kind.
    `key` divides the rows into parts. Without a key, any rows may be planned together.

    `first` plans rows for an empty table in their order, and `first_in_tasks` plans them as frames. Each
    returns None if the full plan is needed. With `sift`, a large delivery plans only rows that may differ
    between the sides. `only_tasks` excludes the driver. `checkpointed` is true if the table changes while the
    rows are read. In tasks, a file is represented by a number made with the `salt`.
    """

    store: Store
    table: TableName
    sides: Mapping[str, Side]
    key: Sequence[str]
    kinds: Mapping[str, pa.Schema]
    plan: Callable[[Mapping[str, pa.Table], Whole], PartPlan]
    first: Callable[[Mapping[str, LocalSide], MemoryLease], PlanResult | None] | None = None
    first_in_tasks: Callable[[ExitStack], FirstRows | None] | None = None
    sift: SiftTerms | None = None
    only_tasks: bool = False
    checkpointed: bool = False
    salt: int = field(default_factory=lambda: uuid4().time_low)

    @property
    def spark_store(self) -> IcebergStore:
        """The store that Spark reads. Raises TooLarge if only the driver can read the store."""
        if not isinstance(self.store, IcebergStore):
            raise TooLarge
        return self.store
