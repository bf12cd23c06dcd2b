"""Which rows can be true at a time, or begin or end between two: so that others are not read."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from backstory.model.instant import EPOCH
from backstory.model.layout import Layout, Span
from backstory.model.types import Kind
from backstory.reading.arrow.knowledge import KnownTable
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.least_values import MOST_VALUES
from backstory.stores.metadata.searches import AnyOf, Between, OneOf, Search

_LEAST: Final = timedelta(microseconds=1)


def true_at(known: KnownTable, micros: int) -> Mapping[str, Search]:
    """What all rows have that were true at an instant, and few others; nothing where rows do not tell."""
    span = timed_span(known)
    if span is None:
        return {}
    instant, grain = EPOCH + timedelta(microseconds=micros), timedelta(microseconds=span.grain)
    started = {span.start: Between(greatest=instant)}
    if known.until is not None:  # the end that was known may have been another one
        return started
    return {**started, span.end: Between(least=_after(instant, grain), null=True)}


def _after(instant: datetime, grain: timedelta) -> datetime:
    """The least end that is after an instant by its grain; the instant itself at an end of all time."""
    try:
        return instant - (grain - _LEAST)
    except OverflowError:
        return instant


def moving_between(known: KnownTable, micros: tuple[int, int]) -> KnownTable:
    """The same table, of which only rows need be read that begin or end after one instant up to another.

    Until when a version was true that Fivetran brought, its successor tells: all rows of its record are read.
    """
    span = timed_span(known)
    if span is None or known.until is not None or known.searches:
        return known
    first, last = (EPOCH + timedelta(microseconds=each) for each in sorted(micros))
    grain = timedelta(microseconds=span.grain)
    moved = Between(_after(first, grain), last)
    moving = AnyOf({span.start: moved, span.end: moved})
    if known.shape.layout is not Layout.FIVETRAN_HISTORY:
        return replace(known, searches=moving)
    if not known.shape.key:
        return known
    name = known.shape.key[0]
    keys = known.files.rows(known.snapshot, known.fields, [name], MOST_VALUES, moving)[name]
    if keys.null_count:
        raise Unreadable("NULL in a key")
    return replace(known, searches={name: OneOf(keys)})


def timed_span(known: KnownTable) -> Span | None:
    """The columns in which each row says from when to when it was true; None where it does not, in UTC."""
    span = known.shape.layout.span
    if span is None or known.snapshot is None:
        return None
    kinds = {each.name: each.type.kind for each in known.shape.columns}
    return span if all(kinds.get(name) is Kind.UTC_DATETIME for name in (span.start, span.end)) else None
