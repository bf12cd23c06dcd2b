"""The answer for a page: its document, which is also the JSON answer, and more content for the page."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, cast

import numpy as np

from backstory.errors import BackstoryError, UsageError
from backstory.explorer.catalog_reader import CatalogReader, find_table, without_paths
from backstory.explorer.questions import (
    Question,
    Snippet,
    call_snippets,
    diff_snippets,
    key_words,
    life_snippets,
    rows_snippets,
)
from backstory.model.instant import EPOCH, iso, parse_instant
from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.model.versions_layout import COPIED_AT
from backstory.reading.blame import blame, commit_summary
from backstory.reading.commits import commits, inventory
from backstory.reading.files import table_in_files
from backstory.reading.options import ChangeKind, DiffRequest, TimelineRequest, as_object
from backstory.reading.pages import ChangeTimes, Page, Row, page, rows_before
from backstory.reading.questions import HISTORIES, RECORDING, diff, life
from backstory.reading.timelines import AXES, Axis, Bar, Timeline, changing_columns, differ
from backstory.stores.metadata.table_metadata import (
    Catalog,
    CommitMetadata,
    TableMetadata,
    Unreadable,
)
from backstory.stores.metadata.table_rows import TableReader
from backstory.stores.port import DISORDER
from backstory.upkeep.checking import check_small

WEEKS: Final = 53
TABLES_OF_A_PAGE: Final = 200
# Outcomes that change nothing.
_IDLE: Final = ("unchanged", "ignored", "stale", "repeated")
# The numbers of places on the slider, of bars above it, and of known times to choose from.
PLACES, BARS, KNOWN_TIMES = 400, 60, 100
# The largest number of versions that are drawn and listed. The newest ones are kept.
MOST_VERSIONS: Final = 500
# The largest number of groups of records with the same difference.
GROUPS: Final = 30
TIMES: Final = (VALID_FROM, VALID_TO)
_LEAST: Final = timedelta(microseconds=1)
# The first and the last instant of the calendar.
_FIRST: Final = datetime(1, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class View:
    """The answer to a question.

    `document` has the form of the reading command, and `more` is for the page.
    """

    question: Question
    document: Any
    more: Mapping[str, Any] = field(default_factory=dict)
    following: Question | None = None
    snippets: Sequence[Snippet] = ()


def tables_view(catalog: Catalog, question: Question) -> View:
    """The tables of the warehouse, as in `tables`, with the key and the status of each."""
    names = [name for name in catalog.tables() if not question.after or str(name) > question.after[0]]
    shown = names[:TABLES_OF_A_PAGE]
    rows, health, keys = [], {}, {}
    for name in shown:
        listed = inventory(catalog, [name])
        rows += listed
        keys[str(name)], health[str(name)] = _key_and_health(catalog, str(name), listed)
    following = question.alter(after=(str(shown[-1]),)) if len(names) > len(shown) else None
    snippets = [Snippet("Command line", "backstory tables"), Snippet("Python", "warehouse.tables()")]
    return View(question, rows, {"keys": keys, "health": health}, following, snippets)


def _key_and_health(
    catalog: Catalog, name: str, rows: Sequence[Mapping[str, Any]]
) -> tuple[Sequence[str], str]:
    """The key of a table, and a message about an obvious problem, or an empty message."""
    try:
        table = find_table(catalog, name)
    except BackstoryError as error:
        return (), without_paths(error.message)
    except Exception:  # noqa: BLE001 - a problem with one table must not hide the others
        return (), "its metadata cannot be read"
    troubles = {
        "no commits yet": table.newest is None,
        "a file is missing, or only Spark can count its rows": any(row["rows"] is None for row in rows),
        "not written by backstory": table.shape.layout is Layout.FOREIGN,
        "versions overlap": table.properties.get(DISORDER) == "true",
    }
    return table.shape.source_key, next((text for text, is_so in troubles.items() if is_so), "")


def log_view(catalog: Catalog, question: Question) -> View:
    """The commits of a table, newest first, as in `log`."""
    table = find_table(catalog, question.table)
    every = commits(catalog, table.shape.table)
    rows = every[question.offset : question.offset + question.rows]
    end = question.offset + len(rows)
    following = question.alter(after=(str(end),)) if end < len(every) else None
    details = {commit.id: commit_summary(commit) for commit in table.commits}
    more = {"details": details, "times": commit_times(table)}
    return View(question, rows, more, following, call_snippets(table, "log"))


def check_view(_source: CatalogReader, files: TableReader, question: Question) -> View:
    """The results of the laws of a table, as in `check`."""
    records, more = check_small(files), {"key": files.table.shape.source_key}
    return View(question, records, more, snippets=call_snippets(files.table, "check"))


def commit_times(table: TableMetadata) -> dict[int, dict[str, str]]:
    """For each commit, the options with which a question shows the table at that commit."""
    known = table.shape.layout.span is None and table.shape.layout is not Layout.ODF
    times = {}
    for commit in table.commits:
        at = commit.properties.get(COPIED_AT)
        made = commit.committed_at.isoformat().replace("+00:00", "Z")
        times[commit.id] = {"known_at": made} if known else {"at": at or made}
    return times


@dataclass(frozen=True, slots=True)
class Day:
    """A day of the calendar: the number of its commits, their rows by outcome, and a color level."""

    day: date
    commits: int
    counts: Mapping[str, int]
    level: int
    last: int | None


def calendar(table: TableMetadata) -> list[list[Day | None]]:
    """The last year of commits in weeks, which begin on Mondays, with None for days outside the year."""
    by_day: dict[date, list[CommitMetadata]] = {}
    for commit in table.commits:
        by_day.setdefault(commit.committed_at.astimezone(UTC).date(), []).append(commit)
    if not by_day:
        return []
    last = max(by_day)
    first = max(min(by_day), last - timedelta(weeks=WEEKS - 1, days=last.weekday()))
    begin = first - timedelta(days=first.weekday())
    days = [
        _day_of_commits(day, by_day.get(day, [])) if day <= last else None
        for day in (begin + timedelta(days=number) for number in range((last - begin).days + 7))
    ]
    return [days[place : place + 7] for place in range(0, (last - begin).days + 1, 7)]


def _day_of_commits(day: date, made: Sequence[CommitMetadata]) -> Day:
    counts = Counter[str]()
    for commit in made:
        counts.update(commit_summary(commit)["counts"])
    moved = sum(count for outcome, count in counts.items() if outcome not in _IDLE)
    level = 0 if not made else min(1 + len(str(moved)) // 2, 4)
    return Day(day, len(made), counts, level, made[-1].id if made else None)


def now() -> datetime:
    """The current instant, in UTC."""
    return datetime.now(UTC)


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


def table_view(source: CatalogReader, files: TableReader, question: Question) -> View:
    """A page of rows in key order, as in `as-of` or `current`."""
    shape, lasting = files.table.shape, _is_history(files)
    after = question.alter(key=question.after).record(shape.source_key) if question.after else None
    instant = question.instant if lasting else None
    rows = page(files, instant, question.time_of_knowledge, question.values_by_column, after, question.rows)
    place = _place_of(source, files, question)
    before = _rows_before_change(files, rows, question, place)
    more = {
        "rows": [_row_with_marks(row, rows.key, before, place.last) for row in rows.rows],
        "columns": rows.columns,
        "key": shape.source_key,
        "layout": shape.layout,
        "counts": _counts(files),
        "lasting": lasting,
        "times": _slider(question, place),
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
        place, back = _place_of(source, files, question), question.step == "previous"
        moved, option = None, "at" if place.lasting else "known_at"
        if place.times is not None:
            moved = place.times.before(place.here) if back else place.times.after(place.here)
        text = iso(moved) if moved else "" if question.step == "next" else getattr(question, option)
        return question.alter(step="", after=(), **{option: text})


def _is_history(files: TableReader) -> bool:
    """Whether rows have their own times. Other tables are read as they were at recorded times."""
    return files.table.shape.layout in HISTORIES


@dataclass(frozen=True, slots=True)
class _Place:
    """The time that a question asks about, and the times at which its table changed.

    Unless rows are `lasting`, the times are recorded times. They are None if they cannot be read. `last` is
    the last change that is not after `here`.
    """

    lasting: bool
    here: datetime
    times: ChangeTimes | None
    last: datetime | None


def _place_of(source: CatalogReader, files: TableReader, question: Question) -> _Place:
    lasting, times = _is_history(files), times_of_change(source, files)
    here = (question.instant if lasting else question.time_of_knowledge) or now()
    return _Place(lasting, here, times, None if times is None else times.until(here))


def times_of_change(source: CatalogReader, files: TableReader) -> ChangeTimes | None:
    """The times at which a history changed, or None if they cannot be read.

    For a table without a history, these are the times of the commits.
    """
    if _is_history(files):
        try:
            return source.times(files)
        except Unreadable:
            return None
    made = sorted((commit.committed_at - EPOCH) // _LEAST for commit in files.table.commits)
    instants = np.unique(np.array(made, np.int64))
    return ChangeTimes(instants, np.ones_like(instants), np.zeros_like(instants))


def _rows_before_change(
    files: TableReader, shown: Page, question: Question, place: _Place
) -> Mapping[Any, Row] | None:
    """The rows before the last change, or None if an earlier change is unknown or does not exist."""
    if place.times is None or place.last is None or place.times.before(place.last) is None:
        return None
    then = _just_before(place.last)
    at, known_at = (then, question.time_of_knowledge) if place.lasting else (None, then)
    return rows_before(files, shown, at, known_at)


def _row_with_marks(
    row: Row, key: Sequence[str], before: Mapping[Any, Row] | None, last: datetime | None
) -> ShownRow:
    changed, new = list[str](), False
    if before is not None and (VALID_FROM not in row or row[VALID_FROM] == last):
        former = before.get(tuple(row[name] for name in key))
        new, common = former is None, row.keys() & (former or {}).keys() - {VALID_FROM, VALID_TO}
        changed = [name for name in common if differ(name, row, former or {})]
    return ShownRow(row, frozenset(changed), new, key_words({name: row[name] for name in key}))


def _slider(question: Question, place: _Place) -> Slider | None:
    """The slider, or None if the table has no change."""
    times, here, last = place.times, place.here, place.last
    if times is None or not len(times.instants):
        return None
    places = times.some(PLACES)
    return Slider(
        [iso(position) for position in places],
        max(sum(position <= here for position in places) - 1, 0),
        _bars(times),
        times.before(last or here) is not None,
        times.after(here) is not None or bool(question.at or question.known_at),
        (iso(_just_before(last)), iso(last)) if last and place.lasting else None,
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
        (float(height / most), f"from {_day(edge)}: {int(one):,} versions begin, {int(other):,} end")
        for height, edge, one, other in zip(heights, edges[:-1], starts, ends, strict=True)
    ]


def _day(micros: float) -> str:
    nearest = min(max(int(micros), (_FIRST - EPOCH) // _LEAST), (_LAST - EPOCH) // _LEAST)
    return f"{EPOCH + timedelta(microseconds=nearest):%Y-%m-%d}"


def _just_before(instant: datetime) -> datetime:
    """The microsecond before an instant, or the first instant of the calendar."""
    return max(instant, _FIRST + _LEAST) - _LEAST


def _counts(files: TableReader) -> Mapping[str, int | None]:
    """The numbers of rows and open versions. Empty if the manifests cannot be read."""
    try:
        counts = files.catalog.count(files.table)
    except OSError:
        return {}
    open_ = {"open": counts.open} if files.table.shape.layout is not Layout.FIVETRAN_LIVE else {}
    return {"rows": counts.rows, **open_}


def record_view(_source: CatalogReader, files: TableReader, question: Question) -> View:
    """A record's history, as in `timeline`."""
    table, axis = files.table, question.axis or "valid"
    key = question.record(table.shape.source_key)
    request = TimelineRequest(key, axis=cast("Axis", axis), known_at=question.time_of_knowledge)
    whole = life(table_in_files(files), request)
    if not whole.versions:
        raise UsageError("no-record", f"There is no record with {whole.title}.", "Look for another key.")
    shown = Timeline(whole.versions[-MOST_VERSIONS:], whole.columns, whole.axis, whole.title)

    def link_to_origin(bar: Bar) -> str | None:
        value = question.alter(view="value", column=bar.column, at=iso(bar.start), axis="", limit="")
        return value.address() if bar.column else None

    first = changing_columns(shown.versions, shown.columns)
    more = {
        "title": whole.title,
        "versions": shown.versions,
        "columns": [*first, *(name for name in shown.columns if name not in first)],
        "changed": _changed_cells(shown),
        "life": shown,
        "link": link_to_origin,
        "hidden": len(whole.versions) - len(shown.versions),
        "both": table.shape.layout in RECORDING,
        "axes": [n for n in AXES if n in TIMES or any(version[n] is not None for version in whole.versions)],
        "commits": {commit.id: commit_summary(commit) for commit in table.commits},
        "layout": table.shape.layout,
        "snapshot": table.newest and table.newest.id,
    }
    return View(question, list(whole.versions), more, snippets=life_snippets(question, table))


def value_view(_source: CatalogReader, files: TableReader, question: Question) -> View:
    """The origin of a value: its start, the commit that wrote it, and the value before it."""
    key, lasting = question.record(files.table.shape.source_key), _is_history(files)
    story = blame(files, key, question.column, question.instant, question.time_of_knowledge)
    document = {"table": question.table, "key": list(question.key), "column": question.column, **story}
    snippets = life_snippets(question.alter(axis=""), files.table) if lasting else ()
    return View(question, document, {"story": story, "lasting": lasting}, snippets=snippets)


def _changed_cells(life: Timeline) -> Sequence[frozenset[str]]:
    """For each version, the columns that differ from the version before. Empty if both axes are shown."""
    if life.axis == "both":
        return [frozenset()] * len(life.versions)
    pairs = zip(life.versions, life.versions[1:], strict=False)
    changed = (frozenset(n for n in life.columns if differ(n, version, before)) for before, version in pairs)
    return [frozenset(), *changed]


def diff_view(source: CatalogReader, files: TableReader, question: Question) -> View:
    """A page of the differences between two times, in key order, as in `diff`."""
    question = _with_times(source, files, question)
    columns = [question.column] if question.column else None
    change = cast("ChangeKind | None", question.change or None)
    # A table without a history is compared by its recorded rows.
    lasting = _is_history(files)
    axis: dict[str, Any] = {"axis": "recorded", "at": now()}
    if lasting:
        axis = {"known_at": question.time_of_knowledge}
    request = DiffRequest(question.first, question.to, columns=columns, change=change, **axis)
    try:
        differences = diff(table_in_files(files), request)
    except Unreadable as unread:
        if "rows" not in str(unread):
            raise
        raise UsageError(
            "too-many",
            "More versions begin or end between these times than the memory can hold (`driver-memory`).",
            "Choose times that are closer together, or run `backstory diff`, which uses Spark.",
        ) from None
    begin = question.offset
    records = differences.page(begin, begin + question.rows)
    end = begin + len(records)
    following = question.alter(after=(str(end),)) if end < len(differences) else None
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
    first = question.first or iso(_just_before(last))
    return question.alter(first=first, to=question.to or iso(max(last, parse_instant(first))))


OF_WAREHOUSE: Final[Mapping[str, Callable[[Catalog, Question], View]]] = {
    "tables": tables_view,
    "log": log_view,
}
# The views that read the files of a table.
OF_TABLE: Final[Mapping[str, Callable[[CatalogReader, TableReader, Question], View]]] = {
    "table": table_view,
    "record": record_view,
    "value": value_view,
    "diff": diff_view,
    "check": check_view,
}


def view_of(source: CatalogReader, question: Question) -> View:
    """The view that a question names. Raises the errors of reading."""
    if question.view in OF_WAREHOUSE:
        return OF_WAREHOUSE[question.view](source.catalog(), question)
    with source.files(question.table) as files:
        named = question.alter(table=str(files.table.shape.table))
        return OF_TABLE[question.view](source, files, named)
