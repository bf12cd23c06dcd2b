"""Entries of zip archives: choice by the manifest's `subPath`, and extraction (section 1.5, D26)."""

import errno
import lzma
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from backstory.errors import Refused
from backstory.formats.wrapping.room import Bound

SHOWN = 20
# The folder of metadata that macOS adds to a zip; never a data file.
_SHADOWS = "__MACOSX/"
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)
# A decompressor's errors have no errno. A wrong offset in the archive makes a seek fail with EINVAL.
_OF_THE_ARCHIVE = (None, errno.EINVAL)


@contextmanager
def open_zip(path: Path, name: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip file.

    Raises Refused (`broken-archive`) if it is not a zip, is broken or encrypted, or uses an unknown method.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (*_BROKEN, OSError) as stop:
        if isinstance(stop, OSError) and stop.errno not in _OF_THE_ARCHIVE:
            raise
        raise broken_archive(name, f"a zip that can be read ({stop})") from None


def files(archive: zipfile.ZipFile) -> list[str]:
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
    """The only entry that matches `subPath`, or the first entry if there is none.

    Raises Refused unless exactly one entry matches.
    """
    entries = files(archive)
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
    """The error if no entry or several entries match. It lists them."""
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
