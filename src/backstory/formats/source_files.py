"""Which files a source names, and of which format they are (section 2 of the interface)."""

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal
from uuid import uuid4

from backstory.errors import Failed, Refused, UsageError
from backstory.formats.file_patterns import WILD, files_of_pattern
from backstory.formats.unchanged import Stamp, require_unchanged, stamp_of
from backstory.formats.wrapping import archives
from backstory.formats.wrapping.room import bound_of

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


def unpacked(file: SourceFile, folder: Path) -> SourceFile:
    """The file to read; what is unpacked lies in the folder. Refused for a broken archive, or a bomb."""
    try:
        return _unpacked(file, folder)
    except Refused:
        require_unchanged([file.stamp])  # an archive that is written just now is not broken
        raise


def _unpacked(file: SourceFile, folder: Path) -> SourceFile:
    ending = file.path.suffix.lower()
    target = folder / uuid4().hex  # files of several folders may have one name
    if ending == ".gz":
        try:
            with gzip.open(file.path) as packed:
                bound_of(file.path).copy(packed, target, file.name)
        except (gzip.BadGzipFile, EOFError, zlib.error) as stop:
            raise _broken(file.name, f"not a complete gzip file ({stop})") from None
    elif ending == ".zip":
        with archives.opened(file.path, file.name) as archive:
            entries = archives.files(archive)
            if len(entries) != 1:
                raise _broken(file.name, f"a zip with {archives.listed(entries) or 'no file'}, not one file")
            archives.extract(archive, entries[0], target, file.name, bound_of(file.path))
    else:
        return file
    return replace(file, path=target)


def _broken(name: str, what: str) -> Refused:
    return Refused("broken-archive", f"{name} is {what}.", "Nothing was written; fix the file.")
