"""A delivered state against the stored one, on Spark: one join, its outcomes kept once."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import and_
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from backstory.spark.on_disk import persist_on_disk
from backstory.stores.iceberg.literals import quoted
from backstory.strategies.observed import observed
from backstory.strategies.scd2.transitions import Now

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# What a row's action says the delivery has of the record now.
APPEARED: Final = Now.PRESENT.name
CHANGED: Final = Now.OTHER.name
VANISHED: Final = Now.ABSENT.name
KEPT: Final = Now.SPARED.name

DELIVERED, STORED = "r", "v"
NO_CHECKS: "Mapping[str, Column]" = MappingProxyType({})


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
    failed: Mapping[str, int]
    sums: Mapping[str, int]
    pairs: Mapping[str, int]


@contextmanager
def outcomes(
    delivered: "DataFrame",
    stored: "DataFrame",
    key: str | Sequence[str],
    differs: "Column",
    scope: "Column | None" = None,
    checks: "Mapping[str, Column]" = NO_CHECKS,
    *,
    sums: "Mapping[str, Column]" = NO_CHECKS,
    pairs: "Mapping[str, Column]" = NO_CHECKS,
) -> Iterator[Outcomes]:
    """Compare the two by the key's column or columns in both; a row with a NULL in them has no pair.

    `differs` tells of the columns `r.…` and `v.…` whether a record changed; `scope` of `v.…` whether
    one that vanished counts, all do without it. `checks` are conditions that no delivered row may
    meet; `failed` counts the rows that do. `sums` are whole numbers of all delivered rows, `pairs`
    conditions of records on both sides, changed or not. Each side is read once. A key that a side
    has more than once shows in `repeats_…`; the outcomes then mean nothing.
    """
    from pyspark.sql.functions import coalesce, col, count, count_distinct, lit, struct, when

    number = count(lit(1)).alias("rows")
    own = f" {uuid4()}"  # one comparison may stand in the plan of another
    counted = _counts_of_rows(checks, sums)
    left = delivered.observe("delivered" + own, number, *counted).select(struct("*").alias(DELIVERED))
    right = stored.observe("stored" + own, number).select(struct("*").alias(STORED))
    keys = [quoted(name) for name in ([key] if isinstance(key, str) else key)]
    same = reduce(and_, (col(f"{DELIVERED}.{name}") == col(f"{STORED}.{name}") for name in keys))
    joined = left.join(right, same, "full_outer")
    only_left, only_right = col(STORED).isNull(), col(DELIVERED).isNull()
    on_both = ~only_left & ~only_right
    paired = [count(when(on_both & each, 1)).alias(f"pair {name}") for name, each in pairs.items()]
    gone = lit(VANISHED) if scope is None else when(scope, VANISHED).otherwise(KEPT)
    action = when(only_right, gone).when(only_left, APPEARED).when(differs, CHANGED)
    told = joined.select(action.alias("action"), DELIVERED, STORED).observe(
        "joined" + own,
        count(when(on_both, 1)).alias("pairs"),
        count(when(only_left, 1)).alias("appeared"),
        count(when(only_right, 1)).alias("vanished"),
        *paired,
    )
    actions = persist_on_disk(told.where(col("action").isNotNull()))
    try:
        told_keys = (coalesce(col(f"{DELIVERED}.{name}"), col(f"{STORED}.{name}")) for name in keys)
        distinct = count_distinct(*told_keys).alias("keys")
        told_rows = actions.groupBy("action").agg(number, distinct).collect()
        found = {row["action"]: row["rows"] for row in told_rows}
        twice = {row["action"] for row in told_rows if row["keys"] < row["rows"]}
        seen = observed(actions)
        rows = [seen["delivered" + own]["rows"], seen["stored" + own]["rows"]]
        alone = seen["joined" + own]
        both = alone["pairs"]
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
            repeats_delivered=both + alone["vanished"] != rows[1] or APPEARED in twice,
            repeats_stored=both + alone["appeared"] != rows[0] or bool(twice & {VANISHED, KEPT}),
            failed={name: seen["delivered" + own][f"check {name}"] for name in checks},
            pairs={name: alone[f"pair {name}"] for name in pairs},
            sums={name: seen["delivered" + own][f"sum {name}"] for name in sums},
        )
    finally:
        actions.unpersist()


def _counts_of_rows(checks: "Mapping[str, Column]", sums: "Mapping[str, Column]") -> "list[Column]":
    """What is counted of the delivered rows on the way."""
    from pyspark.sql.functions import count, when

    conditions = [count(when(condition, 1)).alias(f"check {name}") for name, condition in checks.items()]
    return [*conditions, *(total.alias(f"sum {name}") for name, total in sums.items())]


def first_outcomes(
    delivered: "DataFrame",
    stored: "DataFrame",
    key: Sequence[str],
    checks: "Mapping[str, Column]" = NO_CHECKS,
    sums: "Mapping[str, Column]" = NO_CHECKS,
) -> Outcomes:
    """The same where nothing is `stored`: every record appears, and no row is sent to another task.

    The delivered rows are read once here, and once more by whoever reads the actions.
    """
    from pyspark.sql.functions import col, count, count_distinct, lit, struct

    distinct = count_distinct(*(col(quoted(name)) for name in key)).alias("keys")
    told = delivered.agg(count(lit(1)).alias("rows"), distinct, *_counts_of_rows(checks, sums)).collect()[0]
    nothing = lit(None).cast(stored.schema).alias(STORED)
    actions = delivered.select(lit(APPEARED).alias("action"), struct("*").alias(DELIVERED), nothing)
    return Outcomes(
        actions,
        appeared=told["rows"],
        changed=0,
        vanished=0,
        kept=0,
        same=0,
        delivered=told["rows"],
        stored=0,
        repeats_delivered=told["keys"] < told["rows"],
        repeats_stored=False,
        failed={name: told[f"check {name}"] for name in checks},
        sums={name: told[f"sum {name}"] for name in sums},
        pairs={},
    )
