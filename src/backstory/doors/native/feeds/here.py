"""A feed planned by the driver: its events and the stored rows that they can touch, together."""

from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.feeds.events import events_of
from backstory.doors.native.feeds.planned import PlannedFeed
from backstory.doors.native.feeds.refusals import refuse_empty_restatement, refuse_faults
from backstory.doors.native.feeds.source_rows import read_rows
from backstory.doors.native.feeds.stored import KeysSince, slice_schema, stored_slice
from backstory.doors.native.feeds.terms import Feed
from backstory.doors.native.refusals import keys_of_rows
from backstory.formats.digest import digest
from backstory.model.remembered import Told
from backstory.stores.iceberg.slice import PLACE
from backstory.strategies.copies.rows import micros
from backstory.strategies.copies.touched import TAKEN_BACK
from backstory.strategies.feeds.arrival import FAULTS, arrive, in_interval
from backstory.strategies.feeds.plan import joined_plans, plan_records
from backstory.strategies.feeds.terms import AT, KIND, FeedTerms


def plan_here(feed: Feed, kept: ExitStack) -> PlannedFeed:
    """The plan of all events together; Refused for what would not be right, TooLarge for too much."""
    store, table = feed.store, feed.table
    lease = kept.enter_context(store.memory.lease())
    rows = read_rows(store, feed.source, feed.agreement.computed, lease)
    events = events_of(rows, feed.event_terms(counted=True))
    refuse_empty_restatement(len(events), feed.request)
    at = micros(events[AT].drop_null())
    terms = feed.terms(int(at.max()) if len(at) else None)
    since = first_instant(terms, at)
    stored = slice_schema(table, terms.columns).empty_table()
    if since is not None:
        stored = stored_slice(store, table, terms.columns, _keys(terms, events, since), since, lease)
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
    )


def refuse(feed: Feed, terms: FeedTerms, counts: Mapping[str, int], samples: Mapping[str, pa.Table]) -> None:
    """Raise Refused for the faults that are counted, with their keys."""
    if any(counts.get(name) for name in FAULTS):
        keys = {name: keys_of_rows(feed.store, rows, terms.key) for name, rows in samples.items()}
        ordering, settled = feed.agreement.ordering, feed.remembered.settled
        refuse_faults(counts, lambda name: keys.get(name, []), terms, ordering, settled)


def first_instant(terms: FeedTerms, at: np.ndarray) -> int | None:
    """From when on the table is looked at; None for a feed that touches nothing."""
    timely = at[~in_interval(at, terms.settled)]
    instants = [int(timely.min())] if len(timely) else []
    if terms.window is not None and (instants or terms.all_keys):
        instants.append(terms.window[0])
    return min(instants, default=None)


def _keys(terms: FeedTerms, events: pa.Table, since: int) -> KeysSince | None:
    """The keys of events, and from when on they may move; None where all records are touched."""
    truncate = pc.equal(events[KIND], Told.TRUNCATE.value)
    if terms.all_keys or pc.any(truncate).as_py():
        return None
    at = micros(events[AT]) if terms.window is None else np.full(len(events), since)
    return KeysSince(events.select(list(terms.key)), np.maximum(at, since))
