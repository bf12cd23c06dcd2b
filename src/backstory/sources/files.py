"""A file of this machine as a source: its modification is its state, and it is used in its own place."""

import re
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from backstory.errors import Failed, UsageError
from backstory.sources.asking import CHECKING, Asking
from backstory.sources.fetched import Answer, Fetched
from backstory.sources.secrecy import templated, without_secrets
from backstory.sources.source import Resource, SystemTime
from backstory.sources.source_state import LAST_MODIFIED, SourceState, of_kind, rounded, written

# One letter before the colon is a drive of Windows.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_HERE: Final = {"", "localhost", "127.0.0.1"}


def scheme_of(url: str) -> str:
    """The scheme of an address in small letters; a plain path has none: an empty text."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def fetch_file(step: Resource, url: str, asking: Asking) -> Answer:
    """The file that the url or path names: up to date if it was not modified since the last ingest.

    Raises UsageError for a file of another machine, Failed if there is no such file or it cannot be read.
    """
    asking.progress(CHECKING, 0, None)
    path = _path_of(url, step, asking.folder)
    called = without_secrets(step.url) if templated(step.url) else str(path)
    modified = _modified(path, called)
    state = SourceState(LAST_MODIFIED, written(modified))
    if of_kind(asking.state, LAST_MODIFIED) == state.value:
        return Answer("up-to-date")
    time = asking.system_time if isinstance(step.event_time, SystemTime) else modified
    name = called if templated(step.url) else path.name
    return Answer("new", iter((Fetched(path, name, time, state),)))


def _path_of(url: str, step: Resource, folder: Path) -> Path:
    if not scheme_of(url):
        return folder / url
    parts = urlsplit(url)
    if parts.netloc.lower() not in _HERE:
        raise UsageError(
            "unsupported-source",
            f"{without_secrets(step.url)} names a file on another machine.",
            "Write a file of this machine as file:///folder/file, or as a path.",
        )
    return folder / url2pathname(parts.path)


def _modified(path: Path, called: str) -> datetime:
    try:
        found = path.stat()
        if path.is_file():
            return rounded(found.st_mtime_ns)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name cannot be one"
        raise Failed(
            "unreadable-file", f"The file {called} cannot be accessed: {reason}.", "Check its permissions."
        ) from None
    raise Failed(
        "not-found",
        f"There is no file {called}.",
        "Put it there, or fix the url; a relative path starts at the manifest's folder.",
    )
