"""Ask a polling source: each kind of fetch step in its own way (sections 1.3 to 1.4 and 5.1)."""

from typing import Final

from backstory.errors import UsageError
from backstory.sources.files import check_format, fetch_file, fetch_glob, scheme_of
from backstory.sources.ftp import fetch_ftp
from backstory.sources.http import fetch_http
from backstory.sources.source import Answer, Asking, FetchStep, GlobOfFiles, MetadataTime, PathTime, Resource
from backstory.sources.templates import fill

# No scheme is a path.
SCHEMES: Final = {"", "file", "http", "https", "ftp"}


def fetch(step: FetchStep, asking: Asking) -> Answer:
    """What the source has that the dataset does not.

    Raises UsageError for a step that cannot be done here, Failed for a source that is not there, TryAgain
    for one that cannot be reached now, Refused for files whose paths do not tell their times.
    """
    check(step)
    if step.once and asking.complete:
        return Answer("up-to-date")
    if isinstance(step, GlobOfFiles):
        return fetch_glob(step, asking)
    url = fill(step.url, asking.environment)
    scheme = scheme_of(url)
    if scheme in {"http", "https"}:
        return fetch_http(step, url, asking)
    if scheme == "ftp":
        return fetch_ftp(step, url, asking)
    if scheme in {"", "file"}:
        return fetch_file(step, url, asking)
    raise _unsupported_scheme(scheme)


def check(step: FetchStep) -> None:
    """Raise UsageError if such a source, or the step's event time, cannot be had; nothing is asked.

    A scheme that a template fills in is not known yet.
    """
    scheme = scheme_of(step.url) if isinstance(step, Resource) else ""
    if scheme not in SCHEMES:
        raise _unsupported_scheme(scheme)
    if isinstance(step, Resource) and isinstance(step.event_time, PathTime) and scheme != "ftp":
        raise UsageError(
            "event-time",
            "The event time of a Url cannot come FromPath.",
            "Use FromMetadata or FromSystemTime, or fetch files with FilesGlob.",
        )
    if isinstance(step, GlobOfFiles) and isinstance(step.event_time, MetadataTime):
        raise UsageError(
            "event-time",
            "The event time of a FilesGlob cannot come FromMetadata.",
            "Use FromPath or FromSystemTime.",
        )
    if isinstance(step.event_time, PathTime):
        check_format(step.event_time.timestamp_format)


def _unsupported_scheme(scheme: str) -> UsageError:
    return UsageError(
        "unsupported-source",
        f"Sources cannot be fetched by {scheme}.",
        "Use an address of http, https, ftp or file, or a path.",
    )
