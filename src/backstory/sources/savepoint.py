"""A download is kept until its rows are committed, so that a run that fails later need not repeat it (5.3).

A savepoint is a small JSON file in the cache folder that speaks of a data file beside it. It comes into being
by one rename, after the data are whole. Whoever reads the data has a name of his own for them, a hard link:
another process may commit the same download and remove savepoint and data at any time.
"""

import json
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha3_256
from pathlib import Path
from typing import Any, Final

from backstory.errors import BackstoryError, Failed
from backstory.formats.wrapping.room import no_room
from backstory.sources.source import Asking, FetchedFile, Resource, SourceState

# A data file that no savepoint speaks of belongs to a run that was killed, if nobody touched it for so long.
ABANDONED: Final = 24 * 3600.0
_SUFFIXES: Final = {".part", ".data"}


@dataclass(frozen=True, slots=True)
class Savepoint:
    """What is known of a download.

    Attributes:
        created_at: when it was made.
        asked: a digest of the address and headers, templates filled: who asks elsewhere gets no old answer.
        state: the source's state then.
        event_time: the time that the answer's metadata told.
        data: the name of the data file beside the savepoint.
        size: its bytes.
    """

    created_at: datetime
    asked: str
    state: SourceState | None
    event_time: datetime | None
    data: str
    size: int


def digest(*parts: object) -> str:
    """SHA3-256 of the parts as JSON."""
    return sha3_256(json.dumps(parts).encode()).hexdigest()


def place_of(step: Resource, asking: Asking) -> Path:
    """Where the savepoint of this step, asked in this state, lies."""
    state = asking.state.to_dict() if asking.state else None
    return asking.cache / f"{digest(repr(step), state)}.json"


def new_file(place: Path, suffix: str) -> Path:
    """A file of this process's own beside a savepoint; its folder is made.

    Raises Failed when the folder cannot be made.
    """
    try:
        place.parent.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error) from None
    return place.parent / f"{place.stem[:16]}-{uuid.uuid4().hex}{suffix}"


def save(place: Path, savepoint: Savepoint, finished: Path) -> Path:
    """Make the finished download the savepoint's data, write it in one piece in place of an older one.

    Gives a file of the data to read.

    Raises Failed when it cannot be written.
    """
    document = {
        "created_at": savepoint.created_at.isoformat(),
        "asked": savepoint.asked,
        "state": savepoint.state.to_dict() if savepoint.state else None,
        "event_time": savepoint.event_time.isoformat() if savepoint.event_time else None,
        "data": savepoint.data,
        "size": savepoint.size,
    }
    older = _read(place)
    unfinished = new_file(place, ".part")
    try:
        finished.replace(place.parent / savepoint.data)
        own = _own_name(place.parent / savepoint.data, place)
        unfinished.write_text(json.dumps(document), "utf-8")
        unfinished.replace(place)
        if older is not None:
            (place.parent / older.data).unlink(missing_ok=True)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise unwritable(error) from None
    return own


def take_up(place: Path, asked: str) -> tuple[Savepoint, Path] | None:
    """The savepoint and a file of its data to read, if it is for what is asked and its data are whole."""
    savepoint = _read(place)
    if savepoint is None or savepoint.asked != asked:
        return None
    data = place.parent / savepoint.data
    try:
        return (savepoint, _own_name(data, place)) if data.stat().st_size == savepoint.size else None
    except OSError:
        return None


def forget(fetched: FetchedFile, asking: Asking) -> None:
    """Remove the download of a delivery that was ingested; a file in its own place stays.

    To be called after the commit, and also when there was nothing to commit: the next pull would take
    the download up again.
    """
    if fetched.kept is None:
        return
    place = asking.cache / fetched.kept.savepoint
    savepoint = _read(place)
    with suppress(OSError):
        fetched.path.unlink(missing_ok=True)
        (asking.cache / fetched.kept.data).unlink(missing_ok=True)
        if savepoint is not None and savepoint.data == fetched.kept.data:
            place.unlink(missing_ok=True)


def discard(place: Path) -> None:
    """Remove a savepoint that the source's answer made worthless."""
    savepoint = _read(place)
    with suppress(OSError):
        place.unlink(missing_ok=True)
        if savepoint is not None:
            (place.parent / savepoint.data).unlink(missing_ok=True)


def unwritable(error: OSError) -> BackstoryError:
    """The error of a cache folder that takes no file: TryAgain where the disk is full."""
    return no_room(error, "the download cache") or Failed(
        "cache-unwritable",
        f"The download cannot be kept in the cache: {error.strerror or type(error).__name__}.",
        "Make sure that the cache folder is writable and has space.",
    )


def _read(place: Path) -> Savepoint | None:
    """The savepoint, None if there is none or it is not whole."""
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
    """A name of this process's own for the data; the data's name where links are unknown."""
    own = new_file(place, ".data")
    try:
        own.hardlink_to(data)
    except FileNotFoundError:
        raise
    except OSError:
        return data
    return own


def sweep(folder: Path) -> None:
    """Remove data that no savepoint speaks of and that nobody touched for a day."""
    named = {savepoint.data for place in folder.glob("*.json") if (savepoint := _read(place))}
    for file in folder.iterdir():
        if file.suffix not in _SUFFIXES or file.name in named:
            continue
        with suppress(OSError):
            if time.time() - file.stat().st_ctime > ABANDONED:
                file.unlink()
