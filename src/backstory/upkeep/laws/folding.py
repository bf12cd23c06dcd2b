"""The life that remembered facts tell, in the rows that are there (native.md V117): plain Python."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from backstory.model.remembered import Role, Told
from backstory.upkeep.laws.remembered import Said, alike, facts_of_record
from backstory.upkeep.laws.terms import LawTerms, RecordRow

Version = tuple[int, int | None, Mapping[str, Any]]


def refolded(rows: Sequence[RecordRow], terms: LawTerms) -> list[RecordRow] | None:
    """The rows as the fold of their facts has them; None where a version needs a row that is gone.

    A version that the fold has not is the fact that it stands for, if it is one, else it goes.
    """
    said = facts_of_record(rows, terms)
    standing = {row.start: row for row in said.versions}
    found: dict[int, RecordRow] = {}
    for start, end, values in _versions(said, terms):
        row = standing.get(start) or _fact(said, start)
        if row is None:
            return None
        found[row.place] = _as_version(row, end, values)
    kept = [found.get(row.place) or _as_fact(row) for row in rows]
    return [row for row in kept if row is not None]


def _versions(said: Said, terms: LawTerms) -> Iterator[Version]:
    """The longest runs of instants over which the values stay equal (V23), from what is settled on."""
    instants = said.instants | {*said.copied, *(each for each in terms.settled or () if each is not None)}
    state: Mapping[str, Any] | None = None
    changes: list[tuple[int, Mapping[str, Any] | None]] = []
    for at in sorted(instants):
        after = said.after(state, at, terms)
        if not alike(state, after):
            changes.append((at, after))
        state = after
    following: list[int | None] = [at for at, _ in changes[1:]]
    for (at, values), end in zip(changes, [*following, None], strict=False):
        if values is not None:
            yield at, end, values


def _fact(said: Said, start: int) -> RecordRow | None:
    """The last upsert of an instant."""
    upserts = [row for row in said.events.get(start, ()) if row.kind == Told.UPSERT]
    return max(upserts, key=lambda row: row.sequence, default=None)


def _as_version(row: RecordRow, end: int | None, values: Mapping[str, Any]) -> RecordRow:
    told = {name: row.values.get(name) for name in values}
    merged = row.values if alike(told, values) else {**row.values, **values}
    return replace(row, role=None, end=end, flag=end is None, values=merged)


def _as_fact(row: RecordRow) -> RecordRow | None:
    """A row that is no version of the fold: an event is silent (V24), what a copy began is nothing."""
    if row.role is not None:
        return row
    if row.kind != Told.UPSERT:
        return None
    return replace(row, role=Role.FACT, end=row.start, flag=False, ended_at=None, end_before=None)
