"""What a full copy makes of a table of layout `versions`, on Spark: the rows that follow from one join.

The stored states are those of the rule: what was known of a record just before the copy's instant, at it
by a copy that this one takes the place of, and at the next instant of which something is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Final

from backstory.model.layout import MEMORY, VALID_FROM, VALID_TO
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.remembered import ENDED_AT, KIND, ROLE, Role, Told
from backstory.model.schema import Column as SourceColumn
from backstory.model.types import ColumnType
from backstory.stores.iceberg.literals import column, instant, quoted
from backstory.strategies.copies.alike import alike
from backstory.strategies.copies.moves import begun, left_behind, moved, moves_again, of, row_of
from backstory.strategies.scd2.plan import APPEARED, CHANGED, DELIVERED, STORED, VANISHED, Outcomes

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
class Terms:
    """What the copy is compared by; instants are microseconds, `types` Spark's of the columns.

    `delivered` are the copy's columns, the key's among them; those `compared` make a version where they
    differ, those `renewed` are written into the open version instead, `tracked` all that the table tracks.
    `following` is the next instant of which something is known. `in_order`: nothing is known from `at` on.
    """

    columns: tuple[SourceColumn, ...]
    types: "StructType"
    key: tuple[str, ...]
    delivered: tuple[str, ...]
    compared: tuple[str, ...]
    renewed: tuple[str, ...]
    tracked: tuple[str, ...]
    at: int
    recorded: int
    following: int | None = None
    in_order: bool = True

    @property
    def memory(self) -> ColumnType:
        """The type of what rows remember."""
        return next(each.type for each in self.columns if each.name == MEMORY)


@dataclass(frozen=True, slots=True)
class Written:
    """Rows to write: which actions have one, its columns, and the stored row whose place it takes."""

    where: "Column"
    row: "list[Column]"
    instead: str | None = None
    taken_back: bool = False


def version() -> "Column":
    """Whether a stored row is a version, and no memory."""
    return column(MEMORY).getField(ROLE).isNull()


def marked() -> "Column":
    """Whether a stored row remembers a copy or a truncate that was not taken back."""
    memory = column(MEMORY)
    said = memory.getField(KIND).isin(Told.COPY.value, Told.TRUNCATE.value)
    return said & (memory.getField(ROLE) == Role.FACT.value) & memory.getField(ENDED_AT).isNull()


def stored_states(rows: "DataFrame", terms: Terms) -> "DataFrame":
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


def spoilt(rows: "DataFrame", terms: Terms) -> "DataFrame":
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


def differs(terms: Terms) -> "Column":
    """Whether a record that is on both sides is another one than at the copy's instant."""
    from pyspark.sql.functions import col

    names = (*terms.compared, *(terms.renewed if terms.in_order else ()))
    there = col(state(NOW)).isNotNull()
    return ~(there & alike(DELIVERED, state(NOW), names, terms.types))


def there() -> "Column":
    """Whether a stored record was there at the copy's instant; else it cannot vanish."""
    from pyspark.sql.functions import col

    return col(state(NOW)).isNotNull()


def outcome(terms: Terms) -> "dict[str, Column]":
    """Which actions are of records that appear, change with a version, are renewed without one, or go."""
    action, known = column("action"), there()
    anew = ~alike(DELIVERED, state(NOW), terms.compared, terms.types)
    return {
        APPEARING: (action == APPEARED) | ((action == CHANGED) & ~known),
        CHANGED: (action == CHANGED) & known & anew,
        RENEWED: (action == CHANGED) & known & ~anew,
        VANISHED: action == VANISHED,
    }


def written(terms: Terms) -> list[Written]:
    """The rows that the copy writes, one kind after the other; conditions are of the actions."""
    return _in_order(terms) if terms.in_order else _among_others(terms)


def _in_order(terms: Terms) -> list[Written]:
    """Nothing is known later: versions end at the copy's instant, begin there, or are renewed in place."""
    from pyspark.sql.functions import lit

    at, kinds, now = instant(terms.at), outcome(terms), state(NOW)
    found = [
        *_moving(terms, now, kinds[CHANGED] | kinds[VANISHED], at),
        Written(kinds[APPEARING] | kinds[CHANGED], _beginning(terms, at, lit(None))),
    ]
    if terms.renewed:
        values = {**_values(terms, now), **{name: of(DELIVERED, name) for name in terms.renewed}}
        found.append(Written(kinds[RENEWED], row_of(terms.columns, {}, values), now))
    return found


def _among_others(terms: Terms) -> list[Written]:
    """Facts are known at or after the copy's instant: what it says holds up to the next (V30, V31)."""
    from pyspark.sql.functions import col, lit, when

    at = instant(terms.at)
    before, replaced, after = state(BEFORE), state(REPLACED), state(NEXT)
    relived = column("action").isin(APPEARED, CHANGED, VANISHED)
    has = {name: col(name).isNotNull() for name in (DELIVERED, before, replaced, after)}
    stays = has[DELIVERED] & has[before] & alike(DELIVERED, before, terms.compared, terms.types)
    begins = has[DELIVERED] & ~stays
    following = lit(None) if terms.following is None else instant(terms.following)
    joins_after = has[after] & when(stays, alike(before, after, terms.tracked, terms.types)).otherwise(
        _delivered_alike(terms, after)
    )
    joins = (stays | begins) & joins_after
    reach = when(joins, of(after, VALID_TO)).otherwise(following)
    end = when(stays, reach).otherwise(at)
    own = has[after] & (of(after, VALID_FROM) == following)  # else it is one of the others, going on
    return [
        *_moving(terms, before, relived & has[before] & ~end.eqNullSafe(of(before, VALID_TO)), end),
        *_moving(terms, replaced, relived & has[replaced], at, Role.PAST),
        *_moving(terms, after, relived & own & joins, following, Role.PAST),
        Written(relived & begins, _beginning(terms, at, reach)),
        Written(
            relived & has[after] & ~own & ~joins,
            row_of(
                terms.columns,
                begun(following, of(after, VALID_TO), instant(terms.recorded)),
                _values(terms, after),
            ),
        ),
    ]


def _delivered_alike(terms: Terms, other: str) -> "Column":
    """Whether the delivered row, NULL where it has no column, is like a stored one."""
    there = [name for name in terms.tracked if name in terms.delivered]
    absent = (of(other, name).isNull() for name in terms.tracked if name not in terms.delivered)
    return reduce(and_, absent, alike(DELIVERED, other, there, terms.types))


def _moving(
    terms: Terms, row: str, where: "Column", end: "Column", role: Role | None = None
) -> list[Written]:
    """A stored version with another end, and the statement that it would forget."""
    values, recorded = _values(terms, row), instant(terms.recorded)
    own = moved(row, end, recorded, terms.memory, role)
    return [
        Written(where, row_of(terms.columns, own, values), row, role is not None),
        Written(where & moves_again(row), row_of(terms.columns, left_behind(row, terms.memory), values)),
    ]


def _beginning(terms: Terms, start: "Column", end: "Column") -> "list[Column]":
    own = begun(start, end, instant(terms.recorded))
    return row_of(terms.columns, own, _delivered(terms))


def _delivered(terms: Terms) -> "dict[str, Column]":
    return {name: of(DELIVERED, name) for name in terms.delivered}


def _values(terms: Terms, row: str) -> "dict[str, Column]":
    return {each.name: of(row, each.name) for each in terms.columns}


def rows_that_come(found: Outcomes, kinds: Sequence[Written], *, ids: bool) -> "DataFrame":
    """All rows to write, with the ids that they keep."""
    from pyspark.sql.functions import lit

    parts = []
    for kind in kinds:
        kept = of(kind.instead, ROW_ID) if ids and kind.instead else lit(None).cast("bigint")
        row = [*kind.row, kept.alias(ROW_ID)] if ids else kind.row
        parts.append(found.actions.where(kind.where).select(*row))
    return reduce(lambda one, other: one.unionByName(other), parts)


def rows_that_go(found: Outcomes, kinds: Sequence[Written]) -> "DataFrame":
    """The places of the stored rows that are written anew."""
    parts = [
        found.actions.where(kind.where).select(
            of(kind.instead, FILE).alias(FILE), of(kind.instead, POSITION).alias(POSITION)
        )
        for kind in kinds
        if kind.instead
    ]
    return reduce(lambda one, other: one.unionByName(other), parts)
