"""The entries of a zip: which one a manifest means, and its bytes (section 1.5, D26)."""

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
# What a Mac adds to a zip beside each file; never what anybody means.
_SHADOWS = "__MACOSX/"
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)
# A decompressor's errors have no number, and a wrong offset in the archive is a seek to nowhere.
_OF_THE_ARCHIVE = (None, errno.EINVAL)


@contextmanager
def open_zip(path: Path, name: str) -> Iterator[zipfile.ZipFile]:
    """The zip; Refused `broken-archive` if it is none, is broken, locked or of an unknown method."""
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
    """The entry of exactly this name, else all that the glob fits; `*` fits `/` too."""
    exact = [name for name in names if name == pattern]
    return exact or [name for name in names if fnmatchcase(name, pattern)]


def choose_entry(archive: zipfile.ZipFile, name: str, sub_path: str | None) -> str:
    """The entry that `subPath` names, without one the first; Refused unless it is exactly one."""
    entries = files(archive)
    if not entries:
        raise broken_archive(name, "an archive with a file in it")
    if sub_path is None:
        return entries[0]
    found = matching(entries, sub_path)
    if len(found) != 1:
        raise ambiguous(name, f"subPath `{sub_path}`", found, entries)
    return found[0]


def extract(archive: zipfile.ZipFile, entry: str, target: Path, name: str, bound: Bound) -> None:
    """Write the entry's bytes to `target`: where they come to lie is ours to say, not the archive's."""
    with archive.open(entry) as packed:
        bound.copy(packed, target, f"{name}/{entry}")


def ambiguous(name: str, wanted: str, found: Sequence[str], entries: Sequence[str]) -> Refused:
    """The error for no entry where one is wanted, or for several; it lists them."""
    told = f"{name}: {wanted} matches {len(found)} entries: {name_list(found)}."
    if not found:
        told = f"{name}: {wanted} matches no entry; the archive holds {name_list(entries)}."
    return Refused("no-entry", told, "Let `subPath` name exactly one entry.", list(found))


def name_list(names: Sequence[str]) -> str:
    """The names for a message, the first twenty of them."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:SHOWN]) + more


def broken_archive(name: str, wanted: str) -> Refused:
    """The error for bytes that are not the archive they should be."""
    return Refused(
        "broken-archive",
        f"{name} is not {wanted}.",
        "Nothing was written; fix the file at its source, or `prepare` in the manifest.",
    )
