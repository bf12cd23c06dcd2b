"""Which files of this machine a pattern means, and whether a path has the form of one.

Both take a time that is bounded by the lengths of pattern and path, however many stars there are.
"""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

WILD: Final = re.compile(r"[*?\[]")
ANY_FOLDERS: Final = "**"


def files_of_pattern(pattern: str, folder: Path = Path()) -> list[Path]:
    """The files that match, in the order of their paths; those of a leading dot are matched by a dot alone.

    A relative pattern begins in the folder, whose own name is no pattern; nor are the first folders of a
    pattern that are there as they are written. `**` is each folder below, once, whatever links lead to it.
    """
    place = Path(Path(pattern).anchor) if Path(pattern).is_absolute() else folder
    *parts, last = _collapsed((place / pattern).parts[len(place.parts) :])
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    if last == ANY_FOLDERS:
        parts, last = [*parts, last], "*"
    folders = [place]
    for part in parts:
        folders = _once(each for one in folders for each in _folders_of(one, part))
    files = {each for one in folders for each in _entries(one, last) if each.is_file()}
    return sorted(files, key=str)


def _collapsed(parts: Iterable[str]) -> list[str]:
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
