"""Files of this machine that a glob finds, each a delivery of its own, in an order that remembers the last.

The source's state is the *mark* of the last file: its name, or with `ByEventTime` its time and its name.
A file is new when its mark stands behind the state, in the order of times, names and then folders.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Final

from backstory.errors import Failed
from backstory.sources.asking import CHECKING, Asking
from backstory.sources.fetched import Answer, Fetched
from backstory.sources.matching import fixed, matching
from backstory.sources.source import GlobOfFiles, PathTime, SystemTime
from backstory.sources.source_state import ETAG, SourceState, of_kind
from backstory.sources.timestamps import path_time

_TIMED: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z )(.+)", re.DOTALL)
_MOST_WARNINGS: Final = 10


@dataclass(frozen=True, slots=True)
class GlobFile:
    """A file that the glob found.

    Attributes:
        path: where it is.
        spelled: its path as the glob spells it, relative if the glob is: what it is known by.
        name: its path below the folders that the glob names without wildcards: what messages call it.
        mark: what tells its place in the order.
    """

    path: Path
    spelled: str
    name: str
    mark: str

    @property
    def place(self) -> tuple[str, str, str]:
        """Its place in the order: files of one name and time stand by their folders."""
        return _place(self.mark)


def _place(mark: str) -> tuple[str, str, str]:
    timed = _TIMED.fullmatch(mark)
    time, name = (timed[1], timed[2]) if timed else ("", mark)
    return time, PurePosixPath(name).name, name


def fetch_glob(step: GlobOfFiles, asking: Asking) -> Answer:
    """The files after the last one that was ingested; those that came too late are named in warnings.

    Raises Failed when the first look finds no file, Refused for a path that does not tell its time, and for
    links out of the folder.
    """
    asking.progress(CHECKING, 0, None)
    last = of_kind(asking.state, ETAG)
    files = _files(step, asking)
    if not files and last is None:
        raise Failed(
            "not-found",
            f"No file matches {step.path}.",
            "Put files there, or fix the path; a relative path starts at the manifest's folder.",
        )
    # A mark of the other order says nothing of this one; what was ingested is known by name all the same.
    since = last if last is not None and bool(_TIMED.fullmatch(last)) == _timed(step) else None
    unseen = [file for file in files if file.spelled not in asking.seen]
    new = [file for file in unseen if since is None or file.place > _place(since)]
    late = [file for file in unseen if since is not None and file.place <= _place(since)]
    # All of them before the first is ingested: a path that tells no time refuses the whole pull.
    times = [_event_time(file, step, asking) for file in new]
    deliveries = (
        Fetched(
            file.path,
            file.name,
            time,
            SourceState(ETAG, file.mark),
            last=file is new[-1],
            spelled=file.spelled,
        )
        for file, time in zip(new, times, strict=True)
    )
    return Answer(
        "new" if new else "up-to-date", deliveries, _warnings(late, since or "", timed=_timed(step))
    )


def _timed(step: GlobOfFiles) -> bool:
    """Whether files are ordered by times of their own; those of one time, the run's, are ordered by name."""
    return step.by_event_time and isinstance(step.event_time, PathTime)


def _files(step: GlobOfFiles, asking: Asking) -> list[GlobFile]:
    """All files that match, each once, in order."""
    spelled = matching(asking.folder, step.path, asking.seen)
    files = [_glob_file(asking.folder / text, text, step, asking) for text in spelled]
    return sorted(files, key=lambda file: file.place)


def _glob_file(path: Path, spelled: str, step: GlobOfFiles, asking: Asking) -> GlobFile:
    """The file with its name below the glob's fixed folder, and its place in the order of deliveries."""
    name = Path(spelled).relative_to(fixed(step.path)).as_posix()
    file = GlobFile(path, Path(spelled).as_posix(), name, name)
    if not _timed(step):
        return file
    time = _event_time(file, step, asking)
    assert time is not None  # the order is by the time of the path
    text = time.replace(tzinfo=None).isoformat(timespec="microseconds")
    return GlobFile(path, file.spelled, name, f"{text}Z {name}")


def _event_time(file: GlobFile, step: GlobOfFiles, asking: Asking) -> datetime | None:
    if isinstance(step.event_time, PathTime):
        # The manifest's spelling first: folders above it, which differ from machine to machine, tell no time.
        paths = [file.spelled, file.path.absolute().as_posix()]
        return path_time(step.event_time, file.name, paths).astimezone(UTC)
    return asking.system_time if isinstance(step.event_time, SystemTime) else None


def _warnings(late: Sequence[GlobFile], since: str, *, timed: bool) -> list[str]:
    """A line for each file that sorts before the last one and was never ingested (D20)."""
    parts = _TIMED.fullmatch(since)
    last = parts[2] if parts else since
    sorts = "has an earlier time than" if timed else "sorts before"
    # The last file itself is no late one, also for a caller that does not know what was ingested.
    files = [file for file in late if file.name != last]
    lines = [
        f"{file.name} {sorts} {last}, which was ingested already, so it is skipped. "
        "Rename it to have it ingested."
        for file in files[:_MOST_WARNINGS]
    ]
    more = len(files) - len(lines)
    return [*lines, f"{more} more files are skipped for the same reason."] if more else lines
