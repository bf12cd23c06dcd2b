"""The rows of a table at a time, what changed last in them, and the times to move to.

One record: its life on one or two axes, and the story of one of its values.

What changed between two times: alike changes together, then record by record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast

import numpy as np

from backstory.errors import UsageError
from backstory.explorer.catalog_reader import CatalogReader
from backstory.explorer.questions import Question, diff_snippets, key_words, life_snippets, rows_snippets
from backstory.explorer.views import View, calendar, commit_times, now
from backstory.model.instant import EPOCH, iso, parse_instant
from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.reading.arrow.differences import Differences, diff_knowledge
from backstory.reading.arrow.differences import diff as diff_files
from backstory.reading.arrow.life import blame, commit_summary, life
from backstory.reading.arrow.point_in_time import Page, PageQuestion, Row, page, rows_before
from backstory.reading.arrow.versions import ChangeTimes
from backstory.reading.drawings import Bar
from backstory.reading.frames.versions import HISTORIES, RECORDING
from backstory.reading.lives import AXES, VersionRow, changing_columns, differ
from backstory.reading.selection import ChangeKind, Comparison, as_object
from backstory.reading.timelines import Axis, Timeline, require_axis
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.table_rows import TableReader

# The places of a slider, the bars above it, and the known times that are offered.
PLACES, BARS, KNOWN_TIMES = 400, 60, 100
_LEAST: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row, the columns that changed last, whether it is new, and the words of its record."""

    row: Row
    changed: frozenset[str]
    new: bool
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Slider:
    """Where a slider may stand, the place that is asked about, and how much changed along the way.

    `last` are the times just before and at the last change until then.
    """

    places: Sequence[str]
    place: int
    bars: Sequence[tuple[float, str]]
    previous: bool
    following: bool
    last: tuple[str, str] | None


def table_view(source: CatalogReader, question: Question) -> View:
    """The rows as `as-of` or `current` tells them, a page of them in the order of their key."""
    with source.files(question.table) as files:
        asked = question.but(table=str(files.table.shape.table))
        found = page(files, _page_question(files, asked))
        lasting = files.table.shape.layout in HISTORIES
        times = times_of_change(source, files)
        before = _rows_before_change(files, found, asked, times)
        shown = [_row_with_marks(row, found.key, before, asked, times) for row in found.rows]
        shape = files.table.shape
        more = {
            "rows": shown,
            "columns": found.columns,
            "key": shape.source_key,
            "layout": shape.layout,
            "counts": _counts(files),
            "lasting": lasting,
            "times": _slider(asked, times, lasting=lasting),
            "calendar": calendar(files.table),
            "moments": commit_times(files.table),
            "known_times": [iso(each.committed_at) for each in files.table.commits[::-1][:KNOWN_TIMES]],
            "empty": files.table.newest is None,
        }
        following = None
        if found.more and found.rows and found.key:
            following = asked.but(after=key_words({name: found.rows[-1][name] for name in found.key}))
        return View(asked, list(found.rows), more, following, rows_snippets(asked, files.table))


def take_step(source: CatalogReader, question: Question) -> Question:
    """The same question at the change before or after its time."""
    with source.files(question.table) as files:
        lasting = files.table.shape.layout in HISTORIES
        times = times_of_change(source, files)
        here = (question.instant if lasting else question.time_of_knowledge) or now()
        moved = None
        if times is not None:
            moved = times.before(here) if question.step == "previous" else times.after(here)
        text = iso(moved) if moved else (question.at if lasting else question.known_at)
        if question.step == "next" and moved is None:
            text = ""
        return question.but(step="", after=(), **{"at" if lasting else "known_at": text})


def _page_question(files: TableReader, question: Question) -> PageQuestion:
    after = question.but(key=question.after).record(files.table.shape.source_key) if question.after else None
    instant = question.instant if files.table.shape.layout in HISTORIES else None
    return PageQuestion(instant, question.time_of_knowledge, question.values_by_column, after, question.rows)


def times_of_change(source: CatalogReader, files: TableReader) -> ChangeTimes | None:
    """When the history changed; of a table without one when commits were made. None where it is not read."""
    if files.table.shape.layout in HISTORIES:
        try:
            return source.times(files)
        except Unreadable:
            return None
    made = sorted((each.committed_at - EPOCH) // _LEAST for each in files.table.commits)
    instants = np.unique(np.array(made, np.int64))
    return ChangeTimes(instants, np.ones_like(instants), np.zeros_like(instants))


def _rows_before_change(
    files: TableReader, found: Page, question: Question, times: ChangeTimes | None
) -> Mapping[Any, Row] | None:
    """The rows as they were before the last change; None where nothing was, or it is not known."""
    lasting = files.table.shape.layout in HISTORIES
    here = (question.instant if lasting else question.time_of_knowledge) or now()
    last = None if times is None else times.until(here)
    if times is None or last is None or times.before(last) is None:
        return None
    then = last - _LEAST
    return rows_before(
        files, found, then if lasting else None, question.time_of_knowledge if lasting else then
    )


def _row_with_marks(
    row: Row,
    key: Sequence[str],
    before: Mapping[Any, Row] | None,
    question: Question,
    times: ChangeTimes | None,
) -> ShownRow:
    words = key_words({name: row[name] for name in key}) if key else ()
    last = None if times is None else times.until(question.instant or now())
    recent = VALID_FROM not in row or (last is not None and row[VALID_FROM] == last)
    if before is None or not recent:
        return ShownRow(row, frozenset(), new=False, key=words)
    former = before.get(tuple(row[name] for name in key))
    if former is None:
        return ShownRow(row, frozenset(), new=True, key=words)
    changed = (
        name
        for name in row
        if name not in {VALID_FROM, VALID_TO} and name in former and differ(name, row, former)
    )
    return ShownRow(row, frozenset(changed), new=False, key=words)


def _slider(question: Question, times: ChangeTimes | None, *, lasting: bool) -> Slider | None:
    """The slider; None where nothing can be moved to."""
    if times is None or not len(times.instants):
        return None
    places = times.some(PLACES)
    here = (question.instant if lasting else question.time_of_knowledge) or now()
    place = max(sum(each <= here for each in places) - 1, 0)
    last = times.until(here)
    return Slider(
        [iso(each) for each in places],
        place,
        _bars(times),
        times.before(last or here) is not None,
        times.after(here) is not None or bool(question.at or question.known_at),
        (iso(last - _LEAST), iso(last)) if last and lasting else None,
    )


def _bars(times: ChangeTimes) -> list[tuple[float, str]]:
    """How high each bar is, from 0 to 1, and what is said of it."""
    edges = np.linspace(times.instants[0], times.instants[-1] + 1, BARS + 1)
    begun, ended = (
        np.histogram(times.instants, edges, weights=each)[0] for each in (times.begun, times.ended)
    )
    heights = np.sqrt(begun + ended)
    most = heights.max() or 1
    return [
        (
            float(height / most),
            f"from {_day(edge)}: {int(one):,} begin, {int(other):,} end",
        )
        for height, edge, one, other in zip(heights, edges[:-1], begun, ended, strict=True)
    ]


def _day(micros: float) -> str:
    return f"{EPOCH + timedelta(microseconds=int(micros)):%Y-%m-%d}"


def _counts(files: TableReader) -> Mapping[str, int | None]:
    """The rows of the table and its open versions, where manifests tell them."""
    try:
        told = files.catalog.count(files.table)
    except OSError:
        return {}
    open_ = {"open": told.open} if files.table.shape.layout is not Layout.FIVETRAN_LIVE else {}
    return {"rows": told.rows, **open_}


# So many versions are drawn and listed at once, the newest first of all.
MOST_VERSIONS: Final = 500
TIMES: Final = (VALID_FROM, VALID_TO)


def record_view(source: CatalogReader, question: Question) -> View:
    """A record's life, as `timeline` tells it."""
    with source.files(question.table) as files:
        asked = question.but(table=str(files.table.shape.table))
        key = asked.record(files.table.shape.source_key)
        told = life(files, key, _axis(asked), asked.time_of_knowledge)
        if not told.versions:
            raise UsageError("no-record", f"There is no record with {told.title}.", "Look for another key.")
        shown = Timeline(told.versions[-MOST_VERSIONS:], told.columns, told.axis, told.title)
        commits = {each.id: commit_summary(each) for each in files.table.commits}

        def link(bar: Bar) -> str | None:
            return value_of(asked, bar.column, bar.start).address() if bar.column else None

        first = changing_columns(shown.versions, shown.columns)
        more = {
            "title": told.title,
            "versions": shown.versions,
            "columns": [*first, *(name for name in shown.columns if name not in first)],
            "changed": changed_cells(shown),
            "life": shown,
            "link": link,
            "hidden": len(told.versions) - len(shown.versions),
            "both": files.table.shape.layout in RECORDING,
            "axes": [n for n in AXES if n in TIMES or any(each[n] is not None for each in told.versions)],
            "commits": commits,
            "layout": files.table.shape.layout,
            "snapshot": files.table.newest and files.table.newest.id,
        }
        return View(asked, list(told.versions), more, copies=life_snippets(asked, files.table))


def value_view(source: CatalogReader, question: Question) -> View:
    """Since when a record has a value, by which commit, and what was there before."""
    with source.files(question.table) as files:
        asked = question.but(table=str(files.table.shape.table))
        key = asked.record(files.table.shape.source_key)
        told = blame(files, key, asked.column, asked.instant, asked.time_of_knowledge).to_dict()
        lasting = files.table.shape.layout in HISTORIES
        more = {"told": told, "lasting": lasting}
        document = {"table": asked.table, "key": list(asked.key), "column": asked.column, **told}
        copies = life_snippets(asked.but(axis=""), files.table) if lasting else ()
        return View(asked, document, more, copies=copies)


def value_of(question: Question, column: str, at: datetime) -> Question:
    """The question for the story of a value of the record that is asked about."""
    return question.but(view="value", column=column, at=iso(at), axis="", limit="")


def changed_cells(told: Timeline) -> Sequence[frozenset[str]]:
    """For each version the columns in which it differs from the one before it; on both axes none."""
    if told.axis == "both":
        return [frozenset()] * len(told.versions)
    pairs: Sequence[tuple[VersionRow, VersionRow | None]] = list(
        zip(told.versions, [None, *told.versions[:-1]], strict=True)
    )
    return [
        frozenset() if before is None else frozenset(n for n in told.columns if differ(n, version, before))
        for version, before in pairs
    ]


def _axis(question: Question) -> Axis:
    axis = question.axis or "valid"
    require_axis(axis, question.time_of_knowledge)
    return "both" if axis == "both" else "valid"


GROUPS: Final = 30


def diff_view(source: CatalogReader, question: Question) -> View:
    """The differences, as `diff` tells them, a page of them in the order of their keys."""
    with source.files(question.table) as files:
        asked = _with_times(source, files, question.but(table=str(files.table.shape.table)))
        columns = [asked.column] if asked.column else None
        change = cast("ChangeKind | None", asked.change or None)
        comparison = Comparison.of(columns, change, through=False, axis="valid")
        between = parse_instant(asked.first), parse_instant(asked.to)
        try:
            found = _differences(files, between, asked, comparison)
        except Unreadable as unread:
            raise _too_far_apart() if "rows" in str(unread) else unread from None
        begin = asked.offset
        records = found.page(begin, begin + asked.rows)
        following = None
        if begin + len(records) < len(found):
            following = asked.but(after=(str(begin + len(records)),))
        more = {
            "kinds": found.kinds(),
            "groups": found.common_changes(GROUPS),
            "records": [(each, key_words(each["key"])) for each in records],
            "begin": begin,
            "lasting": files.table.shape.layout in HISTORIES,
        }
        document = [as_object(each, whole=bool(change)) for each in records]
        return View(asked, document, more, following, diff_snippets(asked, files.table))


def _differences(
    files: TableReader, between: tuple[datetime, datetime], question: Question, comparison: Comparison
) -> Differences:
    """The differences; of a table without a history those of what it held at the two times."""
    if files.table.shape.layout in HISTORIES:
        return diff_files(files, *between, question.time_of_knowledge, comparison)
    return diff_knowledge(files, *between, now(), comparison)


def _with_times(source: CatalogReader, files: TableReader, question: Question) -> Question:
    """The question with both times: left out, they are those around the last change."""
    if question.first and question.to:
        return question
    times = times_of_change(source, files)
    last = (times and times.until(now())) or now()
    first = question.first or iso(last - timedelta(microseconds=1))
    return question.but(first=first, to=question.to or iso(max(last, parse_instant(first))))


def _too_far_apart() -> UsageError:
    return UsageError(
        "too-many",
        "More versions begin or end between these times than the memory holds (`driver-memory`).",
        "Choose times that are nearer to each other, or ask `backstory diff`, which has Spark.",
    )
