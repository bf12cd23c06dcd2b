"""Why a commit was made, and by whom: a note and an author, which `log` shows.

What a run notes of its deliveries: its name is on their commits, and it learns how fast they went.

Dry runs: a change is planned and reported, but not committed.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Final

from backstory.errors import UsageError
from backstory.model.change import Change, Note
from backstory.model.table import Shape, TableName

# Properties of snapshots.
NOTE: Final = "backstory.note"
AUTHOR: Final = "backstory.author"
# Every later commit's metadata repeats the properties of all snapshots.
LONGEST: Final = 2_000


@dataclass(frozen=True, slots=True)
class Remark:
    """A note and an author; UsageError for a longer text than the metadata should repeat."""

    note: str | None = None
    author: str | None = None

    def __post_init__(self) -> None:
        for name in ("note", "author"):
            text = getattr(self, name)
            if text is not None and not isinstance(text, str):
                raise UsageError("bad-option", f"`{name}=` must be a text.", "Give a text, or omit it.")
            if text and len(text) > LONGEST:
                raise UsageError(
                    "bad-option",
                    f"`{name}=` has {len(text)} characters; at most {LONGEST} are stored.",
                    "Shorten it, for example to a link.",
                )

    def properties(self) -> dict[str, str]:
        """The properties of a snapshot with this remark."""
        return {name: text for name, text in ((NOTE, self.note), (AUTHOR, self.author)) if text}


_NONE: Final = Remark()
_remark: ContextVar[Remark] = ContextVar("remark", default=_NONE)


@contextmanager
def with_remark(note: str | None = None, author: str | None = None) -> Iterator[None]:
    """Commits of this thread meanwhile have this note and author; one that is None stays as it was."""
    outer, inner = _remark.get(), Remark(note, author)
    before = _remark.set(Remark(inner.note or outer.note, inner.author or outer.author))
    try:
        yield
    finally:
        _remark.reset(before)


def remark_properties() -> dict[str, str]:
    """The properties of a snapshot that is committed now."""
    return _remark.get().properties()


# Properties of commits: the run that made them, and the files that it had taken for the table until then.
RUN: Final = "backstory.run"
FILES: Final = "backstory.run-files"
TASKS, DRIVER = "tasks", "driver"


@dataclass(slots=True)
class RunNotes:
    """Of the deliveries of one table in a run: where they were planned, and seconds by stage.

    `files` are those that the next commit answers for, as JSON texts.
    """

    run_id: str
    files: list[str] = field(default_factory=list)
    way: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)


_notes: ContextVar[RunNotes | None] = ContextVar("run_notes", default=None)


@contextmanager
def take_notes(notes: RunNotes) -> Iterator[None]:
    """Note what is delivered meanwhile, in this thread."""
    before = _notes.set(notes)
    try:
        yield
    finally:
        _notes.reset(before)


def complete_note(note: Note) -> Note:
    """The properties of a commit, with its remark, and with the run that makes it if there is one."""
    notes, note = _notes.get(), replace(note, more={**note.more, **remark_properties()})
    if notes is None:
        return note
    files = {FILES: json.dumps([json.loads(each) for each in notes.files])} if notes.files else {}
    return replace(note, more={**note.more, RUN: notes.run_id, **files})


def note_way(way: str) -> None:
    """Note where a delivery is planned; once in tasks is in tasks."""
    notes = _notes.get()
    if notes is not None and notes.way != TASKS:
        notes.way = way


@contextmanager
def note_seconds(stage: str) -> Iterator[None]:
    """Count what happens meanwhile as this stage."""
    notes, began = _notes.get(), time.monotonic()
    try:
        yield
    finally:
        if notes is not None:
            notes.seconds[stage] = notes.seconds.get(stage, 0.0) + time.monotonic() - began


# Tables, and the changes that would be made of them, in words.
Rehearsals = list[tuple[TableName, Sequence[str]]]
_rehearsals: ContextVar[Rehearsals | None] = ContextVar("told", default=None)


@contextmanager
def collect_rehearsals() -> Iterator[Rehearsals]:
    """The changes that dry runs tell meanwhile."""
    told: Rehearsals = []
    before = _rehearsals.set(told)
    try:
        yield told
    finally:
        _rehearsals.reset(before)


def rehearse(shape: Shape | None, change: Change) -> None:
    """Tell a change of the table of this shape, or of one that it would make; the same one once."""
    told, table = _rehearsals.get(), change.into or shape
    lines = change.lines(shape)
    if told is not None and table is not None and lines and (table.table, lines) not in told:
        told.append((table.table, lines))
