"""The versions that begin, and the past of their records (section 9.1)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from backstory.model.layout import ENDED, ROW_HASH, STATE
from backstory.stores.iceberg.literals import column
from backstory.strategies.scd2.frames.cases import ACTION, HASH, KEY, PAST, begun_state, side
from backstory.strategies.scd2.pair import Pair
from backstory.strategies.scd2.transitions import Past, State
from backstory.strategies.sift.join import APPEARED, CHANGED, DELIVERED, Outcomes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SEEN, _INTERRUPTED = "record seen", "record interrupted"


def beginning(
    pair: Pair,
    found: Outcomes,
    closed: "DataFrame | None",
    archived: "DataFrame | None",
    instant: "Column | None",
) -> "DataFrame":
    """The records that begin a version: key, hash, and past.

    `closed` and `archived` are the versions that ended; without `closed` there are none at all. `instant` is
    the load's own, None where no version can have ended at it.
    """
    from pyspark.sql.functions import lit, when

    begun = found.actions.where(column(ACTION).isin(APPEARED, CHANGED))
    key, row_hash = side(DELIVERED, pair.key).alias(KEY), side(DELIVERED, ROW_HASH).alias(HASH)
    begun = begun.select(ACTION, key, row_hash)
    past = when(column(ACTION) == CHANGED, Past.OPEN.name)
    if found.appeared and closed is not None:
        if instant is not None:
            own = closed.where((column(ENDED) == instant) & (column(STATE) == pair.words[State.CHANGED]))
            keys = own.select(column(pair.key).alias(KEY)).distinct()
            begun = begun.join(keys.withColumn(_INTERRUPTED, lit(True)), KEY, "left")
            past = past.when(column(_INTERRUPTED), Past.INTERRUPTED.name)
        begun = begun.join(seen(pair, closed, archived).withColumn(_SEEN, lit(True)), KEY, "left")
        past = past.when(column(_SEEN), Past.CLOSED.name)
    return begun.select(KEY, HASH, past.otherwise(lit(Past.NOTHING.name)).alias(PAST))


def seen(pair: Pair, closed: "DataFrame", archived: "DataFrame | None") -> "DataFrame":
    """The keys of records with versions that ended, archived ones too."""
    keys = closed.select(column(pair.key).alias(KEY))
    if archived is not None and pair.archive is not None:
        keys = keys.unionByName(archived.select(column(pair.archive.key).alias(KEY)))
    return keys.distinct()


def begins(pair: Pair, rows: "DataFrame", sql: Callable[[str], "Column"]) -> "DataFrame":
    """The versions of these rows of the base (alias `r`), which have their past beside."""
    from pyspark.sql.functions import expr

    values = {**pair.payload("r"), **pair.lifetime("NULL")}
    versions = {_bare(name): sql(value) for name, value in values.items()}
    versions |= {STATE: begun_state(pair), ENDED: expr("CAST(NULL AS TIMESTAMP)")}
    return rows.select(*(value.alias(name) for name, value in versions.items()))


def _bare(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
