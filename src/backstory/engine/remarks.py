"""Why a commit was made, and by whom: a note and an author, which `log` shows."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from backstory.errors import UsageError

# Properties of snapshots.
NOTE: Final = "backstory.note"
AUTHOR: Final = "backstory.author"
# Every later commit's metadata repeats the properties of all snapshots.
LONGEST: Final = 2_000


@dataclass(frozen=True, slots=True)
class Remark:
    """A note and an author; UsageError for a longer text than the metadata should repeat."""

    note: str | None = None
    author: str | None = None

    def __post_init__(self) -> None:
        for name in ("note", "author"):
            text = getattr(self, name)
            if text is not None and not isinstance(text, str):
                raise UsageError("bad-option", f"`{name}=` must be a text.", "Give a text, or omit it.")
            if text and len(text) > LONGEST:
                raise UsageError(
                    "bad-option",
                    f"`{name}=` has {len(text)} characters; at most {LONGEST} are stored.",
                    "Shorten it, for example to a link.",
                )

    def properties(self) -> dict[str, str]:
        """The properties of a snapshot with this remark."""
        return {name: text for name, text in ((NOTE, self.note), (AUTHOR, self.author)) if text}


_NONE: Final = Remark()
_remark: ContextVar[Remark] = ContextVar("remark", default=_NONE)


@contextmanager
def remarked(note: str | None = None, author: str | None = None) -> Iterator[None]:
    """Commits of this thread meanwhile have this note and author; one that is None stays as it was."""
    outer, inner = _remark.get(), Remark(note, author)
    before = _remark.set(Remark(inner.note or outer.note, inner.author or outer.author))
    try:
        yield
    finally:
        _remark.reset(before)


def remark_properties() -> dict[str, str]:
    """The properties of a snapshot that is committed now."""
    return _remark.get().properties()
