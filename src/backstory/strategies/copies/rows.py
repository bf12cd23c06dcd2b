"""The rows that a full copy writes: versions that end, are taken back, begin or are renewed (V7 to V9)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from backstory.model.change import NOTHING
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.remembered import Role
from backstory.stores.iceberg.literals import instant
from backstory.strategies.copies.alike import alike
from backstory.strategies.copies.moves import begun, left_behind, moved, moves_again, of, row_of
from backstory.strategies.copies.plan import (
    APPEARING,
    BEFORE,
    NEXT,
    NOW,
    RENEWED,
    REPLACED,
    CopyTerms,
    all_null,
    outcome,
    state,
)
from backstory.strategies.scd2.plan import CHANGED, DELIVERED, VANISHED, Outcomes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    # Where a column takes another value than its row's, and which.
    Newest = Mapping[str, tuple[Column, Column]]


@dataclass(frozen=True, slots=True)
class Written:
    """Rows to write: which actions have one, its columns, and the stored row whose place it takes."""

    where: "Column"
    row: "Callable[[], list[Column]]"
    instead: str | None = None
    taken_back: bool = False


def written(terms: CopyTerms) -> list[Written]:
    """The rows that the copy writes, one kind after the other; conditions are of the actions."""
    return _in_order(terms) if terms.in_order else _among_others(terms)


def _in_order(terms: CopyTerms) -> list[Written]:
    """Nothing is known later: versions end at the copy's instant, begin there, or are renewed in place."""
    from pyspark.sql.functions import lit

    at, kinds, now = instant(terms.at), outcome(terms), state(NOW)
    return [
        *_moving(terms, now, kinds[CHANGED] | kinds[VANISHED], at),
        Written(kinds[APPEARING] | kinds[CHANGED], lambda: _beginning(terms, at, lit(None))),
        *_renewing(terms),
    ]


def _renewing(terms: CopyTerms) -> list[Written]:
    """Open versions of which only columns without history differ (V18)."""
    now = state(NOW)

    def row() -> "list[Column]":
        values = {**_values(terms, now), **{name: of(DELIVERED, name) for name in terms.renewed}}
        return row_of(terms.columns, {}, values)

    return [Written(outcome(terms)[RENEWED], row, now)] if terms.renewed else []


def _among_others(terms: CopyTerms) -> list[Written]:
    """Facts are known at or after the copy's instant: what it says holds up to the next (V30, V31)."""
    from pyspark.sql.functions import col, lit, when

    at, kinds = instant(terms.at), outcome(terms)
    before, replaced, after = state(BEFORE), state(REPLACED), state(NEXT)
    relived = kinds[APPEARING] | kinds[CHANGED] | kinds[VANISHED]
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
    # What has no history is as the newest version has it.
    newest = {name: (joins, of(after, name)) for name in terms.overwritten}
    if terms.following is None:
        newest = {name: (stays, of(DELIVERED, name)) for name in terms.renewed}
    moves = relived & has[before] & ~end.eqNullSafe(of(before, VALID_TO))
    return [
        *_moving(
            terms,
            before,
            moves,
            end,
            newest={name: (stays & when_, to) for name, (when_, to) in newest.items()},
        ),
        *_moving(terms, replaced, relived & has[replaced], at, Role.PAST),
        *_moving(terms, after, relived & own & joins, following, Role.PAST),
        Written(relived & begins, lambda: _beginning(terms, at, reach, newest)),
        Written(
            relived & has[after] & ~own & ~joins,
            lambda: row_of(
                terms.columns,
                begun(following, of(after, VALID_TO), instant(terms.recorded)),
                _values(terms, after),
            ),
        ),
        *(_renewing(terms) if terms.following is None else []),
    ]


def _delivered_alike(terms: CopyTerms, other: str) -> "Column":
    """Whether the delivered row, NULL where it has no column, is like a stored one."""
    there = [name for name in terms.tracked if name in terms.delivered]
    absent = (name for name in terms.tracked if name not in terms.delivered)
    return alike(DELIVERED, other, there, terms.types) & all_null(other, absent)


def _moving(
    terms: CopyTerms,
    row: str,
    where: "Column",
    end: "Column",
    role: Role | None = None,
    newest: "Newest" = NOTHING,
) -> list[Written]:
    """A stored version with another end, and the statement that it would forget."""

    def now() -> "list[Column]":
        own = moved(row, end, instant(terms.recorded), terms.memory, role)
        return row_of(terms.columns, own, _as_newest(_values(terms, row), newest))

    def left() -> "list[Column]":
        return row_of(terms.columns, left_behind(row, terms.memory), _values(terms, row))

    return [Written(where, now, row, role is not None), Written(where & moves_again(row), left)]


def _beginning(
    terms: CopyTerms, start: "Column", end: "Column", newest: "Newest" = NOTHING
) -> "list[Column]":
    own = begun(start, end, instant(terms.recorded))
    return row_of(terms.columns, own, _as_newest(_delivered(terms), newest))


def _as_newest(values: "dict[str, Column]", newest: "Newest") -> "dict[str, Column]":
    from pyspark.sql.functions import lit, when

    told = {
        name: when(where, value).otherwise(values.get(name, lit(None)))
        for name, (where, value) in newest.items()
    }
    return {**values, **told}


def _delivered(terms: CopyTerms) -> "dict[str, Column]":
    return {name: of(DELIVERED, name) for name in terms.delivered}


def _values(terms: CopyTerms, row: str) -> "dict[str, Column]":
    return {each.name: of(row, each.name) for each in terms.columns}


def rows_that_come(found: Outcomes, kinds: Sequence[Written], *, ids: bool) -> "DataFrame":
    """All rows to write, with the ids that they keep."""
    from pyspark.sql.functions import lit

    parts = []
    for kind in kinds:
        kept = of(kind.instead, ROW_ID) if ids and kind.instead else lit(None).cast("bigint")
        row = [*kind.row(), *([kept.alias(ROW_ID)] if ids else [])]
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
