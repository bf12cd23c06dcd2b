"""A delivered state against the stored one, on Spark: one join, its outcomes kept once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

APPEARED: Final = "appeared"
CHANGED: Final = "changed"
VANISHED: Final = "vanished"
KEPT: Final = "kept"  # vanished, and out of the scope of deletes

DELIVERED, STORED = "r", "v"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a delivery makes of what is stored.

    `actions` has the rows that appeared, changed or vanished: `action`, and the columns of the
    delivered row as the struct `r`, those of the stored one as `v`. `same` counts the others.
    """

    actions: "DataFrame"
    appeared: int
    changed: int
    vanished: int
    kept: int
    same: int
    delivered: int
    stored: int
    repeats_delivered: bool
    repeats_stored: bool

    @property
    def nothing(self) -> bool:
        """Whether the stored state is the delivered one already."""
        return not (self.appeared or self.changed or self.vanished)


@contextmanager
def outcomes(
    delivered: "DataFrame",
    stored: "DataFrame",
    key: str,
    differs: "Column",
    scope: "Column | None" = None,
) -> Iterator[Outcomes]:
    """Compare the two by a key column of both, which is never NULL.

    `differs` tells of the columns `r.…` and `v.…` whether a record changed; `scope` of `v.…` whether
    one that vanished counts, all do without it. Each side is read once. A key that a side has more
    than once shows in `repeats_…`; the outcomes then mean nothing.
    """
    from pyspark.sql import Observation
    from pyspark.sql.functions import col, count, lit, struct, when

    seen = [Observation(f"{side} {uuid4()}") for side in ("delivered", "stored", "joined")]
    number = count(lit(1)).alias("rows")
    left = delivered.observe(seen[0], number).select(struct("*").alias(DELIVERED))
    right = stored.observe(seen[1], number).select(struct("*").alias(STORED))
    joined = left.join(right, col(f"{DELIVERED}.`{key}`") == col(f"{STORED}.`{key}`"), "full_outer")
    only_left, only_right = col(STORED).isNull(), col(DELIVERED).isNull()
    gone = lit(VANISHED) if scope is None else when(scope, VANISHED).otherwise(KEPT)
    action = when(only_right, gone).when(only_left, APPEARED).when(differs, CHANGED)
    counted = joined.select(action.alias("action"), DELIVERED, STORED).observe(
        seen[2],
        count(when(~only_left & ~only_right, 1)).alias("pairs"),
        count(when(only_left, 1)).alias("appeared"),
        count(when(only_right, 1)).alias("vanished"),
    )
    actions = counted.where(col("action").isNotNull()).persist()
    try:
        found = {row["action"]: row["rows"] for row in actions.groupBy("action").agg(number).collect()}
        both, alone = seen[2].get["pairs"], seen[2].get
        rows = [observation.get["rows"] for observation in seen[:2]]
        yield Outcomes(
            actions,
            appeared=found.get(APPEARED, 0),
            changed=found.get(CHANGED, 0),
            vanished=found.get(VANISHED, 0),
            kept=found.get(KEPT, 0),
            same=both - found.get(CHANGED, 0),
            delivered=rows[0],
            stored=rows[1],
            # A pair for each stored row of a key that is delivered once, and the other way round.
            repeats_delivered=both + alone["vanished"] != rows[1]
            or _repeats(actions, DELIVERED, key, APPEARED),
            repeats_stored=both + alone["appeared"] != rows[0]
            or _repeats(actions, STORED, key, VANISHED, KEPT),
        )
    finally:
        actions.unpersist()


def _repeats(actions: "DataFrame", side: str, key: str, *outcome: str) -> bool:
    """Whether a key stands more than once among the records that only one side has."""
    from pyspark.sql.functions import col

    alone = actions.where(col("action").isin(*outcome)).groupBy(col(f"{side}.`{key}`")).count()
    return not alone.where(col("count") > 1).isEmpty()
