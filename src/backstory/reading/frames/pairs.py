"""Rows of a frame and what a history tells of their records, laid side by side: the plan of an equi-join.

Both sides are shuffled by key and sorted once, and each row is compared with all that is told of its record.
Nothing beats that where records have few versions; `few_each` tells beforehand whether they do.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.reading.frames.event_logs import instant_in
from backstory.reading.frames.versions import BEFORE, MOVED, end_at
from backstory.reading.lives import TOLD_FROM, TOLD_TO
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.store import Store, StoredTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Every so many rows one is looked at; a record of which more than so many are found has many versions.
_STEP: Final = 32
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
    history, told = _renamed(asked.history)
    meets = _within(asked, asked.at, told[VALID_FROM], told[VALID_TO])
    if asked.known_at:
        meets &= _within(asked, asked.known_at, told[TOLD_FROM], told[TOLD_TO])
    return _side_by_side(asked, history, told, meets)


def recorded_pairs(asked: Joined) -> "DataFrame":
    """The same of a history as `versions.recorded` gives it, whose rows tell two ends each (V6)."""
    history, told = _renamed(asked.history)
    known = instant_in(asked.frame, asked.known_at)
    told[VALID_TO] = end_at(known, told[VALID_TO], told[MOVED], told[BEFORE])
    meets = (told[TOLD_FROM] <= known) & _within(asked, asked.at, told[VALID_FROM], told[VALID_TO])
    return _side_by_side(asked, history, told, meets)


def _renamed(history: "DataFrame") -> "tuple[DataFrame, dict[str, Column]]":
    """A history under names that no frame has, and its columns by their own."""
    renamed = {name: f"backstory: told {number}" for number, name in enumerate(history.columns)}
    named = (column(name).alias(alias) for name, alias in renamed.items())
    return history.select(*named), {name: column(alias) for name, alias in renamed.items()}


def _within(asked: Joined, time: str, start: "Column", end: "Column") -> "Column":
    instant = instant_in(asked.frame, time)
    return (start <= instant) & (end.isNull() | (instant < end))


def _side_by_side(
    asked: Joined, history: "DataFrame", told: "Mapping[str, Column]", meets: "Column"
) -> "DataFrame":
    same = reduce(and_, (column(name) == told[name] for name in asked.on))
    found = asked.frame.join(history, same & meets, "inner" if asked.inner else "left")
    return found.select(
        *asked.named([*map(column, asked.frame.columns), *(told[name] for name in asked.shown)])
    )


def few_each(store: Store, table: StoredTable) -> bool:
    """Whether no record of a table has many rows, as far as one row in `_STEP` tells.

    Speed alone hangs on the answer: a record of 100 rows is taken for one of few, one of 500 for one of many.
    """
    from pyspark.sql.functions import count, lit
    from pyspark.sql.functions import max as greatest

    if table.rows <= _SMALL:
        return True
    rows = store.spark.table(store.sql_name(table.shape.table)).sample(1 / _STEP, seed=0)
    counted = rows.groupBy(*map(column, table.shape.key)).agg(count(lit(1)).alias("rows"))
    (found,) = counted.agg(greatest("rows").alias("most")).collect()
    return (found["most"] or 0) <= _FOUND
