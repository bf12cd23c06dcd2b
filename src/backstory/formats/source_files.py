"""The files for a source or a glob, with their format and unpacked content (section 2 of the interface).

Zip archives are unpacked by entry (section 1.5, D26).
"""

import errno
import gzip
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal
from uuid import uuid4

from backstory.errors import Failed, Refused, TryAgain, UsageError
from backstory.formats.batch_file import Stamp, refuse_changes, stamp_of
from backstory.formats.globs import WILD, files_of_pattern, is_regular_file
from backstory.formats.memory import Bound, bound_of

SHOWN = 20
# The folder of metadata that macOS adds to a zip; never a data file.
_SHADOWS = "__MACOSX/"
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)
# A decompressor's errors have no errno. A wrong offset in the archive makes a seek fail with EINVAL.
_OF_THE_ARCHIVE = (None, errno.EINVAL)
_ADDRESS: Final = re.compile(r"\w[\w+.-]*://")


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
    """The only entry that matches `subPath`, by default the first entry.

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
    ".arrow .arrows .feather .ipc": (
        "Read the files with pyarrow, and pass the table in Python; or write them as Parquet."
    ),
}
_SHOWN: Final = 5
_ICEBERG: Final = "Iceberg"
# Spark's folder for the files of a job that has not ended.
_TEMPORARY: Final = "_temporary"


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
    source that exist. `~` is the user's home. Files in a folder are skipped if their names begin with `_` or
    `.`.

    Raises Failed if there is no file. Raises UsageError for an address, for an unknown format, for several
    formats, and for a folder that contains folders. Raises Refused for files of a lake table, and for a link
    whose target does not exist. Raises TryAgain while Spark writes the files.
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


def expand_home(source: str) -> str:
    """The path, with the user's home in place of a leading `~`."""
    return os.path.expanduser(source)  # noqa: PTH111 - unknown users are no error


def refuse_address(source: str) -> None:
    """Raise UsageError if a source of files is an address, such as `s3://bucket/customers.csv`."""
    if _ADDRESS.match(source):
        raise UsageError(
            "unsupported-source",
            f"{source.partition(':')[0]}: begins an address, but only files of this machine are read.",
            "Copy the files to this machine, or read them with Spark and pass the DataFrame in Python.",
        )


def _paths(source: str, folder: Path) -> list[Path]:
    path = folder / source
    if not path.exists():
        source = expand_home(source)
        path = folder / source
    if path.is_file():
        return [path]
    if path.is_dir():
        inside = [entry for entry in sorted(path.iterdir()) if entry.name[0] not in "_."]
        _refuse_managed(path)
        paths = [entry for entry in inside if is_regular_file(entry)]
        if within := [entry.name for entry in inside if entry.is_dir()]:
            raise UsageError(
                "nested-folder",
                f"The folder {source} contains folders: {', '.join(within[:_SHOWN])}.",
                _glob_instead(source, path, partitions=any("=" in name for name in within)),
            )
        if not paths:
            raise Failed("not-found", f"The folder {source} has no files.", "Check the path.")
        return paths
    refuse_address(source)
    if not WILD.search(source):
        raise Failed("not-found", f"There is no file {source}.", "Check the path.")
    paths = files_of_pattern(source, folder)
    if not paths:
        raise Failed("not-found", f"No file matches {source}.", "Check the path.")
    places = {path.parent for path in paths}
    if _TEMPORARY not in path.parts:  # otherwise the source itself names that folder
        places |= {above.parent for place in places for above in place.parents if above.name == _TEMPORARY}
    for place in sorted(places):
        _refuse_managed(place)
    return paths


def _refuse_managed(folder: Path) -> None:
    """Raise an error if other software decides which files in a folder count.

    For a folder of a partition, this also judges the folders above it, up to the table's own folder.
    """
    while True:
        if (folder / _TEMPORARY).is_dir():
            raise TryAgain(
                "source-changed",
                f"The folder {folder} has the folder `_temporary`: Spark has not finished writing it.",
                "Wait for the job; if it has failed, repeat it or remove `_temporary`.",
            )
        if kind := _table_kind(folder):
            raise Refused(
                "unsupported-source",
                f"The folder {folder} is a table of {kind}; some of its files may have been deleted from it.",
                "Read it with Spark and pass the DataFrame in Python; for a table of the warehouse, use "
                "`table:NAME`."
                if kind == _ICEBERG
                else "Read it with Spark, and pass the DataFrame in Python.",
            )
        if "=" not in folder.name and folder.name != "data":
            return
        folder = folder.parent


def _table_kind(folder: Path) -> str | None:
    """The format of the lake table in a folder, or None if the folder has plain files."""
    if (folder / "_delta_log").is_dir():
        return "Delta Lake"
    if (folder / ".hoodie").is_dir():
        return "Hudi"
    metadata = (folder / "metadata").glob("*.metadata.json")
    return _ICEBERG if (folder / "data").is_dir() and any(metadata) else None


def _format_of(path: Path) -> FileFormat | None:
    endings = [ending.lower() for ending in path.suffixes]
    while endings and endings[-1] in _PACKED:
        endings.pop()
    return _ENDINGS.get(endings[-1]) if endings else None


def unpack(file: SourceFile, folder: Path) -> SourceFile:
    """The file, extracted into the folder if it is an archive.

    Raises Refused for a broken archive or a decompression bomb.
    """
    ending = file.path.suffix.lower()
    if ending not in _PACKED:
        return file
    target = folder / uuid4().hex  # files in different folders may share a name
    with refuse_changes(file.stamp):  # an archive that is still being written is not broken
        if ending == ".gz":
            try:
                with gzip.open(file.path) as packed:
                    bound_of(file.path).copy(packed, target, file.name)
            except (gzip.BadGzipFile, EOFError, zlib.error) as stop:
                raise _broken_archive(file.name, f"not a complete gzip file ({stop})") from None
        else:
            with open_zip(file.path, file.name) as archive:
                entries = zip_files(archive)
                if len(entries) != 1:
                    what = f"a zip with {name_list(entries) or 'no file'}, not one file"
                    raise _broken_archive(file.name, what)
                extract(archive, entries[0], target, file.name, bound_of(file.path))
    return replace(file, path=target)


def _broken_archive(name: str, what: str) -> Refused:
    return Refused("broken-archive", f"{name} is {what}.", "Nothing was written; fix the file.")
