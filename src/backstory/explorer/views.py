"""The answer for a page: its document, which is also the JSON answer, and more content for the page.

This module has the views for the list of tables, and for the commits and the check of a table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from backstory.errors import BackstoryError
from backstory.explorer.catalog_reader import CatalogReader, find_table, without_paths
from backstory.explorer.questions import Question, Snippet
from backstory.model.layout import Layout
from backstory.model.versions_layout import COPIED_AT
from backstory.reading.blame import commit_summary
from backstory.reading.commits import commits, inventory
from backstory.stores.metadata.table_metadata import CommitMetadata, ReadableCatalog, TableMetadata
from backstory.stores.port import DISORDER
from backstory.upkeep.checking import check_small

WEEKS: Final = 53
TABLES_OF_A_PAGE: Final = 200
# Outcomes that change nothing.
_IDLE: Final = ("unchanged", "ignored", "stale", "repeated")


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


def tables_view(source: CatalogReader, question: Question) -> View:
    """The tables of the warehouse, as in `tables`, with the key and the status of each."""
    catalog = source.catalog()
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
    catalog: ReadableCatalog, name: str, rows: Sequence[Mapping[str, Any]]
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


def log_view(source: CatalogReader, question: Question) -> View:
    """The commits of a table, newest first, as in `log`."""
    catalog = source.catalog()
    table = find_table(catalog, question.table)
    every = commits(catalog, table.shape.table)
    rows = every[question.offset : question.offset + question.rows]
    end = question.offset + len(rows)
    following = question.alter(after=(str(end),)) if end < len(every) else None
    details = {commit.id: commit_summary(commit) for commit in table.commits}
    more = {"details": details, "times": commit_times(table)}
    name = str(table.shape.table)
    snippets = [
        Snippet.command("log", name),
        Snippet("Python", f"warehouse.table({name!r}).log()"),
    ]
    return View(question, rows, more, following, snippets)


def check_view(source: CatalogReader, question: Question) -> View:
    """The laws of a table, as in `check`."""
    with source.files(question.table) as files:
        name = str(files.table.shape.table)
        records = check_small(files)
        key = files.table.shape.source_key
    snippets = [Snippet.command("check", name), Snippet("Python", f"warehouse.table({name!r}).check()")]
    return View(question, records, {"key": key}, snippets=snippets)


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
    """The last year of commits in weeks, which begin on Mondays. Days outside the year are None."""
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
    counts: dict[str, int] = {}
    for commit in made:
        for outcome, count in commit_summary(commit)["counts"].items():
            counts[outcome] = counts.get(outcome, 0) + count
    moved = sum(count for outcome, count in counts.items() if outcome not in _IDLE)
    level = 0 if not made else min(1 + len(str(moved)) // 2, 4)
    return Day(day, len(made), counts, level, made[-1].id if made else None)


def now() -> datetime:
    """The current instant, in UTC."""
    return datetime.now(UTC)
