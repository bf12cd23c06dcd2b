"""The plans of several parts as one plan, for tests of the result of a delivery."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from backstory.strategies.copies.plan import APPEARED
from backstory.strategies.part_plan import ADDED, REMOVED, PlanSums


@dataclass(frozen=True)
class WholePlan:
    """The rows of all parts by kind, with their counts and samples. A refused delivery has no rows."""

    removed: Any
    added: Any
    appeared: Any
    counts: Any
    samples: Any


def whole_plan(plans, counts=None):
    """The plan of all parts. `counts` computes the counts from their sums."""
    sums, plans = PlanSums(), list(plans)
    for plan in plans:
        sums.add(plan)
    rows = {
        kind: pa.concat_tables(each.rows[kind] for each in plans)
        if plans and all(kind in each.rows for each in plans)
        else None
        for kind in (REMOVED, ADDED, APPEARED)
    }
    totals = {name: count for name, count in sums.counts.items() if count} if counts is None else counts(sums)
    return WholePlan(rows[REMOVED], rows[ADDED], rows[APPEARED], totals, sums.samples)
