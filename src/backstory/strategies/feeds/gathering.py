"""The facts of touched records in the order in which they are folded (native.md V20, V21, V30, V31, V78)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from backstory.strategies.feeds.records import StoredRecords
from backstory.strategies.feeds.terms import FIRST, FeedTerms

# What a fact says. Of a record the first fact is what was known of it before all others.
BEFORE, UPSERT, CLEAR, COPY = range(4)
# A fact that is not delivered.
NONE: Final = -1


@dataclass(frozen=True)
class Facts:
    """Facts of records: a number in each array for each of them; `NONE` where there is nothing.

    `source` is the place of its values in the pool, of a copy those that it listed. `told` is the place of
    the list of its columns. `stored` is the place of the live row that stands for it, `event` that of the
    delivered event, `truncate` that of the delivered truncate, `mark` that of the stored mark. `order` is its
    place among the facts of its instant, and of its log. `own` is the own time of a message of a log, `FIRST`
    of all others; `read` says which are reads of a snapshot.
    """

    record: np.ndarray
    at: np.ndarray
    said: np.ndarray
    order: np.ndarray
    source: np.ndarray
    told: np.ndarray
    stored: np.ndarray
    event: np.ndarray
    truncate: np.ndarray
    mark: np.ndarray
    own: np.ndarray
    read: np.ndarray

    def __len__(self) -> int:
        return len(self.record)

    def at_places(self, places: np.ndarray) -> "Facts":
        """Some of them, in this order."""
        return Facts(*(getattr(self, each.name)[places] for each in fields(self)))

    @property
    def new(self) -> np.ndarray:
        """Whether a fact comes with the delivery."""
        return (self.event >= 0) | (self.truncate >= 0)


def facts(record: np.ndarray, at: np.ndarray, said: np.ndarray | int, **more: np.ndarray) -> Facts:
    """Facts; what is not given of them is `NONE`, their order 0."""
    nothing = np.full(len(record), NONE, np.int64)
    count = len(record)
    given = {
        "order": np.zeros(count, np.int64),
        "own": np.full(count, FIRST),
        "read": np.zeros(count, bool),
        **more,
    }
    names = [each.name for each in fields(Facts)][3:]
    return Facts(
        record, at, np.broadcast_to(said, len(record)), *(given.get(name, nothing) for name in names)
    )


def joined_facts(parts: Sequence[Facts]) -> Facts:
    """All of them."""
    return Facts(*(np.concatenate([getattr(each, of.name) for each in parts]) for of in fields(Facts)))


def in_order(joined: Facts) -> Facts:
    """Facts by record, instant, and their place in it: events before copies (V21)."""
    phase = joined.said == COPY
    return joined.at_places(np.lexsort((joined.order, phase, joined.at, joined.record)))


def first_facts(stored: StoredRecords, records: np.ndarray, since: np.ndarray) -> Facts:
    """What is known of records just before their first new fact: the version that reaches it, or nothing."""
    base = stored.covering(records, since - 1)
    return facts(records, np.full(len(records), FIRST), BEFORE, source=base, stored=base)


def settled_facts(terms: FeedTerms, stored: StoredRecords, records: np.ndarray, since: np.ndarray) -> Facts:
    """What is settled: like a copy of each instant at which a record moves there (V30)."""
    if not terms.settled or terms.settled[0] is None:
        return facts(records[:0], since[:0], COPY)
    first, last = terms.settled
    early = since <= first
    touched = np.zeros(int(max(records.max(initial=-1), stored.record.max(initial=-1))) + 1, bool)
    touched[records[early]] = True
    moves = stored.version & touched[stored.record]
    instants = [(stored.record[moves], each[moves]) for each in (stored.start, stored.end)]
    pairs = [(records[early], np.full(int(early.sum()), first)), *instants]
    record, at = (np.concatenate(each) for each in zip(*pairs, strict=True))
    inside = (at >= first) & (at <= last)
    record, at = np.unique(np.stack([record[inside], at[inside]]), axis=1)
    found = stored.covering(record, at)
    return facts(record, at, COPY, source=found, stored=beginning(stored, found, at))


def beginning(stored: StoredRecords, versions: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Of places of versions those that begin at these instants, else `NONE`."""
    if not len(stored.rows):
        return np.full(len(versions), NONE)
    return np.where((versions >= 0) & (stored.start[versions] == at), versions, NONE)


def copied(stored: StoredRecords, record: np.ndarray, at: np.ndarray, **more: np.ndarray) -> Facts:
    """Copies of which the table tells what they listed: each record as it is at the instant (V31).

    A version that an event began there is the event's.
    """
    found = stored.covering(record, at)
    begins = beginning(stored, found, at)
    if len(stored.rows):
        begins = np.where(stored.upsert[begins], NONE, begins)
    return facts(record, at, COPY, source=found, stored=begins, **more)


def beside_all(records: np.ndarray, since: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places of each record beside those of all instants that are not before its first new fact."""
    order = np.argsort(at, kind="stable")
    first = np.searchsorted(at[order], since)
    counts = len(at) - first
    owners = np.repeat(np.arange(len(records)), counts)
    ends = np.cumsum(counts)
    steps = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
    return owners, order[np.repeat(first, counts) + steps]
