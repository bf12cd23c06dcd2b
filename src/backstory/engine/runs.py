"""What a run notes of its deliveries: its name is on their commits, and it learns how fast they went."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Final

from backstory.engine.remarks import remark_properties
from backstory.model.change import Note

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
def taking_notes(notes: RunNotes) -> Iterator[None]:
    """Note what is delivered meanwhile, in this thread."""
    before = _notes.set(notes)
    try:
        yield
    finally:
        _notes.reset(before)


def marked(note: Note) -> Note:
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
def noting_seconds(stage: str) -> Iterator[None]:
    """Count what happens meanwhile as this stage."""
    notes, began = _notes.get(), time.monotonic()
    try:
        yield
    finally:
        if notes is not None:
            notes.seconds[stage] = notes.seconds.get(stage, 0.0) + time.monotonic() - began
