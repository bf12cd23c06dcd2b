"""The parts of a load by key that the driver plans: what they add up to, and the rows to write."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from backstory.engine.held_rows import HeldRows
from backstory.formats.memory import MemoryLease
from backstory.stores.iceberg.slice import PLACE
from backstory.strategies.scd2.parts import (
    APPEARED,
    BASE_GOES,
    CAME,
    CHANGED,
    COMES,
    ENDS,
    FLAGGED,
    GOES,
    WENT,
    LoadPart,
    few_keys,
    sum_of,
)
from backstory.strategies.scd2.terms import LoadTerms

# Rows that come into the base and begin versions, all of a part: those of a first load are kept once.
BOTH = "comes and appeared"
HELD = (BOTH, COMES, FLAGGED, CHANGED, APPEARED, ENDS)
PLACES = (BASE_GOES, GOES)
KEYS = (CAME, WENT)


@dataclass
class LoadParts:
    """The rows of all parts by kind; what the lease cannot hold of those to write is spilled."""

    held: Mapping[str, HeldRows]
    few: Mapping[str, list[pa.Table]]
    sums: LoadPart = field(default_factory=LoadPart)
    beginning: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, lease: MemoryLease, kept: ExitStack) -> "LoadParts":
        """No parts yet; what is spilled goes with `kept`."""
        return cls(
            {kind: HeldRows(kind, lease, kept) for kind in HELD}, {kind: [] for kind in (*PLACES, *KEYS)}
        )

    def add(self, part: LoadPart) -> None:
        """One more part."""
        self.sums = sum_of([self.sums, part])
        rows = dict(part.rows)
        if _begin_as_they_come(rows):
            self.beginning = rows.pop(APPEARED).column_names
            rows[BOTH] = rows.pop(COMES)
        for kind, each in rows.items():
            if kind in self.held:
                self.held[kind].add(each)
            else:
                self.few[kind].append(each)

    def places(self, kind: str) -> pa.Table:
        """The places of stored rows that go."""
        return pa.concat_tables(rows.cast(PLACE) for rows in self.few[kind])

    def holding(self, *kinds: str) -> list[HeldRows]:
        """Where the rows of these kinds are."""
        both = [self.held[BOTH]] if {COMES, APPEARED} & {*kinds} else []
        return [*both, *(self.held[kind] for kind in kinds)]

    def tables(self, *kinds: str) -> Iterator[pa.Table]:
        """Rows to write, some at a time."""
        for kind in kinds:
            if kind in (COMES, APPEARED):
                for rows in self.held[BOTH].tables():
                    yield rows if kind == COMES else rows.select(self.beginning)
            yield from self.held[kind].tables()

    def moved(self, terms: LoadTerms) -> list[str]:
        """Business keys of records that appeared in the base while others with these vanished from it."""
        names = list(terms.business)
        sides = [pa.concat_tables(self.few[kind]).group_by(names).aggregate([]) for kind in KEYS]
        numbers = pa.concat_tables(sides).group_by(names).aggregate([([], "count_all")])
        return few_keys(terms, numbers.filter(pc.equal(numbers["count_all"], len(sides))))


def _begin_as_they_come(rows: Mapping[str, pa.Table]) -> bool:
    """Whether each row that comes into the base begins a version, and no other row does."""
    come, appeared = rows.get(COMES), rows.get(APPEARED)
    if come is None or appeared is None or not len(come) or len(come) != len(appeared):
        return False
    same = {*appeared.column_names} <= {*come.column_names}
    return same and bool(come.select(appeared.column_names).equals(appeared))
