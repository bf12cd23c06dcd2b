"""A feed planned in Spark's tasks, by bucket of the key: none of its events are on the driver."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from backstory.doors.native.acts import (
    COME,
    GONE,
    places_that_go,
    rows_of_acts,
    rows_to_write,
    sampled_keys,
    sum_counts,
)
from backstory.doors.native.buckets import acts_of_buckets, numbered_rows, slice_of_bucket
from backstory.doors.native.feeds.event_columns import event_columns, typed_events
from backstory.doors.native.feeds.events import EventTerms, events_of
from backstory.doors.native.feeds.here import first_instant, of_present_log, refuse, with_truncates
from backstory.doors.native.feeds.logs import LogSpan, Position, late_place, numbered, progress, span_of
from backstory.doors.native.feeds.planned import PlannedFeed
from backstory.doors.native.feeds.refusals import refuse_empty_restatement
from backstory.doors.native.feeds.source_rows import frame_of_feed
from backstory.doors.native.feeds.stored import behind_place, live_frame, slice_schema
from backstory.doors.native.feeds.terms import Feed
from backstory.doors.native.refusals import keys_of_rows
from backstory.errors import MAX_KEYS
from backstory.formats.delivered import in_schema
from backstory.model.layout import MEMORY, VALID_FROM
from backstory.model.remembered import OWN_TIME, Told
from backstory.spark.on_disk import persist_on_disk
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.iceberg.literals import column, micros_of
from backstory.stores.iceberg.positions import add_places, positions_of, with_paths
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.workers import carrying, map_batches
from backstory.strategies.copies.stored import Former
from backstory.strategies.copies.touched import TAKEN_BACK
from backstory.strategies.feeds.arrival import FAULTS, Arrival, arrive
from backstory.strategies.feeds.plan import FeedPlan, joined_plans, plan_records
from backstory.strategies.feeds.terms import AT, FURTHER, KIND, FeedTerms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Of a truncate, by its number: whether it is so of a record of a bucket.
ENDED, LATE_TRUNCATES, RAISED_TRUNCATES = "ended truncates", "late truncates", "raised truncates"


@contextmanager
def plan_by_tasks(feed: Feed) -> Iterator[PlannedFeed]:
    """The plan of a feed, while it lasts; Refused for what would not be right."""
    with ExitStack() as kept:
        events = persist_on_disk(_events(feed))
        kept.callback(events.unpersist)
        count, content, instants, truncates = _facts(feed, events)
        refuse_empty_restatement(count, feed.request)
        known, span = feed.stored_log, _span(feed, events, truncates)
        log = progress(known, span, feed.request, micros_of(feed.remembered.recorded))
        terms = feed.terms(instants[1], log)
        since = first_instant(terms, np.array([each for each in instants if each is not None], np.int64))
        schema = slice_schema(feed.table, terms.columns)
        live, marks = None, schema.empty_table()
        if feed.table is not None and since is not None:
            low = late_place(known, log, span)
            since = _first_moving(feed, since, low)
            live = live_frame(feed.store, feed.table, since, low)
            marks = in_schema(live.where(column(terms.key[0]).isNull()).toArrow(), schema)
            marks = with_truncates(feed, terms, marks, since, [0])
        number = 0 if log is None else log.number
        arrival = arrive(terms, truncates if log is None else numbered(truncates, number), marks)
        refuse(feed, terms, arrival.counts, arrival.samples)
        acts = persist_on_disk(_acts(feed, terms, arrival, events, live, count=count, number=number))
        kept.callback(acts.unpersist)
        yield replace(_planned(feed, terms, arrival, acts, content), log=log)


def _span(feed: Feed, events: "DataFrame", truncates: pa.Table) -> LogSpan | None:
    """The first and last place and time of the events; None where none has a place in a log."""
    from pyspark.sql.functions import max as last
    from pyspark.sql.functions import min as first
    from pyspark.sql.functions import struct, unix_micros

    if not feed.agreement.ordering.log:
        return None
    names = _numbered(feed)
    at, fields = column(names[AT]), events.schema[names[FURTHER]].dataType.names[1:]  # type: ignore[attr-defined]
    parts = [column(names[FURTHER]).getField(each) for each in fields]
    there = reduce(and_, (each.isNotNull() for each in (*parts, at)))
    place = struct(*(part.alias(each) for part, each in zip(parts, fields, strict=True)))
    if (known := feed.stored_log) is not None and known.former_logs is not None:
        type_ = events.select(place).schema[0].dataType.simpleString()
        there &= ~_of_former(known.former_logs, unix_micros(at), place, type_)
    asked = (first(place), last(place), first(unix_micros(at)), last(unix_micros(at)))
    row = events.where(there).agg(*(each.alias(f"a{n}") for n, each in enumerate(asked))).collect()[0]
    if row[0] is None:
        return None
    of_truncates = span_of(of_present_log(feed, truncates))
    return LogSpan(
        list(row[0]), list(row[1]), row[2], row[3], None if of_truncates is None else of_truncates.last
    )


def _of_former(former: Former, at: "Column", place: "Column", type_: str) -> "Column":
    """Whether messages that have a time and a place are of a former log, as `of_former` says it (V136)."""
    from pyspark.sql.functions import lit, struct

    known = at <= former.latest
    if former.last is not None:
        _, *last = former.last  # without the log's number
        known |= place > struct(*map(lit, last)).cast(type_)
    return (at <= former.until) & known


def _first_moving(feed: Feed, since: int, low: Position | None) -> int:
    """From when on the log moves what is stored, of any record (V134)."""
    from pyspark.sql.functions import least, unix_micros
    from pyspark.sql.functions import min as first

    if low is None:
        return since
    assert feed.table is not None
    rows = live_frame(feed.store, feed.table, since, low)
    own = least(unix_micros(VALID_FROM), unix_micros(column(MEMORY).getField(OWN_TIME)))
    (row,) = rows.where(behind_place(rows, low)).agg(first(own)).collect()
    return since if row[0] is None else min(since, row[0])


def _events(feed: Feed) -> "DataFrame":
    """The source's rows as events, in numbered columns."""
    terms = feed.event_terms(counted=False)
    types = event_columns(terms)
    rows = frame_of_feed(feed.source, feed.agreement.computed)
    declared = ", ".join(f"e{number} {spark_type(type_)}" for number, type_ in enumerate(types.values()))
    return map_batches(rows, partial(_event_batches, terms, tuple(types)), declared)


def _event_batches(
    terms: EventTerms, names: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        with carrying():
            events = events_of(pa.Table.from_batches([batch]), terms)
        yield from events.select(names).rename_columns([f"e{n}" for n in range(len(names))]).to_batches()


def _facts(feed: Feed, events: "DataFrame") -> tuple[int, int, tuple[int | None, int | None], pa.Table]:
    """How many events there are, a number made of them, their first and last instant; the truncates."""
    from pyspark.sql.functions import bit_xor, coalesce, count, lit, unix_micros, xxhash64
    from pyspark.sql.functions import max as last
    from pyspark.sql.functions import min as first

    names = _numbered(feed)
    at, kind = unix_micros(column(names[AT])), column(names[KIND])
    # What is settled is left out or refused, and looked at in no table; in a log its rest says what is.
    settled = feed.terms(None).settled
    timely = at
    if settled and not feed.agreement.ordering.log:
        from pyspark.sql.functions import when

        inside = at <= settled[1] if settled[0] is None else at.between(settled[0], settled[1])
        timely = when(~inside, at)
    hashed = xxhash64(*(column(name).cast("string") for name in names.values()))
    row = events.agg(
        count(lit(1)).alias("count"),
        coalesce(bit_xor(hashed), lit(0)).alias("content"),
        first(timely).alias("first"),
        last(at).alias("last"),
    ).collect()[0]
    truncates = events.where(kind == Told.TRUNCATE.value).toArrow()
    back = {number: name for name, number in names.items()}
    truncates = truncates.rename_columns([back[name] for name in truncates.column_names])
    return (
        row["count"],
        row["content"],
        (row["first"], row["last"]),
        typed_events(feed.event_terms(counted=False), truncates),
    )


def _numbered(feed: Feed) -> dict[str, str]:
    """The numbered columns of events by their names."""
    return {name: f"e{n}" for n, name in enumerate(event_columns(feed.event_terms(counted=False)))}


def _acts(
    feed: Feed,
    terms: FeedTerms,
    arrival: Arrival,
    events: "DataFrame",
    live: "DataFrame | None",
    *,
    count: int,
    number: int,
) -> "DataFrame":
    """What each bucket's plan decides, as rows."""
    everything = len(arrival.truncates) > 0 or terms.all_keys
    stored = 0 if feed.table is None or not everything else feed.table.rows
    names, shape = _numbered(feed), [each.name for each in terms.columns]
    mine, theirs = [names[each] for each in terms.key], [f"c{shape.index(each)}" for each in terms.key]
    left = events.where(column(names[KIND]) != Told.TRUNCATE.value)
    if live is None:
        live = frame_of(feed.store, slice_schema(feed.table, terms.columns).empty_table())
    right = numbered_rows(live.where(column(terms.key[0]).isNotNull()), terms.columns, feed.salt)
    if not everything:
        keys = left.select(*(column(each).alias(f"k{each}") for each in mine)).distinct()
        same = (right[other].eqNullSafe(keys[f"k{each}"]) for each, other in zip(mine, theirs, strict=True))
        right = right.join(keys, reduce(and_, same), "left_semi")
    plan = partial(_plan_bucket, feed.event_terms(counted=False), terms, arrival, number)
    return acts_of_buckets([(left, mine), (right, theirs)], count + stored, terms.columns, plan)


def _plan_bucket(
    event_terms: EventTerms,
    terms: FeedTerms,
    arrival: Arrival,
    number: int,
    events: pa.Table,
    stored: pa.Table,
) -> pa.Table:
    with carrying():
        names = list(event_columns(event_terms))
        if events.num_columns:
            coded = [f"e{place}" for place in range(len(names))]
            mine = typed_events(event_terms, events.select(coded).rename_columns(names))
        else:
            mine = arrival.events.slice(0, 0)
        mine = numbered(mine, number) if terms.log else mine
        own = arrive(terms, mine, arrival.standing.slice(0, 0))
        plan = plan_records(terms, arrival, own.events, slice_of_bucket(stored, terms.columns, ids=terms.ids))
        counts = Counter(own.counts)
        counts.update(plan.counts)
        counts |= {f"{ENDED} {n}": 1 for n in np.flatnonzero(plan.ended).tolist()}
        counts |= {f"{LATE_TRUNCATES} {n}": 1 for n in np.flatnonzero(plan.late).tolist()}
        counts |= {f"{RAISED_TRUNCATES} {n}": 1 for n in np.flatnonzero(plan.raised).tolist()}
        return rows_of_acts(
            terms.columns, replace(plan, counts=counts, samples={**own.samples, **plan.samples})
        )


def _planned(feed: Feed, terms: FeedTerms, arrival: Arrival, acts: "DataFrame", content: int) -> PlannedFeed:
    counts = sum_counts(acts)
    few = {kind: _sample(terms, acts, kind) for kind in FAULTS if counts[kind]}
    refuse(feed, terms, counts, few)
    none = arrival.come.slice(0, 0)
    flags = [
        np.array([counts[f"{kind} {n}"] > 0 for n in range(len(arrival.truncates))], bool)
        for kind in (ENDED, LATE_TRUNCATES, RAISED_TRUNCATES)
    ]
    whole = joined_plans(arrival, [FeedPlan(arrival.gone.slice(0, 0), none, counts, {}, *flags)])
    return PlannedFeed(
        whole.counts,
        lambda kind: _keys(feed, terms, acts, arrival, kind),
        counts[TAKEN_BACK],
        _places_to_hide(feed, arrival, acts, counts[GONE]),
        _come(feed, terms, arrival, acts, counts[COME]),
        counts[COME] + len(arrival.come),
        content,
    )


def _sample(terms: FeedTerms, acts: "DataFrame", kind: str) -> pa.Table:
    return sampled_keys(acts, terms.columns, terms.key, kind).limit(MAX_KEYS).toArrow()


def _keys(feed: Feed, terms: FeedTerms, acts: "DataFrame", arrival: Arrival, kind: str) -> list[str]:
    rows = _sample(terms, acts, kind)
    if kind in arrival.samples:
        rows = pa.concat_tables([rows, arrival.samples[kind].cast(rows.schema)])
    return keys_of_rows(feed.store, rows, terms.key)


def _places_to_hide(feed: Feed, arrival: Arrival, acts: "DataFrame", count: int) -> Any:
    """The places of rows that go, by file; None for none."""
    if not count and not len(arrival.gone):
        return None
    assert feed.table is not None
    gone = with_paths(feed.store, feed.table, positions_of(places_that_go(acts), count), feed.salt)
    return add_places(gone, arrival.gone)


def _come(feed: Feed, terms: FeedTerms, arrival: Arrival, acts: "DataFrame", count: int) -> Any:
    """The rows that come; None for none."""
    if not count:
        return arrival.come if len(arrival.come) else None
    come = rows_to_write(acts, terms.columns, ids=terms.ids)
    return come.unionByName(frame_of(feed.store, arrival.come)) if len(arrival.come) else come
