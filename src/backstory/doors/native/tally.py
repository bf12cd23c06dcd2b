"""How many records a copy finds in which state, and how many rows come of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backstory.doors.native.comparing import CopySides
from backstory.doors.native.receipts import COUNTS
from backstory.doors.native.refusals import keys_of
from backstory.errors import MAX_KEYS
from backstory.model.change import Change
from backstory.model.layout import VALID_TO
from backstory.stores.iceberg.literals import column, quoted
from backstory.strategies.copies.plan import APPEARING, RENEWED, CopyTerms, loses, outcome, version
from backstory.strategies.copies.rows import Written
from backstory.strategies.scd2.plan import CHANGED, DELIVERED, STORED, VANISHED, Outcomes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class SnapshotTally:
    """Records by outcome (V36), those there before, and rows: written, rewritten, taken back.

    `losses` are the columns that lose values: the records that do, of those that had one. `likeness` tells of
    columns that are missing, each with one that comes, in how many records the values are one, of those that
    have any. `keys` and `columns` are for dry runs: up to ten keys of each outcome, records that change by
    column.
    """

    counts: Mapping[str, int]
    there: int = 0
    written: int = 0
    rewritten: int = 0
    taken_back: int = 0
    losses: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    likeness: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    columns: Mapping[str, int] = field(default_factory=dict)

    @property
    def differing(self) -> int:
        """The records that are others than before."""
        return sum(number for name, number in self.counts.items() if name != "unchanged")


@dataclass(frozen=True, slots=True)
class ComparedCopy:
    """A copy compared: the tally, its rows, what makes a hash of them, keys of some kinds, and the Change.

    `losing` gives up to ten keys of the records that lose their value in a column.
    """

    met: SnapshotTally
    delivered: int
    content: Callable[[], int]
    keys: Callable[..., list[str]]
    losing: Callable[[str], list[str]]
    change: Callable[[], Change | None]


def tally(sides: CopySides, found: Outcomes, kinds: Sequence[Written]) -> SnapshotTally:
    """The records and rows, of these kinds, that the comparison gives."""
    if found.nothing:
        return SnapshotTally(dict.fromkeys(COUNTS, 0) | {"unchanged": found.same}, found.same)
    terms, dry_run, seen = sides.terms, sides.asked.dry_run, found.tallies
    reopened = _known(sides, found).count() if seen[APPEARING] else 0
    changed = seen[CHANGED] + seen[RENEWED]
    numbers = (seen[APPEARING] - reopened, changed, seen[VANISHED], reopened, found.same)
    told = [(row, seen[f"row {place}"]) for place, row in enumerate(kinds)]
    driving = {name: seen.get(f"column {name}", 0) for name in (*terms.compared, *terms.renewed)}
    return SnapshotTally(
        dict(zip(COUNTS, numbers, strict=True)),
        found.same + changed + seen[VANISHED],
        sum(number for _, number in told),
        sum(number for row, number in told if row.instead),
        sum(number for row, number in told if row.taken_back),
        _losses(found, terms),
        {each: _likeness(found, place) for place, each in enumerate(terms.successions)},
        _keys(sides, found) if dry_run else {},
        {name: number for name, number in driving.items() if number},
    )


def keys_of_kinds(found: Outcomes, terms: CopyTerms, *wanted: str) -> list[str]:
    """Up to ten keys of the actions of these kinds."""
    kinds = outcome(terms)
    keys = [
        key
        for kind in wanted
        for key in keys_of(
            found.actions.where(kinds[kind]), terms.key, STORED if kind == VANISHED else DELIVERED
        )
    ]
    return keys[:MAX_KEYS]


def keys_losing(found: Outcomes, terms: CopyTerms, name: str) -> list[str]:
    """Up to ten keys of the records that lose their value in a column."""
    return keys_of(found.actions.where(loses(name)), terms.key, DELIVERED)


def _losses(found: Outcomes, terms: CopyTerms) -> dict[str, tuple[int, int]]:
    numbers = {name: (found.tallies[f"loses {name}"], found.pairs[f"has {name}"]) for name in terms.compared}
    return {name: each for name, each in numbers.items() if each[0]}


def _likeness(found: Outcomes, place: int) -> tuple[int, int]:
    return found.pairs[f"alike {place}"], found.pairs[f"valued {place}"]


def _appearing(found: Outcomes, terms: CopyTerms) -> "DataFrame":
    """The keys of records that were not there at the copy's instant."""
    from pyspark.sql.functions import col

    keys = (col(f"{DELIVERED}.{quoted(name)}").alias(name) for name in terms.key)
    return found.actions.where(outcome(terms)[APPEARING]).select(*keys)


def _known(sides: CopySides, found: Outcomes) -> "DataFrame":
    """Those of them of which there are versions elsewhere: closed ones, or any where later ones are known."""
    versions, key = sides.stored.where(version()), list(sides.terms.key)
    if sides.terms.in_order:
        versions = versions.where(column(VALID_TO).isNotNull())
    named = versions.select(*map(quoted, key))
    return named.join(_appearing(found, sides.terms), key, "left_semi").distinct()


def _keys(sides: CopySides, found: Outcomes) -> dict[str, list[str]]:
    """Up to ten keys of each outcome but the unchanged."""
    terms, known = sides.terms, _known(sides, found)
    new = _appearing(found, terms).join(known, list(terms.key), "left_anti")
    return {
        "new": keys_of(new, terms.key),
        "changed": keys_of_kinds(found, terms, CHANGED, RENEWED),
        "closed": keys_of_kinds(found, terms, VANISHED),
        "reopened": keys_of(known, terms.key),
    }
