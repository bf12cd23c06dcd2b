"""What a feed makes of the records that it touches, as Arrow tables (native.md V9, V78).

Stored rows and delivered events become facts in one order (`touched`), which are folded side by side
(`states`); what differs from the stored rows is written (`difference`). Records of different keys never meet
here, so that they are planned together or in parts by key, with one result.
"""

from collections import Counter

import numpy as np
import pyarrow as pa

from backstory.errors import MAX_KEYS
from backstory.formats.delivered import shaped
from backstory.model.places import FILE, POSITION
from backstory.strategies.copies.touched import DRIVES, TAKEN_BACK
from backstory.strategies.feeds.arrival import CONFLICT, DUPLICATE, SETTLED, SPOILT, TOO_LATE, Arrival
from backstory.strategies.feeds.difference import Difference
from backstory.strategies.feeds.outcomes import (
    BEGAN,
    ENDED,
    LATE,
    MISMATCHED,
    PARTIAL,
    RAISED,
    SILENT,
    Outcomes,
    driving,
    outcomes,
)
from backstory.strategies.feeds.records import live_rows
from backstory.strategies.feeds.terms import BEFORE, FeedTerms
from backstory.strategies.feeds.touched import Records
from backstory.strategies.feeds.voids import voids
from backstory.strategies.part_plan import ADDED, REMOVED, PartPlan, PlanSums


def plan_records(terms: FeedTerms, arrival: Arrival, events: pa.Table, slice_: pa.Table) -> PartPlan:
    """The rows that go and come, and all counts but those of the arrival.

    Counted are events by outcome (V58), by column those that changed it (`DRIVES`), faults, and statements
    that are taken back; of a truncate, by its number (`of_truncate`), whether it ends, is late or raised.

    `events` are those of the arrival, or the part of them with some keys, `slice_` the stored rows that are
    open or end at or after the first instant of the delivery, or of its window: of these keys, or with
    truncates or `all_keys` of all. With faults in the counts nothing else is to be trusted.
    """
    records = Records(terms, arrival, events, live_rows(slice_))
    faults = _faults(records)
    if faults:
        counts = {name: len(rows) for name, rows in faults.items()}
        samples = {name: rows.slice(0, MAX_KEYS) for name, rows in faults.items()}
        return PartPlan({}, counts, samples)
    made = difference_of(records)
    parts = [*made.rows(), *voids(records)]
    before = records.events[BEFORE].combine_chunks() if BEFORE in records.events.column_names else None
    found = outcomes(records.states, before)
    counts, samples = _counted(records, found)
    if len(made.taken_back):
        counts[TAKEN_BACK] = len(made.taken_back)
    for kind, flags in {ENDED: found.ended, LATE: found.late, RAISED: found.raised}.items():
        counts |= {of_truncate(kind, number): 1 for number in _truncates(records, flags)}
    none = records.rows.select([FILE, POSITION]).slice(0, 0)
    gone = (rows.select([FILE, POSITION]) for rows, instead in parts if instead)
    come = [shaped(rows, terms.columns, ids=terms.ids) for rows, _ in parts]
    return PartPlan(
        {REMOVED: pa.concat_tables([none, *gone]), ADDED: pa.concat_tables(come)}, counts, samples
    )


def difference_of(records: Records) -> Difference:
    """The new lives of records against their stored rows."""
    return Difference(
        records.terms, records.pool, records.stored, records.states, records.since, records.further
    )


def of_truncate(kind: str, number: int) -> str:
    """The name of the count of records for which a truncate of this number is so."""
    return f"{kind} by truncate {number}"


def joined_counts(arrival: Arrival, sums: PlanSums) -> dict[str, int]:
    """The counts of all parts of a delivery, with the arrival's own and those of its truncates."""
    counts = Counter(arrival.counts)
    ended, late, raised = (
        np.array([sums.counts[of_truncate(kind, n)] > 0 for n in range(len(arrival.truncates))], bool)
        for kind in (ENDED, LATE, RAISED)
    )
    counts.update({name: count for name, count in sums.counts.items() if " by truncate " not in name})
    late |= arrival.later
    counts.update({ENDED: int(ended.sum()), SILENT: int((~ended).sum())})
    counts.update({LATE: int(late.sum()), RAISED: int(raised.sum())})
    return {name: count for name, count in counts.items() if count}


def _faults(records: Records) -> dict[str, pa.Table]:
    """The keys of events that conflict, and of spoilt records, if there are any."""
    events, stored = records.clashes
    conflicts = np.union1d(events, np.flatnonzero(records.ties.conflict))
    key = list(records.terms.key)
    found = {
        CONFLICT: [(records.events, conflicts), (records.rows, stored)],
        SPOILT: [(records.rows, records.stored.spoilt())],
        SETTLED: [
            (records.events, records.too_late[:0] if records.terms.drops else records.too_late),
            (records.rows, records.settling),
        ],
    }
    keys = {
        name: pa.concat_tables([rows.select(key).take(pa.array(places)) for rows, places in each])
        for name, each in found.items()
    }
    return {name: rows for name, rows in keys.items() if len(rows)}


def _counted(records: Records, found: Outcomes) -> tuple[dict[str, int], dict[str, pa.Table]]:
    """The events of records by outcome, and a few keys of each."""
    facts = records.states.facts
    event = facts.event >= 0
    silent = event & ~found.began & ~found.ended
    kinds = {
        BEGAN: found.began & event,
        ENDED: found.ended & event,
        SILENT: silent,
        LATE: found.late & event,
        PARTIAL: found.partial & event,
        MISMATCHED: found.mismatched,
        RAISED: found.raised & event,
    }
    keys = records.events.select(list(records.terms.key))
    places = {name: facts.event[rows] for name, rows in kinds.items()} | {
        DUPLICATE: np.flatnonzero(records.ties.again),
        TOO_LATE: records.too_late,
    }
    counts = {name: len(each) for name, each in places.items() if len(each)}
    samples = {name: keys.take(pa.array(places[name][:MAX_KEYS])) for name in counts}
    drives = driving(records.states, found.began & event)
    counts |= {f"{DRIVES}{name}": len(each) for name, each in drives.items() if len(each)}
    return counts, samples


def _truncates(records: Records, flags: np.ndarray) -> list[int]:
    """The numbers of truncates for which something is so for any record."""
    truncate = records.states.facts.truncate
    return np.unique(truncate[flags & (truncate >= 0)]).tolist()
