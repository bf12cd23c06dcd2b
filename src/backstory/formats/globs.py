"""Files that match a glob pattern. Links that lead to one folder do not multiply its files."""

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, NoReturn

from backstory.errors import BackstoryError, Refused
from backstory.formats.batch_file import source_changed

WILD: Final = re.compile(r"[*?\[]")
ANY_FOLDERS: Final = "**"
Resolve = Callable[[Path], Path]
# The errors for a path that leads to nothing. Any other error hides files that may exist.
_ABSENT: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


def files_of_pattern(pattern: str, folder: Path = Path()) -> list[Path]:
    """The files that match a glob pattern, sorted by path.

    Only a pattern with a leading dot matches hidden files. A relative pattern begins in the folder. The
    folder's name is taken literally. The pattern's leading folders are also taken literally if they exist.
    `**` matches each folder below once, even if several links lead to it.

    Raises Refused for a link whose target does not exist, and for an entry that is neither a file nor a
    folder. Raises OSError for a folder that cannot be listed.
    """
    place = Path(Path(pattern).anchor) if Path(pattern).is_absolute() else folder
    parts = [*(place / pattern).parts[len(place.parts) :]]
    while len(parts) > 1 and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    paths = matching_paths(place, parts, strict=True)
    return sorted({path for path in paths if is_regular_file(path)}, key=str)


def is_regular_file(path: Path) -> bool:
    """Whether a listed path is a file. It is false for a folder.

    Raises Refused for a link whose target does not exist, and for an entry that is neither. Raises Failed if
    the entry is gone, and OSError if it cannot be accessed.
    """
    mode = _mode_of(path)
    if mode is None:
        raise _absence_of(path)
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise Refused(
            "not-found",
            f"{path} is neither a file nor a folder.",
            "Nothing was written; move it away, or use a glob that does not match it.",
        )
    return stat.S_ISREG(mode)


def _mode_of(path: Path) -> int | None:
    """The mode of the file or folder that a path leads to, or None if it leads to nothing."""
    try:
        return path.stat().st_mode
    except OSError as stop:
        if stop.errno not in _ABSENT:
            raise
        return None


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(_mode_of(path) or 0)


def _refuse_absent(path: Path) -> None:
    """Raise an error for a listed path that leads to nothing."""
    if _mode_of(path) is None:
        raise _absence_of(path)


def _absence_of(path: Path) -> BackstoryError:
    if not path.is_symlink():
        return source_changed(path.name)
    return Refused(
        "not-found",
        f"{path} is a link, and its target does not exist.",
        "Nothing was written; restore the target, or remove the link.",
    )


def matching_paths(
    top: Path,
    parts: Sequence[str],
    known: AbstractSet[Path] = frozenset(),
    resolve: Resolve = Path.resolve,
    *,
    strict: bool = False,
) -> Iterator[Path]:
    """The paths below a folder that match the parts of a pattern.

    A folder is entered by its own path, or else by the first path that leads to it, and by its paths in
    `known`. `resolve` returns the real path of a folder that `**` matches, or raises an error.
    Links without a target are among the paths. If `strict`, raises Refused for such a link in the place of a
    folder. Raises OSError for a folder that cannot be listed.
    """
    if not parts:
        return
    *folders, last = [*parts, "*"] if parts[-1] == ANY_FOLDERS else parts
    places = [top]
    for part in folders:
        paths = _below(places, resolve, strict=strict) if part == ANY_FOLDERS else _entries(places, part, top)
        places = _once(paths, top, known, strict=strict)
    yield from _entries(places, last, top)


def _entries(folders: Iterable[Path], part: str, top: Path) -> Iterator[Path]:
    """The entries of folders that match one part of a pattern, sorted in each folder.

    Only `top` may be missing.
    """
    for folder in folders:
        try:
            if WILD.search(part):
                names = sorted(fnmatch.filter((path.name for path in folder.iterdir()), part))
            else:
                names = [part] if _is_listed(folder / part) else []
        except OSError as stop:
            if folder != top or stop.errno not in _ABSENT:
                raise
            continue
        yield from (folder / name for name in names if part.startswith(".") or not name.startswith("."))


def _is_listed(path: Path) -> bool:
    """Whether a path exists, even as a link without a target."""
    try:
        path.lstat()
    except ValueError:  # a NUL character
        return False
    except OSError as stop:
        if stop.errno not in _ABSENT:
            raise
        return False
    return True


def _below(places: Iterable[Path], resolve: Resolve, *, strict: bool) -> set[Path]:
    """The given folders and all folders below them."""
    reached: set[Path] = set()
    for place in sorted(places, key=lambda path: len(path.parts)):
        if place not in reached:  # otherwise it was reached from another place
            reached.update(_folders(place, resolve, strict=strict))
    return reached


def _folders(top: Path, resolve: Resolve, *, strict: bool) -> Iterator[Path]:
    """A folder and the visible folders below it, each once. Linked folders are last."""
    visited: set[Path] = set()
    links = [top]
    while links:
        first = links.pop(0)
        if not first.is_dir() or resolve(first) in visited:
            continue
        for place, names, others in os.walk(first, onerror=_raise):
            visited.add(Path(place).resolve())
            yield Path(place)
            for name in others:
                link = Path(place, name)
                if link.is_symlink() and not name.startswith(".") and not _is_folder(link) and strict:
                    _refuse_absent(link)
            visible = sorted(name for name in names if not name.startswith("."))
            names[:] = [name for name in visible if Path(place, name).resolve() not in visited]
            links += [Path(place, name) for name in names if Path(place, name).is_symlink()]


def _raise(stop: OSError) -> NoReturn:
    raise stop


def _once(paths: Iterable[Path], top: Path, known: AbstractSet[Path], *, strict: bool) -> list[Path]:
    """One path for each folder, preferably its own path, and its paths in `known`.

    With all paths, folders that link to each other could make the number of paths infinite.
    """
    inside = top.resolve()
    by_folder: dict[Path, set[Path]] = {}
    for path in paths:
        if _is_folder(path):
            by_folder.setdefault(path.resolve(), set()).add(path)
        elif strict:
            _refuse_absent(path)
    firsts = (
        min(same, key=lambda path: (inside / path.relative_to(top) != real, path))
        for real, same in by_folder.items()
    )
    return [*{*firsts, *(path for same in by_folder.values() for path in same & known)}]
