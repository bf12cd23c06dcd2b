"""The plan of the records that a feed touches, as Arrow tables (V9, V25, V58, V64, V72, V78).

Stored rows and delivered events become facts in one order (`fold`), which are folded into states (`states`).
Differences from the stored rows are written (`difference`). Records do not affect each other. They can be
planned together or in parts by key, with the same result.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS
from backstory.model.layout import VALID_FROM
from backstory.model.versions_layout import COLUMNS, KIND, OWN_TIME, ROLE, SCOPE, SEQUENCE, FactKind, Role
from backstory.strategies.copies.plan import DRIVES, TAKEN_BACK
from backstory.strategies.copies.version_rows import (
    are_live,
    memory_field,
    micros,
    withdraw_facts,
    written_rows,
)
from backstory.strategies.feeds.arrival import CONFLICT, DUPLICATE, SETTLED, SPOILT, TOO_LATE, Arrival
from backstory.strategies.feeds.difference import HistoryDifference
from backstory.strategies.feeds.facts import BEFORE, CLEAR, UPSERT, marks_of
from backstory.strategies.feeds.fold import RecordFold
from backstory.strategies.feeds.records import is_of, make_rows, sequence_codes, sequences, values_at
from backstory.strategies.feeds.states import States
from backstory.strategies.feeds.terms import BEFORE_IMAGE, FIRST, FeedTerms
from backstory.strategies.part_plan import PartPlan, PlanSums, refused_part
from backstory.strategies.values import alike

BEGAN, ENDED, SILENT, LATE = "began", "ended", "silent", "late"
PARTIAL, MISMATCHED, RAISED = "partial", "mismatched", "raised"


def outcomes_of(states: States, before: pa.Array | None) -> dict[str, np.ndarray]:
    """A mask of the facts for each outcome. `before` are the before images of delivered events (V64)."""
    facts = states.facts
    count = len(facts)
    there_before = np.zeros(count, bool)
    there_before[1:] = states.there[:-1]  # a record's first fact is never delivered
    began = np.zeros(count, bool)
    began[states.runs.begin] = True
    ends = np.zeros(len(states.firsts), bool)
    later = np.flatnonzero(~states.base)
    ends[later] = states.moves[later] & states.there[states.lasts[later - 1]]
    clears = facts.kind == CLEAR
    known = ~facts.new & (facts.kind != BEFORE)
    last = np.full(int(facts.record.max(initial=-1)) + 1, -1)
    np.maximum.at(last, facts.record[known], np.flatnonzero(known))
    sparse = (facts.columns >= 0) & (facts.kind == UPSERT)
    sparse[sparse] = ~states.pool.whole[facts.columns[sparse]]
    began, ended = began & (facts.kind == UPSERT), clears & there_before & ends[states.instant]
    return {
        BEGAN: began,
        ENDED: ended,
        SILENT: ~began & ~ended,
        LATE: last[facts.record] > np.arange(count),
        PARTIAL: sparse & ~there_before,
        MISMATCHED: _find_mismatches(states, there_before, before),
        RAISED: (facts.own != FIRST) & (facts.at != facts.own),
    }


def changes_by_column(states: States, began: np.ndarray) -> dict[str, np.ndarray]:
    """For each tracked column, the indexes of the facts in `began` that changed its value (V120).

    Facts that make a record appear do not count.
    """
    begins = np.flatnonzero(began)
    instant = states.instant[begins]
    before, after = states.lasts[instant - 1], states.lasts[instant]
    there = states.there[before]
    begins, before, after = begins[there], before[there], after[there]
    pool = states.pool
    places = {name: states.place(name) for name in states.terms.tracked}
    return {name: begins[~pool.alike(name, place[before], place[after])] for name, place in places.items()}


def _find_mismatches(states: States, there_before: np.ndarray, before: pa.Array | None) -> np.ndarray:
    """A mask of the events whose before image differs from the known state (V64)."""
    facts, mismatches = states.facts, np.zeros(len(states.facts), bool)
    if before is None:
        return mismatches
    names = [field.name for field in before.type if field.name in states.terms.tracked]
    delivered = np.flatnonzero(facts.event >= 0)
    delivered = delivered[np.asarray(before.is_valid())[facts.event[delivered]]]
    if not names or not len(delivered):
        return mismatches
    images = before.take(pa.array(facts.event[delivered]))
    same = there_before[delivered]
    for name in names:
        values = states.pool.at(name, states.place(name)[delivered - 1])
        same = same & alike(values, pc.struct_field(images, name).cast(values.type))
    mismatches[delivered] = ~same
    return mismatches


def void_rows(records: RecordFold) -> Iterator[tuple[pa.Table, bool]]:
    """Rows that cancel marks for restated keys, and voids that are withdrawn.

    Flags are as in `HistoryDifference.rows`.
    """
    back = records.marks.withdrawn
    if len(back):
        rows = records.rows.take(pa.array(back))
        yield withdraw_facts(rows, records.terms.recorded, records.terms.memory), True
    silenced = records.arrival.silenced_marks
    if not len(silenced):
        return
    terms, named = records.terms, np.flatnonzero(records.is_named)
    codes = sequence_codes(
        terms, [(sequences(silenced), len(silenced)), (sequences(records.rows), len(records.rows))]
    )
    marks = marks_of(silenced, len(silenced), codes[0], records.stored_records, codes[1])
    record, mark = np.repeat(named, len(silenced)), np.tile(np.arange(len(silenced)), len(named))
    new = marks.applies(record, mark)
    record, mark = record[new], mark[new]
    taken = silenced.take(pa.array(mark))
    # The void of a truncate has an empty list of columns; the void of a copy has NULL.
    ends, nothing = pa.array(np.zeros(len(taken) + 1, np.int32)), pa.array([], pa.int32())
    columns = pa.ListArray.from_arrays(ends, nothing, mask=pa.array(~is_of(taken, FactKind.TRUNCATE)))
    memory = {
        ROLE: pa.repeat(Role.FACT.value, len(taken)),
        KIND: pa.repeat(FactKind.VOID.value, len(taken)),
        SEQUENCE: sequences(taken),
        COLUMNS: columns,
        SCOPE: memory_field(taken, SCOPE),
        OWN_TIME: memory_field(taken, OWN_TIME),
    }
    at, keys = micros(taken[VALID_FROM]), values_at(records.pool, terms.key, records.row_of[record])
    yield make_rows(terms, keys, at, at, memory), False


def plan_records(terms: FeedTerms, arrival: Arrival, events: pa.Table, slice_: pa.Table) -> PartPlan:
    """The rows to add and to remove, and all counts except the arrival's.

    There are counts of events by outcome (V58), of changes by column (`DRIVES`), and of withdrawn statements.
    A truncate that ends records, is late or is raised has a count under its number (`truncate_count`).
    `events` are the arrival's events for the keys to plan, which may be some or all of its keys. `slice_` has
    the stored rows of these keys that are open or end at or after the first instant of the delivery and its
    window. With truncates or `all_keys`, `slice_` has the rows of all keys. If there are faults, the plan has
    only their counts and samples.
    """
    records = RecordFold(terms, arrival, events, slice_.filter(are_live(slice_)))
    if refused := refused_part(_faults(records)):
        return refused
    difference = HistoryDifference.of(records)
    parts = [*difference.rows(), *void_rows(records)]
    before = (
        records.events[BEFORE_IMAGE].combine_chunks() if BEFORE_IMAGE in records.events.column_names else None
    )
    outcomes = outcomes_of(records.states, before)
    counts, samples = _count_outcomes(records, outcomes)
    if len(difference.withdrawn_versions):
        counts[TAKEN_BACK] = len(difference.withdrawn_versions)
    truncate = records.states.facts.truncate
    for kind in (ENDED, LATE, RAISED):
        numbers = np.unique(truncate[outcomes[kind] & (truncate >= 0)]).tolist()
        counts |= {truncate_count(kind, number): 1 for number in numbers}
    written = written_rows(parts, records.rows, terms.columns, ids=terms.ids)
    return PartPlan(written, counts, samples)


def truncate_count(kind: str, number: int) -> str:
    """The name of the count for an outcome of the truncate with this number."""
    return f"{kind} by truncate {number}"


def join_counts(arrival: Arrival, sums: PlanSums) -> dict[str, int]:
    """The counts of a whole delivery: of all its parts, of the arrival, and of its truncates."""
    counts = Counter(arrival.counts)
    ended, late, raised = (
        np.array([sums.counts[truncate_count(kind, n)] > 0 for n in range(len(arrival.has_later_mark))], bool)
        for kind in (ENDED, LATE, RAISED)
    )
    counts.update({name: count for name, count in sums.counts.items() if " by truncate " not in name})
    late |= arrival.has_later_mark
    counts.update({ENDED: int(ended.sum()), SILENT: int((~ended).sum())})
    counts.update({LATE: int(late.sum()), RAISED: int(raised.sum())})
    return {name: count for name, count in counts.items() if count}


def _faults(records: RecordFold) -> dict[str, pa.Table]:
    """The keys of the events and stored rows with a fault, by fault."""
    events, stored = records.truncate_conflicts
    conflicts = np.union1d(events, np.flatnonzero(records.ties.conflict))
    key = list(records.terms.key)
    sources_by_fault = {
        CONFLICT: [(records.events, conflicts), (records.rows, stored)],
        SPOILT: [(records.rows, records.stored_records.spoilt())],
        SETTLED: [
            (records.events, records.late_events[:0] if records.terms.drops else records.late_events),
            (records.rows, records.settling_rows),
        ],
    }
    return {
        name: pa.concat_tables([rows.select(key).take(pa.array(places)) for rows, places in sources])
        for name, sources in sources_by_fault.items()
    }


def _count_outcomes(
    records: RecordFold, outcomes: Mapping[str, np.ndarray]
) -> tuple[dict[str, int], dict[str, pa.Table]]:
    """The number of delivered events by outcome, and a few keys for each outcome."""
    facts = records.states.facts
    event = facts.event >= 0
    keys = records.events.select(list(records.terms.key))
    places = {name: facts.event[rows & event] for name, rows in outcomes.items()} | {
        DUPLICATE: np.flatnonzero(records.ties.duplicate),
        TOO_LATE: records.late_events,
    }
    counts = {name: len(rows) for name, rows in places.items() if len(rows)}
    samples = {name: keys.take(pa.array(places[name][:MAX_KEYS])) for name in counts}
    drives = changes_by_column(records.states, outcomes[BEGAN] & event)
    counts |= {f"{DRIVES}{name}": len(rows) for name, rows in drives.items() if len(rows)}
    return counts, samples
