"""The files for a source or a glob, with their format and unpacked content (section 2 of the interface).

Zip archives are unpacked by entry (section 1.5, D26). The time to match a path depends on the lengths of
pattern and path, not on the number of stars.
"""

import errno
import fnmatch
import gzip
import lzma
import re
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Final, Literal
from uuid import uuid4

from backstory.errors import Failed, Refused, UsageError
from backstory.formats.batch_file import Stamp, require_unchanged, stamp_of
from backstory.formats.memory import Bound, bound_of

SHOWN = 20
# The folder of metadata that macOS adds to a zip; never a data file.
_SHADOWS = "__MACOSX/"
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)
# A decompressor's errors have no errno. A wrong offset in the archive makes a seek fail with EINVAL.
_OF_THE_ARCHIVE = (None, errno.EINVAL)


@contextmanager
def open_zip(path: Path, name: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip file. Raises Refused (`broken-archive`) if it cannot be read or is encrypted."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (*_BROKEN, OSError) as stop:
        if isinstance(stop, OSError) and stop.errno not in _OF_THE_ARCHIVE:
            raise
        raise broken_archive(name, f"a zip that can be read ({stop})") from None


def zip_files(archive: zipfile.ZipFile) -> list[str]:
    """The names of all entries that are files, in the archive's order."""
    return [
        entry.filename
        for entry in archive.infolist()
        if not entry.is_dir() and not entry.filename.startswith(_SHADOWS)
    ]


def matching(names: Sequence[str], pattern: str) -> list[str]:
    """The entry with exactly this name, or else all entries that match the glob. `*` also matches `/`."""
    exact = [name for name in names if name == pattern]
    return exact or [name for name in names if fnmatchcase(name, pattern)]


def choose_entry(archive: zipfile.ZipFile, name: str, sub_path: str | None) -> str:
    """The only entry that matches `subPath`, or the first entry if `subPath` is None.

    Raises Refused if no entry or several entries match.
    """
    entries = zip_files(archive)
    if not entries:
        raise broken_archive(name, "an archive with a file in it")
    if sub_path is None:
        return entries[0]
    matches = matching(entries, sub_path)
    if len(matches) != 1:
        raise ambiguous(name, f"subPath `{sub_path}`", matches, entries)
    return matches[0]


def extract(archive: zipfile.ZipFile, entry: str, target: Path, name: str, bound: Bound) -> None:
    """Write the entry's bytes to `target`. The entry's own path is ignored."""
    with archive.open(entry) as packed:
        bound.copy(packed, target, f"{name}/{entry}")


def ambiguous(name: str, wanted: str, matches: Sequence[str], entries: Sequence[str]) -> Refused:
    """The error if no entry or several entries match. It lists the entries."""
    message = f"{name}: {wanted} matches {len(matches)} entries: {name_list(matches)}."
    if not matches:
        message = f"{name}: {wanted} matches no entry; the archive contains {name_list(entries)}."
    return Refused("no-entry", message, "Let `subPath` name exactly one entry.", list(matches))


def name_list(names: Sequence[str]) -> str:
    """The names for a message, shortened to the first twenty."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:SHOWN]) + more


def broken_archive(name: str, wanted: str) -> Refused:
    """The error for bytes that are not the expected archive."""
    return Refused(
        "broken-archive",
        f"{name} is not {wanted}.",
        "Nothing was written; fix the file at its source, or `prepare` in the manifest.",
    )


WILD: Final = re.compile(r"[*?\[]")
ANY_FOLDERS: Final = "**"


def files_of_pattern(pattern: str, folder: Path = Path()) -> list[Path]:
    """The files that match a glob pattern, sorted by path.

    Only a pattern with a leading dot matches hidden files. A relative pattern begins in the folder. The
    folder's name is taken literally. The pattern's leading folders are also taken literally if they exist.
    `**` matches each folder below once, even if several links lead to it.
    """
    place = Path(Path(pattern).anchor) if Path(pattern).is_absolute() else folder
    *parts, last = _collapse_stars((place / pattern).parts[len(place.parts) :])
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    if last == ANY_FOLDERS:
        parts, last = [*parts, last], "*"
    folders = [place]
    for part in parts:
        folders = _once(inner for folder in folders for inner in _folders_of(folder, part))
    files = {path for folder in folders for path in _entries(folder, last) if path.is_file()}
    return sorted(files, key=str)


def _collapse_stars(parts: Iterable[str]) -> list[str]:
    """The parts of a pattern, with consecutive `**` collapsed into one."""
    groups = ((part, [*same]) for part, same in groupby(parts))
    return [part for name, same in groups for part in ([name] if name == ANY_FOLDERS else same)]


def _folders_of(folder: Path, part: str) -> Iterator[Path]:
    if part == ANY_FOLDERS:
        yield from _below(folder)
        return
    yield from (path for path in _entries(folder, part) if path.is_dir())


def _below(folder: Path) -> Iterator[Path]:
    """A folder and all visible folders below it, each once. Linked folders are last."""
    seen: set[Path] = set()
    waiting, links = [folder], list[Path]()
    while waiting or links:
        place = waiting.pop(0) if waiting else links.pop(0)
        if place.resolve() in seen:
            continue
        seen.add(place.resolve())
        yield place
        for path in _entries(place, "*"):
            if path.is_dir():
                (links if path.is_symlink() else waiting).append(path)


def _entries(folder: Path, part: str) -> list[Path]:
    """The entries of a folder that match one part of a pattern, sorted."""
    if not WILD.search(part):
        return [folder / part] if (folder / part).exists() else []
    hidden = part.startswith(".")
    try:
        names = [path.name for path in folder.iterdir() if hidden or not path.name.startswith(".")]
    except OSError:  # an unreadable folder counts as empty, as in a shell
        return []
    return sorted(folder / name for name in fnmatch.filter(names, part))


def _once(folders: Iterable[Path]) -> list[Path]:
    """Each folder once, under its own path instead of the path of a link."""
    by_target: dict[Path, Path] = {}
    for folder in folders:
        target = folder.resolve()
        if target not in by_target or (by_target[target].is_symlink() and not folder.is_symlink()):
            by_target[target] = folder
    return [*by_target.values()]


@dataclass(frozen=True, slots=True)
class Stars:
    """A part of a path pattern that matches any characters, except slashes unless `folders` is set."""

    folders: bool


@dataclass(frozen=True, slots=True)
class Written:
    """A part of a path pattern, whose matched text `written_in` returns."""

    pattern: re.Pattern[str]


# A string matches itself, and None matches one character of a name.
Piece = str | Stars | Written | None


def written_in(pieces: Sequence[Piece], path: str) -> list[str] | None:
    """The strings that match the `Written` pieces, in order, or None if the path does not match.

    If several matches exist, the first star matches as much as it can, then the next star.
    """
    fits: list[set[int]] = [set() for _ in pieces] + [{len(path)}]
    for number in reversed(range(len(pieces))):
        after = fits[number + 1]
        fits[number] = {
            place
            for place in range(len(path) + 1)
            if any(end in after for end in _ends(pieces[number], path, place))
        }
    if 0 not in fits[0]:
        return None
    place, texts = 0, []
    for piece, after in zip(pieces, fits[1:], strict=True):
        end = next(end for end in _ends(piece, path, place) if end in after)
        if isinstance(piece, Written):
            texts.append(path[place:end])
        place = end
    return texts


def _ends(piece: Piece, path: str, place: int) -> Iterable[int]:
    """The possible ends of a piece that begins at `place`, the furthest end first."""
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
# Endings of formats that are not read, with their remedies.
_OTHER_ENDINGS: Final = {
    ".bz2 .xz .zst .lz4 .snappy .7z .tar .tgz": "Unpack the file, or pack it with gzip or zip.",
    ".xls .xlsx .xlsm .ods": "Export the sheet as CSV.",
    ".orc .avro": "Read the files with Spark, and pass the DataFrame in Python; or write them as Parquet.",
}
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read, with its `name` in messages. `stamp` is the state of the delivered file."""

    path: Path
    name: str
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files of a source, all of one format, sorted by name."""

    files: Sequence[SourceFile]
    format: FileFormat


def source_files(source: str, format_: FileFormat | None = None, folder: Path = Path()) -> SourceFiles:
    """The file that a source names, the files that match a glob, or the files in a folder.

    A relative source begins in `folder`. The folder's name is taken literally, as are leading folders of the
    source that exist. Files in a folder are skipped if their names begin with `_` or `.`.

    Raises Failed if there is no file. Raises UsageError for an unknown format, for several formats, and for a
    folder that contains folders.
    """
    paths = _paths(source, folder)
    formats = {path: format_ or _format_of(path) for path in paths}
    if unknown := [path.name for path, ending in formats.items() if ending is None]:
        raise UsageError(
            "unknown-format",
            f"The ending of {', '.join(unknown[:_SHOWN])} does not show the format.",
            _readable_instead(
                {ending for path, of in formats.items() if of is None for ending in path.suffixes}
            ),
        )
    kinds = {ending for ending in formats.values() if ending is not None}
    if len(kinds) > 1:
        raise UsageError(
            "mixed-formats",
            f"The source has files of several formats: {', '.join(sorted(kinds))}.",
            "Use a glob that matches the files of one format.",
        )
    return SourceFiles([SourceFile(path, path.name, stamp_of(path)) for path in paths], kinds.pop())


def _readable_instead(endings: Collection[str]) -> str:
    """The remedy for files of an unknown format, chosen by their endings."""
    known = {ending.lower() for ending in endings}
    for others, remedy in _OTHER_ENDINGS.items():
        if not known.isdisjoint(others.split()):
            return remedy
    return "Use `format=` with csv, parquet, jsonl or json; or name the files with a glob."


def _glob_instead(source: str, folder: Path, *, partitions: bool) -> str:
    """The remedy for a folder that contains folders: a glob that matches its files."""
    endings = (path.suffix.lower() for path in folder.rglob("*"))
    ending = next((ending for ending in endings if ending in _ENDINGS), ".csv")
    glob = f"Use a glob, such as '{source.rstrip('/')}/**/*{ending}'."
    # Spark and others write the values of partition columns only into the names of folders.
    frame = "The values in the names of folders are no columns of files; a DataFrame of Spark has them."
    return f"{glob} {frame}" if partitions else glob


def _paths(source: str, folder: Path) -> list[Path]:
    path = folder / source
    if path.is_file():
        return [path]
    if path.is_dir():
        inside = [entry for entry in sorted(path.iterdir()) if entry.name[0] not in "_."]
        if within := [entry.name for entry in inside if entry.is_dir()]:
            raise UsageError(
                "nested-folder",
                f"The folder {source} contains folders: {', '.join(within[:_SHOWN])}.",
                _glob_instead(source, path, partitions=any("=" in name for name in within)),
            )
        paths = [entry for entry in inside if entry.is_file()]
        if not paths:
            raise Failed("not-found", f"The folder {source} has no files.", "Check the path.")
        return paths
    if not WILD.search(source):
        raise Failed("not-found", f"There is no file {source}.", "Check the path.")
    paths = files_of_pattern(source, folder)
    if not paths:
        raise Failed("not-found", f"No file matches {source}.", "Check the path.")
    return paths


def _format_of(path: Path) -> FileFormat | None:
    endings = [ending.lower() for ending in path.suffixes]
    while endings and endings[-1] in _PACKED:
        endings.pop()
    return _ENDINGS.get(endings[-1]) if endings else None


def unpack(file: SourceFile, folder: Path) -> SourceFile:
    """The file, extracted into the folder if it is an archive.

    Raises Refused for a broken archive or a decompression bomb.
    """
    try:
        return _unpack_file(file, folder)
    except Refused:
        require_unchanged([file.stamp])  # an archive that is still being written is not broken
        raise


def _unpack_file(file: SourceFile, folder: Path) -> SourceFile:
    ending = file.path.suffix.lower()
    target = folder / uuid4().hex  # files in different folders may share a name
    if ending == ".gz":
        try:
            with gzip.open(file.path) as packed:
                bound_of(file.path).copy(packed, target, file.name)
        except (gzip.BadGzipFile, EOFError, zlib.error) as stop:
            raise _broken_archive(file.name, f"not a complete gzip file ({stop})") from None
    elif ending == ".zip":
        with open_zip(file.path, file.name) as archive:
            entries = zip_files(archive)
            if len(entries) != 1:
                raise _broken_archive(
                    file.name, f"a zip with {name_list(entries) or 'no file'}, not one file"
                )
            extract(archive, entries[0], target, file.name, bound_of(file.path))
    else:
        return file
    return replace(file, path=target)


def _broken_archive(name: str, what: str) -> Refused:
    return Refused("broken-archive", f"{name} is {what}.", "Nothing was written; fix the file.")
