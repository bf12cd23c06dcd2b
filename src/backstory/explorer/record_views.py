"""One record: its life on one or two axes, and the story of one of its values."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from backstory.errors import UsageError
from backstory.explorer.copies import life_copies
from backstory.explorer.questions import Question
from backstory.explorer.source import Source
from backstory.explorer.views import View
from backstory.model.instant import iso
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.reading.arrow.blame import blame, described_commit
from backstory.reading.arrow.life import life
from backstory.reading.frames.versions import HISTORIES, RECORDING
from backstory.reading.lives import AXES, Told, changing, differ
from backstory.reading.pictures import Bar
from backstory.reading.timelines import Axis, Timeline, require_axis

# So many versions are drawn and listed at once, the newest first of all.
MOST_VERSIONS: Final = 500
TIMES: Final = (VALID_FROM, VALID_TO)


def record(source: Source, question: Question) -> View:
    """A record's life, as `timeline` tells it."""
    with source.files(question.table) as files:
        asked = question.but(table=str(files.table.shape.table))
        key = asked.record(files.table.shape.source_key)
        told = life(files, key, _axis(asked), asked.time_of_knowledge)
        if not told.versions:
            raise UsageError("no-record", f"There is no record with {told.title}.", "Look for another key.")
        shown = Timeline(told.versions[-MOST_VERSIONS:], told.columns, told.axis, told.title)
        commits = {each.id: described_commit(each) for each in files.table.commits}

        def link(bar: Bar) -> str | None:
            return value_of(asked, bar.column, bar.start).address() if bar.column else None

        first = changing(shown.versions, shown.columns)
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
        return View(asked, list(told.versions), more, copies=life_copies(asked, files.table))


def value(source: Source, question: Question) -> View:
    """Since when a record has a value, by which commit, and what was there before."""
    with source.files(question.table) as files:
        asked = question.but(table=str(files.table.shape.table))
        key = asked.record(files.table.shape.source_key)
        told = blame(files, key, asked.column, asked.instant, asked.time_of_knowledge).to_dict()
        lasting = files.table.shape.layout in HISTORIES
        more = {"told": told, "lasting": lasting}
        document = {"table": asked.table, "key": list(asked.key), "column": asked.column, **told}
        copies = life_copies(asked.but(axis=""), files.table) if lasting else ()
        return View(asked, document, more, copies=copies)


def value_of(question: Question, column: str, at: datetime) -> Question:
    """The question for the story of a value of the record that is asked about."""
    return question.but(view="value", column=column, at=iso(at), axis="", limit="")


def changed_cells(told: Timeline) -> Sequence[frozenset[str]]:
    """For each version the columns in which it differs from the one before it; on both axes none."""
    if told.axis == "both":
        return [frozenset()] * len(told.versions)
    pairs: Sequence[tuple[Told, Told | None]] = list(
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
