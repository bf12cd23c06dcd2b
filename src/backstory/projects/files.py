"""The files of a declaration: the time of each copy, and the files that were delivered before."""

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from backstory.doors.native.options import TABLE, names_files
from backstory.errors import Failed, Refused, UsageError
from backstory.formats.batch_file import source_changed
from backstory.formats.globs import files_of_pattern
from backstory.formats.source_files import expand_home, source_files
from backstory.model.instant import parse_instant
from backstory.model.table import TableName
from backstory.sources import templates
from backstory.sources.databases.address import escape_name, is_database
from backstory.sources.source import beyond_calendar

OF_FILE, OF_TRANSACTION = "file", "transaction"
# The mark of a file, as described in `FileCopy`.
Mark: TypeAlias = tuple[Any, ...]
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
    **dict.fromkeys(("%b", "%B"), r"\p{L}+"),
    "%%": "%",
}
_PARTS: Final = re.compile(r"\{at:[^{}]+\}|(?<![^/])\*\*+/|\*\*+|\*|\?|\[!?+[^/{}][^\]/{}]*\]")
_WILD: Final = {"?": "[^/]", "*": "[^/]*"}


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
    mark: Mark

    @property
    def name(self) -> str:
        """The file's name in its project."""
        return str(self.mark[0])

    def whole_mark(self) -> Mark:
        """The mark with a digest of the content, which identifies the file in another folder."""
        return (*self.mark, digest_of(self.path))


def expand(text: str, table: TableName) -> str:
    """Replace `{table}` and `{schema}` in a string with parts of the table's name, escaped in an address.

    In a path, a leading `~` is replaced with the user's home.
    """
    parts = {"table": table.name, "schema": table.schema}
    escape = escape_name if is_database(text) else str
    return _NAME.sub(lambda match: escape(parts[match[1]]), expand_home(text))


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
    timed = sorted((_modified_at(path), path) for path in paths)
    return [FileCopy(path, at, _mark(path, folder)) for at, path in timed]


def new_copies(all_copies: Sequence[FileCopy], taken: set[Mark]) -> list[FileCopy]:
    """The copies that have not been delivered yet, judged by the marks in `taken`.

    A file that was moved or copied, for example with its project, is recognized by its content. Its new mark
    is added to `taken`, so that the content is read only once.
    """
    known = defaultdict[Mark, list[Mark]](list)
    for mark in taken:
        known[mark[:NAMED]].append(mark[NAMED:])
    new = []
    for copy in all_copies:
        name, which = copy.mark[:NAMED], copy.mark[NAMED:]
        marks = known.get(name, [])
        if any(known_mark[: len(which)] == which for known_mark in marks):
            continue
        if marks and digest_of(copy.path) in [mark[-1] for mark in marks]:
            taken.add(copy.whole_mark())
            continue
        new.append(copy)
    return new


def copies_of_time(copy: FileCopy, files: Sequence[FileCopy]) -> list[FileCopy]:
    """The copies that have the time of this one. It is the only one if all have the same content."""
    sharing = [each for each in files if each.at == copy.at]
    return sharing if len(sharing) > 1 and len({digest_of(each.path) for each in sharing}) > 1 else [copy]


def digest_of(path: Path) -> str:
    """A digest of a file's content."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise source_changed(path.name) from None


def _modified_at(path: Path) -> datetime:
    seconds = path.stat().st_mtime
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OSError, OverflowError, ValueError):  # each for other times
        raise beyond_calendar(path.name) from None


def _mark(path: Path, folder: Path) -> Mark:
    """The mark of a file, as described in `FileCopy`."""
    stat = path.stat()
    return _name_below(folder, path), stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns


def _name_below(folder: Path, path: Path) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _timed_paths(folder: Path, source: str, pattern: str) -> Iterator[tuple[datetime, Path]]:
    """The files of a source whose paths match the pattern, with their times."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def name_of(path: Path) -> str:
        if "/" not in pattern:
            return path.name
        return str(path) if Path(pattern).is_absolute() else _name_below(folder, path)

    expression, time_form = _form(str(Path(pattern)) if "/" in pattern else pattern)
    named = _AT.sub("*", source)
    paths = files_of_pattern(f"{named}/*" if (folder / named).is_dir() else named, folder)
    names = pa.array([name_of(path).encode(errors="replace").decode() for path in paths], pa.string())
    for path, times in zip(paths, pc.extract_regex(names, expression).to_pylist(), strict=True):
        if times is None:
            continue
        written = "\n".join(times.values())
        try:
            at = datetime.strptime(written, "\n".join(time_form))  # noqa: DTZ007 - UTC by the contract
        except ValueError:
            raise Refused(
                "no-time",
                f"The name of {path.name} has the form of the pattern, but {written!r} is not a time.",
                "Nothing was written; rename the file or move it away.",
            ) from None
        yield at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC), path


def _form(pattern: str) -> tuple[str, list[str]]:
    """The regular expression for paths that match a pattern, and the form of each time in them.

    Each time has a group. The first star matches as much as it can, then the next star.
    """
    expression, place, forms = r"(?s)\A", 0, []
    for part in _PARTS.finditer(pattern):
        expression += re.escape(pattern[place : part.start()])
        place = part.end()
        if time := _AT.fullmatch(part[0]):
            forms.append(time[1])
            expression += f"(?P<time_{len(forms)}>{_form_pattern(time[1])})"
        elif part[0].startswith("["):  # the name of a folder may have brackets
            expression += f"(?:{re.escape(part[0])}|{_letter_pattern(part[0])})"
        else:
            expression += "(?:.*/)?" if part[0].endswith("/") else _WILD.get(part[0], ".*")
    return rf"{expression}{re.escape(pattern[place:])}\z", forms


def _letter_pattern(brackets: str) -> str:
    """The regular expression for a letter that brackets allow, such as `[a-z]` or `[!x]`."""
    ranges = re.sub("(.)-(.)", lambda ends: "-".join(sorted(ends.groups())), brackets[1:-1].removeprefix("!"))
    letters = re.sub(r"[\[\]^\\]", r"\\\g<0>", ranges)
    return f"[^/{letters}]" if brackets[1] == "!" else f"[{letters}]"


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
