"""Fetch from a polling source, according to the kind of its fetch step (sections 1.3, 1.4 and 5.1)."""

from typing import Final

from backstory.errors import UsageError
from backstory.sources.files import check_format, fetch_file, fetch_glob, scheme_of
from backstory.sources.ftp import fetch_ftp
from backstory.sources.http import fetch_http
from backstory.sources.source import (
    Answer,
    FetchContext,
    FetchStep,
    GlobOfFiles,
    MetadataTime,
    PathTime,
    Resource,
)
from backstory.sources.templates import fill

# An address without a scheme is a path.
SCHEMES: Final = {"", "file", "http", "https", "ftp"}


def fetch(step: FetchStep, context: FetchContext) -> Answer:
    """Fetch the data of the source that the dataset does not have yet.

    Raises UsageError for an unsupported step, Failed if the source does not exist, and TryAgain if it cannot
    be reached now. Raises Refused if a file path lacks the time that the step expects.
    """
    check(step)
    if step.once and context.complete:
        return Answer("up-to-date")
    if isinstance(step, GlobOfFiles):
        return fetch_glob(step, context)
    url = fill(step.url, context.environment)
    scheme = scheme_of(url)
    if scheme in {"http", "https"}:
        return fetch_http(step, url, context)
    if scheme == "ftp":
        return fetch_ftp(step, url, context)
    if scheme in {"", "file"}:
        return fetch_file(step, url, context)
    raise _unsupported_scheme(scheme)


def check(step: FetchStep) -> None:
    """Raise UsageError if the scheme or the event time of the step is unsupported.

    No request is made. A scheme that comes from a template is not checked.
    """
    scheme = scheme_of(step.url) if isinstance(step, Resource) else ""
    if scheme not in SCHEMES:
        raise _unsupported_scheme(scheme)
    if isinstance(step, Resource) and isinstance(step.event_time, PathTime) and scheme != "ftp":
        raise UsageError(
            "event-time",
            "The event time of a Url cannot be FromPath.",
            "Use FromMetadata or FromSystemTime, or fetch files with FilesGlob.",
        )
    if isinstance(step, GlobOfFiles) and isinstance(step.event_time, MetadataTime):
        raise UsageError(
            "event-time",
            "The event time of a FilesGlob cannot be FromMetadata.",
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
