"""The files of a declaration: the time of each copy, and the files that were delivered before."""

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from backstory.doors.native.options import TABLE, names_files
from backstory.errors import Failed, Refused, UsageError
from backstory.formats.batch_file import source_changed
from backstory.formats.source_files import Piece, Stars, Written, files_of_pattern, source_files, written_in
from backstory.model.instant import parse_instant
from backstory.model.table import TableName
from backstory.sources import templates
from backstory.sources.databases.address import escape_name, is_database

OF_FILE, OF_TRANSACTION = "file", "transaction"
NAMED: Final = 3  # the parts of a mark that a file keeps when it is moved
_AT: Final = re.compile(r"\{at:([^{}]+)\}")
_NAME: Final = re.compile(r"(?<!\$)\{(table|schema)\}")
# The regular expressions of the directives of a time.
_DIRECTIVES: Final = {
    "%Y": r"\d{4}",
    **dict.fromkeys(("%m", "%d", "%H", "%M", "%S", "%y"), r"\d{2}"),
    "%f": r"\d{1,6}",
    "%j": r"\d{3}",
    "%z": r"(?:Z|[+-]\d{2}:?\d{2})",
    **dict.fromkeys(("%b", "%B"), r"[^\W\d_]+"),
    "%%": "%",
}
_PARTS: Final = re.compile(r"\{at:[^{}]+\}|\*\*+|\*|\?")


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """The rule for the times of copies.

    If `fixed` is true, the time is the option `at`, or the current time. Otherwise, it is taken from each
    file's path if there is a `pattern`, or else from the file's modification time. If `each` is true, every
    file is delivered separately and only once.
    """

    fixed: bool = True
    pattern: str | None = None
    each: bool = False


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file, its copy's time in UTC (None for a feed), and a mark that identifies the file.

    The mark has the file's name in its project, its size and its modification time. Files of two projects may
    have the same name, size and time. The mark therefore also has the inode and the time of the file's last
    change on this machine.
    """

    path: Path
    at: datetime | None
    mark: str

    def whole_mark(self) -> str:
        """The mark with a digest of the content, which identifies the file in another folder."""
        return json.dumps([*json.loads(self.mark), digest_of(self.path)])


def expand(text: str, table: TableName) -> str:
    """Replace `{table}` and `{schema}` in a string with parts of the table's name, escaped in an address."""
    parts = {"table": table.name, "schema": table.schema}
    escape = escape_name if is_database(text) else str
    return _NAME.sub(lambda match: escape(parts[match[1]]), text)


def fill_in(text: str, document_place: str = "") -> str:
    """A string with its templates filled from the environment. Raises UsageError for a missing variable."""
    try:
        return templates.fill(text, os.environ)
    except UsageError as missing:
        place = f"{document_place}: " if document_place else ""
        raise UsageError(missing.code, f"{place}{missing.message}", missing.remedy) from None


def times_of_copies(source: str, at: str, kind: str) -> CopyTimes:
    """The rule for copies' times, made from `source` and `at`. Raises UsageError if the two conflict."""
    files = names_files(source)
    pattern = source if _AT.search(source) else at if _AT.search(at) else None
    if kind == "apply":
        if at or pattern:
            raise _wrong("A feed has no `at`: each of its changes has its own time.", "Leave it out.")
        return CopyTimes(each=files)
    if pattern is not None or at == OF_FILE:
        if not files:
            raise _wrong("Times of files are for sources of files.", "Leave out `at`.")
        if pattern is not None:
            _form(pattern)
        return CopyTimes(fixed=False, pattern=pattern, each=True)
    if at == OF_TRANSACTION:
        if files or source.startswith(TABLE):
            raise _wrong("This source has no transaction.", "Leave out `at`, or write `at: file`.")
        return CopyTimes(fixed=False)
    if at:
        parse_instant(at)
    return CopyTimes()


def copies(source: str, times: CopyTimes, folder: Path) -> list[FileCopy]:
    """The files of a source, ordered by time or name. The list is empty if no file exists.

    Raises Refused if a name matches the pattern but has no time, and the errors of `source_files`.
    """
    if times.pattern is not None:
        listed = sorted(_timed_paths(folder, source, times.pattern))
        return [FileCopy(path, at, _mark(path, folder)) for at, path in listed]
    try:
        paths = [file.path for file in source_files(source, "csv", folder).files]
    except Failed:
        return []
    if times.fixed:
        return [FileCopy(path, None, _mark(path, folder)) for path in paths]
    timed = sorted((datetime.fromtimestamp(path.stat().st_mtime, UTC), path) for path in paths)
    return [FileCopy(path, at, _mark(path, folder)) for at, path in timed]


def new_copies(all_copies: Sequence[FileCopy], taken: set[str]) -> list[FileCopy]:
    """The copies that have not been delivered yet, judged by the marks in `taken`.

    A file that was moved or copied, for example with its project, is recognized by its content. Its new mark
    is added to `taken`, so that the content is read only once.
    """
    known = defaultdict[tuple[Any, ...], list[list[Any]]](list)
    for mark in map(json.loads, taken):
        known[tuple(mark[:NAMED])].append(mark[NAMED:])
    new = []
    for copy in all_copies:
        mark = json.loads(copy.mark)
        name, which = tuple(mark[:NAMED]), mark[NAMED:]
        marks = known.get(name, [])
        if any(known_mark[: len(which)] == which for known_mark in marks):
            continue
        if marks and digest_of(copy.path) in [mark[-1] for mark in marks]:
            taken.add(copy.whole_mark())
            continue
        new.append(copy)
    return new


def digest_of(path: Path) -> str:
    """A digest of a file's content."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise source_changed(path.name) from None


def _mark(path: Path, folder: Path) -> str:
    """The mark of a file, as described in `FileCopy`."""
    stat = path.stat()
    name = path.relative_to(folder) if path.is_relative_to(folder) else path
    return json.dumps([str(name), stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns])


def _timed_paths(folder: Path, source: str, pattern: str) -> Iterator[tuple[datetime, Path]]:
    """The files of a source whose paths match the pattern, with their times."""
    whole = "/" in pattern
    pieces, time_form = _form(str(Path(pattern)) if whole else pattern)
    named = _AT.sub("*", source)
    named = f"{named}/*" if (folder / named).is_dir() else named
    for path in files_of_pattern(named, folder):
        below = path.relative_to(folder) if path.is_relative_to(folder) else path
        texts = written_in(
            pieces, str(path if Path(pattern).is_absolute() else below) if whole else path.name
        )
        if texts is None:
            continue
        written = "\n".join(texts)
        try:
            at = datetime.strptime(written, "\n".join(time_form))  # noqa: DTZ007 - UTC by the contract
        except ValueError:
            raise Refused(
                "no-time",
                f"The name of {path.name} has the form of the pattern, but {written!r} is not a time.",
                "Nothing was written; rename the file or move it away.",
            ) from None
        yield at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC), path


def _form(pattern: str) -> tuple[list[Piece], list[str]]:
    """The pieces of paths that match a pattern, and the form of each time in them."""
    pieces, place, forms = list[Piece](), 0, []
    for part in _PARTS.finditer(pattern):
        pieces.append(pattern[place : part.start()])
        place = part.end()
        if part[0] == "?":
            pieces.append(None)
        elif "*" in part[0]:
            pieces.append(Stars(folders=part[0] != "*"))
        else:
            forms.append(_AT.fullmatch(part[0])[1])  # type: ignore[index]
            pieces.append(Written(re.compile(_form_pattern(forms[-1]))))
    return [*pieces, pattern[place:]], forms


def _form_pattern(form: str) -> str:
    """The regular expression for a time in this form. Raises UsageError for an unknown directive."""
    words = re.split(r"(%.)", form)
    if unknown := [word for word in words[1::2] if word not in _DIRECTIVES]:
        raise _wrong(f"{unknown[0]} has no meaning in a time.", f"Parts are {' '.join(_DIRECTIVES)}.")
    if len(words) == 1:
        raise _wrong(f"{{at:{form}}} does not have a part of a time.", "Write {at:%Y-%m-%d}.")
    return "".join(_DIRECTIVES.get(word, re.escape(word)) for word in words)


def _wrong(message: str, remedy: str) -> UsageError:
    return UsageError("bad-option", message, remedy)
