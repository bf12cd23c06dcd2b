"""The rows of a table that are true now or at a time, page by page, and the times of its changes."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import UsageError
from backstory.model.instant import EPOCH
from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.reading.files import KnownFiles, are_after, equals_next, query_rows, sort_rows, table_in_files
from backstory.reading.options import ReadRequest, exact_value, key_of
from backstory.reading.questions import HISTORIES, TIMES, order_columns, shown_key
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata import table_rows
from backstory.stores.metadata.searches import Between, EqualTo, OneOf, Search
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.stores.metadata.table_rows import MOST_VALUES, TableReader
from backstory.stores.metadata.values import rows_of, truths_of, whole_numbers
from backstory.strategies.values import ranks

# This many rows are read for each row of the answer, because few versions of a record are true.
ROWS_FOR_ONE: Final = 8
FEWEST: Final = 1_000
# Up to this many rows, all rows are read as fast as some of them.
FEW: Final = 20_000
NO_SEARCHES: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A query for the first rows of an answer, in key order.

    All rows of the answer match the searches `sure` and have a key after `after`. If one row of a record is
    read, all its rows are.
    """

    known: KnownFiles
    answer: Callable[[KnownFiles], pa.Table]
    sure: Mapping[str, Search] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)

    def read(self, limit: int | None) -> pa.Table:
        """At least the first `limit` rows, by default all rows.

        In a large table, the records with the lowest keys are read first. If few of these records are in the
        answer, the keys of the answer are found by reading only the columns of the key and of `sure`.
        """
        snapshot, names = self.known.snapshot, _key_names(self.known)
        if limit is None or snapshot is None or not names or self.known.searches:
            return self.answer(self.known)
        if table_rows.is_small(snapshot) and int(table_rows.number_of_rows(snapshot) or 0) <= FEW:
            return self.answer(self.known)
        try:
            return self._of_least_keys(snapshot, names[0], limit)
        except Unreadable:
            if table_rows.is_small(snapshot):
                return self.answer(self.known)
            if not self.sure and len(names) == 1:
                raise
        return self._of_candidates(names, limit)

    def _within(self, searches: Mapping[str, Search]) -> pa.Table:
        return self.answer(replace(self.known, searches=searches))

    def _of_least_keys(self, snapshot: Mapping[str, Any], name: str, limit: int) -> pa.Table:
        """The answer for the records with the lowest keys. Reads more records until it has `limit` rows.

        Raises Unreadable if few of these records are in the answer.
        """
        least, count = self.after.get(name), max(limit * ROWS_FOR_ONE, FEWEST)
        fields, files = list(self.known.fields), self.known.files
        while (span := table_rows.least_values(files, snapshot, fields, name, count, least)) is not None:
            rows = self._within({name: span})
            if rows.num_rows >= limit:
                return rows
            if self.sure:
                raise Unreadable("few rows of the answer among those with the least keys")
            count *= ROWS_FOR_ONE
        return self.answer(self.known) if least is None else self._within({name: Between(least)})

    def _of_candidates(self, names: Sequence[str], limit: int) -> pa.Table:
        """The answer for the first records with a row that matches `sure`.

        Reads more records until the answer has `limit` rows.
        """
        known, first = self.known, names[0]
        searches = {**({first: Between(self.after[first])} if first in self.after else {}), **self.sure}
        keys = known.files.rows(known.snapshot, known.fields, names, MOST_VALUES, searches or None)
        if self.after:
            keys = keys.filter(are_after(keys, self.after))
        if any(keys[name].null_count for name in names):
            raise Unreadable("NULL in a key")
        while True:
            places = pc.select_k_unstable(
                keys, min(limit, keys.num_rows), [(name, "ascending") for name in names]
            )
            rows = self._within({name: OneOf(keys[name].take(places)) for name in names})
            if rows.num_rows >= limit or len(places) == keys.num_rows:
                return rows
            limit *= ROWS_FOR_ONE


def _key_names(known: KnownFiles) -> list[str]:
    """The key's columns in the table, by which rows are sorted, or none if readers show another key."""
    now, then = shown_key(known.stored.shape), shown_key(known.shape)
    return list(known.shape.key) if then and now == then else []


def first_rows_at(
    files: TableReader, time: datetime | None, request: ReadRequest, limit: int | None
) -> pa.Table:
    """The first `limit` rows of `rows_at` at an instant, and perhaps others.

    The first rows are the rows with the lowest keys. Raises Unreadable if only Spark can read the rows.
    """
    known = table_in_files(files).at(request.known_at).of(request)
    known.shown_names(*TIMES)  # refuses an unknown column before anything is read
    sure = {} if time is None else known.searches_at(time)
    return PageQuery(known, lambda part: part.rows_at(time), sure).read(limit)


Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in key order, all columns, the key's columns, and whether more rows follow.

    `first` has the values of the key's first column in these rows, and perhaps other values.
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
    """A page of the rows that are true at `time`, as known at `known_at`. None means now.

    `where` maps columns to the text of the values that they must have. The page begins after the key `after`,
    which has the form that `timeline` accepts. Raises UsageError for an unknown column or a value that does
    not fit its column. Raises Unreadable if only Spark can read the rows.
    """
    known = table_in_files(files).at(known_at)
    key, conditions, time = shown_key(known.shape), _search_values(known, where), _lasting_time(known, time)
    least = {} if after is None else key_of(known.shape, after)
    behind = dict(zip(key, least.values(), strict=False))
    sure: dict[str, Search] = {}  # searches that match all rows of the page
    if known.shape.layout not in HISTORIES or known.utc_span is not None:
        sure = {**dict(conditions.values()), **({} if time is None else known.searches_at(time))}

    def answer(part: KnownFiles) -> pa.Table:
        rows = part.rows_at(time)
        for name, (_, search) in conditions.items():
            rows = rows.filter(search.rows(rows[name]))
        return rows.filter(are_after(rows, behind)) if behind else rows

    first, needed = PageQuery(known, answer, sure, least), limit + 1
    while True:
        rows = first.read(needed)
        rows = sort_rows(rows, order_columns(known.shape, rows.column_names))
        end = _end(rows, key, limit)
        if end < len(rows) or len(rows) < needed:
            first_key = rows[key[0]] if key else None
            return Page(rows_of(rows.slice(0, end)), rows.column_names, key, len(rows) > end, first_key)
        needed *= ROWS_FOR_ONE  # all these rows belong to one record


def _end(rows: pa.Table, key: Sequence[str], limit: int) -> int:
    """The number of rows on a page, which ends after all rows of a record.

    In a broken history, several rows of a record may be true. No page ends after a key with a NULL.
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
    """The rows of a page's records at another time, by key, or none if reading them is costly."""
    known = table_in_files(files).at(known_at)
    if page.first is None or shown_key(known.shape) != list(page.key):
        return {}
    try:
        part = replace(known, searches={known.shape.key[0]: OneOf(page.first)})
        rows = rows_of(part.rows_at(_lasting_time(known, time)))
    except (Unreadable, pa.ArrowException):
        return {}
    return {tuple(row[each] for each in page.key): row for row in rows}


def _lasting_time(known: KnownFiles, time: datetime | None) -> datetime | None:
    """The time of a page, or None for a table without a history, which only has current rows."""
    return time if known.shape.layout in HISTORIES else None


def _search_values(known: KnownFiles, where: Mapping[str, str]) -> dict[str, tuple[str, Search]]:
    """For each column of `where`, its own name in the table, and the search for its value."""
    names, searches = dict(known.columns), dict[str, tuple[str, Search]]()
    for name, text in where.items():
        if name not in names:
            message = f"{known.shape.table} has no column {name}."
            raise UsageError("unknown-column", message, f"Its columns are {', '.join(names)}.")
        searches[name] = names[name].name, EqualTo(exact_value(name, text, names[name].type))
    return searches


@dataclass(frozen=True, slots=True)
class ChangeTimes:
    """The instants at which versions began or ended, sorted, in microseconds since 1970.

    `starts` and `ends` count the versions that began and ended at each instant.
    """

    instants: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def before(self, time: datetime) -> datetime | None:
        """The last instant before a time, or None."""
        return self._instant(np.searchsorted(self.instants, micros_of(time), side="left") - 1)

    def after(self, time: datetime) -> datetime | None:
        """The first instant after a time, or None."""
        return self._instant(np.searchsorted(self.instants, micros_of(time), side="right"))

    def until(self, time: datetime) -> datetime | None:
        """The last instant at or before a time, or None."""
        return self._instant(np.searchsorted(self.instants, micros_of(time), side="right") - 1)

    def some(self, most: int) -> list[datetime]:
        """At most `most` of the instants, evenly spaced by index, including the first and the last."""
        count = len(self.instants)
        places = np.unique(np.linspace(0, max(count - 1, 0), min(count, most)).round().astype(np.int64))
        return [EPOCH + timedelta(microseconds=each) for each in self.instants[places].tolist()]

    def _instant(self, place: np.integer) -> datetime | None:
        exists = 0 <= place < len(self.instants)
        return EPOCH + timedelta(microseconds=int(self.instants[place])) if exists else None


# The times at which versions began or ended, from their starts and ends in microseconds. An end one grain
# before a start counts as that start.
_CHANGES: Final = """
WITH lives AS (SELECT started, CASE WHEN ended < {far} THEN ended END AS ended FROM recorded WHERE {lasting})
SELECT instant, CAST(SUM(starts) AS BIGINT) AS starts, CAST(SUM(1 - starts) AS BIGINT) AS ends FROM (
  SELECT started AS instant, 1 AS starts FROM lives UNION ALL
  SELECT CASE WHEN ended + {grain} IN (SELECT started FROM lives) THEN ended + {grain} ELSE ended END, 0
  FROM lives
) AS changes WHERE instant BETWEEN {first} AND {last} GROUP BY instant ORDER BY instant
"""


def change_times(files: TableReader) -> ChangeTimes:
    """The instants in the years 1 to 9999 at which versions of a table begin or end.

    Raises Unreadable if only Spark can read the table.
    """
    known, lasting = table_in_files(files), "TRUE"
    span = known.utc_span
    if span is None:
        versions = known.versions()
        starts, ends, far, grain = versions[VALID_FROM], versions[VALID_TO], None, 0
    else:
        rows = files.rows(known.snapshot, known.fields, [span.start, span.end], MOST_VALUES)
        starts, ends, far, grain = rows[span.start], rows[span.end], span.far, span.grain
        if known.shape.layout is Layout.VERSIONS:  # a row without a length is not a version
            lasting = "ended IS NULL OR ended > started"
    relation = pa.table({"started": starts.cast(pa.int64()), "ended": ends.cast(pa.int64())})
    calendar = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    first, last = map(micros_of, calendar)
    until = sys.maxsize if far is None else far
    query = _CHANGES.format(far=until, grain=grain, lasting=lasting, first=first, last=last)
    return ChangeTimes(*map(whole_numbers, query_rows(relation, query).columns))
