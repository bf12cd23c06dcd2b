"""Dry runs: a change is planned and reported, but not committed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from backstory.model.change import Change
from backstory.model.schema import Shape
from backstory.model.table import TableName

# Tables, and the changes that would be made of them, in words.
Told = list[tuple[TableName, Sequence[str]]]
_told: ContextVar[Told | None] = ContextVar("told", default=None)


@contextmanager
def collect_rehearsals() -> Iterator[Told]:
    """The changes that dry runs tell meanwhile."""
    told: Told = []
    before = _told.set(told)
    try:
        yield told
    finally:
        _told.reset(before)


def rehearse(shape: Shape | None, change: Change) -> None:
    """Tell a change of the table of this shape, or of one that it would make; the same one once."""
    told, table = _told.get(), change.into or shape
    lines = change.lines(shape)
    if told is not None and table is not None and lines and (table.table, lines) not in told:
        told.append((table.table, lines))
