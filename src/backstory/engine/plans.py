"""What a door hands to the runner, and what it gets back."""

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
from backstory.stores.iceberg.store import Store as IcebergStore
from backstory.stores.port import Store, StoredTable
from backstory.strategies.part_plan import PartPlan, PlanSums, Whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


RowsToWrite: TypeAlias = "pa.Table | RowBatches | DataFrame | None"


def join_rows(store: Store, *rows: RowsToWrite) -> Any:
    """Rows to write of the same columns together; None for none."""
    there: list[Any] = [each for each in rows if each is not None and not _is_empty(each)]
    if not there:
        return None
    if all(isinstance(each, pa.Table) for each in there):
        return pa.concat_tables(there)
    if all(isinstance(each, pa.Table | RowBatches) for each in there):
        return RowBatches(lambda: chain.from_iterable(map(tables_of, there)))
    assert isinstance(store, IcebergStore)
    frames = [frame_of(store, each) if isinstance(each, pa.Table) else each for each in there]
    return reduce(lambda one, other: one.unionByName(other), frames)


def tables_of(rows: pa.Table | RowBatches) -> Iterable[pa.Table]:
    """Such rows of the driver, some at a time."""
    return rows.tables() if isinstance(rows, RowBatches) else [rows]


def _is_empty(rows: Any) -> bool:
    return isinstance(rows, pa.Table) and not len(rows)


class PlanResult(Protocol):
    """The plan of all parts."""

    @property
    def sums(self) -> PlanSums:
        """Counts and samples."""

    def rows(self, kind: str) -> RowsToWrite:
        """The rows of a kind; None where there are none."""

    def places(self, kind: str, table: StoredTable) -> Any:
        """The places of stored rows of a kind, as a Change has them; None where there are none."""


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The rows of a table without any, as frames by kind, with the counts and samples of their plan."""

    sums: PlanSums
    rows: "Mapping[str, DataFrame]"


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """A delivery of one table, ready to be planned.

    `sides` are its rows, the delivered ones first; `plan` gives the plan of a part, whose rows by side have
    one key or another: it is sent to tasks, and its second argument completes rows of a side that lacks
    columns. `kinds` are the columns of the rows that plans give, by kind. `key` parts the rows; without one
    any rows may be planned together or apart.

    `first` plans rows of a table without any as they come, `first_in_tasks` as frames; each gives None where
    they need the plan. By `sift` rows that are the same on all sides are left out of the plan of a large
    delivery. `only_tasks` excludes the driver. `checkpointed` is true if the table changes while the
    rows are read. With the `salt` files are numbers in tasks.
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
        """The store, where Spark reads it; TooLarge for one that only the driver reads."""
        if not isinstance(self.store, IcebergStore):
            raise TooLarge
        return self.store
