"""Folders of this user's own, for what is kept from one start to the next."""

import os
import stat
import tempfile
from functools import cache
from pathlib import Path


def kept_folder(name: str, *, made: bool = True) -> Path:
    """A folder below the user's cache that nobody else may write to; raises OSError where there is none.

    It is made if it is missing and is to be `made`, else one that can only be read will do.
    """
    cached = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(cached) if cached else Path.home() / ".cache") / "backstory" / name
    except RuntimeError as stop:  # nobody's home is known
        raise OSError(str(stop)) from stop
    if made:
        return private(folder)
    _require_private(folder)
    return folder


def private(folder: Path) -> Path:
    """The folder, made if it is missing; raises OSError unless this user alone may write to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_private(folder)
    if not os.access(folder, os.W_OK):
        raise PermissionError(13, "it is read-only", str(folder))
    return folder


@cache
def temporary_folder(name: str) -> Path:
    """One among the temporary files; later processes use it too, unless another user has taken its name."""
    own = Path(tempfile.gettempdir()) / f"backstory-{os.getuid()}"
    try:
        return private(private(own) / name)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="backstory-"))


def _require_private(folder: Path) -> None:
    """Raises OSError unless it is a folder of this user's, or root's, to which nobody else may write."""
    state = folder.stat()
    if state.st_uid not in {os.getuid(), 0} or stat.S_IMODE(state.st_mode) & 0o022:
        raise PermissionError(13, "others may write to it", str(folder))
