"""Downloads that are kept until their rows are committed, so that no run downloads them again (5.3).

A savepoint is a small JSON file in the cache folder that names a data file in the same folder. It is created
by one rename, after the data are complete. Each reader has its own hard link to the data, because another
process may commit the same download and remove it at any time.
"""

import json
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha3_256
from pathlib import Path
from typing import Any, Final

from backstory.errors import BackstoryError, Failed
from backstory.formats.memory import no_room
from backstory.sources.source import FetchContext, FetchedFile, Resource, SourceState

# A data file without a savepoint belongs to a killed run if it was untouched for this many seconds.
ABANDONED: Final = 24 * 3600.0
_SUFFIXES: Final = {".part", ".data"}


@dataclass(frozen=True, slots=True)
class Savepoint:
    """The record of a download.

    Attributes:
        created_at: the time of the download.
        asked: a digest of address and headers with templates filled. A request with another digest does
            not use this download.
        state: the state of the source at that time.
        event_time: the time in the answer's metadata.
        data: the name of the data file in the same folder.
        size: the size of the data file in bytes.
    """

    created_at: datetime
    asked: str
    state: SourceState | None
    event_time: datetime | None
    data: str
    size: int


def digest(*parts: object) -> str:
    """The SHA3-256 of the parts as JSON, in hexadecimal digits."""
    return sha3_256(json.dumps(parts).encode()).hexdigest()


def place_of(step: Resource, context: FetchContext) -> Path:
    """The path of the savepoint for this step and this state of the source."""
    state = context.state.to_dict() if context.state else None
    return context.cache / f"{digest(repr(step), state)}.json"


def new_file(place: Path, suffix: str) -> Path:
    """A new file name, unique to this process, in a savepoint's folder.

    The folder is created if necessary. Raises the error of `unwritable` if the folder cannot be created.
    """
    try:
        place.parent.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error) from None
    return place.parent / f"{place.stem[:16]}-{uuid.uuid4().hex}{suffix}"


def save(place: Path, savepoint: Savepoint, finished: Path) -> Path:
    """Store a finished download with its savepoint, replacing an older savepoint atomically.

    Returns the path of a file with the data. Raises the error of `unwritable` if the files cannot be written.
    """
    document = json.dumps(asdict(savepoint), default=datetime.isoformat)
    older = _read(place)
    unfinished = new_file(place, ".part")
    try:
        finished.replace(place.parent / savepoint.data)
        reader_file = _own_name(place.parent / savepoint.data, place)
        unfinished.write_text(document, "utf-8")
        unfinished.replace(place)
        if older is not None:
            (place.parent / older.data).unlink(missing_ok=True)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise unwritable(error) from None
    return reader_file


def take_up(place: Path, request_digest: str) -> tuple[Savepoint, Path] | None:
    """The savepoint, and a file with its data.

    Returns None if the savepoint is missing, incomplete or for another request.
    """
    savepoint = _read(place)
    if savepoint is None or savepoint.asked != request_digest:
        return None
    data_file = place.parent / savepoint.data
    try:
        return (
            (savepoint, _own_name(data_file, place)) if data_file.stat().st_size == savepoint.size else None
        )
    except OSError:
        return None


def forget(fetched: FetchedFile, context: FetchContext) -> None:
    """Remove the download of an ingested delivery.

    A file that is used in place is not removed. Call this function after the commit, and also if there was
    nothing to commit. Otherwise the next pull would use the download again.
    """
    if fetched.kept is None:
        return
    place = context.cache / fetched.kept.savepoint
    savepoint = _read(place)
    with suppress(OSError):
        fetched.path.unlink(missing_ok=True)
        (context.cache / fetched.kept.data).unlink(missing_ok=True)
        if savepoint is not None and savepoint.data == fetched.kept.data:
            place.unlink(missing_ok=True)


def discard(place: Path) -> None:
    """Remove a savepoint with its data, because the source's answer made the savepoint obsolete."""
    savepoint = _read(place)
    with suppress(OSError):
        place.unlink(missing_ok=True)
        if savepoint is not None:
            (place.parent / savepoint.data).unlink(missing_ok=True)


def unwritable(error: OSError) -> BackstoryError:
    """The error for a cache folder that cannot be written: TryAgain if the disk is full, else Failed."""
    return no_room(error, "the download cache") or Failed(
        "cache-unwritable",
        f"The download cannot be kept in the cache: {error.strerror or type(error).__name__}.",
        "Make sure that the cache folder is writable and has space.",
    )


def _read(place: Path) -> Savepoint | None:
    """Read a savepoint. Returns None if it is missing or incomplete."""
    try:
        saved: dict[str, Any] = json.loads(place.read_text("utf-8"))
        state, event_time = saved["state"], saved["event_time"]
        return Savepoint(
            created_at=datetime.fromisoformat(saved["created_at"]).astimezone(UTC),
            asked=str(saved["asked"]),
            state=SourceState.from_dict(state) if state else None,
            event_time=datetime.fromisoformat(event_time) if event_time else None,
            data=Path(saved["data"]).name,
            size=int(saved["size"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _own_name(data: Path, place: Path) -> Path:
    """A hard link to the data for this process, or the data file itself if links are not supported."""
    link = new_file(place, ".data")
    try:
        link.hardlink_to(data)
    except FileNotFoundError:
        raise
    except OSError:
        return data
    return link


def sweep(folder: Path) -> None:
    """Remove data files that no savepoint names and that have been untouched for a day."""
    used = {savepoint.data for place in folder.glob("*.json") if (savepoint := _read(place))}
    for file in folder.iterdir():
        if file.suffix not in _SUFFIXES or file.name in used:
            continue
        with suppress(OSError):
            if time.time() - file.stat().st_ctime > ABANDONED:
                file.unlink()
