"""The settings and the results of a load's plan, as plain data that is also sent to Spark's tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from backstory.errors import MAX_KEYS
from backstory.model.layout import FILE, POSITION
from backstory.model.values import key_text
from backstory.strategies.matching import Matches, take_rows
from backstory.strategies.part_plan import PlanSums
from backstory.strategies.scd2.transitions import WORDS, State

# The sides of a load.
STAGED, BASE, OPEN = "staged", "base", "open versions"
# Sides of the second plan: the base's rows that begin versions, and closed versions, including archived
# versions.
BEGINNING, EARLIER = "beginning", "earlier versions"
# Flags of a row. No column of a model has a space in its name.
LIVE, IN_SCOPE, APPEARS = "is live", "in scope", "appears"


@dataclass(frozen=True, slots=True)
class Flag:
    """The deletion flag of a base row that is missing from the stage.

    The flag is this value in `column`, and the load's instant in the column `at`. With `live`, the flagged
    row still counts as a record of the history.
    """

    column: str
    value: Any
    at: str | None = None
    live: bool = False


@dataclass(frozen=True, slots=True)
class LoadTerms:
    """The columns of a load, its rules and its instant.

    * `key`: the column of the record's key in base and history; `business`: its business keys.
    * `mirrored`: the history's columns, each with its column in the base.
    * `words`: the states as they are stored.
    * `compared`: a row of the base changed if one of these columns changed.
    * `needed`: columns that are never NULL in the stage; `lengths`: the maximum length of strings.
    * `unsure`: columns whose changes a hash may miss; for floats, with the number of hashed digits.
    * `collapses`: whether identical rows of the stage count as one.
    * `dated`: the column of the effective date, which must not decrease.
    * `flag`: the flag of rows that are missing from the stage, or None if they are deleted.
    * `late`: whether the history has a start or end at the load's instant or later.
    * `first`: whether there is no base yet.
    """

    key: str
    business: tuple[str, ...]
    mirrored: Mapping[str, str]
    instant: datetime
    run: str
    words: Mapping[State, str] = field(default_factory=lambda: WORDS)
    compared: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    lengths: Mapping[str, int] = field(default_factory=dict)
    unsure: Mapping[str, int | None] = field(default_factory=dict)
    collapses: bool = False
    dated: str | None = None
    flag: Flag | None = None
    late: bool = False
    first: bool = False


# Kinds of rows: rows that are added to the base, and its own rows that get a flag; the base's rows that begin
# versions; versions that end, and versions that begin, still without keys; places of rows that are removed.
BASE_ADDED, FLAGGED, BASE_REMOVED = "base added", "flagged", "base removed"
CHANGED, APPEARED, ENDS, BEGINS, HIST_REMOVED = "changed", "appeared", "ends", "begins", "history removed"
PLACES: Final = (BASE_REMOVED, HIST_REMOVED)
# Rows that are both added to the base and begin versions, if this is true for all rows. They are stored once.
BOTH: Final = "base added and appeared"
# The business keys of records that are added to the base, and of records missing from its stage.
ADDED_KEYS, REMOVED_KEYS = "added keys", "removed keys"
# Faults for which a load is refused, as counts and keys: of a column of the stage, and of rows.
NULL, LONG = "null ", "long "
STAGE_TWICE, BASE_TWICE = "stage twice", "base twice"
NO_KEY, NO_HASH, LIVE_TWICE, OPEN_TWICE = "no key", "no hash", "live twice", "open twice"
NEVER_BEGAN: Final = "never began"
EARLIER_DATE, ENDS_EARLY, BEGINS_EARLY = "earlier date", "ends early", "begins early"
# Records that changed while their hash stayed the same, by column.
UNSEEN: Final = "unseen "
# Records that appear and had versions before, and records whose change an interrupted load had begun.
SEEN, INTERRUPTED = "seen before", "interrupted before"
DELETED: Final = "deleted"
_OUTCOMES: Final = ("appeared", "changed", "vanished", "kept", "same")
# The column of samples.
_TEXT: Final = "key"
# Up to ten keys are sampled from this many rows.
SAMPLED_ROWS: Final = 100


@dataclass(frozen=True, slots=True)
class CountedMatch:
    """The number of records by outcome, in the order of `Matches.sizes`, and the row counts of both sides."""

    sizes: tuple[int, int, int, int, int]
    delivered: int
    stored: int

    @property
    def nothing(self) -> bool:
        """Whether nothing changes."""
        return not any(self.sizes[:3])


def sample(terms: LoadTerms, rows: pa.Table) -> pa.Table:
    """A few keys of the rows, as a table for `PartPlan.samples`."""
    return pa.table({_TEXT: pa.array(few_keys(terms, rows), pa.string())})


def sampled_keys(sums: PlanSums, kind: str) -> list[str]:
    """The sampled keys of one kind, sorted."""
    return sorted({*sums.samples[kind][_TEXT].to_pylist()}) if kind in sums.samples else []


def few_keys(terms: LoadTerms, rows: pa.Table) -> list[str]:
    """Up to ten business keys of the rows."""
    few = rows.select(list(terms.business)).slice(0, SAMPLED_ROWS).to_pylist()
    return list(dict.fromkeys(key_text(terms.business, list(row.values())) for row in few))[:MAX_KEYS]


def counts_of(side: str, matches: Matches, delivered: pa.Table, stored: pa.Table) -> dict[str, int]:
    """The counts of a match: records by outcome, and the rows of both sides."""
    sizes = dict(zip(_OUTCOMES, matches.sizes, strict=True))
    named = {**sizes, "delivered": len(delivered), "stored": len(stored)}
    return {f"{side} {name}": count for name, count in named.items()}


def counts_of_same(side: str, count: int) -> dict[str, int]:
    """The counts of a match whose `count` records are the same on both sides."""
    return {f"{side} same": count, f"{side} delivered": count, f"{side} stored": count}


def counted_match(side: str, counts: Mapping[str, int]) -> CountedMatch:
    """The match of all parts together, computed from their counts."""
    appeared, changed, vanished, kept, same = (counts.get(f"{side} {name}", 0) for name in _OUTCOMES)
    delivered, stored = (counts.get(f"{side} {name}", 0) for name in ("delivered", "stored"))
    return CountedMatch((appeared, changed, vanished, kept, same), delivered, stored)


def places_of(rows: pa.Table, indices: pa.Array) -> pa.Table:
    """The file and position of the rows with these indexes."""
    return take_rows(rows.select([FILE, POSITION]), indices)
