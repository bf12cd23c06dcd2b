"""A full copy and a table of layout `versions`, on Spark: what their one join compares and returns.

The stored states are those of the rule: what was known of a record just before the copy's instant, at it
by a copy that this one takes the place of, and at the next instant of which something is known.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Final

from backstory.model.layout import MEMORY, VALID_FROM, VALID_TO
from backstory.model.remembered import ENDED_AT, KIND, ROLE, Role, Told
from backstory.model.schema import Column as SourceColumn
from backstory.model.types import ColumnType
from backstory.stores.iceberg.literals import column, instant, quoted
from backstory.strategies.copies.alike import alike
from backstory.strategies.copies.moves import of
from backstory.strategies.scd2.plan import APPEARED, CHANGED, DELIVERED, STORED, VANISHED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

# Structs of stored rows beside the key; no column of a source is called so.
NOW: Final = "backstory: now"
BEFORE: Final = "backstory: before"
REPLACED: Final = "backstory: replaced"
NEXT: Final = "backstory: next"
RENEWED: Final = "renewed"
APPEARING: Final = "appearing"


@dataclass(frozen=True, slots=True)
class CopyTerms:
    """What the copy is compared by; instants are microseconds, `types` Spark's of the columns.

    `delivered` are the copy's columns, the key's among them; those `compared` make a version where they
    differ, those `renewed` are written into the open version instead, `tracked` all that the table tracks,
    `overwritten` all that it keeps without history.
    `following` is the next instant of which something is known. `in_order`: nothing is known from `at` on.
    `restated`: the copy takes the place of a stored one, which then said nothing of columns that it lacks.
    `successions` are columns that the copy lacks, each with one of its type that comes: it may be the same.
    """

    columns: tuple[SourceColumn, ...]
    types: "StructType"
    key: tuple[str, ...]
    delivered: tuple[str, ...]
    compared: tuple[str, ...]
    renewed: tuple[str, ...]
    tracked: tuple[str, ...]
    overwritten: tuple[str, ...]
    at: int
    recorded: int
    following: int | None = None
    in_order: bool = True
    restated: bool = False
    successions: tuple[tuple[str, str], ...] = ()

    @property
    def memory(self) -> ColumnType:
        """The type of what rows remember."""
        return next(each.type for each in self.columns if each.name == MEMORY)


def version() -> "Column":
    """Whether a stored row is a version, and no memory."""
    return column(MEMORY).getField(ROLE).isNull()


def marked() -> "Column":
    """Whether a stored row remembers a copy or a truncate that was not taken back."""
    memory = column(MEMORY)
    said = memory.getField(KIND).isin(Told.COPY.value, Told.TRUNCATE.value)
    return said & (memory.getField(ROLE) == Role.FACT.value) & memory.getField(ENDED_AT).isNull()


def stored_states(rows: "DataFrame", terms: CopyTerms) -> "DataFrame":
    """For each key that the copy can touch the versions that count for it, each as a struct.

    `rows` are the table's, with their places.
    """
    from pyspark.sql.functions import coalesce, first, lit, struct, when

    at, key = instant(terms.at), [quoted(name) for name in terms.key]
    if terms.in_order:
        open_ = rows.where(version() & column(VALID_TO).isNull())
        return open_.select(*key, struct("*").alias(NOW))
    start, end = column(VALID_FROM), column(VALID_TO)
    slice_ = rows.where(version() & (end.isNull() | (end >= at)))
    sides = {BEFORE: start < at, REPLACED: start == at}
    if terms.following is not None:
        following = instant(terms.following)
        slice_ = slice_.where(start <= following)
        sides[NEXT] = (start <= following) & (end.isNull() | (end > following))
    whole = struct("*")
    chosen = [first(when(side, whole), ignorenulls=True).alias(name) for name, side in sides.items()]
    states = slice_.groupBy(*key).agg(*chosen)
    if NEXT not in sides:
        states = states.withColumn(NEXT, lit(None).cast(states.schema[BEFORE].dataType))
    ended = of(quoted(BEFORE), VALID_TO)
    there = when(ended.isNull() | (ended > at), column(BEFORE))
    return states.withColumn(NOW, coalesce(column(REPLACED), there))


def spoilt(rows: "DataFrame", terms: CopyTerms) -> "DataFrame":
    """The keys of the slice that have two versions at one instant (V119)."""
    from pyspark.sql.functions import count_if

    at, start, end = instant(terms.at), column(VALID_FROM), column(VALID_TO)
    slice_ = rows.where(version() & (end.isNull() | (end >= at)))
    covers = (start <= at) & (end.isNull() | (end > at))
    counted = [covers, start < at, end.isNull()]
    twice = reduce(or_, (count_if(each) > 1 for each in counted))
    names = [quoted(name) for name in terms.key]
    return slice_.groupBy(*names).agg(twice.alias(RENEWED)).where(column(RENEWED)).select(*names)


def state(name: str) -> str:
    """Spark's name of one of the stored states, beside the delivered row."""
    return f"{STORED}.{quoted(name)}"


def differs(terms: CopyTerms) -> "Column":
    """Whether a record that is on both sides is another one than at the copy's instant."""
    from pyspark.sql.functions import col

    names = (*terms.compared, *(terms.renewed if terms.following is None else ()))
    there = col(state(NOW)).isNotNull()
    return ~(there & _alike_now(terms, names))


def _alike_now(terms: CopyTerms, names: Sequence[str]) -> "Column":
    """Whether a record is now as delivered: on these columns, and on those that a restatement lacks."""
    from pyspark.sql.functions import col, when

    found = alike(DELIVERED, state(NOW), names, terms.types)
    if not terms.restated:
        return found
    stays = col(state(BEFORE)).isNotNull() & alike(DELIVERED, state(BEFORE), terms.compared, terms.types)
    absent = {name for name in terms.tracked if name not in terms.delivered}
    on_before = alike(state(BEFORE), state(NOW), absent, terms.types)
    return found & when(stays, on_before).otherwise(all_null(state(NOW), absent))


def all_null(row: str, names: Iterable[str]) -> "Column":
    """Whether a struct has no value in these columns."""
    from pyspark.sql.functions import lit

    return reduce(and_, (of(row, name).isNull() for name in names), lit(True))


def there() -> "Column":
    """Whether a stored record was there at the copy's instant; else it cannot vanish."""
    from pyspark.sql.functions import col

    return col(state(NOW)).isNotNull()


def has(name: str) -> "Column":
    """Whether a record that is in the copy had a value in a column at the copy's instant."""
    from pyspark.sql.functions import col

    return there() & col(DELIVERED).isNotNull() & of(state(NOW), name).isNotNull()


def valued(old: str, new: str) -> "Column":
    """Whether a record that is on both sides has a value in the one column there, or in the other here."""
    from pyspark.sql.functions import col

    both = there() & col(DELIVERED).isNotNull()
    return both & (of(state(NOW), old).isNotNull() | of(DELIVERED, new).isNotNull())


def carries_over(old: str, new: str) -> "Column":
    """Whether these two values are one."""
    return valued(old, new) & of(state(NOW), old).eqNullSafe(of(DELIVERED, new))


def loses(name: str) -> "Column":
    """Whether such a record has none in the copy."""
    return has(name) & of(DELIVERED, name).isNull()


def outcome(terms: CopyTerms) -> "dict[str, Column]":
    """Which actions are of records that appear, change with a version, are renewed without one, or go."""
    action, known = column("action"), there()
    anew = ~_alike_now(terms, terms.compared)
    return {
        APPEARING: (action == APPEARED) | ((action == CHANGED) & ~known),
        CHANGED: (action == CHANGED) & known & anew,
        RENEWED: (action == CHANGED) & known & ~anew,
        VANISHED: action == VANISHED,
    }
