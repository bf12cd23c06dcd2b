"""Files that match a glob pattern. Links that lead to one folder do not multiply its files."""

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

WILD: Final = re.compile(r"[*?\[]")
ANY_FOLDERS: Final = "**"
Resolve = Callable[[Path], Path]


def files_of_pattern(pattern: str, folder: Path = Path()) -> list[Path]:
    """The files that match a glob pattern, sorted by path.

    Only a pattern with a leading dot matches hidden files. A relative pattern begins in the folder. The
    folder's name is taken literally. The pattern's leading folders are also taken literally if they exist.
    `**` matches each folder below once, even if several links lead to it.
    """
    place = Path(Path(pattern).anchor) if Path(pattern).is_absolute() else folder
    parts = [*(place / pattern).parts[len(place.parts) :]]
    while len(parts) > 1 and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    return sorted({path for path in matching_paths(place, parts) if path.is_file()}, key=str)


def matching_paths(
    top: Path,
    parts: Sequence[str],
    known: AbstractSet[Path] = frozenset(),
    resolve: Resolve = Path.resolve,
) -> Iterator[Path]:
    """The paths below a folder that match the parts of a pattern.

    A folder is entered by its own path, or else by the first path that leads to it, and by its paths in
    `known`. `resolve` returns the real path of a folder that `**` matches, or raises an error.
    """
    if not parts:
        return
    *folders, last = [*parts, "*"] if parts[-1] == ANY_FOLDERS else parts
    places = [top]
    for part in folders:
        paths = _below(places, resolve) if part == ANY_FOLDERS else _entries(places, part)
        places = _once(paths, top, known)
    yield from _entries(places, last)


def _entries(folders: Iterable[Path], part: str) -> Iterator[Path]:
    """The entries of folders that match one part of a pattern, sorted in each folder."""
    for folder in folders:
        try:
            if WILD.search(part):
                names = sorted(fnmatch.filter((path.name for path in folder.iterdir()), part))
            else:
                names = [part] if (folder / part).exists() else []
        except OSError:  # an unreadable folder counts as empty, as in a shell
            continue
        yield from (folder / name for name in names if part.startswith(".") or not name.startswith("."))


def _below(places: Iterable[Path], resolve: Resolve) -> set[Path]:
    """The given folders and all folders below them."""
    reached: set[Path] = set()
    for place in sorted(places, key=lambda path: len(path.parts)):
        if place not in reached:  # otherwise it was reached from another place
            reached.update(_folders(place, resolve))
    return reached


def _folders(top: Path, resolve: Resolve) -> Iterator[Path]:
    """A folder and the visible folders below it, each once. Linked folders are last."""
    visited: set[Path] = set()
    links = [top]
    while links:
        first = links.pop(0)
        if not first.is_dir() or resolve(first) in visited:
            continue
        for place, names, _ in os.walk(first):
            visited.add(Path(place).resolve())
            yield Path(place)
            visible = sorted(name for name in names if not name.startswith("."))
            names[:] = [name for name in visible if Path(place, name).resolve() not in visited]
            links += [Path(place, name) for name in names if Path(place, name).is_symlink()]


def _once(paths: Iterable[Path], top: Path, known: AbstractSet[Path]) -> list[Path]:
    """One path for each folder, preferably its own path, and its paths in `known`.

    With all paths, folders that link to each other could make the number of paths infinite.
    """
    inside = top.resolve()
    by_folder: dict[Path, set[Path]] = {}
    for path in paths:
        if path.is_dir():
            by_folder.setdefault(path.resolve(), set()).add(path)
    firsts = (
        min(same, key=lambda path: (inside / path.relative_to(top) != real, path))
        for real, same in by_folder.items()
    )
    return [*{*firsts, *(path for same in by_folder.values() for path in same & known)}]
