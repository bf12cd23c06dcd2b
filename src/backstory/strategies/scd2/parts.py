"""The plan of a part of a load: kinds of rows, counts, and the keys of a few records."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from backstory.errors import MAX_KEYS
from backstory.model.layout import FILE, POSITION
from backstory.model.values import key_text
from backstory.strategies.matching import Matches, take_rows
from backstory.strategies.part_plan import PartPlan, PlanSums
from backstory.strategies.scd2.terms import LoadTerms

# Rows by kind: what the base gets, and which of its own rows then have a flag; the base's rows that begin
# versions; versions that end and, with what they lack yet, those that begin; places of stored rows that go.
COMES, FLAGGED, BASE_GOES = "comes", "flagged", "base goes"
CHANGED, APPEARED, ENDS, BEGINS, GOES = "changed", "appeared", "ends", "begins", "goes"
PLACES: Final = (BASE_GOES, GOES)
# Rows of a part that come into the base, all of which begin versions, and no others do: they are held once.
BOTH: Final = "comes and appeared"
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
# The column of samples.
_TEXT: Final = "key"
# So many rows are looked at for up to ten keys of theirs.
LOOKED_AT: Final = 100


@dataclass(frozen=True, slots=True)
class CountedMatch:
    """How many records are in each state, as `sizes` of a match has them, and the rows of both sides."""

    sizes: tuple[int, int, int, int, int]
    delivered: int
    stored: int

    @property
    def nothing(self) -> bool:
        """Whether the stored state is the delivered one already."""
        return not any(self.sizes[:3])


def plan_of_faults(terms: LoadTerms, faults: Mapping[str, pa.Table]) -> PartPlan | None:
    """What speaks against a part, by the rows that do; None where no row does."""
    wrong = {fault: rows for fault, rows in faults.items() if len(rows)}
    if not wrong:
        return None
    counts = {fault: len(rows) for fault, rows in wrong.items()}
    return PartPlan(counts=counts, samples={fault: sample(terms, rows) for fault, rows in wrong.items()})


def sample(terms: LoadTerms, rows: pa.Table) -> pa.Table:
    """A few keys of the rows, as a sample of a plan."""
    return pa.table({_TEXT: pa.array(few_keys(terms, rows), pa.string())})


def sampled_keys(sums: PlanSums, kind: str) -> list[str]:
    """Up to ten keys of a kind, in order."""
    return sorted({*sums.samples[kind][_TEXT].to_pylist()}) if kind in sums.samples else []


def few_keys(terms: LoadTerms, rows: pa.Table) -> list[str]:
    """Up to ten business keys of the rows."""
    few = rows.select(list(terms.business)).slice(0, LOOKED_AT).to_pylist()
    return list(dict.fromkeys(key_text(terms.business, list(row.values())) for row in few))[:MAX_KEYS]


def counts_of(side: str, matches: Matches, delivered: pa.Table, stored: pa.Table) -> dict[str, int]:
    """The records of a comparison by outcome, and the rows of both sides."""
    sizes = dict(zip(_OUTCOMES, matches.sizes, strict=True))
    named = {**sizes, "delivered": len(delivered), "stored": len(stored)}
    return {f"{side} {name}": count for name, count in named.items()}


def counts_of_same(side: str, count: int) -> dict[str, int]:
    """The same counts of so many records that are the same on both sides."""
    return {f"{side} same": count, f"{side} delivered": count, f"{side} stored": count}


def counted_match(side: str, counts: Mapping[str, int]) -> CountedMatch:
    """The comparison that all parts together are, by their counts."""
    appeared, changed, vanished, kept, same = (counts.get(f"{side} {name}", 0) for name in _OUTCOMES)
    delivered, stored = (counts.get(f"{side} {name}", 0) for name in ("delivered", "stored"))
    return CountedMatch((appeared, changed, vanished, kept, same), delivered, stored)


def places_of(rows: pa.Table, chosen: pa.Array) -> pa.Table:
    """Where the rows stand that are chosen."""
    return take_rows(rows.select([FILE, POSITION]), chosen)
