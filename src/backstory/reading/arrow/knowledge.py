"""The rows of a table that a question needs, as the table was known at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa

from backstory.model.instant import EPOCH
from backstory.model.layout import Layout, Span
from backstory.model.types import Kind
from backstory.reading.histories import TableState, state_at
from backstory.reading.selection import key_of
from backstory.stores.metadata import table_rows
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.searches import AnyOf, Between, EqualTo, OneOf, Search, Searches
from backstory.stores.metadata.table_rows import MOST_VALUES, TableReader


@dataclass(frozen=True, slots=True)
class KnownTable(TableState):
    """A table at a recorded time, and its reader. `searches` restricts the rows that are read."""

    files: TableReader
    searches: Searches | None = None

    def rows(self, names: Sequence[str]) -> pa.Table:
        """The rows, with these columns; Unreadable if only Spark can read them."""
        distinct = list(dict.fromkeys(names))
        return self.files.rows(self.snapshot, self.fields, distinct, table_rows.MOST_IN_ARROW, self.searches)

    def of_record(self, key: object) -> "KnownTable":
        """The table restricted to one record, if a key is given; UsageError if the table has another key."""
        if key is None:
            return self
        values = key_of(self.shape, key)
        return replace(self, searches={name: EqualTo(value) for name, value in values.items()})


def table_at(files: TableReader, known_at: datetime | None) -> KnownTable:
    """The table as known at a recorded time, by default now; raises the errors of `state_at`."""
    return read_state(files, state_at(files.table, known_at))


def read_state(files: TableReader, state: TableState) -> KnownTable:
    """A state of a table with the reader of its rows."""
    return KnownTable(state.table, state.shape, state.fields, state.snapshot, state.until, files)


_LEAST: Final = timedelta(microseconds=1)


def searches_at(known: KnownTable, micros: int) -> Mapping[str, Search]:
    """Searches that all rows true at an instant pass, and few others; empty if the rows cannot show it."""
    span = utc_span(known)
    if span is None:
        return {}
    instant, grain = EPOCH + timedelta(microseconds=micros), timedelta(microseconds=span.grain)
    started = {span.start: Between(greatest=instant)}
    if known.until is not None:  # another end may have been known then
        return started
    return {**started, span.end: Between(least=_least_end(instant, grain), null=True)}


def _least_end(instant: datetime, grain: timedelta) -> datetime:
    """The least end that counts as after an instant, by the grain of ends."""
    try:
        return instant - (grain - _LEAST)
    except OverflowError:
        return instant


def narrow_to_changes(known: KnownTable, micros: tuple[int, int]) -> KnownTable:
    """Restrict a table to the rows that begin or end after one instant and up to another.

    In a Fivetran history the end of a version depends on its successor, so all rows of such records are read.
    """
    span = utc_span(known)
    if span is None or known.until is not None or known.searches:
        return known
    first, last = (EPOCH + timedelta(microseconds=each) for each in sorted(micros))
    grain = timedelta(microseconds=span.grain)
    moved = Between(_least_end(first, grain), last)
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


def utc_span(known: KnownTable) -> Span | None:
    """The columns with the start and the end of each row, if they are instants in UTC; else None."""
    span = known.shape.layout.span
    if span is None or known.snapshot is None:
        return None
    kinds = {each.name: each.type.kind for each in known.shape.columns}
    return span if all(kinds.get(name) is Kind.UTC_DATETIME for name in (span.start, span.end)) else None
