"""Which files a glob means: each once, by whatever links it is reached, and none out of the glob's folder."""

import glob
import os
from collections.abc import Collection, Iterable, Iterator
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
    *parts, last = Path(pattern).parts[len(top.parts) :]
    if last == ANY_FOLDERS:
        parts, last = [*parts, last], "*"
    places = [top]
    for part in parts:
        below = _below(folder, places, inside) if part == ANY_FOLDERS else _named(folder, places, part)
        places = _few(folder, below, top, known)
    found: dict[Path, set[str]] = {}
    for way in _named(folder, places, last):
        if (folder / way).is_file():
            found.setdefault(_within(folder / way, inside), set()).add(way.as_posix())
    return [
        min(ways, key=lambda way: (way not in known, inside / Path(way).relative_to(top) != file, way))
        for file, ways in found.items()
    ]


def _named(folder: Path, places: Iterable[Path], part: str) -> Iterator[Path]:
    """What matches one part of a glob in each of these places."""
    for place in places:
        for name in glob.iglob(part, root_dir=folder / place):  # noqa: PTH207 - Path.glob shows hidden files
            yield place / name


def _below(folder: Path, places: Iterable[Path], inside: Path) -> Iterator[Path]:
    """Each of these places and the folders in it."""
    reached: set[Path] = set()
    for place in sorted(places, key=lambda each: len(each.parts)):
        if place not in reached:  # else with those in it, below another
            reached |= {place / each.relative_to(folder / place) for each in _folders(folder / place, inside)}
    yield from reached


def _few(folder: Path, ways: Iterable[Path], top: Path, known: Collection[str]) -> list[Path]:
    """Of the ways to each folder one, by its own path if that is one, and those of files that are known.

    Links that lead to each other would make any number of ways.
    """
    inside = (folder / top).resolve()
    told = {above for each in known for above in Path(each).parents}
    reached: dict[Path, set[Path]] = {}
    for way in ways:
        real = (folder / way).resolve()
        if real.is_dir():
            reached.setdefault(real, set()).add(way)
    firsts = (
        min(each, key=lambda way: (inside / way.relative_to(top) != real, way))
        for real, each in reached.items()
    )
    return [*{*firsts, *(way for each in reached.values() for way in each & told)}]


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
