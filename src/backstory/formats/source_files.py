"""Which files a source names, and of which format they are (section 2 of the interface).

Which files of this machine a pattern means, and whether a path has the form of one.

Both take a time that is bounded by the lengths of pattern and path, however many stars there are.
"""

import fnmatch
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Final, Literal
from uuid import uuid4

from backstory.errors import Failed, Refused, UsageError
from backstory.formats.unchanged import Stamp, require_unchanged, stamp_of
from backstory.formats.wrapping import archives
from backstory.formats.wrapping.room import bound_of

WILD: Final = re.compile(r"[*?\[]")
ANY_FOLDERS: Final = "**"


def files_of_pattern(pattern: str, folder: Path = Path()) -> list[Path]:
    """The files that match, in the order of their paths; those of a leading dot are matched by a dot alone.

    A relative pattern begins in the folder, whose own name is no pattern; nor are the first folders of a
    pattern that are there as they are written. `**` is each folder below, once, whatever links lead to it.
    """
    place = Path(Path(pattern).anchor) if Path(pattern).is_absolute() else folder
    *parts, last = _collapse_stars((place / pattern).parts[len(place.parts) :])
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    if last == ANY_FOLDERS:
        parts, last = [*parts, last], "*"
    folders = [place]
    for part in parts:
        folders = _once(each for one in folders for each in _folders_of(one, part))
    files = {each for one in folders for each in _entries(one, last) if each.is_file()}
    return sorted(files, key=str)


def _collapse_stars(parts: Iterable[str]) -> list[str]:
    """The parts, of several `**` that follow each other one."""
    groups = ((part, [*same]) for part, same in groupby(parts))
    return [part for name, same in groups for part in ([name] if name == ANY_FOLDERS else same)]


def _folders_of(folder: Path, part: str) -> Iterator[Path]:
    if part == ANY_FOLDERS:
        yield from _below(folder)
        return
    yield from (each for each in _entries(folder, part) if each.is_dir())


def _below(folder: Path) -> Iterator[Path]:
    """A folder and those in it, none of them hidden; each once, before those to which links lead."""
    seen: set[Path] = set()
    waiting, links = [folder], list[Path]()
    while waiting or links:
        place = waiting.pop(0) if waiting else links.pop(0)
        if place.resolve() in seen:
            continue
        seen.add(place.resolve())
        yield place
        for each in _entries(place, "*"):
            if each.is_dir():
                (links if each.is_symlink() else waiting).append(each)


def _entries(folder: Path, part: str) -> list[Path]:
    """What a folder has that matches a part of a pattern, in order."""
    if not WILD.search(part):
        return [folder / part] if (folder / part).exists() else []
    hidden = part.startswith(".")
    try:
        names = [each.name for each in folder.iterdir() if hidden or not each.name.startswith(".")]
    except OSError:  # one that may not be read has nothing, as for a shell
        return []
    return sorted(folder / name for name in fnmatch.filter(names, part))


def _once(folders: Iterable[Path]) -> list[Path]:
    """Each folder once, under its own path rather than by a link."""
    found: dict[Path, Path] = {}
    for each in folders:
        real = each.resolve()
        if real not in found or (found[real].is_symlink() and not each.is_symlink()):
            found[real] = each
    return [*found.values()]


@dataclass(frozen=True, slots=True)
class Stars:
    """A part of a form for any letters; without `folders` those of one name."""

    folders: bool


@dataclass(frozen=True, slots=True)
class Written:
    """A part of a form whose text is asked for."""

    pattern: re.Pattern[str]


# A text stands for itself, None for a letter of a name.
Piece = str | Stars | Written | None


def written_in(pieces: Sequence[Piece], path: str) -> list[str] | None:
    """The texts of the pieces that are `Written`, in their order; None for a path of another form.

    Where several texts fit, stars take as much as they can, the first one first.
    """
    fits: list[set[int]] = [set() for _ in pieces] + [{len(path)}]
    for number in reversed(range(len(pieces))):
        after = fits[number + 1]
        fits[number] = {
            place
            for place in range(len(path) + 1)
            if any(e in after for e in _ends(pieces[number], path, place))
        }
    if 0 not in fits[0]:
        return None
    place, texts = 0, []
    for piece, after in zip(pieces, fits[1:], strict=True):
        end = next(each for each in _ends(piece, path, place) if each in after)
        if isinstance(piece, Written):
            texts.append(path[place:end])
        place = end
    return texts


def _ends(piece: Piece, path: str, place: int) -> Iterable[int]:
    """Where a piece can end that begins at a place, the furthest first."""
    if isinstance(piece, str):
        return [place + len(piece)] if path.startswith(piece, place) else []
    if isinstance(piece, Written):
        longest = range(len(path), place - 1, -1)
        return (end for end in longest if piece.pattern.fullmatch(path, place, end))
    slash = path.find("/", place)
    limit = len(path) if slash < 0 else slash
    if piece is None:
        return [place + 1] if place < limit else []
    return range(len(path) if piece.folders else limit, place - 1, -1)


FileFormat = Literal["csv", "parquet", "jsonl", "json"]
_ENDINGS: Final[dict[str, FileFormat]] = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
}
_PACKED: Final = (".gz", ".zip")
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read; `name` is what messages call it, `stamp` is of the file that was delivered."""

    path: Path
    name: str
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files of a source, all of one format, in the order of their names."""

    files: Sequence[SourceFile]
    format: FileFormat


def source_files(source: str, format_: FileFormat | None = None, folder: Path = Path()) -> SourceFiles:
    """The file that a source names, those that a glob fits, or those in a folder.

    A relative source begins in `folder`, whose name is no pattern; nor are folders that are there as written.

    Files in a folder whose names begin with `_` or `.` are passed over. Raises Failed if there are none, and
    UsageError for files of no known format or of several, and for a folder with folders in it.
    """
    paths = _paths(source, folder)
    formats = {path: format_ or _format_of(path) for path in paths}
    if unknown := [path.name for path, found in formats.items() if found is None]:
        raise UsageError(
            "unknown-format",
            f"The ending of {', '.join(unknown[:_SHOWN])} does not show the format.",
            "Use `format=` with csv, parquet, jsonl or json; or name the files with a glob.",
        )
    kinds = {found for found in formats.values() if found is not None}
    if len(kinds) > 1:
        raise UsageError(
            "mixed-formats",
            f"The source has files of several formats: {', '.join(sorted(kinds))}.",
            "Use a glob that matches the files of one format.",
        )
    return SourceFiles([SourceFile(path, path.name, stamp_of(path)) for path in paths], kinds.pop())


def _paths(source: str, folder: Path) -> list[Path]:
    path = folder / source
    if path.is_file():
        return [path]
    if path.is_dir():
        inside = [each for each in sorted(path.iterdir()) if each.name[0] not in "_."]
        if within := [each.name for each in inside if each.is_dir()]:
            raise UsageError(
                "nested-folder",
                f"The folder {source} contains folders: {', '.join(within[:_SHOWN])}.",
                "Use a glob, such as 'folder/**/*.csv'.",
            )
        found, told = [each for each in inside if each.is_file()], f"The folder {source} has no files."
    elif WILD.search(source):
        found = files_of_pattern(source, folder)
        told = f"No file matches {source}."
    else:
        found, told = [], f"There is no file {source}."
    if not found:
        raise Failed("not-found", told, "Check the path.")
    return found


def _format_of(path: Path) -> FileFormat | None:
    endings = [ending.lower() for ending in path.suffixes]
    while endings and endings[-1] in _PACKED:
        endings.pop()
    return _ENDINGS.get(endings[-1]) if endings else None


def unpack(file: SourceFile, folder: Path) -> SourceFile:
    """The file to read; what is unpacked lies in the folder. Refused for a broken archive, or a bomb."""
    try:
        return _unpack_file(file, folder)
    except Refused:
        require_unchanged([file.stamp])  # an archive that is written just now is not broken
        raise


def _unpack_file(file: SourceFile, folder: Path) -> SourceFile:
    ending = file.path.suffix.lower()
    target = folder / uuid4().hex  # files of several folders may have one name
    if ending == ".gz":
        try:
            with gzip.open(file.path) as packed:
                bound_of(file.path).copy(packed, target, file.name)
        except (gzip.BadGzipFile, EOFError, zlib.error) as stop:
            raise _broken_archive(file.name, f"not a complete gzip file ({stop})") from None
    elif ending == ".zip":
        with archives.open_zip(file.path, file.name) as archive:
            entries = archives.files(archive)
            if len(entries) != 1:
                raise _broken_archive(
                    file.name, f"a zip with {archives.name_list(entries) or 'no file'}, not one file"
                )
            archives.extract(archive, entries[0], target, file.name, bound_of(file.path))
    else:
        return file
    return replace(file, path=target)


def _broken_archive(name: str, what: str) -> Refused:
    return Refused("broken-archive", f"{name} is {what}.", "Nothing was written; fix the file.")
