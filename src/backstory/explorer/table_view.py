"""The rows of a table at a time, what changed last in them, and the times to move to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np

from backstory.explorer.copies import rows_copies
from backstory.explorer.questions import Question, key_words
from backstory.explorer.source import Source
from backstory.explorer.views import View, calendar, commit_times, now
from backstory.model.instant import EPOCH, iso
from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.reading.arrow.change_times import ChangeTimes
from backstory.reading.arrow.pages import Page, PageQuestion, Row, page, rows_before
from backstory.reading.frames.versions import HISTORIES
from backstory.reading.lives import differ
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.rows import Files

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
class Times:
    """Where a slider may stand, the place that is asked about, and how much changed along the way.

    `last` are the times just before and at the last change until then.
    """

    places: Sequence[str]
    place: int
    bars: Sequence[tuple[float, str]]
    previous: bool
    following: bool
    last: tuple[str, str] | None


def table(source: Source, question: Question) -> View:
    """The rows as `as-of` or `current` tells them, a page of them in the order of their key."""
    with source.files(question.table) as files:
        asked = question.but(table=str(files.table.shape.table))
        found = page(files, _page_question(files, asked))
        lasting = files.table.shape.layout in HISTORIES
        times = moments(source, files)
        before = _before(files, found, asked, times)
        shown = [_row_with_marks(row, found.key, before, asked, times) for row in found.rows]
        shape = files.table.shape
        more = {
            "rows": shown,
            "columns": found.columns,
            "key": shape.source_key,
            "layout": shape.layout,
            "counts": _counts(files),
            "lasting": lasting,
            "times": _placed(asked, times, lasting=lasting),
            "calendar": calendar(files.table),
            "moments": commit_times(files.table),
            "known_times": [iso(each.committed_at) for each in files.table.commits[::-1][:KNOWN_TIMES]],
            "empty": files.table.newest is None,
        }
        following = None
        if found.more and found.rows and found.key:
            following = asked.but(after=key_words({name: found.rows[-1][name] for name in found.key}))
        return View(asked, list(found.rows), more, following, rows_copies(asked, files.table))


def stepped(source: Source, question: Question) -> Question:
    """The same question at the change before or after its time."""
    with source.files(question.table) as files:
        lasting = files.table.shape.layout in HISTORIES
        times = moments(source, files)
        here = (question.instant if lasting else question.time_of_knowledge) or now()
        moved = None
        if times is not None:
            moved = times.before(here) if question.step == "previous" else times.after(here)
        text = iso(moved) if moved else (question.at if lasting else question.known_at)
        if question.step == "next" and moved is None:
            text = ""
        return question.but(step="", after=(), **{"at" if lasting else "known_at": text})


def _page_question(files: Files, question: Question) -> PageQuestion:
    after = question.but(key=question.after).record(files.table.shape.source_key) if question.after else None
    instant = question.instant if files.table.shape.layout in HISTORIES else None
    return PageQuestion(instant, question.time_of_knowledge, question.values_by_column, after, question.rows)


def moments(source: Source, files: Files) -> ChangeTimes | None:
    """When the history changed; of a table without one when commits were made. None where it is not read."""
    if files.table.shape.layout in HISTORIES:
        try:
            return source.times(files)
        except Unreadable:
            return None
    made = sorted((each.committed_at - EPOCH) // _LEAST for each in files.table.commits)
    instants = np.unique(np.array(made, np.int64))
    return ChangeTimes(instants, np.ones_like(instants), np.zeros_like(instants))


def _before(
    files: Files, found: Page, question: Question, times: ChangeTimes | None
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


def _placed(question: Question, times: ChangeTimes | None, *, lasting: bool) -> Times | None:
    """The slider; None where nothing can be moved to."""
    if times is None or not len(times.instants):
        return None
    places = times.some(PLACES)
    here = (question.instant if lasting else question.time_of_knowledge) or now()
    place = max(sum(each <= here for each in places) - 1, 0)
    last = times.until(here)
    return Times(
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


def _counts(files: Files) -> Mapping[str, int | None]:
    """The rows of the table and its open versions, where manifests tell them."""
    try:
        told = files.catalog.count(files.table)
    except OSError:
        return {}
    open_ = {"open": told.open} if files.table.shape.layout is not Layout.FIVETRAN_LIVE else {}
    return {"rows": told.rows, **open_}
