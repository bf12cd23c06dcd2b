"""Sources: the step to fetch, its context and retries (section 5.2), a source's state, and fetched files."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar, runtime_checkable

import structlog

from backstory.errors import Failed, TryAgain
from backstory.observe import RETRIES

# Random waits spread clients that failed at the same time, so that they do not all retry at once.
DICE = random.SystemRandom()

log = structlog.get_logger()

Result = TypeVar("Result")


# The maximum number of attempts.
ATTEMPTS: Final = 4
# The longest wait after the first attempt, in seconds. It doubles with each further attempt.
DELAY: Final = 0.5
# The longest wait, in seconds. If a server requests more, retrying stops.
LONGEST: Final = 120.0


class Unreachable(TryAgain):
    """The server returns no data now.

    `retry_after` is the pause in seconds that the server requests, if any.
    """

    def __init__(self, code: str, message: str, remedy: str = "", retry_after: float | None = None) -> None:
        super().__init__(code, message, remedy)
        self.retry_after = retry_after


def broken_transfer(name: str, size: int) -> Unreachable:
    """The error for a transfer that stopped after `size` bytes."""
    return Unreachable(
        "broken-transfer", f"The transfer of {name} broke off after {size:,} bytes.", "Try again later."
    )


def wait_after(failed: int) -> float:
    """The seconds to wait after `failed` attempts (at least 1)."""
    return min(DELAY * 2.0 ** (failed - 1) * DICE.uniform(0.5, 1.0), LONGEST)


def retry_requests(act: Callable[[], Result]) -> Result:
    """Call `act` until it succeeds, and return its result.

    Raises TryAgain after the last attempt, or if the server requests a longer wait than `LONGEST`.
    Other errors are not retried. Each failed attempt is logged, and each retry is counted as a metric.
    """
    for number in count(1):
        try:
            return act()
        except TryAgain as error:
            pause = getattr(error, "retry_after", None) or 0.0
            wait = max(wait_after(number), pause)
            last = number >= ATTEMPTS or wait > LONGEST
            _tell(error, number, None if last else wait)
            if last:
                raise _final_error(error, number, pause) from None
        RETRIES.inc()
        time.sleep(wait)
    raise AssertionError("unreachable")


def seconds_of(retry_after: str | None) -> float | None:
    """The seconds that a `Retry-After` header requests, as a number or a date.

    Returns None if the header is missing or invalid.
    """
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        then = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    then = then.replace(tzinfo=UTC) if then.tzinfo is None else then
    return max(0.0, (then - datetime.now(UTC)).total_seconds())


def _tell(error: TryAgain, number: int, wait: float | None) -> None:
    next_step = "giving up" if wait is None else f"trying again in {wait:.1f} s"
    log.warning(
        f"attempt {number} of {ATTEMPTS} failed, {next_step}: {error.message}",
        code=error.code,
        attempt=number,
    )


def _final_error(error: TryAgain, number: int, pause_seconds: float) -> TryAgain:
    """The error with the number of attempts, and the pause in seconds that the server requests."""
    attempts = "1 attempt" if number == 1 else f"{number} attempts"
    pause = f"; the server asks for a pause of {pause_seconds:.0f} s" if pause_seconds else ""
    return TryAgain(error.code, f"{error.message.removesuffix('.')} ({attempts}{pause}).", error.remedy)


class EventTime(Protocol):
    """The origin of the event time of rows that have none."""

    @property
    def kind(self) -> str:
        """`FromMetadata` (caching headers, or modification time), `FromSystemTime` or `FromPath`."""


@runtime_checkable
class PathTime(EventTime, Protocol):
    """The event time is in a file's path: group 1 of the pattern, in a strftime or Java format."""

    @property
    def pattern(self) -> str:
        """The regular expression."""

    @property
    def timestamp_format(self) -> str:
        """The format of the time."""


class FetchStep(Protocol):
    """A step of a manifest that fetches data. Its paths are relative to the manifest's folder."""

    @property
    def event_time(self) -> EventTime | None:
        """The origin of the event time, or None for the default of the scheme."""

    @property
    def cache(self) -> object:
        """None, unless nothing is fetched any more after all data were ingested."""

    @property
    def refetch(self) -> object:
        """None, unless to fetch even if the source does not report whether it changed."""


@runtime_checkable
class Resource(FetchStep, Protocol):
    """A resource at an http, https, ftp or file URL, or a path."""

    @property
    def url(self) -> str:
        """The address, which may contain templates."""

    @property
    def headers(self) -> Sequence[Any]:
        """HTTP headers, each with a `name` and a `value`, which may contain templates."""


@runtime_checkable
class GlobOfFiles(FetchStep, Protocol):
    """Local files that match a glob. Each file is a separate delivery."""

    @property
    def path(self) -> str:
        """The glob."""

    @property
    def order(self) -> str:
        """`ByEventTime`, then by name, or `ByName`."""


def origin_of(step: FetchStep) -> str | None:
    """The kind of the event time's origin, or None for the default of the scheme."""
    return None if step.event_time is None else step.event_time.kind


ETAG: Final = "odf/etag"
LAST_MODIFIED: Final = "odf/last-modified"


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of a source when it was ingested.

    The next pull fetches only newer data (5.1). `kind` is `odf/etag` or `odf/last-modified`. The value of
    `odf/etag` is the server's ETag or the mark of a glob's last file. The value of `odf/last-modified` is a
    time in the form of `instant_text`.
    """

    kind: str
    value: str
    source_name: str = "default"

    def to_dict(self) -> dict[str, str]:
        """The fields as a dictionary, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "SourceState":
        """The state from a dictionary that `to_dict` returned. Raises KeyError for other mappings."""
        return cls(str(saved["kind"]), str(saved["value"]), str(saved.get("source_name", "default")))


def of_kind(state: SourceState | None, kind: str) -> str | None:
    """The state's value if the state has this kind, else None.

    A replaced source may have left a state of another kind.
    """
    return state.value if state is not None and state.kind == kind else None


def instant_text(instant: datetime) -> str:
    """The time in ISO 8601, in UTC, with milliseconds."""
    utc = instant.astimezone(UTC).replace(tzinfo=None)
    return utc.isoformat(timespec="milliseconds") + "Z"


def instant_of_nanoseconds(nanoseconds: int) -> datetime:
    """The time that is `nanoseconds` after the start of 1970, rounded to milliseconds.

    Raises OverflowError for a time after the year 9999 or before the year 1.
    """
    milliseconds = (nanoseconds + 500_000) // 1_000_000
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def beyond_calendar(name: str) -> Failed:
    """The error for a file whose modification time is after the year 9999 or before the year 1."""
    return Failed(
        "unreadable-file",
        f"The modification time of {name} is not between the years 1 and 9999.",
        "Set it to another time, for example with `touch`.",
    )


@dataclass(frozen=True, slots=True)
class KeptDownload:
    """The file names of a savepoint and its data, which are kept until their rows are committed."""

    savepoint: str
    data: str


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A file to ingest, with the metadata from its source.

    Attributes:
        path: the file; a file in the cache stays until `savepoint.forget`.
        name: the name for messages: a URL without user, password and query, or a file's name.
        event_time: the event time of rows that have none, or None for the run's system time.
        state: the state to save with the commit of these rows.
        taken_up: the time of the download if an earlier run made it, or None.
        kept: the download to remove after the commit, or None for a file that is used in place.
        last: whether the source has no more files for now.
        spelled: the path of a glob's file in the form of the manifest, which identifies it later.
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
    """The result of a fetch. Commit each delivery before you request the next one."""

    status: Literal["new", "up-to-date", "uncacheable"]
    deliveries: Iterator[FetchedFile] = field(default_factory=lambda: iter(()))
    warnings: list[str] = field(default_factory=list)


# The stages that `progress` receives, under the names that users see (section 4.2).
CHECKING: Final = "Checking for updates"
DOWNLOADING: Final = "Downloading data"

# The end of the warning about a source without a state.
LATER_PULLS_SKIP_IT: Final = (
    "later pulls skip it unless they may fetch uncacheable sources, or the manifest has `refetch: always`."
)

Progress = Callable[[str, int, int | None], None]


def ignore_progress(_stage: str, _done: int, _total: int | None) -> None:
    """A `progress` function that does nothing, for callers that show no progress."""


@dataclass(frozen=True, slots=True)
class FetchContext:
    """The context of a fetch: time, folders, and the dataset's records of its source.

    Attributes:
        system_time: the run's instant, with a time zone.
        folder: the manifest's folder, to which paths are relative.
        cache: the folder for this dataset's downloads, created when needed.
        environment: the variables that fill templates.
        state: the state of the source in the dataset's newest commit.
        asked_before: whether the dataset's newest data are from this source.
        complete: whether the dataset has everything that the source had at the last fetch.
        seen: the paths (`FetchedFile.spelled`) of the globs' ingested files.
        refetch: whether to fetch even if the state is unchanged or a download was kept. Globs ignore it.
        fetch_uncacheable: whether to fetch from a source that does not report whether it changed.
        progress: called with the stage, the bytes so far, and the total bytes if known.
        unpacked_limit: the maximum size of an unpacked answer in bytes, or None for the general limit.
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
    progress: Progress = ignore_progress
    unpacked_limit: int | None = None
