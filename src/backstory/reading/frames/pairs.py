"""Rows of a frame and what a history tells of their records, laid side by side: the plan of an equi-join.

Both sides are shuffled by key and sorted once, and each row is compared with all that is told of its record.
Nothing beats that where records have few versions; `few_each` tells beforehand whether they do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.reading.frames.event_logs import instant_in
from backstory.reading.lives import TOLD_FROM, TOLD_TO
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.store import Store, StoredTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Every so many rows one is looked at; a record of which more than so many are found has many versions.
_STEP: Final = 16
_FOUND: Final = 8
# A table of so few rows has no record with many.
_SMALL: Final = _STEP * _FOUND


@dataclass(frozen=True, slots=True)
class Joined:
    """A frame and a history that are to be joined by the columns `on`.

    `at` and `known_at` are the frame's columns of the instant and of the time of knowing; `shown` are the
    history's columns of the answer, and `names` those of all its columns.
    """

    frame: "DataFrame"
    history: "DataFrame"
    on: Sequence[str]
    at: str
    shown: Sequence[str]
    names: Sequence[str]
    inner: bool = False
    known_at: str = ""

    @property
    def keys(self) -> dict[str, str]:
        """The names of the key's columns in plans, with those that they have on both sides."""
        return {f"backstory: key {number}": name for number, name in enumerate(self.on)}

    def named(self, told: "Iterable[Column]") -> "list[Column]":
        """The columns of the answer under its names."""
        return [each.alias(name) for each, name in zip(told, self.names, strict=True)]


def pairs(asked: Joined) -> "DataFrame":
    """The frame's rows beside what was true, and where asked known, at their own times.

    A row stands once where at any time one thing alone is told of its record.
    """
    frame, history = asked.frame, asked.history
    renamed = {name: f"backstory: told {number}" for number, name in enumerate(history.columns)}
    told = {name: column(alias) for name, alias in renamed.items()}
    history = history.select(*(column(name).alias(alias) for name, alias in renamed.items()))

    def within(time: str, start: str, end: str) -> "Column":
        instant = instant_in(frame, time)
        return (told[start] <= instant) & (told[end].isNull() | (instant < told[end]))

    meets = [*(column(name) == told[name] for name in asked.on), within(asked.at, VALID_FROM, VALID_TO)]
    meets += [within(asked.known_at, TOLD_FROM, TOLD_TO)] if asked.known_at else []
    found = frame.join(history, reduce(and_, meets), "inner" if asked.inner else "left")
    return found.select(*asked.named([*map(column, frame.columns), *(told[name] for name in asked.shown)]))


def few_each(store: Store, table: StoredTable) -> bool:
    """Whether no record of a table has many rows, as far as every sixteenth of them tells.

    Speed alone hangs on the answer: a record of 40 rows is taken for one of few, one of 250 for one of many.
    """
    from pyspark.sql.functions import count, lit
    from pyspark.sql.functions import max as greatest

    if table.rows <= _SMALL:
        return True
    rows = store.spark.table(store.sql_name(table.shape.table)).sample(1 / _STEP, seed=0)
    counted = rows.groupBy(*map(column, table.shape.key)).agg(count(lit(1)).alias("rows"))
    (found,) = counted.agg(greatest("rows").alias("most")).collect()
    return (found["most"] or 0) <= _FOUND
