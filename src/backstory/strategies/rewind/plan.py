"""The rule of a rewind on frames: the slice of rows that learnt something, and one join of it with itself."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from backstory.model.layout import IS_CURRENT, MEMORY, RECORDED_AT, VALID_FROM, VALID_TO, VERSIONS_OWN
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.remembered import (
    COLUMNS,
    END_BEFORE,
    ENDED_AT,
    KIND,
    OWN_TIME,
    ROLE,
    SCOPE,
    SEQUENCE,
    Role,
)
from backstory.spark.on_disk import persist_on_disk
from backstory.stores.iceberg.literals import column, instant, micros_of, quoted
from backstory.strategies.comparable import comparable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_STORED, _WANTED, _SAME, _END = "backstory: stored", "backstory: wanted", "backstory: both", "backstory: end"


@dataclass(frozen=True, slots=True)
class Rewind:
    """The places of rows that go, the rows that come, and those that come as what they are to people.

    `told` has the key's columns and `outcome`: `taken_back`, `returned` or `moved`. All three are made of
    `pairs`, which is kept until it is released.
    """

    gone: "DataFrame"
    come: "DataFrame"
    told: "DataFrame"
    pairs: "DataFrame"


def learnt_after(known: datetime) -> "Column":
    """Whether a row says something that the table did not say at this time (V85)."""
    time = instant(micros_of(known))
    return (column(RECORDED_AT) > time) | (_field(ENDED_AT) > time)


def plan_rewind(
    rows: "DataFrame", known: datetime, now: datetime, key: Sequence[str], untold: Collection[str] = ()
) -> Rewind:
    """What becomes of the rows that learnt something after `known`; `rows` are these, with their places.

    Columns that are `untold` have no history (V18).
    """
    from pyspark.sql.functions import col, lit, when

    names = [name for name in rows.columns if name not in {FILE, POSITION, ROW_ID}]
    pairs, moment = persist_on_disk(_pairs(rows, names, known, key, untold)), instant(micros_of(now))
    stored, wanted = col(quoted(_STORED)).isNotNull(), col(quoted(_WANTED)).isNotNull()
    ends = col(quoted(_STORED))[VALID_TO].eqNullSafe(col(quoted(_WANTED))[VALID_TO])
    changed = pairs.where(stored & ~(wanted & ends))
    ids = [ROW_ID] if ROW_ID in rows.columns else []
    end = when(wanted, col(quoted(_WANTED))[VALID_TO]).otherwise(col(quoted(_STORED))[VALID_FROM])
    moving = changed.select(f"{quoted(_STORED)}.*", end.alias(_END), (~wanted).alias(_WANTED))
    fact = _field(ROLE).eqNullSafe(lit(Role.FACT.value))
    copies = moving.where(~fact & _field(ENDED_AT).isNotNull())
    came = [
        moving.select(*_moved(rows, names, moment, fact), *ids),
        copies.select(*_copied(rows, names), *(lit(None).cast("long").alias(name) for name in ids)),
        pairs.where(~stored)
        .select(f"{quoted(_WANTED)}.*")
        .withColumn(RECORDED_AT, moment)
        .select(*map(quoted, names), *(lit(None).cast("long").alias(name) for name in ids)),
    ]
    outcome = when(~stored, "returned").when(wanted, "moved").otherwise("taken_back")
    of_key = [_either(name).alias(name) for name in key]
    return Rewind(
        moving.select(FILE, POSITION),
        came[0].unionByName(came[1]).unionByName(came[2]),
        pairs.where(~stored | ~wanted | ~ends).select(*of_key, outcome.alias("outcome")),
        pairs,
    )


def _either(name: str) -> "Column":
    from pyspark.sql.functions import coalesce, col

    return coalesce(col(quoted(_STORED))[name], col(quoted(_WANTED))[name])


def _pairs(
    rows: "DataFrame", names: Sequence[str], known: datetime, key: Sequence[str], untold: Collection[str]
) -> "DataFrame":
    """Stored live rows beside what was told of at the time; the same fact stands in one row (V9)."""
    from pyspark.sql.functions import col, lit, struct, when

    fact = _field(ROLE).eqNullSafe(lit(Role.FACT.value))
    live = _field(ROLE).isNull() | (fact & _field(ENDED_AT).isNull())
    told_of = [name for name in names if name not in VERSIONS_OWN and (name in key or name not in untold)]
    same = struct(
        *(comparable(column(name), rows.schema[name].dataType) for name in told_of),
        column(VALID_FROM),
        fact,
        *(_field(name) for name in _fields(rows) if name in {KIND, SEQUENCE, SCOPE, COLUMNS, OWN_TIME}),
    )
    stored = rows.where(live).select(same.alias(_SAME), struct(*map(quoted, rows.columns)).alias(_STORED))
    end = when(fact, column(VALID_TO)).otherwise(_field(END_BEFORE))
    before = {
        VALID_TO: end,
        IS_CURRENT: end.isNull(),
        MEMORY: _memory(rows, {ENDED_AT: None, END_BEFORE: None, ROLE: when(fact, lit(Role.FACT.value))}),
    }
    wanted = rows.where(column(RECORDED_AT) <= instant(micros_of(known))).select(
        same.alias(_SAME),
        struct(*(before.get(name, column(name)).alias(name) for name in names)).alias(_WANTED),
    )
    on = col(f"s.{quoted(_SAME)}").eqNullSafe(col(f"w.{quoted(_SAME)}"))
    return stored.alias("s").join(wanted.alias("w"), on, "full").select(quoted(_STORED), quoted(_WANTED))


def _moved(rows: "DataFrame", names: Sequence[str], now: "Column", fact: "Column") -> "list[Column]":
    """Stored rows with their new end; what is wanted no more keeps no length (V7, V8)."""
    from pyspark.sql.functions import coalesce, lit, when

    end, back = column(_END), column(_WANTED)
    new = {
        VALID_TO: when(fact, column(VALID_TO)).otherwise(end),
        IS_CURRENT: when(fact, column(IS_CURRENT)).otherwise(end.isNull()),
        RECORDED_AT: when(fact, column(RECORDED_AT)).otherwise(
            coalesce(_field(ENDED_AT), column(RECORDED_AT))
        ),
        MEMORY: _memory(
            rows,
            {
                ENDED_AT: now,
                END_BEFORE: when(~fact, column(VALID_TO)),
                ROLE: when(back & ~fact, lit(Role.PAST.value)).otherwise(_field(ROLE)),
            },
        ),
    }
    return [new.get(name, column(name)).alias(name) for name in names]


def _copied(rows: "DataFrame", names: Sequence[str]) -> "list[Column]":
    """What a row that moves again said until now, as a row without length (V7)."""
    from pyspark.sql.functions import lit

    new = {
        VALID_TO: column(VALID_FROM),
        IS_CURRENT: lit(False),
        MEMORY: _memory(rows, {ROLE: lit(Role.PAST.value)}),
    }
    return [new.get(name, column(name)).alias(name) for name in names]


def _memory(rows: "DataFrame", new: "dict[str, Column | None]") -> "Column":
    """What the row remembers, with other values of some fields; NULL where nothing is left."""
    from functools import reduce
    from operator import and_

    from pyspark.sql.functions import lit, struct, when

    types = _fields(rows)
    values = {name: new.get(name, _field(name)) for name in types}
    cast = {
        name: (lit(None) if value is None else value).cast(types[name]).alias(name)
        for name, value in values.items()
    }
    nothing = reduce(and_, (each.isNull() for each in cast.values()))
    return when(~nothing, struct(*cast.values()))


def _field(name: str) -> "Column":
    return column(MEMORY)[name]


def _fields(rows: "DataFrame") -> "dict[str, DataType]":
    from pyspark.sql.types import StructType

    struct = rows.schema[MEMORY].dataType
    assert isinstance(struct, StructType)
    return {each.name: each.dataType for each in struct.fields}
