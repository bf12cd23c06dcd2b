"""Which files a glob means: each once, by whatever links it is reached, and none out of the glob's folder."""

import glob
import os
from collections.abc import Collection, Iterator
from itertools import dropwhile
from pathlib import Path

from backstory.errors import Refused

ANY_FOLDERS = "**"


def fixed(pattern: str) -> Path:
    """The folders that a glob names without wildcards."""
    *folders, _ = Path(pattern).parts
    wild = (number for number, part in enumerate(folders) if glob.has_magic(part))
    return Path(*folders[: next(wild, len(folders))])


def matching(folder: Path, pattern: str, known: Collection[str]) -> list[str]:
    """The files that match, as the glob spells them; those of a leading dot are only matched by a dot.

    A file that links reach in several ways is spelled as in `known`, else by its own path, else in the
    first of them. Raises Refused for a link that leads out of the folder that the glob names.
    """
    top = fixed(pattern)
    inside = (folder / top).resolve()
    found: dict[Path, list[str]] = {}
    for spelled in {Path(each).as_posix() for each in _spelled(folder, pattern, inside)}:
        if (folder / spelled).is_file():
            found.setdefault(_within(folder / spelled, inside), []).append(spelled)
    return [
        min(ways, key=lambda way: (way not in known, inside / Path(way).relative_to(top) != file, way))
        for file, ways in found.items()
    ]


def _spelled(folder: Path, pattern: str, inside: Path) -> Iterator[str]:
    """What a glob matches; `**` stands for each folder once, whatever links lead to it."""
    parts = Path(pattern).parts
    if ANY_FOLDERS not in parts:
        yield from glob.iglob(pattern, root_dir=folder)  # noqa: PTH207 - Path.glob shows hidden files
        return
    place = parts.index(ANY_FOLDERS)
    after = [*dropwhile(lambda part: part == ANY_FOLDERS, parts[place:])]  # several are as one
    rest = Path(*after) if after else Path("*")
    begun = Path(*parts[:place])
    for top in glob.iglob(str(begun), root_dir=folder) if begun.parts else ("",):  # noqa: PTH207
        for below in _folders(folder / top, inside):
            for each in _spelled(below, str(rest), inside):
                yield str(Path(top) / below.relative_to(folder / top) / each)


def _folders(top: Path, inside: Path) -> Iterator[Path]:
    """A folder and those in it, none of them hidden; each once, those by links after the others."""
    seen: set[Path] = set()
    links = [top]
    while links:
        first = links.pop(0)
        if not first.is_dir() or _within(first, inside) in seen:
            continue
        for place, names, _ in os.walk(first):
            seen.add(Path(place).resolve())
            yield Path(place)
            shown = sorted(name for name in names if not name.startswith("."))
            names[:] = [name for name in shown if Path(place, name).resolve() not in seen]
            links += [Path(place, name) for name in names if Path(place, name).is_symlink()]


def _within(path: Path, inside: Path) -> Path:
    """Where a path leads; Refused if that is out of the folder."""
    real = path.resolve()
    if not real.is_relative_to(inside):
        raise Refused(
            "link-outside",
            f"{path.name} is a link that leads out of the folder {inside.name} of the glob.",
            "Nothing was ingested; put the files themselves there, or name their folder in the manifest.",
            [str(path)],
        )
    return real
