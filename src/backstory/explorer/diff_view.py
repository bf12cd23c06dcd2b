"""What changed between two times: alike changes together, then record by record."""

from datetime import datetime, timedelta
from typing import Final, cast

from backstory.errors import UsageError
from backstory.explorer.copies import diff_copies
from backstory.explorer.questions import Question, key_words
from backstory.explorer.source import Source
from backstory.explorer.table_view import moments
from backstory.explorer.views import View, now
from backstory.model.instant import iso, parse_instant
from backstory.reading.arrow.differences import Differences, diff_knowledge
from backstory.reading.arrow.differences import diff as diff_files
from backstory.reading.comparisons import Change, Comparison, as_object
from backstory.reading.frames.versions import HISTORIES
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.rows import Files

GROUPS: Final = 30


def diff(source: Source, question: Question) -> View:
    """The differences, as `diff` tells them, a page of them in the order of their keys."""
    with source.files(question.table) as files:
        asked = _with_times(source, files, question.but(table=str(files.table.shape.table)))
        columns = [asked.column] if asked.column else None
        change = cast("Change | None", asked.change or None)
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
            "groups": found.alike_changes(GROUPS),
            "records": [(each, key_words(each["key"])) for each in records],
            "begin": begin,
            "lasting": files.table.shape.layout in HISTORIES,
        }
        document = [as_object(each, whole=bool(change)) for each in records]
        return View(asked, document, more, following, diff_copies(asked, files.table))


def _differences(
    files: Files, between: tuple[datetime, datetime], question: Question, comparison: Comparison
) -> Differences:
    """The differences; of a table without a history those of what it held at the two times."""
    if files.table.shape.layout in HISTORIES:
        return diff_files(files, *between, question.time_of_knowledge, comparison)
    return diff_knowledge(files, *between, now(), comparison)


def _with_times(source: Source, files: Files, question: Question) -> Question:
    """The question with both times: left out, they are those around the last change."""
    if question.first and question.to:
        return question
    times = moments(source, files)
    last = (times and times.until(now())) or now()
    first = question.first or iso(last - timedelta(microseconds=1))
    return question.but(first=first, to=question.to or iso(max(last, parse_instant(first))))


def _too_far_apart() -> UsageError:
    return UsageError(
        "too-many",
        "More versions begin or end between these times than the memory holds (`driver-memory`).",
        "Choose times that are nearer to each other, or ask `backstory diff`, which has Spark.",
    )
