"""A file of this machine as a source: its modification is its state, and it is used in its own place.

The time in a file's path (section 1.4): group 1 of a pattern, read by a format.

Which files a glob means: each once, by whatever links it is reached, and none out of the glob's folder.

Files of this machine that a glob finds, each a delivery of its own, in an order that remembers the last.

The source's state is the *mark* of the last file: its name, or with `ByEventTime` its time and its name.
A file is new when its mark stands behind the state, in the order of times, names and then folders.
"""

import glob
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from backstory.errors import Failed, Refused, UsageError
from backstory.sources.source import (
    CHECKING,
    ETAG,
    LAST_MODIFIED,
    Answer,
    Asking,
    FetchedFile,
    GlobOfFiles,
    PathTime,
    Resource,
    SourceState,
    SystemTime,
    instant_of_nanoseconds,
    instant_text,
    of_kind,
)
from backstory.sources.templates import has_templates, without_secrets

JAVA: Final = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
# Codes of strftime that `datetime.strptime` does not take, though other implementations do.
LONGER: Final = {"%F": "%Y-%m-%d", "%T": "%H:%M:%S", "%R": "%H:%M", "%D": "%m/%d/%y"}
_JAVA_TOKEN = re.compile(r"'(?P<quoted>[^']*)'|(?P<letters>([A-Za-z])\3*)|(?P<other>[^A-Za-z']+)|'")


def codes(timestamp_format: str) -> str:
    """The format in codes of strptime; letters of Java are translated when the text has no `%`.

    Raises UsageError for letters of Java other than `yyyy MM dd HH mm ss`.
    """
    if "%" in timestamp_format:
        return re.sub("%.", lambda code: LONGER.get(code[0], code[0]), timestamp_format, flags=re.DOTALL)
    return _JAVA_TOKEN.sub(lambda token: _code(token, timestamp_format), timestamp_format)


def check_format(timestamp_format: str) -> None:
    """Raise UsageError if no text can be read by the format."""
    try:
        datetime.strptime("", codes(timestamp_format))  # noqa: DTZ007
    except (ValueError, re.error) as error:
        # An empty text suits no format; that is not the format's fault.
        if "does not match format" not in str(error):
            raise UsageError(
                "event-time",
                f"The time format {timestamp_format!r} is not valid: {error}.",
                "Write it in codes of strftime, such as %Y-%m-%d.",
            ) from None


def path_time(source: PathTime, name: str, paths: Sequence[str]) -> datetime:
    """The time in the first of a file's paths that the pattern is found in; without a zone it is UTC.

    Raises Refused, with the file's name, when there is none or it cannot be read.
    """
    found = next(filter(None, (re.search(source.pattern, path) for path in paths)), None)
    text = found[1] if found else None
    if text is None:
        raise Refused(
            "file-time",
            f"The path of {name} contains no time: the pattern {source.pattern!r} does not match it.",
            "Fix eventTime.pattern, or narrow the glob to files that have a time in their path.",
        )
    try:
        time = datetime.strptime(text, codes(source.timestamp_format))  # noqa: DTZ007
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refused(
            "file-time",
            f"The time {text!r} in the path of {name} is not written as {source.timestamp_format!r}.",
            "Fix eventTime.pattern or eventTime.timestampFormat.",
        ) from None


def _code(token: re.Match[str], timestamp_format: str) -> str:
    if token["quoted"] is not None:
        return token["quoted"] or "'"
    if token["other"] is not None:
        return token["other"]
    if token["letters"] not in JAVA:
        raise UsageError(
            "event-time",
            f"The time format {timestamp_format!r} has {token[0]!r}, which is not supported.",
            f"Use {', '.join(JAVA)}, quote other letters, or write the format in codes of strftime.",
        )
    return JAVA[token["letters"]]


ANY_FOLDERS = "**"


def fixed_folders(pattern: str) -> Path:
    """The folders that a glob names without wildcards."""
    *folders, _ = Path(pattern).parts
    wild = (number for number, part in enumerate(folders) if glob.has_magic(part))
    return Path(*folders[: next(wild, len(folders))])


def matching_files(folder: Path, pattern: str, known: Collection[str]) -> list[str]:
    """The files that match, as the glob spells them; those of a leading dot are only matched by a dot.

    A file that links reach in several ways is spelled as in `known`, else by its own path, else in the
    first of them. Raises Refused for a link that leads out of the folder that the glob names.
    """
    top = fixed_folders(pattern)
    inside = (folder / top).resolve()
    *parts, last = Path(pattern).parts[len(top.parts) :]
    if last == ANY_FOLDERS:
        parts, last = [*parts, last], "*"
    places = [top]
    for part in parts:
        below = (
            _below(folder, places, inside) if part == ANY_FOLDERS else _matching_places(folder, places, part)
        )
        places = _few(folder, below, top, known)
    found: dict[Path, set[str]] = {}
    for way in _matching_places(folder, places, last):
        if (folder / way).is_file():
            found.setdefault(_within(folder / way, inside), set()).add(way.as_posix())
    return [
        min(ways, key=lambda way: (way not in known, inside / Path(way).relative_to(top) != file, way))
        for file, ways in found.items()
    ]


def _matching_places(folder: Path, places: Iterable[Path], part: str) -> Iterator[Path]:
    """What matches one part of a glob in each of these places."""
    for place in places:
        for name in glob.iglob(part, root_dir=folder / place):  # noqa: PTH207 - Path.glob shows hidden files
            yield place / name


def _below(folder: Path, places: Iterable[Path], inside: Path) -> Iterator[Path]:
    """Each of these places and the folders in it."""
    reached: set[Path] = set()
    for place in sorted(places, key=lambda each: len(each.parts)):
        if place not in reached:  # else with those in it, below another
            reached |= {place / each.relative_to(folder / place) for each in _folders(folder / place, inside)}
    yield from reached


def _few(folder: Path, ways: Iterable[Path], top: Path, known: Collection[str]) -> list[Path]:
    """Of the ways to each folder one, by its own path if that is one, and those of files that are known.

    Links that lead to each other would make any number of ways.
    """
    inside = (folder / top).resolve()
    told = {above for each in known for above in Path(each).parents}
    reached: dict[Path, set[Path]] = {}
    for way in ways:
        real = (folder / way).resolve()
        if real.is_dir():
            reached.setdefault(real, set()).add(way)
    firsts = (
        min(each, key=lambda way: (inside / way.relative_to(top) != real, way))
        for real, each in reached.items()
    )
    return [*{*firsts, *(way for each in reached.values() for way in each & told)}]


def _folders(top: Path, inside: Path) -> Iterator[Path]:
    """A folder and those in it, none of them hidden; each once, those by links after the others."""
    seen: set[Path] = set()
    links = [top]
    while links:
        first = links.pop(0)
        if not first.is_dir() or _within(first, inside) in seen:
            continue
        for place, names, _ in os.walk(first):
            seen.add(Path(place).resolve())
            yield Path(place)
            shown = sorted(name for name in names if not name.startswith("."))
            names[:] = [name for name in shown if Path(place, name).resolve() not in seen]
            links += [Path(place, name) for name in names if Path(place, name).is_symlink()]


def _within(path: Path, inside: Path) -> Path:
    """Where a path leads; Refused if that is out of the folder."""
    real = path.resolve()
    if not real.is_relative_to(inside):
        raise Refused(
            "link-outside",
            f"{path.name} is a link that leads out of the folder {inside.name} of the glob.",
            "Nothing was ingested; put the files themselves there, or name their folder in the manifest.",
            [str(path)],
        )
    return real


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
    since = last if last is not None and bool(_TIMED.fullmatch(last)) == _is_timed(step) else None
    unseen = [file for file in files if file.spelled not in asking.seen]
    new = [file for file in unseen if since is None or file.place > _place(since)]
    late = [file for file in unseen if since is not None and file.place <= _place(since)]
    # All of them before the first is ingested: a path that tells no time refuses the whole pull.
    times = [_event_time(file, step, asking) for file in new]
    deliveries = (
        FetchedFile(
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
        "new" if new else "up-to-date", deliveries, _warnings(late, since or "", timed=_is_timed(step))
    )


def _is_timed(step: GlobOfFiles) -> bool:
    """Whether files are ordered by times of their own; those of one time, the run's, are ordered by name."""
    return step.by_event_time and isinstance(step.event_time, PathTime)


def _files(step: GlobOfFiles, asking: Asking) -> list[GlobFile]:
    """All files that match, each once, in order."""
    spelled = matching_files(asking.folder, step.path, asking.seen)
    files = [_glob_file(asking.folder / text, text, step, asking) for text in spelled]
    return sorted(files, key=lambda file: file.place)


def _glob_file(path: Path, spelled: str, step: GlobOfFiles, asking: Asking) -> GlobFile:
    """The file with its name below the glob's fixed folder, and its place in the order of deliveries."""
    name = Path(spelled).relative_to(fixed_folders(step.path)).as_posix()
    file = GlobFile(path, Path(spelled).as_posix(), name, name)
    if not _is_timed(step):
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
    called = without_secrets(step.url) if has_templates(step.url) else str(path)
    modified = _modification_time(path, called)
    state = SourceState(LAST_MODIFIED, instant_text(modified))
    if of_kind(asking.state, LAST_MODIFIED) == state.value:
        return Answer("up-to-date")
    time = asking.system_time if isinstance(step.event_time, SystemTime) else modified
    name = called if has_templates(step.url) else path.name
    return Answer("new", iter((FetchedFile(path, name, time, state),)))


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


def _modification_time(path: Path, called: str) -> datetime:
    try:
        found = path.stat()
        if path.is_file():
            return instant_of_nanoseconds(found.st_mtime_ns)
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
