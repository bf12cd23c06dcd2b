"""A part of a load by key: the rows that go and come, counts, and the keys of a few records."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from backstory.errors import MAX_KEYS
from backstory.model.keys import key_text
from backstory.model.places import FILE, POSITION
from backstory.strategies.scd2.terms import LoadTerms
from backstory.strategies.sift.plan import Matched, take_rows

# Rows by kind: what the base gets, and which of its own rows then have a flag; the base's rows that begin
# versions; versions that end and, with what they lack yet, those that begin; places of stored rows that go.
COMES, FLAGGED, BASE_GOES = "comes", "flagged", "base goes"
CHANGED, APPEARED, ENDS, BEGINS, GOES = "changed", "appeared", "ends", "begins", "goes"
# The business keys of records that the base gets, and of those that its stage lacks.
CAME, WENT = "came", "went"

# What a load is refused for, as counts and keys: of a column of the stage, and of rows.
NULL, LONG = "null ", "long "
STAGE_TWICE, BASE_TWICE = "stage twice", "base twice"
NO_KEY, NO_HASH, LIVE_TWICE, OPEN_TWICE = "no key", "no hash", "live twice", "open twice"
NEVER_BEGAN: Final = "never began"
EARLIER_DATE, ENDS_EARLY, BEGINS_EARLY = "earlier date", "ends early", "begins early"
# Records that changed under one hash, by the column in which they did.
UNSEEN: Final = "unseen "
# Of the records that appear: those that had versions before, and those that this load had begun to change.
SEEN, INTERRUPTED = "seen before", "interrupted before"

DELETED: Final = "deleted"
_OUTCOMES: Final = ("appeared", "changed", "vanished", "kept", "same")
# So many rows are looked at for up to ten keys of theirs.
LOOKED_AT: Final = 100


@dataclass(frozen=True, slots=True)
class Compared:
    """How many records are in each state, as `sizes` of a match has them, and the rows of both sides."""

    sizes: tuple[int, int, int, int, int]
    delivered: int
    stored: int

    @property
    def nothing(self) -> bool:
        """Whether the stored state is the delivered one already."""
        return not any(self.sizes[:3])


@dataclass(frozen=True, slots=True)
class LoadPart:
    """What becomes of the records of a part; where one is refused only counts and keys mean anything."""

    rows: Mapping[str, pa.Table] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __add__(self, other: "LoadPart") -> "LoadPart":
        return LoadPart(
            {**self.rows, **other.rows},
            Counter(self.counts) + Counter(other.counts),
            {**self.keys, **other.keys},
        )


def refused_part(terms: LoadTerms, faults: Mapping[str, pa.Table]) -> LoadPart | None:
    """What speaks against a part, by the rows that do; None where no row does."""
    wrong = {fault: rows for fault, rows in faults.items() if len(rows)}
    if not wrong:
        return None
    counts = {fault: len(rows) for fault, rows in wrong.items()}
    return LoadPart({}, counts, {fault: few_keys(terms, rows) for fault, rows in wrong.items()})


def few_keys(terms: LoadTerms, rows: pa.Table) -> list[str]:
    """Up to ten business keys of the rows."""
    few = rows.select(list(terms.business)).slice(0, LOOKED_AT).to_pylist()
    return list(dict.fromkeys(key_text(terms.business, list(row.values())) for row in few))[:MAX_KEYS]


def counts_of(side: str, matches: Matched, delivered: pa.Table, stored: pa.Table) -> dict[str, int]:
    """The records of a comparison by outcome, and the rows of both sides."""
    sizes = dict(zip(_OUTCOMES, matches.sizes, strict=True))
    named = {**sizes, "delivered": len(delivered), "stored": len(stored)}
    return {f"{side} {name}": count for name, count in named.items()}


def compared_of(side: str, counts: Mapping[str, int]) -> Compared:
    """The comparison that all parts together are, by their counts."""
    appeared, changed, vanished, kept, same = (counts.get(f"{side} {name}", 0) for name in _OUTCOMES)
    delivered, stored = (counts.get(f"{side} {name}", 0) for name in ("delivered", "stored"))
    return Compared((appeared, changed, vanished, kept, same), delivered, stored)


def places_of(rows: pa.Table, chosen: pa.Array) -> pa.Table:
    """Where the rows stand that are chosen."""
    return take_rows(rows.select([FILE, POSITION]), chosen)


def sum_of(parts: Iterable[LoadPart]) -> LoadPart:
    """The counts and the keys of all parts, without their rows."""
    counts, keys = Counter[str](), defaultdict[str, list[str]](list)
    for part in parts:
        counts.update(part.counts)
        for kind, few in part.keys.items():
            keys[kind] += few
    return LoadPart({}, counts, keys)
