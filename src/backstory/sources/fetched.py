"""What a fetch gives back."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from backstory.sources.source_state import SourceState


@dataclass(frozen=True, slots=True)
class Kept:
    """A download that is kept until its rows are committed: its savepoint and data, by name in the cache."""

    savepoint: str
    data: str


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file to ingest, and what its source told of it.

    Attributes:
        path: the file; one in the cache is the reader's until `savepoint.forget`.
        name: what messages call it: a url without user, password and query, or a file's name.
        event_time: the time of rows that have none of their own; None: the run's system time.
        state: the state that the commit of these rows saves.
        taken_up: when the download was made that an earlier run kept; None if this run made it.
        kept: the download to forget after the commit; None for a file in its own place.
        last: whether the source has nothing more for now.
        spelled: the path of a glob's file as the manifest spells it, by which it is known again.
    """

    path: Path
    name: str
    event_time: datetime | None
    state: SourceState | None
    taken_up: datetime | None = None
    kept: Kept | None = None
    last: bool = True
    spelled: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What asking a source came to; each of the deliveries is to be committed before the next is taken."""

    status: Literal["new", "up-to-date", "uncacheable"]
    deliveries: Iterator[Fetched] = field(default_factory=lambda: iter(()))
    warnings: list[str] = field(default_factory=list)
