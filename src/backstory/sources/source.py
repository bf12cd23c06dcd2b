"""What a source is asked for: one resource, or the files of this machine that a glob finds.

What a source said of its state when it was ingested: the next pull asks what came after (5.1).

What a fetch gives back.

What a fetch needs besides its step of the manifest.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

from backstory.sources.retries import Policy


@dataclass(frozen=True, slots=True)
class MetadataTime:
    """The time in the source's metadata: the caching headers, or the file's modification time."""


@dataclass(frozen=True, slots=True)
class SystemTime:
    """The time of the run."""


@dataclass(frozen=True, slots=True)
class PathTime:
    """The time in a file's path: group 1 of the pattern, in a format of strftime or of Java."""

    pattern: str
    timestamp_format: str = "%Y-%m-%d"


EventTime = MetadataTime | SystemTime | PathTime


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource: `http`, `https`, `ftp` or `file`; a relative path starts at the manifest's folder.

    Attributes:
        url: its address, a template.
        headers: of an HTTP request, names and values; the values are templates.
        event_time: where the time of rows without one comes from; None: as the scheme has it.
        once: never ask again when all of it was ingested.
        always: ask again even if the source says nothing of its changes.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    event_time: EventTime | None = None
    once: bool = False
    always: bool = False


@dataclass(frozen=True, slots=True)
class GlobOfFiles:
    """Files of this machine, each a delivery of its own.

    Attributes:
        path: the glob; a relative one is relative to the manifest's folder.
        event_time: where the time of rows without one comes from; None: the run.
        by_event_time: whether files are ordered by their times, then by their names.
        once: never look again when all files were ingested.
    """

    path: str
    event_time: EventTime | None = None
    by_event_time: bool = False
    once: bool = False


FetchStep = Resource | GlobOfFiles


ETAG: Final = "odf/etag"
LAST_MODIFIED: Final = "odf/last-modified"


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of a source: `kind` is `odf/etag` or `odf/last-modified`.

    The value of `odf/etag` is a tag as the server wrote it or the mark of a glob's last file; that of
    `odf/last-modified` is an instant, written by `instant_text`.
    """

    kind: str
    value: str
    source_name: str = "default"

    def to_dict(self) -> dict[str, str]:
        """The state as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "SourceState":
        """The state that `to_dict` gave; KeyError if it is not one."""
        return cls(str(saved["kind"]), str(saved["value"]), str(saved.get("source_name", "default")))


def of_kind(state: SourceState | None, kind: str) -> str | None:
    """The state's value if it is of this kind: a source that was replaced may have left another."""
    return state.value if state is not None and state.kind == kind else None


def instant_text(instant: datetime) -> str:
    """The instant as a state holds it: ISO 8601 in UTC, with milliseconds."""
    utc = instant.astimezone(UTC).replace(tzinfo=None)
    return utc.isoformat(timespec="milliseconds") + "Z"


def instant_of_nanoseconds(nanoseconds: int) -> datetime:
    """The instant that lies so many nanoseconds after 1970, rounded to a millisecond."""
    milliseconds = (nanoseconds + 500_000) // 1_000_000
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


@dataclass(frozen=True, slots=True)
class KeptDownload:
    """A download that is kept until its rows are committed: its savepoint and data, by name in the cache."""

    savepoint: str
    data: str


@dataclass(frozen=True, slots=True)
class FetchedFile:
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
    kept: KeptDownload | None = None
    last: bool = True
    spelled: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What asking a source came to; each of the deliveries is to be committed before the next is taken."""

    status: Literal["new", "up-to-date", "uncacheable"]
    deliveries: Iterator[FetchedFile] = field(default_factory=lambda: iter(()))
    warnings: list[str] = field(default_factory=list)


# The stages that `progress` names, in the words that the user sees (section 4.2).
CHECKING: Final = "Checking for updates"
DOWNLOADING: Final = "Downloading data"

# What is told of a source without a state.
PASSED_OVER: Final = (
    "later pulls skip it unless they may fetch uncacheable sources, or the manifest says `refetch: always`."
)

Progress = Callable[[str, int, int | None], None]


def silent(_stage: str, _done: int, _total: int | None) -> None:
    """A progress that nobody watches."""


@dataclass(frozen=True, slots=True)
class Asking:
    """What a fetch is told: when, where, and what the dataset knows of its source.

    Attributes:
        system_time: the run's instant, aware.
        folder: what relative paths are relative to: the manifest's folder.
        cache: the folder for this dataset's downloads; made when there is one to keep.
        environment: what templates are filled from.
        state: what the dataset's newest commit says of the source.
        asked_before: whether the dataset has what this source gave, all of it or a part.
        complete: whether it has all that the source had when it was asked last.
        seen: the paths (`Fetched.spelled`) of the globs' files whose rows the dataset has.
        refetch: do not use a download that was kept.
        fetch_uncacheable: ask also a source that cannot say whether it changed.
        progress: told the stage, the bytes so far, and of how many if that is known.
        retry: how often and after what waits an unreachable server is asked again.
        unpacked_limit: how many bytes an answer that came compressed may have; None: as many as elsewhere.
    """

    system_time: datetime
    folder: Path
    cache: Path
    environment: Mapping[str, str]
    state: SourceState | None = None
    asked_before: bool = False
    complete: bool = False
    seen: frozenset[str] = frozenset()
    refetch: bool = False
    fetch_uncacheable: bool = False
    progress: Progress = silent
    retry: Policy = field(default_factory=Policy)
    unpacked_limit: int | None = None
