"""The rows of a table that are true now or at a time, from files: all of them, one record, or a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import UsageError
from backstory.model.layout import DELETED, Layout
from backstory.model.table import Shape
from backstory.reading.arrow.knowledge import KnownTable, searches_at, table_at, utc_span
from backstory.reading.arrow.sorting import ROWS_FOR_ONE, are_after, equals_next, first_rows, sort_rows
from backstory.reading.arrow.versions import is_record, read_versions
from backstory.reading.histories import HISTORIES, history_of, order_columns, shown_key
from backstory.reading.lifetimes import DUCKDB, true_query
from backstory.reading.lives import shown_name
from backstory.reading.selection import EVERYTHING, Selection, exact_value, key_of
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.searches import EqualTo, OneOf, Search
from backstory.stores.metadata.table_rows import TableReader
from backstory.stores.metadata.values import rows_of, truths_of, without_nulls
from backstory.strategies.values import ranks


def rows_at(
    files: TableReader,
    time: datetime | None = None,
    known_at: datetime | None = None,
    selection: Selection = EVERYTHING,
    limit: int | None = None,
) -> pa.Table:
    """The rows that are true at an instant, by default now, as by `rows_at` of frames.

    With `limit` the answer contains the first rows in the order of their key, and perhaps others. Raises
    Unreadable if only Spark can read the rows.
    """
    known, instant = table_at(files, known_at), None if time is None else micros_of(time)
    selection.require(known.shape)
    sure = {} if instant is None else searches_at(known, instant)
    return first_rows(known.of_record(selection.key), limit, partial(true_rows, selection, instant), sure)


def true_rows(selection: Selection, instant: int | None, known: KnownTable) -> pa.Table:
    """The selected rows and columns that are true at an instant, or now for None."""
    shape = known.shape
    if instant is not None or shape.layout in HISTORIES:
        versions = read_versions(known, partial(true_query, DUCKDB, instant=instant))
        if selection.key is not None:
            versions = versions.of_rows(is_record(versions.users, shape, selection.key))
        rows = versions.rows
    else:
        rows = live_rows(known)
        if selection.key is not None:
            rows = rows.filter(is_record(rows, shape, selection.key))
    return rows.select(selection.select(shape.table, shown_key(shape), rows.column_names))


def live_rows(known: KnownTable) -> pa.Table:
    """The rows of a table without a history, except rows that Fivetran marked as deleted."""
    shape = known.shape
    users = shape.user_columns
    names = [each.source for each in users]
    if not names or len(set(names)) < len(names):
        raise Unreadable("columns that share a name")
    marked = shape.layout is Layout.FIVETRAN_LIVE and shape.column(DELETED) is not None
    rows = known.rows([*(each.name for each in users), *([DELETED] if marked else [])])
    if marked:
        rows = rows.filter(pc.invert(without_nulls(rows[DELETED])))
    return rows.select([each.name for each in users]).rename_columns(names)


Row = Mapping[str, Any]
NO_CONDITIONS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in the order of their key, all columns, the key's columns, and whether more rows follow.

    `first` has the values of the key's first column in these rows, and perhaps others.
    """

    rows: Sequence[Row]
    columns: Sequence[str]
    key: Sequence[str]
    more: bool
    first: pa.ChunkedArray | None = None


def page(
    files: TableReader,
    time: datetime | None = None,
    known_at: datetime | None = None,
    where: Mapping[str, str] = NO_CONDITIONS,
    after: object = None,
    limit: int = 50,
) -> Page:
    """A page of the rows that are true at `time`, as known at `known_at`; None is now.

    `where` maps columns to the values that they must have, as texts. The page begins after the key `after`,
    in the form that `timeline` takes. Raises UsageError for an unknown column or an unfitting value,
    Unreadable if only Spark can read the rows.
    """
    known = table_at(files, known_at)
    key, conditions = shown_key(known.shape), _search_values(known, where)
    least = {} if after is None else key_of(known.shape, after)
    behind = dict(zip(key, least.values(), strict=False))
    instant = _instant(known, time)

    def answer(part: KnownTable) -> pa.Table:
        rows = true_rows(EVERYTHING, instant, part)
        for name, (_, search) in conditions.items():
            rows = rows.filter(search.rows(rows[name]))
        return rows.filter(are_after(rows, behind)) if behind else rows

    sure, needed = _sure_searches(known, instant, conditions), limit + 1
    while True:
        rows = first_rows(known, needed, answer, sure, least)
        rows = sort_rows(rows, order_columns(known.shape, rows.column_names))
        end = _end(rows, key, limit)
        if end < len(rows) or len(rows) < needed:
            first = rows[key[0]] if key else None
            return Page(rows_of(rows.slice(0, end)), rows.column_names, key, len(rows) > end, first)
        needed *= ROWS_FOR_ONE  # all these rows belong to one record


def _end(rows: pa.Table, key: Sequence[str], limit: int) -> int:
    """The number of rows on a page, which ends after all rows of a record.

    In a broken history several rows of a record may be true. No page ends after a key with a NULL.
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
    files: TableReader, page: Page, time: datetime | None, known_at: datetime | None
) -> dict[Any, Row]:
    """The rows of a page's records at another time, by the values of their key; empty if that is costly."""
    known = table_at(files, known_at)
    if page.first is None or shown_key(known.shape) != list(page.key):
        return {}
    try:
        part = replace(known, searches={known.shape.key[0]: OneOf(page.first)})
        rows = rows_of(true_rows(EVERYTHING, _instant(known, time), part))
    except (Unreadable, pa.ArrowException):
        return {}
    return {tuple(row[each] for each in page.key): row for row in rows}


def _instant(known: KnownTable, time: datetime | None) -> int | None:
    """The time of a page in microseconds; a table without a history has only its present rows."""
    return None if time is None or known.shape.layout not in HISTORIES else micros_of(time)


def _sure_searches(
    known: KnownTable, instant: int | None, conditions: Mapping[str, tuple[str, Search]]
) -> dict[str, Search]:
    """Searches, by the table's own names, that all rows of the answer pass."""
    lasting = known.shape.layout in HISTORIES
    if lasting and utc_span(known) is None:
        return {}
    return {**dict(conditions.values()), **(searches_at(known, instant) if instant is not None else {})}


def _search_values(known: KnownTable, where: Mapping[str, str]) -> dict[str, tuple[str, Search]]:
    """The table's own name and the search for each column of `where`, by the names that readers show."""
    shape = known.shape
    lasting = shape.layout in HISTORIES
    users = history_of(known.table, shape).user_columns if lasting else shape.user_columns
    names = {shown_name(each.source) if lasting else each.source: each for each in users}
    searches: dict[str, tuple[str, Search]] = {}
    for name, text in where.items():
        if name not in names:
            raise _no_column(shape, name, names)
        searches[name] = names[name].name, EqualTo(exact_value(name, text, names[name].type))
    return searches


def _no_column(shape: Shape, name: str, names: Mapping[str, object]) -> UsageError:
    return UsageError(
        "unknown-column", f"{shape.table} has no column {name}.", f"Its columns are {', '.join(names)}."
    )
