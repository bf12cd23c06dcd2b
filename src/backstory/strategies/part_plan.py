"""The plan for a part of a delivery's records: rows by kind, counts, and samples.

Records of different keys are planned independently. A delivery can be planned whole, in parts by key, or in
Spark's tasks. The result is the same: the rows of all parts, and the sums of their counts. A batch of
Fivetran's is planned whole, as actions.
"""

import enum
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS
from backstory.model.layout import ROW_ID

# Kinds of rows for a delivery to one table: places of stored rows to delete, and rows to write. A changed row
# is in both, and keeps its id.
REMOVED: Final = "removed"
ADDED: Final = "added"


# A function that completes the columns of rows that may lack some.
Whole = Callable[[pa.Table], pa.Table]


def as_they_are(rows: pa.Table) -> pa.Table:
    """Return the rows unchanged, because they already have all columns."""
    return rows


@dataclass(frozen=True, slots=True)
class PartPlan:
    """The plan of the records of a part.

    `rows` are rows to add and places of stored rows to remove, by kind. `counts` are summed over parts; for
    `greatest` the maximum is taken. `samples` are up to ten rows of each kind, whose keys are shown in
    errors.
    """

    rows: Mapping[str, pa.Table] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    samples: Mapping[str, pa.Table] = field(default_factory=dict)
    greatest: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: "PartPlan") -> "PartPlan":
        """Combine two plans of the same part. Their rows and samples must have different kinds."""
        return PartPlan(
            {**self.rows, **other.rows},
            Counter(self.counts) + Counter(other.counts),
            {**self.samples, **other.samples},
            {**self.greatest, **other.greatest},
        )


def refused_part(
    faults: Mapping[str, pa.Table],
    sample: Callable[[pa.Table], pa.Table] = lambda rows: rows.slice(0, MAX_KEYS),
) -> PartPlan | None:
    """The counts and samples of the rows with a fault, or None if no row has the fault."""
    wrong = {fault: rows for fault, rows in faults.items() if len(rows)}
    counts = {fault: len(rows) for fault, rows in wrong.items()}
    return PartPlan({}, counts, {fault: sample(rows) for fault, rows in wrong.items()}) if wrong else None


@dataclass(slots=True)
class PlanSums:
    """The counts and samples of several parts. `added` has the number of their rows by kind."""

    counts: Counter[str] = field(default_factory=Counter)
    samples: dict[str, pa.Table] = field(default_factory=dict)
    greatest: dict[str, int] = field(default_factory=dict)
    added: Counter[str] = field(default_factory=Counter)

    def add(self, plan: PartPlan) -> Self:
        """Add the plan of one part."""
        return self.join(
            PlanSums(
                Counter(plan.counts),
                dict(plan.samples),
                dict(plan.greatest),
                Counter({kind: len(rows) for kind, rows in plan.rows.items()}),
            )
        )

    def join(self, *others: "PlanSums") -> Self:
        """Add the sums of other parts."""
        for sums in others:
            self.counts.update(sums.counts)
            self.added.update(sums.added)
            for name, count in sums.greatest.items():
                self.greatest[name] = max(count, self.greatest.get(name, count))
            for kind, rows in sums.samples.items():
                before = self.samples.get(kind)
                both = rows if before is None else pa.concat_tables([before, rows.cast(before.schema)])
                self.samples[kind] = both.slice(0, MAX_KEYS)
        return self


class Unmodified(enum.Enum):
    """The type of `UNMODIFIED`.

    It is an enum, so that `is UNMODIFIED` narrows types and works after pickling.
    """

    UNMODIFIED = "unmodified"


UNMODIFIED: Final = Unmodified.UNMODIFIED


def differing(left: pa.Table, right: pa.Table) -> np.ndarray:
    """For each row, whether any column differs. NULL equals NULL, and floats are compared by their bits."""
    differs = np.zeros(left.num_rows, bool)
    for name in left.column_names:
        differs |= _column_differs(left[name], right[name])
    return differs


def _column_differs(left: pa.ChunkedArray, right: pa.ChunkedArray) -> np.ndarray:
    unlike = pc.not_equal(_comparable(left), _comparable(right))
    one_null = pc.xor(left.is_null(), right.is_null())
    return np.asarray(pc.or_(pc.fill_null(unlike, False), one_null))


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    bits = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(column.type)
    if bits is None:
        return column
    return pa.chunked_array([chunk.view(bits) for chunk in column.chunks], type=bits)


def take_or_null(column: pa.ChunkedArray, rows: np.ndarray) -> pa.Array:
    """The values at these row numbers, with NULL for the row number -1."""
    whole = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return whole.take(pa.array(rows, mask=rows < 0))


@dataclass(frozen=True, slots=True)
class Actions:
    """The changes to a table's rows that one commit makes.

    `removed` has the columns `_file` (text) and `_pos` (64-bit integer) of stored rows to delete. `added` has
    the table's columns of rows to write; a changed row is in both. The optional column `_row_id` of `added`
    is the id of the stored row that a row replaces, or NULL for a new row. `counts` are the numbers of rows
    by outcome. `disorder` is true if versions of a key will overlap because the sender delivered overlapping
    rows.
    """

    removed: pa.Table
    added: pa.Table
    counts: Mapping[str, int]
    disorder: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.removed.num_rows and not self.added.num_rows


def with_row_ids(added: pa.Table, stored: pa.Table, before: np.ndarray) -> pa.Table:
    """Add the `_row_id` of the stored rows that the added rows replace.

    `before` has the indexes of the stored rows, or -1 for a new row.
    """
    if ROW_ID not in stored.column_names:
        return added
    return added.append_column(ROW_ID, take_or_null(stored[ROW_ID], before))
