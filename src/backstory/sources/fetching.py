"""Fetch from a polling source: files on this machine, or by HTTP or FTP (sections 1.3, 1.4 and 5.1)."""

import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import partial
from os.path import normpath, relpath
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from backstory.errors import Failed, Refused, UsageError
from backstory.formats.globs import WILD, matching_paths
from backstory.sources.ftp import fetch_ftp
from backstory.sources.http import fetch_http
from backstory.sources.source import (
    CHECKING,
    ETAG,
    LAST_MODIFIED,
    Answer,
    FetchContext,
    FetchedFile,
    GlobOfFiles,
    PathTime,
    Resource,
    SourceState,
    beyond_calendar,
    instant_of_nanoseconds,
    instant_text,
    of_kind,
    origin_of,
)
from backstory.sources.templates import fill, has_templates, without_secrets

JAVA: Final = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
# Codes of strftime that `datetime.strptime` rejects, though other implementations accept them.
LONGER: Final = {"%F": "%Y-%m-%d", "%T": "%H:%M:%S", "%R": "%H:%M", "%D": "%m/%d/%y"}
_JAVA_TOKEN = re.compile(r"'(?P<quoted>[^']*)'|(?P<letters>([A-Za-z])\3*)|(?P<other>[^A-Za-z']+)|'")

_TIMED: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z )(.+)", re.DOTALL)
_MOST_WARNINGS: Final = 10
# A single letter before the colon is a Windows drive.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_HERE: Final = {"", "localhost", "127.0.0.1"}


def codes(timestamp_format: str) -> str:
    """The format in strptime codes.

    Java's letters are translated if the format has no `%`. Raises UsageError for letters other than `yyyy MM
    dd HH mm ss`.
    """
    if "%" in timestamp_format:
        return re.sub("%.", lambda code: LONGER.get(code[0], code[0]), timestamp_format, flags=re.DOTALL)
    return _JAVA_TOKEN.sub(lambda token: _code(token, timestamp_format), timestamp_format)


def check_format(timestamp_format: str) -> None:
    """Raise UsageError for an invalid format."""
    try:
        datetime.strptime("", codes(timestamp_format))  # noqa: DTZ007
    except (ValueError, re.error) as error:
        # An empty string never matches a format. Any other error is a fault of the format.
        if "does not match format" not in str(error):
            raise UsageError(
                "event-time",
                f"The time format {timestamp_format!r} is not valid: {error}.",
                "Write it in codes of strftime, such as %Y-%m-%d.",
            ) from None


def path_time(source: PathTime, name: str, paths: Sequence[str]) -> datetime:
    """The time in the first of a file's paths that matches the pattern.

    A time without a zone is in UTC. Raises Refused, with the file's name, if no path matches or the time
    cannot be parsed.
    """
    match = next(filter(None, (re.search(source.pattern, path) for path in paths)), None)
    text = match[1] if match else None
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


def fixed_folders(pattern: str) -> Path:
    """The leading folders of a glob, before its first wildcard."""
    *folders, _ = Path(pattern).parts
    wild = (number for number, part in enumerate(folders) if WILD.search(part))
    return Path(*folders[: next(wild, len(folders))])


def matching_files(folder: Path, pattern: str, known: Collection[str]) -> list[str]:
    """The files that match a glob, with paths as in the glob.

    A name's leading dot is matched only by an explicit dot. Each file is listed once, even if several links
    lead to it. Its path is the path in `known`, else its own path, else the first path. Raises Refused for a
    link that leads out of the glob's folder. Raises Failed for a folder that cannot be listed.
    """
    try:
        return _matching_files(folder, pattern, known)
    except OSError as error:
        raise Failed(
            "unreadable-file",
            f"The glob {pattern} cannot be searched: {error.filename} cannot be accessed: {error.strerror}.",
            "Check its permissions.",
        ) from None


def _matching_files(folder: Path, pattern: str, known: Collection[str]) -> list[str]:
    top = fixed_folders(pattern)
    inside = (folder / top).resolve()
    resolve = partial(_within, inside=inside)
    known_folders = {folder / parent for path in known for parent in Path(path).parents}
    paths_by_file: dict[Path, set[str]] = {}
    for path in matching_paths(folder / top, Path(pattern).parts[len(top.parts) :], known_folders, resolve):
        if path.is_file():
            spelled = path if top.is_absolute() else path.relative_to(folder)
            paths_by_file.setdefault(resolve(path), set()).add(spelled.as_posix())
    return [
        min(paths, key=lambda path: (path not in known, inside / Path(path).relative_to(top) != file, path))
        for file, paths in paths_by_file.items()
    ]


def _within(path: Path, inside: Path) -> Path:
    """The real path. Raises Refused if it is outside the folder."""
    real = path.resolve()
    if not real.is_relative_to(inside):
        raise Refused(
            "link-outside",
            f"{path.name} is a link that leads out of the folder {inside.name} of the glob.",
            "Nothing was ingested; put the files themselves there, or name their folder in the manifest.",
            [str(path)],
        )
    return real


def _place(mark: str) -> tuple[str, str, str]:
    """The sort key of a file by its mark: time, file name, path below the fixed folders."""
    timed = _TIMED.fullmatch(mark)
    time, name = (timed[1], timed[2]) if timed else ("", mark)
    return time, PurePosixPath(name).name, name


def fetch_glob(step: GlobOfFiles, context: FetchContext) -> Answer:
    """The new files after the last ingested file, in order.

    Warnings name new files that sort before that file. Raises Failed if the first fetch finds no file. Raises
    Refused for a path without the expected time, and for links out of the folder.
    """
    context.progress(CHECKING, 0, None)
    last = of_kind(context.state, ETAG)
    seen = _earlier_paths(step, context)
    spelled = matching_files(context.folder, step.path, seen)
    files = [(_mark(text, step, context), text) for text in spelled]
    files.sort(key=lambda file: _place(file[0]))
    if not files and last is None:
        raise Failed(
            "not-found",
            f"No file matches {step.path}.",
            "Put files there, or fix the path; a relative path starts at the manifest's folder.",
        )
    # A mark of the other order cannot be compared. Ingested files are known by name anyway.
    since = last if last is not None and bool(_TIMED.fullmatch(last)) == _is_timed(step) else None
    unseen = [file for file in files if file[1] not in seen]
    new = [file for file in unseen if since is None or _place(file[0]) > _place(since)]
    late = [mark for mark, _ in unseen if since is not None and _place(mark) <= _place(since)]
    # Checked before the first file is ingested: one path without a time refuses the whole pull.
    deliveries = [
        FetchedFile(
            context.folder / text,
            _name(text, step),
            _event_time(text, step, context),
            SourceState(ETAG, mark),
            last=text == new[-1][1],
            spelled=text,
        )
        for mark, text in new
    ]
    return Answer("new" if new else "up-to-date", iter(deliveries), _warnings(late, since or ""))


def _earlier_paths(step: GlobOfFiles, context: FetchContext) -> frozenset[str]:
    """The paths of ingested files, also in the form of the glob: absolute, or relative to the folder.

    Links below the folder are not resolved, because a link may now lead to a new file.
    """
    is_absolute, seen = Path(step.path).is_absolute(), set(context.seen)
    for folder in {context.folder.absolute(), context.folder.resolve()}:
        others = (path for path in context.seen if Path(path).is_absolute() != is_absolute)
        paths = (normpath(folder / path) for path in others)
        seen |= {Path(path if is_absolute else relpath(path, folder)).as_posix() for path in paths}
    return frozenset(seen)


def _is_timed(step: GlobOfFiles) -> bool:
    """Whether files are ordered by the times in their paths, instead of by name."""
    return step.order == "ByEventTime" and isinstance(step.event_time, PathTime)


def _name(spelled: str, step: GlobOfFiles) -> str:
    """The path of a file below the glob's fixed folders, for messages."""
    return Path(spelled).relative_to(fixed_folders(step.path)).as_posix()


def _mark(spelled: str, step: GlobOfFiles, context: FetchContext) -> str:
    """The string that determines a file's place in the order."""
    name, time = _name(spelled, step), _event_time(spelled, step, context) if _is_timed(step) else None
    if time is None:
        return name
    return f"{time.replace(tzinfo=None).isoformat(timespec='microseconds')}Z {name}"


def _event_time(spelled: str, step: GlobOfFiles, context: FetchContext) -> datetime | None:
    if isinstance(step.event_time, PathTime):
        # The form in the manifest is first: the folders above it differ from machine to machine.
        paths = [spelled, (context.folder / spelled).absolute().as_posix()]
        return path_time(step.event_time, _name(spelled, step), paths).astimezone(UTC)
    return context.system_time if origin_of(step) == "FromSystemTime" else None


def _warnings(late: Sequence[str], since: str) -> list[str]:
    """One warning for each mark that sorts before the last ingested file and was never ingested (D20)."""
    time, _, last = _place(since)
    # The last file itself is not late, even if `seen` is incomplete.
    files = [(other, name) for other, _, name in map(_place, late) if name != last]
    lines = []
    for other, name in files[:_MOST_WARNINGS]:
        sorts, remedy = "sorts before", "Rename it to have it ingested."
        if time and other < time:
            sorts, remedy = "has an earlier time than", "Put a later time into its path to have it ingested."
        elif time:
            sorts = "has the same time and sorts before"
        lines.append(f"{name} {sorts} {last}, which was ingested already, so it is skipped. {remedy}")
    more = len(files) - len(lines)
    return [*lines, f"{more} more files are skipped for the same reason."] if more else lines


def scheme_of(url: str) -> str:
    """The scheme of an address in lower case, or an empty string for a plain path."""
    match = _SCHEME.match(url)
    return match[1].lower() if match else ""


def fetch_file(step: Resource, url: str, context: FetchContext) -> Answer:
    """Fetch the file at a URL or path.

    The file is up to date if it was not modified since the last pull, unless it is fetched again. Raises
    UsageError for a file on another machine. Raises Failed if the file does not exist or cannot be read.
    """
    context.progress(CHECKING, 0, None)
    path = _path_of(url, step, context.folder)
    shown_name = without_secrets(step.url) if has_templates(step.url) else str(path)
    modified = _modification_time(path, shown_name)
    state = SourceState(LAST_MODIFIED, instant_text(modified))
    if of_kind(context.state, LAST_MODIFIED) == state.value and not context.refetch:
        return Answer("up-to-date")
    time = context.system_time if origin_of(step) == "FromSystemTime" else modified
    name = shown_name if has_templates(step.url) else path.name
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


def _modification_time(path: Path, shown_name: str) -> datetime:
    try:
        status = path.stat()
        if path.is_file():
            return instant_of_nanoseconds(status.st_mtime_ns)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OverflowError:
        raise beyond_calendar(shown_name) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name is not valid"
        raise Failed(
            "unreadable-file",
            f"The file {shown_name} cannot be accessed: {reason}.",
            "Check its permissions.",
        ) from None
    raise Failed(
        "not-found",
        f"There is no file {shown_name}.",
        "Put it there, or fix the url; a relative path starts at the manifest's folder.",
    )


# An address without a scheme is a path.
SCHEMES: Final = {"", "file", "http", "https", "ftp"}


def fetch(step: Resource | GlobOfFiles, context: FetchContext) -> Answer:
    """Fetch the source's data that the dataset does not have yet.

    Raises UsageError for an unsupported step, Failed if the source does not exist, and TryAgain if the source
    cannot be reached now. Raises Refused if a file path lacks the time that the step expects.
    """
    check(step)
    if step.cache is not None and context.complete:
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


def check(step: Resource | GlobOfFiles) -> None:
    """Raise UsageError if the scheme, the path or the event time of the step is unsupported.

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
    if isinstance(step, GlobOfFiles) and origin_of(step) == "FromMetadata":
        raise UsageError(
            "event-time",
            "The event time of a FilesGlob cannot be FromMetadata.",
            "Use FromPath or FromSystemTime.",
        )
    if isinstance(step, GlobOfFiles) and (not Path(step.path).parts or "\0" in step.path):
        raise UsageError(
            "bad-path",
            f"The path {step.path!r} of a FilesGlob names no files.",
            "Write the files as a glob, such as data/*.csv.",
        )
    if isinstance(step.event_time, PathTime):
        check_format(step.event_time.timestamp_format)


def _unsupported_scheme(scheme: str) -> UsageError:
    return UsageError(
        "unsupported-source",
        f"Sources cannot be fetched by {scheme}.",
        "Use an http, https, ftp or file address, or a path.",
    )
