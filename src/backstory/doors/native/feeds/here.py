"""A feed planned by the driver: its events and the stored rows that they can touch, together."""

from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.feeds.events import events_of
from backstory.doors.native.feeds.logs import Position, late_place, numbered, progress, span_of
from backstory.doors.native.feeds.planned import PlannedFeed
from backstory.doors.native.feeds.refusals import refuse_empty_restatement, refuse_faults
from backstory.doors.native.feeds.source_rows import read_rows
from backstory.doors.native.feeds.stored import (
    BEGINNING,
    KeysSince,
    first_moving,
    slice_schema,
    stored_slice,
    stored_truncates,
)
from backstory.doors.native.feeds.terms import Feed
from backstory.doors.native.refusals import keys_of_rows
from backstory.formats.digest import digest
from backstory.model.layout import VALID_FROM
from backstory.model.places import FILE, POSITION
from backstory.model.remembered import OWN_TIME, SEQUENCE, Told
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.iceberg.slice import PLACE
from backstory.strategies.copies.rows import memory_field, micros
from backstory.strategies.copies.touched import TAKEN_BACK
from backstory.strategies.feeds.arrival import FAULTS, arrive, of_former
from backstory.strategies.feeds.log_order import in_interval, unsettled
from backstory.strategies.feeds.plan import joined_plans, plan_records
from backstory.strategies.feeds.terms import AT, KIND, FeedTerms


def plan_here(feed: Feed, kept: ExitStack) -> PlannedFeed:
    """The plan of all events together; Refused for what would not be right, TooLarge for too much."""
    store, table = feed.store, feed.table
    lease = kept.enter_context(store.memory.lease())
    rows = read_rows(store, feed.source, feed.agreement.computed, lease)
    events = events_of(rows, feed.event_terms(counted=True))
    refuse_empty_restatement(len(events), feed.request)
    known = feed.stored_log
    span = span_of(of_present_log(feed, events)) if feed.agreement.ordering.log else None
    log = progress(known, span, feed.request, micros_of(feed.remembered.recorded))
    events = events if log is None else numbered(events, log.number)
    at = micros(events[AT].drop_null())
    terms = feed.terms(int(at.max()) if len(at) else None, log)
    since = first_instant(terms, at)
    stored = slice_schema(table, terms.columns).empty_table()
    if since is not None:
        low = late_place(known, log, span)
        stored = stored_slice(store, table, terms.columns, _keys(terms, events, since), since, lease, low=low)
        moving = first_moving(stored, since, low)
        if moving < since:
            keys = _keys(terms, events, moving, all_since=True)
            stored = stored_slice(store, table, terms.columns, keys, moving, lease, low=low)
            since = moving
        stored = with_truncates(feed, terms, stored, since, low)
    is_mark = np.asarray(pc.is_null(stored[terms.key[0]]))
    arrival = arrive(terms, events, stored.filter(pa.array(is_mark)))
    refuse(feed, terms, arrival.counts, arrival.samples)
    plan = plan_records(terms, arrival, arrival.events, stored.filter(pa.array(~is_mark)))
    refuse(feed, terms, plan.counts, plan.samples)
    whole = joined_plans(arrival, [plan])
    return PlannedFeed(
        whole.counts,
        lambda kind: keys_of_rows(store, whole.samples[kind], terms.key) if kind in whole.samples else [],
        whole.counts.get(TAKEN_BACK, 0),
        whole.gone.cast(PLACE) if len(whole.gone) else None,
        whole.come if len(whole.come) else None,
        len(whole.come),
        digest(events),
        log,
    )


def of_present_log(feed: Feed, events: pa.Table) -> pa.Table:
    """The events without those of the logs before the one that the table has messages of (V136)."""
    known = feed.stored_log
    if known is None or known.former is None:
        return events
    return events.filter(pa.array(~of_former(feed.terms(None, known), numbered(events, known.number))))


def with_truncates(
    feed: Feed, terms: FeedTerms, stored: pa.Table, since: int, low: Position | None
) -> pa.Table:
    """The slice, and truncates of the log that are before it in time, but behind some of its messages."""
    known = feed.stored_log
    if known is None or known.truncate is None or feed.table is None or not feed.table.rows:
        return stored
    if low is None or known.truncate < low:
        later = stored.filter(pc.and_(memory_field(stored, OWN_TIME).is_valid(), _from(stored, since)))
        places = [tuple(each.values()) for each in memory_field(later, SEQUENCE).to_pylist() if each]
        if not places or tuple(known.truncate) < min(places):
            return stored
    marks = stored_truncates(feed.store, feed.table, terms.columns).cast(stored.schema)
    theirs = pa.concat_tables([stored, marks])
    same = [tuple(each.values()) for each in theirs.select([FILE, POSITION]).to_pylist()]
    first = {place: number for number, place in reversed(list(enumerate(same)))}
    return theirs.take(pa.array(sorted(first.values())))


def _from(rows: pa.Table, since: int) -> pa.Array:
    return pa.array(micros(rows[VALID_FROM]) >= since)


def refuse(feed: Feed, terms: FeedTerms, counts: Mapping[str, int], samples: Mapping[str, pa.Table]) -> None:
    """Raise Refused for the faults that are counted, with their keys."""
    if any(counts.get(name) for name in FAULTS):
        keys = {name: keys_of_rows(feed.store, rows, terms.key) for name, rows in samples.items()}
        ordering, settled = feed.agreement.ordering, feed.remembered.settled
        refuse_faults(counts, lambda name: keys.get(name, []), terms, ordering, settled)


def first_instant(terms: FeedTerms, at: np.ndarray) -> int | None:
    """From when on the table is looked at; None for a feed that touches nothing."""
    timely = unsettled(at, terms.settled) if terms.log else at[~in_interval(at, terms.settled)]
    instants = [int(timely.min())] if len(timely) else []
    if terms.window is not None and (instants or terms.all_keys):
        # What it takes back of a log raises nothing any more, and may show what was long before (V135).
        instants.append(BEGINNING if terms.log else terms.window[0])
    return min(instants, default=None)


def _keys(terms: FeedTerms, events: pa.Table, since: int, *, all_since: bool = False) -> KeysSince | None:
    """The keys of events, and from when on they may move; None where all records are touched."""
    truncate = pc.equal(events[KIND], Told.TRUNCATE.value)
    if terms.all_keys or pc.any(truncate).as_py():
        return None
    of_each = terms.window is None and not all_since
    at = micros(events[AT]) if of_each else np.full(len(events), since)
    return KeysSince(
        events.select(list(terms.key)), np.maximum(unsettled(at, terms.settled) if terms.log else at, since)
    )
