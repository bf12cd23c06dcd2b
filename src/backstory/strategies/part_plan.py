"""The plan for a part of a delivery's records: rows by kind, counts, and samples.

Records of different keys are planned independently. A delivery can be planned whole, in parts by key, or in
Spark's tasks. The result is the same: the rows of all parts, and the sums of their counts.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import pyarrow as pa

from backstory.errors import MAX_KEYS

# Kinds of rows for a delivery to one table: places of stored rows to delete, and rows to write. A changed row
# is in both. Its `_row_id`, if rows have ids, is the id of the stored row, and NULL in a new row.
REMOVED: Final = "removed"
ADDED: Final = "added"
# A function that completes the columns of rows that may lack some.
Whole = Callable[[pa.Table], pa.Table]


def as_they_are(rows: pa.Table) -> pa.Table:
    """Return the rows unchanged, because they already have all columns."""
    return rows


@dataclass(frozen=True, slots=True)
class PartPlan:
    """The plan for a part of a delivery's records.

    `rows` are rows to add and places of stored rows to remove, by kind. Over all parts, `counts` are summed,
    and `greatest` are reduced to their maximum. `samples` are up to ten rows of each kind, whose keys are
    shown in errors.
    """

    rows: Mapping[str, pa.Table] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    samples: Mapping[str, pa.Table] = field(default_factory=dict)
    greatest: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: "PartPlan") -> "PartPlan":
        """Combine two plans of the same part. Their rows and samples must have different kinds."""
        counts = Counter(self.counts)
        counts.update(other.counts)  # the sum of two counters lacks counts that are negative
        return PartPlan(
            {**self.rows, **other.rows},
            counts,
            {**self.samples, **other.samples},
            {**self.greatest, **other.greatest},
        )


def refused_part(
    faults: Mapping[str, pa.Table],
    sample: Callable[[pa.Table], pa.Table] = lambda rows: rows.slice(0, MAX_KEYS),
) -> PartPlan | None:
    """The plan of a refused part: counts and samples of rows by fault, or None if no row has a fault."""
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
