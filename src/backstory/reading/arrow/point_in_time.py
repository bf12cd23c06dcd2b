"""The rows of a table that are true now or at a time, from files: all of them, one record, or a page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from backstory.reading.arrow.versions import (
    KnownTable,
    is_record,
    read_versions,
    searches_at,
    table_at,
    utc_span,
)
from backstory.reading.histories import HISTORIES, history_of, order_columns, shown_key
from backstory.reading.lifetimes import DUCKDB, true_query
from backstory.reading.lives import shown_name
from backstory.reading.selection import EVERYTHING, Selection, exact_value, key_of
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.searches import Between, EqualTo, OneOf, Search
from backstory.stores.metadata.table_rows import (
    MOST_VALUES,
    TableReader,
    is_small,
    least_values,
    number_of_rows,
)
from backstory.stores.metadata.values import booleans, integers, rows_of, scalar, truths_of, without_nulls
from backstory.strategies.values import ranks, sorted_by


def sort_rows(rows: pa.Table, first: Sequence[str]) -> pa.Table:
    """Sort rows by the columns of `first` that they have, then by all others."""
    names = [name for name in first if name in rows.column_names]
    others = (ranks(rows[name]) for name in rows.column_names if name not in names)
    places = sort_places([ranks(rows[name]) for name in names], rows.num_rows, lambda: others)
    return rows.take(integers(places))


def sort_places(
    numbers: Sequence[np.ndarray], size: int, others: Callable[[], Iterable[np.ndarray]]
) -> np.ndarray:
    """The places of `size` rows in the order of `numbers`, and of `others` if these have equal rows."""
    order = sorted_by(numbers, size)
    if equals_next([each[order] for each in numbers], size).any():
        order = sorted_by([*numbers, *others()], size)
    return order


def equals_next(numbers: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Whether each of `size` rows, except the last, has the same numbers as the next row."""
    same = np.ones(max(size - 1, 0), bool)
    for each in numbers:
        same &= each[1:] == each[:-1]
    return same


def are_after(rows: pa.Table, values: Mapping[str, Any]) -> pa.Array:
    """Whether each row sorts after the row with these values."""
    behind, same = np.zeros(rows.num_rows, bool), np.ones(rows.num_rows, bool)
    for name, value in values.items():
        type_ = rows.schema.field(name).type
        border = pa.repeat(scalar(value, type_), 1)
        numbers = ranks(pa.chunked_array([*rows[name].chunks, border], type_))
        behind |= same & (numbers[:-1] > numbers[-1])
        same &= numbers[:-1] == numbers[-1]
    return booleans(behind)


# Rows read for each row of the answer, because few versions of a record are true.
ROWS_FOR_ONE: Final = 8
FEWEST: Final = 1_000
# The most rows that are read as fast as a part of them.
FEW: Final = 20_000
NO_SEARCHES: Final[Mapping[str, Any]] = {}

Answer = Callable[[KnownTable], pa.Table]


def first_rows(
    known: KnownTable,
    limit: int | None,
    answer: Answer,
    sure: Mapping[str, Search] = NO_SEARCHES,
    after: Mapping[str, Any] = NO_SEARCHES,
) -> pa.Table:
    """Rows of an answer, including the first `limit` in the order of their key; all rows for None.

    All rows of the answer pass the searches `sure` and have a key after `after`. All rows of a record are
    read. In a large table the records with the least keys are read. If few of them are in the answer, the
    columns of the key and of `sure` are searched for its keys.
    """
    snapshot = known.snapshot
    names = _key_names(known)
    if limit is None or snapshot is None or not names or known.searches:
        return answer(known)
    if is_small(snapshot) and int(number_of_rows(snapshot) or 0) <= FEW:
        return answer(known)
    try:
        return _of_least_keys(known, names[0], limit, answer, sure, after)
    except Unreadable:
        if is_small(snapshot):
            return answer(known)
        if not sure and len(names) == 1:
            raise
    return _of_candidates(known, names, limit, answer, sure, after)


def _of_least_keys(
    known: KnownTable,
    name: str,
    limit: int,
    answer: Answer,
    sure: Mapping[str, Search],
    after: Mapping[str, Any],
) -> pa.Table:
    """The answer for the records with the least keys, more until it has `limit` rows.

    Raises Unreadable if few of these records are in the answer.
    """
    assert known.snapshot is not None
    least = after.get(name)
    count = max(limit * ROWS_FOR_ONE, FEWEST)
    fields = list(known.fields)
    while (span := least_values(known.files, known.snapshot, fields, name, count, least)) is not None:
        rows = answer(replace(known, searches={name: span}))
        if rows.num_rows >= limit:
            return rows
        if sure:
            raise Unreadable("few rows of the answer among those with the least keys")
        count *= ROWS_FOR_ONE
    return answer(known if least is None else replace(known, searches={name: Between(least)}))


def _of_candidates(
    known: KnownTable,
    names: list[str],
    limit: int,
    answer: Answer,
    sure: Mapping[str, Search],
    after: Mapping[str, Any],
) -> pa.Table:
    """The answer for the first records with a row that passes `sure`, more until it has `limit` rows."""
    first = names[0]
    searches = {**({first: Between(after[first])} if first in after else {}), **sure}
    keys = known.files.rows(known.snapshot, known.fields, names, MOST_VALUES, searches or None)
    if after:
        keys = keys.filter(are_after(keys, after))
    if any(keys[name].null_count for name in names):
        raise Unreadable("NULL in a key")
    in_order = [(name, "ascending") for name in names]
    while True:
        places = pc.select_k_unstable(keys, min(limit, keys.num_rows), in_order)
        rows = answer(replace(known, searches={name: OneOf(keys[name].take(places)) for name in names}))
        if rows.num_rows >= limit or len(places) == keys.num_rows:
            return rows
        limit *= ROWS_FOR_ONE


def _key_names(known: KnownTable) -> list[str]:
    """The key's columns in the table, by which rows are sorted; empty if readers show another key."""
    now, then = shown_key(known.table.shape), shown_key(known.shape)
    return list(known.shape.key) if then and now == then else []


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
    where: Mapping[str, str] = NO_SEARCHES,
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
