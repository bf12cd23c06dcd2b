"""What is true of a table, now or at an instant, from files.

A page of a table: the next rows, in the order of their key, that were true at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import UsageError
from backstory.model.layout import DELETED, VALID_TO, Layout
from backstory.model.table import Shape
from backstory.reading.arrow.knowledge import KnownTable, searches_at, table_at, utc_span
from backstory.reading.arrow.sorting import ROWS_FOR_ONE, are_after, equals_next, first_rows, sort_rows
from backstory.reading.arrow.versions import VersionRows, is_record, read_versions
from backstory.reading.frames.versions import HISTORIES, history_of, order_columns, shown_key
from backstory.reading.lives import shown_name
from backstory.reading.selection import EVERYTHING, Selection, exact_value, key_of
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.searches import EqualTo, OneOf, Search
from backstory.stores.metadata.table_rows import TableReader
from backstory.stores.metadata.values import rows_of, truths_of, without_nulls
from backstory.strategies.values import ranks


def current(
    files: TableReader,
    known_at: datetime | None = None,
    selection: Selection = EVERYTHING,
    limit: int | None = None,
) -> pa.Table:
    """The rows that are true now, as `current` of frames has them; Unreadable for what Spark alone reads.

    With `limit` the first ones in the order of their key are among the rows, and not all others.
    """
    found = table_at(files, known_at)
    selection.require(found.shape)
    return first_rows(found.of_record(selection.key), limit, partial(current_rows, selection))


def current_rows(selection: Selection, found: KnownTable) -> pa.Table:
    """The rows that are true now, of the record and with the columns that were chosen."""
    if found.shape.layout in HISTORIES:
        held = read_versions(found)
        return select_versions(held.where(pc.is_null(held.spans[VALID_TO])), found.shape, selection)
    rows = live_rows(found)
    if selection.key is not None:
        rows = rows.filter(is_record(rows, found.shape, selection.key))
    return rows.select(selection.select(found.shape.table, shown_key(found.shape), rows.column_names))


def select_versions(held: VersionRows, shape: Shape, selection: Selection = EVERYTHING) -> pa.Table:
    """The versions, of the record and with the columns that were chosen."""
    if selection.key is not None:
        held = held.of_places(is_record(held.users, shape, selection.key))
    rows = held.rows
    return rows.select(selection.select(shape.table, shown_key(shape), rows.column_names))


def live_rows(found: KnownTable) -> pa.Table:
    """The rows of a table without a history; of one that Fivetran marks those that are not deleted."""
    shape = found.shape
    users = shape.user_columns
    names = [each.source for each in users]
    if not names or len(set(names)) < len(names):
        raise Unreadable("columns that share a name")
    marked = shape.layout is Layout.FIVETRAN_LIVE and shape.column(DELETED) is not None
    rows = found.rows([*(each.name for each in users), *([DELETED] if marked else [])])
    if marked:
        rows = rows.filter(pc.invert(without_nulls(rows[DELETED])))
    return rows.select([each.name for each in users]).rename_columns(names)


def as_of(
    files: TableReader,
    time: datetime,
    known_at: datetime | None = None,
    selection: Selection = EVERYTHING,
    limit: int | None = None,
) -> pa.Table:
    """The rows that were true at an instant, as `as_of` of frames has them; `limit` as `current` has it."""
    found = table_at(files, known_at)
    selection.require(found.shape)
    instant = micros_of(time)

    def versions_of(part: KnownTable) -> pa.Table:
        held = read_versions(part)
        return select_versions(held.where(held.true_at(instant)), part.shape, selection)

    return first_rows(found.of_record(selection.key), limit, versions_of, searches_at(found, instant))


Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PageQuestion:
    """Which rows are asked for: those true at `time` (None: now), as known at `known_at` (None: now).

    `where` has the values that columns must have, as texts; `after` is the key behind which the page begins,
    as `timeline` takes it.
    """

    time: datetime | None = None
    known_at: datetime | None = None
    where: Mapping[str, str] = field(default_factory=dict)
    after: object = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in the order of their key, the key's columns, and whether others follow.

    `first` are the values of the key's first column in these rows, and perhaps others.
    """

    rows: Sequence[Row]
    columns: Sequence[str]
    key: Sequence[str]
    more: bool
    first: pa.ChunkedArray | None = None


def page(files: TableReader, question: PageQuestion) -> Page:
    """The rows; UsageError for a column or a value that is none, Unreadable for what Spark alone reads."""
    known = table_at(files, question.known_at)
    key = shown_key(known.shape)
    wanted = _search_values(known, question.where)
    after = {} if question.after is None else key_of(known.shape, question.after)
    behind = dict(zip(key, after.values(), strict=False))
    instant = None if question.time is None else micros_of(question.time)

    def answer(part: KnownTable) -> pa.Table:
        rows = _true_rows(part, instant)
        for name, (_, search) in wanted.items():
            rows = rows.filter(search.rows(rows[name]))
        return rows.filter(are_after(rows, behind)) if behind else rows

    sure, asked = _sure_searches(known, instant, wanted), question.limit + 1
    while True:
        found = first_rows(known, asked, answer, sure, after)
        rows = sort_rows(found, order_columns(known.shape, found.column_names))
        end = _end(rows, key, question.limit)
        if end < len(rows) or len(rows) < asked:
            first = found[key[0]] if key else None
            return Page(rows_of(rows.slice(0, end)), found.column_names, key, len(rows) > end, first)
        asked *= ROWS_FOR_ONE  # one record has so many


def _end(rows: pa.Table, key: Sequence[str], limit: int) -> int:
    """Where a page ends: behind all rows of a record, of which several may be true in a spoilt history.

    No page begins behind a key with NULL in it.
    """
    if not key or len(rows) <= limit:
        return min(limit, len(rows))
    last = rows.select(key).slice(limit - 1)
    joined = equals_next([ranks(each) for each in last.columns], len(last))
    for each in last.columns:
        joined |= ~truths_of(each.is_valid())[:-1]
    ends = np.flatnonzero(~joined)
    return limit + int(ends[0]) if len(ends) else len(rows)


def rows_before(
    files: TableReader, of: Page, time: datetime | None, known_at: datetime | None
) -> dict[Any, Row]:
    """The rows of a page's records at another time, by the values of their key; none where that is costly."""
    known = table_at(files, known_at)
    if of.first is None or shown_key(known.shape) != list(of.key):
        return {}
    instant = None if time is None else micros_of(time)
    try:
        part = replace(known, searches={known.shape.key[0]: OneOf(of.first)})
        found = rows_of(_true_rows(part, instant))
    except (Unreadable, pa.ArrowException):
        return {}
    return {tuple(row[each] for each in of.key): row for row in found}


def _true_rows(part: KnownTable, instant: int | None) -> pa.Table:
    if instant is None or part.shape.layout not in HISTORIES:
        return current_rows(EVERYTHING, part)
    held = read_versions(part)
    return select_versions(held.where(held.true_at(instant)), part.shape)


def _sure_searches(
    known: KnownTable, instant: int | None, wanted: Mapping[str, tuple[str, Search]]
) -> dict[str, Search]:
    """What all rows of the answer have, by the table's own names; nothing where a row alone does not tell."""
    lasting = known.shape.layout in HISTORIES
    if lasting and utc_span(known) is None:
        return {}
    stored = dict(wanted.values())
    return {**stored, **(searches_at(known, instant) if lasting and instant is not None else {})}


def _search_values(known: KnownTable, where: Mapping[str, str]) -> dict[str, tuple[str, Search]]:
    """For each column that readers show its own name, and the value that is searched for."""
    shape = known.shape
    lasting = shape.layout in HISTORIES
    users = history_of(known.table, shape).user_columns if lasting else shape.user_columns
    names = {shown_name(each.source) if lasting else each.source: each for each in users}
    found: dict[str, tuple[str, Search]] = {}
    for name, text in where.items():
        if name not in names:
            raise _no_column(shape, name, names)
        found[name] = names[name].name, EqualTo(exact_value(name, text, names[name].type))
    return found


def _no_column(shape: Shape, name: str, names: Mapping[str, object]) -> UsageError:
    return UsageError(
        "unknown-column", f"{shape.table} has no column {name}.", f"Its columns are {', '.join(names)}."
    )
