"""The context of deliveries in this thread: note and author, the run, and dry runs.

Commits contain note, author and run in their properties. A dry run collects its changes here.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Final, TypedDict, TypeVar

from attrs import frozen

from backstory.errors import UsageError
from backstory.model.change import Change, Note
from backstory.model.table import Shape, TableName

Value = TypeVar("Value")
# Snapshot properties.
NOTE: Final = "backstory.note"
AUTHOR: Final = "backstory.author"
# The limit is low because the metadata of every later commit repeat the properties of all snapshots.
LONGEST: Final = 2_000


class RemarkOptions(TypedDict, total=False):
    """The types of the options in `Remark`, for methods that have options of their own."""

    note: str | None
    author: str | None


@frozen(kw_only=True, slots=False)  # without slots, a request can inherit it together with another class
class Remark:
    """The options that describe a commit. `log` and the explorer show them.

    Raises UsageError if an option has more than `LONGEST` characters.

    Attributes:
        note: Reason for the commit.
        author: Author of the commit.
    """

    note: str | None = None
    author: str | None = None

    def __attrs_post_init__(self) -> None:
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
        """The snapshot properties that contain this remark."""
        return {name: text for name, text in ((NOTE, self.note), (AUTHOR, self.author)) if text}


_NONE: Final = Remark()
_remark: ContextVar[Remark] = ContextVar("remark", default=_NONE)


@contextmanager
def _bind(variable: ContextVar[Value], value: Value) -> Iterator[Value]:
    """Set a context variable within the block."""
    before = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(before)


def with_remark(note: str | None = None, author: str | None = None) -> AbstractContextManager[Remark]:
    """Add this note and author to the commits of this thread, within the block.

    None keeps the outer value.
    """
    outer, inner = _remark.get(), Remark(note=note, author=author)
    both = Remark(note=inner.note or outer.note, author=inner.author or outer.author)
    return _bind(_remark, both)


def remark_properties() -> dict[str, str]:
    """The snapshot properties for the current remark."""
    return _remark.get().properties()


# Commit properties: the run that made the commit, and the files that it had loaded into the table up to then.
RUN: Final = "backstory.run"
FILES: Final = "backstory.run-files"
TASKS, DRIVER = "tasks", "driver"


@dataclass(slots=True)
class RunNotes:
    """Notes on the deliveries to one table in a run: where they were planned, and seconds by stage.

    `files` are the marks of the files that the next commit completes. `archives` are the table names under
    which former histories of the table were archived. The id of a preview's run is empty.
    """

    run_id: str
    files: list[tuple[object, ...]] = field(default_factory=list)
    archives: list[str] = field(default_factory=list)
    way: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)


_notes: ContextVar[RunNotes | None] = ContextVar("run_notes", default=None)


def take_notes(notes: RunNotes) -> AbstractContextManager[RunNotes | None]:
    """Record the deliveries of this thread in these notes, within the block."""
    return _bind(_notes, notes)


def complete_note(note: Note) -> Note:
    """Add the remark and, if there is one, the run to the properties of a commit."""
    notes, note = _notes.get(), replace(note, more={**note.more, **remark_properties()})
    if notes is None:
        return note
    run = {RUN: notes.run_id} if notes.run_id else {}
    files = {FILES: json.dumps(notes.files)} if notes.files else {}
    return replace(note, more={**note.more, **run, **files})


def note_way(way: str) -> None:
    """Note whether a delivery is planned on the driver or in tasks. `TASKS` is never overwritten."""
    notes = _notes.get()
    if notes is not None and notes.way != TASKS:
        notes.way = way


@contextmanager
def note_seconds(stage: str) -> Iterator[None]:
    """Add the time of the block to the seconds of this stage."""
    notes, began = _notes.get(), time.monotonic()
    try:
        yield
    finally:
        if notes is not None:
            notes.seconds[stage] = notes.seconds.get(stage, 0.0) + time.monotonic() - began


# Tables, and descriptions of their planned changes.
Rehearsals = list[tuple[TableName, Sequence[str]]]
_rehearsals: ContextVar[Rehearsals | None] = ContextVar("rehearsals", default=None)


@contextmanager
def collect_rehearsals() -> Iterator[Rehearsals]:
    """Collect the changes of dry runs, within the block."""
    rehearsals: Rehearsals = []
    with _bind(_rehearsals, rehearsals):
        yield rehearsals


def rehearse(shape: Shape | None, change: Change) -> None:
    """Report a planned change once.

    `shape` is the table's current shape, or None if the change creates the table.
    """
    rehearsals, table = _rehearsals.get(), change.into or shape
    lines = change.lines(shape)
    if rehearsals is not None and table is not None and lines and (table.table, lines) not in rehearsals:
        rehearsals.append((table.table, lines))
