"""The views of a table's history: its rows at a time, a record, the origin of a value, and differences."""

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
from backstory.reading.blame import blame, commit_summary
from backstory.reading.files import table_in_files
from backstory.reading.histories import HISTORIES, RECORDING
from backstory.reading.options import ChangeKind, Comparison, as_object
from backstory.reading.pages import ChangeTimes, Page, Row, page, rows_before
from backstory.reading.questions import diff, life
from backstory.reading.timelines import (
    AXES,
    Axis,
    Bar,
    Timeline,
    VersionRow,
    changing_columns,
    differ,
    require_axis,
)
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.stores.metadata.table_rows import TableReader

# The numbers of places on the slider, of bars above it, and of known times to choose from.
PLACES, BARS, KNOWN_TIMES = 400, 60, 100
_LEAST: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row, the columns that changed last, whether it is new, and the words of its key."""

    row: Row
    changed: frozenset[str]
    new: bool
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Slider:
    """The positions of a slider, its current position, and bars with the numbers of changes.

    `last` contains two times: just before, and at, the last change that is not after the current position.
    """

    places: Sequence[str]
    place: int
    bars: Sequence[tuple[float, str]]
    previous: bool
    following: bool
    last: tuple[str, str] | None


def table_view(source: CatalogReader, question: Question) -> View:
    """A page of rows in key order, as in `as-of` or `current`."""
    with source.files(question.table) as files:
        question = question.alter(table=str(files.table.shape.table))
        rows = _page(files, question)
        lasting = files.table.shape.layout in HISTORIES
        times = times_of_change(source, files)
        before = _rows_before_change(files, rows, question, times)
        shown = [_row_with_marks(row, rows.key, before, question, times) for row in rows.rows]
        shape = files.table.shape
        more = {
            "rows": shown,
            "columns": rows.columns,
            "key": shape.source_key,
            "layout": shape.layout,
            "counts": _counts(files),
            "lasting": lasting,
            "times": _slider(question, times, lasting=lasting),
            "calendar": calendar(files.table),
            "moments": commit_times(files.table),
            "known_times": [iso(commit.committed_at) for commit in files.table.commits[::-1][:KNOWN_TIMES]],
            "empty": files.table.newest is None,
        }
        following = None
        if rows.more and rows.rows and rows.key:
            following = question.alter(after=key_words({name: rows.rows[-1][name] for name in rows.key}))
        return View(question, list(rows.rows), more, following, rows_snippets(question, files.table))


def take_step(source: CatalogReader, question: Question) -> Question:
    """Move a question to the change before or after its time."""
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
        return question.alter(step="", after=(), **{"at" if lasting else "known_at": text})


def _page(files: TableReader, question: Question) -> Page:
    after = (
        question.alter(key=question.after).record(files.table.shape.source_key) if question.after else None
    )
    instant = question.instant if files.table.shape.layout in HISTORIES else None
    known_at, where = question.time_of_knowledge, question.values_by_column
    return page(files, instant, known_at, where, after, question.rows)


def times_of_change(source: CatalogReader, files: TableReader) -> ChangeTimes | None:
    """The times at which a history changed, or None if they cannot be read.

    For a table without a history, these are the times of the commits.
    """
    if files.table.shape.layout in HISTORIES:
        try:
            return source.times(files)
        except Unreadable:
            return None
    made = sorted((commit.committed_at - EPOCH) // _LEAST for commit in files.table.commits)
    instants = np.unique(np.array(made, np.int64))
    return ChangeTimes(instants, np.ones_like(instants), np.zeros_like(instants))


def _rows_before_change(
    files: TableReader, shown: Page, question: Question, times: ChangeTimes | None
) -> Mapping[Any, Row] | None:
    """The rows before the last change, or None if an earlier change is unknown or does not exist."""
    lasting = files.table.shape.layout in HISTORIES
    here = (question.instant if lasting else question.time_of_knowledge) or now()
    last = None if times is None else times.until(here)
    if times is None or last is None or times.before(last) is None:
        return None
    then = last - _LEAST
    return rows_before(
        files, shown, then if lasting else None, question.time_of_knowledge if lasting else then
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
    """The slider, or None if the table has no change."""
    if times is None or not len(times.instants):
        return None
    places = times.some(PLACES)
    here = (question.instant if lasting else question.time_of_knowledge) or now()
    place = max(sum(position <= here for position in places) - 1, 0)
    last = times.until(here)
    return Slider(
        [iso(position) for position in places],
        place,
        _bars(times),
        times.before(last or here) is not None,
        times.after(here) is not None or bool(question.at or question.known_at),
        (iso(last - _LEAST), iso(last)) if last and lasting else None,
    )


def _bars(times: ChangeTimes) -> list[tuple[float, str]]:
    """The height of each bar, from 0 to 1, and its tooltip."""
    edges = np.linspace(times.instants[0], times.instants[-1] + 1, BARS + 1)
    starts, ends = (
        np.histogram(times.instants, edges, weights=counts)[0] for counts in (times.starts, times.ends)
    )
    heights = np.sqrt(starts + ends)
    most = heights.max() or 1
    return [
        (
            float(height / most),
            f"from {_day(edge)}: {int(one):,} versions begin, {int(other):,} end",
        )
        for height, edge, one, other in zip(heights, edges[:-1], starts, ends, strict=True)
    ]


def _day(micros: float) -> str:
    return f"{EPOCH + timedelta(microseconds=int(micros)):%Y-%m-%d}"


def _counts(files: TableReader) -> Mapping[str, int | None]:
    """The numbers of rows and open versions, if the manifests contain them."""
    try:
        counts = files.catalog.count(files.table)
    except OSError:
        return {}
    open_ = {"open": counts.open} if files.table.shape.layout is not Layout.FIVETRAN_LIVE else {}
    return {"rows": counts.rows, **open_}


# The largest number of versions that are drawn and listed. The newest ones are kept.
MOST_VERSIONS: Final = 500
TIMES: Final = (VALID_FROM, VALID_TO)


def record_view(source: CatalogReader, question: Question) -> View:
    """A record's history, as in `timeline`."""
    with source.files(question.table) as files:
        question = question.alter(table=str(files.table.shape.table))
        key = question.record(files.table.shape.source_key)
        whole = life(table_in_files(files), key, _axis(question), question.time_of_knowledge)
        if not whole.versions:
            raise UsageError("no-record", f"There is no record with {whole.title}.", "Look for another key.")
        shown = Timeline(whole.versions[-MOST_VERSIONS:], whole.columns, whole.axis, whole.title)
        commits = {commit.id: commit_summary(commit) for commit in files.table.commits}

        def link(bar: Bar) -> str | None:
            return value_of(question, bar.column, bar.start).address() if bar.column else None

        first = changing_columns(shown.versions, shown.columns)
        more = {
            "title": whole.title,
            "versions": shown.versions,
            "columns": [*first, *(name for name in shown.columns if name not in first)],
            "changed": changed_cells(shown),
            "life": shown,
            "link": link,
            "hidden": len(whole.versions) - len(shown.versions),
            "both": files.table.shape.layout in RECORDING,
            "axes": [
                n for n in AXES if n in TIMES or any(version[n] is not None for version in whole.versions)
            ],
            "commits": commits,
            "layout": files.table.shape.layout,
            "snapshot": files.table.newest and files.table.newest.id,
        }
        return View(question, list(whole.versions), more, snippets=life_snippets(question, files.table))


def value_view(source: CatalogReader, question: Question) -> View:
    """The origin of a value: its start, the commit that wrote it, and the value before it."""
    with source.files(question.table) as files:
        question = question.alter(table=str(files.table.shape.table))
        key = question.record(files.table.shape.source_key)
        story = blame(files, key, question.column, question.instant, question.time_of_knowledge)
        lasting = files.table.shape.layout in HISTORIES
        more = {"story": story, "lasting": lasting}
        document = {"table": question.table, "key": list(question.key), "column": question.column, **story}
        snippets = life_snippets(question.alter(axis=""), files.table) if lasting else ()
        return View(question, document, more, snippets=snippets)


def value_of(question: Question, column: str, at: datetime) -> Question:
    """The question for the origin of a value in the same record."""
    return question.alter(view="value", column=column, at=iso(at), axis="", limit="")


def changed_cells(life: Timeline) -> Sequence[frozenset[str]]:
    """For each version, the columns that differ from the version before. Empty if both axes are shown."""
    if life.axis == "both":
        return [frozenset()] * len(life.versions)
    pairs: Sequence[tuple[VersionRow, VersionRow | None]] = list(
        zip(life.versions, [None, *life.versions[:-1]], strict=True)
    )
    return [
        frozenset() if before is None else frozenset(n for n in life.columns if differ(n, version, before))
        for version, before in pairs
    ]


def _axis(question: Question) -> Axis:
    axis = question.axis or "valid"
    require_axis(axis, question.time_of_knowledge)
    return "both" if axis == "both" else "valid"


GROUPS: Final = 30


def diff_view(source: CatalogReader, question: Question) -> View:
    """A page of the differences between two times, in key order, as in `diff`."""
    with source.files(question.table) as files:
        question = _with_times(source, files, question.alter(table=str(files.table.shape.table)))
        columns = [question.column] if question.column else None
        change = cast("ChangeKind | None", question.change or None)
        # A table without a history is compared by its recorded rows.
        lasting = files.table.shape.layout in HISTORIES
        if lasting:
            comparison = Comparison(columns=columns, change=change, known_at=question.time_of_knowledge)
        else:
            comparison = Comparison(columns=columns, change=change, axis="recorded", at=now())
        between = parse_instant(question.first), parse_instant(question.to)
        try:
            differences = diff(table_in_files(files), *between, comparison)
        except Unreadable as unread:
            raise _too_far_apart() if "rows" in str(unread) else unread from None
        begin = question.offset
        records = differences.page(begin, begin + question.rows)
        following = None
        if begin + len(records) < len(differences):
            following = question.alter(after=(str(begin + len(records)),))
        more = {
            "kinds": differences.kinds(),
            "groups": differences.common_changes(GROUPS),
            "records": [(record, key_words(record["key"])) for record in records],
            "begin": begin,
            "lasting": lasting,
        }
        document = [as_object(record, whole=bool(change)) for record in records]
        return View(question, document, more, following, diff_snippets(question, files.table))


def _with_times(source: CatalogReader, files: TableReader, question: Question) -> Question:
    """The question with both times. By default, they enclose the last change."""
    if question.first and question.to:
        return question
    times = times_of_change(source, files)
    last = (times and times.until(now())) or now()
    first = question.first or iso(last - timedelta(microseconds=1))
    return question.alter(first=first, to=question.to or iso(max(last, parse_instant(first))))


def _too_far_apart() -> UsageError:
    return UsageError(
        "too-many",
        "More versions begin or end between these times than the memory can hold (`driver-memory`).",
        "Choose times that are closer together, or run `backstory diff`, which uses Spark.",
    )
