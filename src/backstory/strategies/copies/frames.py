"""The stored versions that count for a copy, on Spark: what its sift joins, and what its tasks are given.

The states are those of `plan`: what was known of a record just before the copy's instant, at it by a copy
that this one replaces, and at the next instant of which something is known.
"""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from backstory.model.layout import MEMORY, VALID_FROM, VALID_TO
from backstory.model.remembered import ENDED_AT, KIND, ROLE, Role, Told
from backstory.stores.iceberg.literals import column, instant, quoted
from backstory.strategies.comparable import alike
from backstory.strategies.copies.terms import CopyTerms
from backstory.strategies.sift.join import DELIVERED, STORED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

# Structs of stored rows beside the key; no column of a source is called so.
BEFORE: Final = "backstory: before"
REPLACED: Final = "backstory: replaced"
NEXT: Final = "backstory: next"
TWICE: Final = "backstory: twice"


def version() -> "Column":
    """Whether a stored row is a version, and no memory."""
    return column(MEMORY).getField(ROLE).isNull()


def marked() -> "Column":
    """Whether a stored row remembers a copy or a truncate that was not taken back."""
    memory = column(MEMORY)
    said = memory.getField(KIND).isin(Told.COPY.value, Told.TRUNCATE.value)
    return said & (memory.getField(ROLE) == Role.FACT.value) & memory.getField(ENDED_AT).isNull()


def versions_touched(rows: "DataFrame", terms: CopyTerms) -> "DataFrame":
    """The versions that a copy can touch: in order the open ones, else those that reach its instant."""
    start, end = column(VALID_FROM), column(VALID_TO)
    if terms.in_order:
        return rows.where(version() & end.isNull())
    slice_ = rows.where(version() & (end.isNull() | (end >= instant(terms.at))))
    return slice_ if terms.following is None else slice_.where(start <= instant(terms.following))


def stored_states(rows: "DataFrame", terms: CopyTerms) -> "DataFrame":
    """For each key that the copy can touch the versions that count for it, each as a struct.

    `rows` are the table's, with their places.
    """
    from pyspark.sql.functions import first, struct, when

    key, slice_, whole = [quoted(name) for name in terms.key], versions_touched(rows, terms), struct("*")
    if terms.in_order:
        return slice_.select(*key, whole.alias(BEFORE))
    start, end, at = column(VALID_FROM), column(VALID_TO), instant(terms.at)
    sides = {BEFORE: start < at, REPLACED: start == at}
    if terms.following is not None:
        following = instant(terms.following)
        sides[NEXT] = (start <= following) & (end.isNull() | (end > following))
    chosen = (first(when(side, whole), ignorenulls=True).alias(name) for name, side in sides.items())
    return slice_.groupBy(*key).agg(*chosen)


def spoilt(rows: "DataFrame", terms: CopyTerms) -> "DataFrame":
    """The keys of the slice that have two versions at one instant (V119), or one that never began."""
    from pyspark.sql.functions import count_if

    at, start, end = instant(terms.at), column(VALID_FROM), column(VALID_TO)
    slice_ = rows.where(version() & (end.isNull() | (end >= at)))
    covers = (start <= at) & (end.isNull() | (end > at))
    counted = [covers, start < at, end.isNull()]
    twice = reduce(or_, (count_if(each) > 1 for each in counted)) | (count_if(start.isNull()) > 0)
    names = [quoted(name) for name in terms.key]
    return slice_.groupBy(*names).agg(twice.alias(TWICE)).where(column(TWICE)).select(*names)


def begun_never(rows: "DataFrame") -> "DataFrame":
    """The versions without a beginning; Iceberg passes over files that have none."""
    return rows.where(version() & column(VALID_FROM).isNull())


def of(row: str, name: str) -> "Column":
    """A column of a struct, which is given as Spark's name of it."""
    from pyspark.sql.functions import col

    return col(f"{row}.{quoted(name)}")


def state(name: str) -> str:
    """Spark's name of one of the stored states, beside the delivered row."""
    return f"{STORED}.{quoted(name)}"


def now(terms: CopyTerms, name: str) -> "Column":
    """A column of what was known of a record at the copy's instant; NULL where it was not there."""
    from pyspark.sql.functions import col, when

    if terms.in_order:
        return of(state(BEFORE), name)
    replaced = col(state(REPLACED)).isNotNull()
    return when(replaced, of(state(REPLACED), name)).when(_reaches(terms), of(state(BEFORE), name))


def there(terms: CopyTerms) -> "Column":
    """Whether a stored record was there at the copy's instant; else it cannot vanish."""
    from pyspark.sql.functions import coalesce, col, lit

    if terms.in_order:
        return col(state(BEFORE)).isNotNull()
    replaced = col(state(REPLACED)).isNotNull()
    return coalesce(replaced | (col(state(BEFORE)).isNotNull() & _reaches(terms)), lit(False))


def _reaches(terms: CopyTerms) -> "Column":
    ended = of(state(BEFORE), VALID_TO)
    return ended.isNull() | (ended > instant(terms.at))


def differs(terms: CopyTerms, types: "StructType") -> "Column":
    """Whether a record that is on both sides may be another one than at the copy's instant.

    A restatement that lacks columns may touch records that are as delivered.
    """
    from pyspark.sql.functions import lit

    if terms.restated and terms.absent:
        return lit(True)
    same = (alike(of(DELIVERED, name), now(terms, name), types[name].dataType) for name in terms.decisive)
    return ~reduce(lambda one, other: one & other, same, there(terms))


def has(terms: CopyTerms, name: str) -> "Column":
    """Whether a record that is in the copy had a value in a column at the copy's instant."""
    from pyspark.sql.functions import col

    return there(terms) & col(DELIVERED).isNotNull() & now(terms, name).isNotNull()


def valued(terms: CopyTerms, old: str, new: str) -> "Column":
    """Whether a record that is on both sides has a value in the one column there, or in the other here."""
    from pyspark.sql.functions import col

    both = there(terms) & col(DELIVERED).isNotNull()
    return both & (now(terms, old).isNotNull() | of(DELIVERED, new).isNotNull())


def carries_over(terms: CopyTerms, old: str, new: str) -> "Column":
    """Whether these two values are one."""
    return valued(terms, old, new) & now(terms, old).eqNullSafe(of(DELIVERED, new))
