"""The files of a declaration: the time that each is a copy of, and which were taken before."""

import glob
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from backstory.doors.native.request import TABLE, names_files
from backstory.errors import Failed, Refused, UsageError
from backstory.formats.source_files import source_files
from backstory.model.instant import parse_instant
from backstory.model.table import TableName

OF_FILE, OF_TRANSACTION = "file", "transaction"
_AT: Final = re.compile(r"\{at:([^{}]+)\}")
_NAME: Final = re.compile(r"(?<!\$)\{(table|schema)\}")
# How the directives of a time look in a file's name.
_DIRECTIVES: Final = {
    "%Y": r"\d{4}",
    **dict.fromkeys(("%m", "%d", "%H", "%M", "%S", "%y"), r"\d{2}"),
    "%f": r"\d{1,6}",
    "%j": r"\d{3}",
    "%z": r"(?:Z|[+-]\d{2}:?\d{2})",
    **dict.fromkeys(("%b", "%B"), r"[^\W\d_]+"),
    "%%": "%",
}
_GLOBS: Final = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
_PARTS: Final = re.compile(r"\{at:[^{}]+\}|\*\*|\*|\?")


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """Where the times of copies come from.

    `fixed`: the option says it, or it is now. Else `pattern` finds it in the path of each file, or, without
    one, it is that of the file. `each`: every file is a delivery of its own, and taken once.
    """

    fixed: bool = True
    pattern: str | None = None
    each: bool = False


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file, the time that it is a copy of (UTC; None for a feed), and a mark that no other file has."""

    path: Path
    at: datetime | None
    mark: str


def expand(text: str, table: TableName) -> str:
    """A text with the parts of the table's name in the place of `{table}` and `{schema}`."""
    parts = {"table": table.name, "schema": table.schema}
    return _NAME.sub(lambda match: parts[match[1]], text)


def times_of_copies(source: str, at: str, kind: str) -> CopyTimes:
    """Where the times come from by what `source` and `at` say; UsageError for what fits none of the ways."""
    files = names_files(source)
    pattern = source if _AT.search(source) else at if _AT.search(at) else None
    if kind == "apply":
        if at or pattern:
            raise _wrong("A feed has no `at`: its changes have times of their own.", "Leave it out.")
        return CopyTimes(each=files)
    if pattern is not None or at == OF_FILE:
        if not files:
            raise _wrong("Times of files are for sources of files.", "Leave out `at`.")
        if pattern is not None:
            _regular(pattern)
        return CopyTimes(fixed=False, pattern=pattern, each=True)
    if at == OF_TRANSACTION:
        if files or source.startswith(TABLE):
            raise _wrong("This source has no transaction.", "Leave out `at`, or write `at: file`.")
        return CopyTimes(fixed=False)
    if at:
        parse_instant(at)
    return CopyTimes()


def copies(source: str, times: CopyTimes, folder: Path) -> list[FileCopy]:
    """The files of a source, in the order of their times, or names; each of one that they are `each` of.

    None where no file is there. Raises Refused for a name that has the form of the pattern and no time, and
    what `source_files` raises.
    """
    if times.pattern is not None:
        listed = sorted(_in_time(folder, source, times.pattern))
        return [FileCopy(path, at, _mark(path, folder)) for at, path in listed]
    try:
        paths = [each.path for each in source_files(str(folder / source), "csv").files]
    except Failed:
        return []
    if times.fixed:
        return [FileCopy(path, None, _mark(path, folder)) for path in paths]
    timed = sorted((datetime.fromtimestamp(path.stat().st_mtime, UTC), path) for path in paths)
    return [FileCopy(path, at, _mark(path, folder)) for at, path in timed]


def not_taken(all_copies: Sequence[FileCopy], taken: Collection[str]) -> list[FileCopy]:
    """Those whose marks are not among the taken ones."""
    return [each for each in all_copies if each.mark not in taken]


def _mark(path: Path, folder: Path) -> str:
    """What a file is called, its size and when it was written: another one is another file."""
    told = path.stat()
    name = path.relative_to(folder) if path.is_relative_to(folder) else path
    return json.dumps([str(name), told.st_size, told.st_mtime_ns])


def _in_time(folder: Path, source: str, pattern: str) -> Iterator[tuple[datetime, Path]]:
    """The files of a source whose paths fit the pattern, and their times."""
    whole = "/" in pattern
    form, time_form = _regular(str(folder / pattern) if whole else pattern)
    named = os.path.join(glob.escape(str(folder)), _AT.sub("*", source))  # noqa: PTH118 - a pattern
    named = f"{named}/*" if Path(named).is_dir() else named
    for path in map(Path, sorted(glob.glob(named, recursive=True))):  # noqa: PTH207 - of a whole path
        match = form.fullmatch(str(path) if whole else path.name)
        if match is None or not path.is_file():
            continue
        written = "\n".join(match.groups())
        try:
            at = datetime.strptime(written, "\n".join(time_form))  # noqa: DTZ007 - UTC by the contract
        except ValueError:
            raise Refused(
                "no-time",
                f"The name of {path.name} has the form of the pattern, but {written!r} is not a time.",
                "Nothing was written; rename the file or move it away.",
            ) from None
        yield at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC), path


def _regular(pattern: str) -> tuple[re.Pattern[str], list[str]]:
    """What paths of a pattern look like, and the form of the time in each of its places."""
    text, place, forms = "", 0, []
    for part in _PARTS.finditer(pattern):
        text += re.escape(pattern[place : part.start()])
        place = part.end()
        if part[0] in _GLOBS:
            text += _GLOBS[part[0]]
            continue
        forms.append(_AT.fullmatch(part[0])[1])  # type: ignore[index]
        text += f"({_of_form(forms[-1])})"
    return re.compile(text + re.escape(pattern[place:])), forms


def _of_form(form: str) -> str:
    """What a time of this form looks like; UsageError for a directive that is not read."""
    words = re.split(r"(%.)", form)
    if unknown := [each for each in words[1::2] if each not in _DIRECTIVES]:
        raise _wrong(f"{unknown[0]} has no meaning in a time.", f"Parts are {' '.join(_DIRECTIVES)}.")
    if len(words) == 1:
        raise _wrong(f"{{at:{form}}} does not have a part of a time.", "Write {at:%Y-%m-%d}.")
    return "".join(_DIRECTIVES.get(each, re.escape(each)) for each in words)


def _wrong(message: str, remedy: str) -> UsageError:
    return UsageError("bad-option", message, remedy)
