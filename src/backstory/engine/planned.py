"""What a door hands to the runner, and what it gets back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from backstory.engine.sides import Side, Whole
from backstory.model.table import TableName
from backstory.stores.iceberg.store import Store
from backstory.strategies.part_plan import PartPlan, PlanSums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backstory.model.change import Pieces
    from backstory.stores.iceberg.store import StoredTable


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """A delivery of one table, ready to be planned.

    `sides` are its rows, the delivered ones first; `plan` gives the plan of a part, whose rows by side have
    one key or another: it is sent to tasks, and its second argument completes rows of a side that lacks
    columns. `kinds` are the columns of the rows that plans give, by kind. `key` parts the rows; without one
    any rows may be planned together or apart. `checkpointed` says that the table changes while the rows are
    read.
    """

    store: Store
    table: TableName
    sides: Mapping[str, Side]
    key: Sequence[str]
    kinds: Mapping[str, pa.Schema]
    plan: Callable[[Mapping[str, pa.Table], Whole], PartPlan]
    checkpointed: bool = False


class Planned(Protocol):
    """The plan of all parts."""

    @property
    def sums(self) -> PlanSums:
        """Counts and samples."""

    def rows(self, kind: str) -> "pa.Table | Pieces | DataFrame | None":
        """The rows of a kind; None where there are none."""

    def places(self, kind: str, table: "StoredTable") -> Any:
        """The places of stored rows of a kind, as a Change has them; None where there are none."""
