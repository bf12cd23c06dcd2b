"""The plan of a feed: its events, together with the stored rows that they can touch (V78)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from backstory.doors.native import stored_rows
from backstory.doors.native.feeds.agreement import FeedInputs
from backstory.doors.native.feeds.events import EventMapping, event_columns, events_of, typed_events
from backstory.doors.native.feeds.expressions import compute_by_spark, read_feed_rows
from backstory.doors.native.feeds.logs import (
    LogProgress,
    LogSpan,
    Position,
    late_place,
    number_events,
    progress,
    span_of,
)
from backstory.doors.native.refusals import keys_of_rows, refuse_empty_restatement, refuse_feed_faults
from backstory.engine.plans import LocalSide, PlanTerms, Side, SideRows, join_rows
from backstory.engine.runner import run_plan
from backstory.formats.delivered import arrow_schema, in_schema
from backstory.formats.memory import MemoryLease, TooLarge, unpacked_size
from backstory.formats.rows import digest
from backstory.model.layout import FILE, MEMORY, POSITION, VALID_FROM
from backstory.model.versions_layout import OWN_TIME, SEQUENCE, FactKind
from backstory.spark.versions import arrow_of, persist_on_disk
from backstory.stores.iceberg.frames import frame_of, spark_fields
from backstory.stores.iceberg.literals import column, micros_of
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.slice import PLACE
from backstory.stores.iceberg.workers import carry_errors, map_batches
from backstory.strategies.copies.version_rows import memory_field, micros
from backstory.strategies.feeds.arrival import FAULTS, Arrival, are_of_former_logs, check_delivery, of_kind
from backstory.strategies.feeds.facts import in_interval, move_past_settled
from backstory.strategies.feeds.plan import join_counts, plan_records
from backstory.strategies.feeds.terms import AT, FURTHER, KIND, FeedTerms, FormerLogs
from backstory.strategies.part_plan import ADDED, REMOVED, PartPlan, PlanSums, Whole
from backstory.strategies.values import take_rows

EVENTS: Final = "events"
STORED: Final = "stored rows"


@dataclass(frozen=True, slots=True)
class PlannedFeed:
    """The plan of a feed.

    `samples` has a few keys for each outcome. `removed_places` and `new_rows` may be None, and
    `new_row_count` counts the new rows. `content` is a digest of the events as a number, and `log` is the
    progress of their log. `sets_columns` is true if any event is an upsert.
    """

    feed: FeedInputs
    counts: Mapping[str, int]
    samples: Mapping[str, pa.Table]
    removed_places: Any
    new_rows: Any
    new_row_count: int
    content: int
    log: LogProgress | None = None
    sets_columns: bool = True

    def keys(self, kind: str) -> list[str]:
        """Up to ten keys of an outcome."""
        rows = self.samples.get(kind)
        return [] if rows is None else keys_of_rows(self.feed.store, rows, self.feed.key)


@dataclass(frozen=True, slots=True)
class _Events:
    """The events of a feed, as an Arrow table or a frame, and facts about all of them.

    `instants` are their times in microseconds. For a frame, these are only the first and last unsettled
    times. `truncates` are the truncates among the events, and `span` is the span of all events in the log.
    """

    rows: pa.Table | DataFrame
    count: int
    upserts: int
    content: int
    instants: np.ndarray
    last: int | None
    truncates: pa.Table
    span: LogSpan | None


@dataclass(frozen=True, slots=True)
class _StoredSlice:
    """The stored rows that a feed can touch: marks, and records' rows from `since` on.

    If Spark reads the records, `records` is None.
    """

    since: int | None
    marks: pa.Table
    records: pa.Table | None
    low: Position | None = None


@contextmanager
def open_feed_plan(feed: FeedInputs) -> Iterator[PlannedFeed]:
    """Plan a feed. The plan is valid until the context ends. Raises Refused for a faulty feed."""
    with ExitStack() as resources:
        events = _events_here(feed) or _events_by_spark(feed, resources)
        refuse_empty_restatement(events.count, feed.request)
        log = progress(feed.stored_log, events.span, feed.request, micros_of(feed.memory.recorded))
        terms = feed.terms(events.last, log)
        stored = _read_stored(feed, terms, events, log)
        number = 0 if log is None else log.number
        truncates = events.truncates if log is None else number_events(events.truncates, number)
        arrival = check_delivery(terms, truncates, stored.marks)
        _refuse(feed, terms, arrival.counts, arrival.samples)
        plan_terms = _plan_terms(feed, terms, arrival, events, stored, number)
        planned = resources.enter_context(run_plan(plan_terms))
        sums = planned.sums
        _refuse(feed, terms, sums.counts, sums.samples)
        sums.join(PlanSums(samples=dict(arrival.samples)))
        removed = None if feed.table is None else planned.places(REMOVED, feed.table)
        yield PlannedFeed(
            feed,
            join_counts(arrival, sums),
            sums.samples,
            stored_rows.join_places(removed, arrival.removed.cast(PLACE)),
            join_rows(feed.store, planned.rows(ADDED), arrival.added),
            sums.added[ADDED] + len(arrival.added),
            events.content,
            log,
            events.upserts > 0,
        )


def _plan_terms(
    feed: FeedInputs, terms: FeedTerms, arrival: Arrival, events: _Events, stored: _StoredSlice, number: int
) -> PlanTerms:
    own = feed.event_mapping(counted=False)
    schema, slice_ = arrow_schema(event_columns(own)), stored_rows.slice_schema(feed.table, terms.columns)
    everything = len(arrival.has_later_mark) > 0 or terms.all_keys
    table = None if stored.since is None else feed.table
    sides = {
        EVENTS: Side(
            schema,
            partial(_event_frame, feed, events, schema),
            partial(_held_side, events.rows, FactKind.TRUNCATE),
            count=events.count,
            repeatable=not isinstance(events.rows, pa.Table),
        ),
        STORED: Side(
            slice_,
            partial(_record_frame, feed, terms, stored, slice_),
            partial(_held_side, stored.records, None),
            1 if table is None else unpacked_size(table.rows, len(slice_), table.bytes),
            0 if table is None else table.rows,
            meets=None if everything else EVENTS,
        ),
    }
    added = pa.schema([field for field in slice_ if field.name not in {FILE, POSITION}])
    plan = partial(_plan_part, own, terms, arrival, number)
    kinds = {REMOVED: PLACE, ADDED: added}
    return PlanTerms(feed.store, feed.evolved.shape.table, sides, terms.key, kinds, plan)


def _held_side(
    rows: Any, excluded: FactKind | None, _lease: MemoryLease, _met: LocalSide | None
) -> LocalSide:
    """A side of rows in the driver's memory, without events of one kind. Raises TooLarge for frames."""
    if not isinstance(rows, pa.Table):
        raise TooLarge
    if excluded is not None:
        rows = take_rows(rows, np.flatnonzero(~of_kind(rows, excluded)))
    return LocalSide(SideRows(rows.schema, lambda: [rows]))


def _plan_part(
    event_terms: EventMapping,
    terms: FeedTerms,
    arrival: Arrival,
    number: int,
    sides: Mapping[str, pa.Table],
    _whole: Whole,
) -> PartPlan:
    """The plan of some records, with the faults of their events."""
    events = typed_events(event_terms, sides[EVENTS])
    own = check_delivery(terms, number_events(events, number) if terms.log else events, arrival.marks)
    plan = plan_records(terms, arrival, own.events, sides[STORED])
    counts = Counter(own.counts)
    counts.update(plan.counts)
    return PartPlan(plan.rows, counts, {**own.samples, **plan.samples})


# The events


def _events_here(feed: FeedInputs) -> _Events | None:
    """The events as an Arrow table, or None if the driver's memory cannot hold them."""
    store = feed.store
    if not store.memory.most:
        return None
    with suppress(TooLarge), store.memory.lease() as lease:
        rows = read_feed_rows(store, feed.source, feed.computed, lease)
        events = events_of(rows, feed.event_mapping(counted=True))
        at = micros(events[AT].drop_null())
        return _Events(
            events,
            len(events),
            pc.sum(pc.equal(events[KIND], FactKind.UPSERT.value)).as_py() or 0,
            digest(events),
            at,
            int(at.max()) if len(at) else None,
            events.filter(pc.equal(events[KIND], FactKind.TRUNCATE.value)),
            span_of(_events_of_present_log(feed, events)) if feed.ordering.log else None,
        )
    return None


def _events_by_spark(feed: FeedInputs, resources: ExitStack) -> _Events:
    """The events as a persisted frame."""
    rows = persist_on_disk(_frame_of_events(feed))
    resources.callback(rows.unpersist)
    at, kind = sf.unix_micros(column(AT)), column(KIND)
    # Settled events touch no stored rows. In a log, the rest of the log decides which events are settled.
    settled = feed.terms(None).settled
    timely = at
    if settled and not feed.ordering.log:
        inside = at <= settled[1] if settled[0] is None else at.between(settled[0], settled[1])
        timely = sf.when(~inside, at)
    hashed = sf.xxhash64(*(column(name).cast("string") for name in rows.columns))
    row = rows.agg(
        sf.count(sf.lit(1)).alias("count"),
        sf.count_if(kind == FactKind.UPSERT.value).alias("upserts"),
        sf.coalesce(sf.bit_xor(hashed), sf.lit(0)).alias("content"),
        sf.min(timely).alias("first"),
        sf.max(at).alias("last"),
    ).collect()[0]
    truncates = arrow_of(rows.where(kind == FactKind.TRUNCATE.value))
    truncates = typed_events(feed.event_mapping(counted=False), truncates)
    return _Events(
        rows,
        row["count"],
        row["upserts"],
        row["content"],
        np.array([instant for instant in (row["first"], row["last"]) if instant is not None], np.int64),
        row["last"],
        truncates,
        _log_span(feed, rows, truncates),
    )


def _event_frame(feed: FeedInputs, events: _Events, schema: pa.Schema) -> DataFrame:
    """The events as a frame, without truncates."""
    rows = events.rows
    if isinstance(rows, pa.Table):
        rows = frame_of(feed.store, rows.select(schema.names).cast(schema))
    return rows.where(column(KIND) != FactKind.TRUNCATE.value)


def _log_span(feed: FeedInputs, events: DataFrame, truncates: pa.Table) -> LogSpan | None:
    """The events' span in their log, or None if no event has a position."""
    if not feed.ordering.log:
        return None
    at, fields = column(AT), events.schema[FURTHER].dataType.names[1:]  # type: ignore[attr-defined]
    parts = [column(FURTHER).getField(name) for name in fields]
    there = reduce(and_, (value.isNotNull() for value in (*parts, at)))
    place = sf.struct(*(part.alias(name) for part, name in zip(parts, fields, strict=True)))
    if (known := feed.stored_log) is not None and known.former_logs is not None:
        type_ = events.select(place).schema[0].dataType.simpleString()
        there &= ~_is_of_former_log(known.former_logs, sf.unix_micros(at), place, type_)
    aggregates = (sf.min(place), sf.max(place), sf.min(sf.unix_micros(at)), sf.max(sf.unix_micros(at)))
    row = (
        events.where(there)
        .agg(*(aggregate.alias(f"a{n}") for n, aggregate in enumerate(aggregates)))
        .collect()[0]
    )
    if row[0] is None:
        return None
    of_truncates = span_of(_events_of_present_log(feed, truncates))
    return LogSpan(
        list(row[0]), list(row[1]), row[2], row[3], None if of_truncates is None else of_truncates.last
    )


def _is_of_former_log(former: FormerLogs, at: Column, place: Column, type_: str) -> Column:
    """A condition for messages of a former log, as in `are_of_former_logs` (V136)."""
    known = at <= former.latest
    if former.last is not None:
        _, *last = former.last  # without the log's number
        known |= place > sf.struct(*map(sf.lit, last)).cast(type_)
    return (at <= former.until) & known


def _frame_of_events(feed: FeedInputs) -> DataFrame:
    """The source's rows as events."""
    terms = feed.event_mapping(counted=False)
    rows = compute_by_spark(feed.source.frame(), feed.computed)
    schema = arrow_schema(event_columns(terms))
    return map_batches(rows, partial(_event_batches, terms, schema.names), spark_fields(schema))


def _event_batches(
    terms: EventMapping, names: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        with carry_errors():
            events = events_of(pa.Table.from_batches([batch]), terms)
        yield from events.select(names).to_batches()


# The stored rows


def _read_stored(
    feed: FeedInputs, terms: FeedTerms, events: _Events, log: LogProgress | None
) -> _StoredSlice:
    """The marks and rows that the events can touch."""
    nothing = stored_rows.slice_schema(feed.table, terms.columns).empty_table()
    since = _first_instant(terms, events.instants)
    if since is None or feed.table is None:
        return _StoredSlice(since, nothing, nothing)
    low = late_place(feed.stored_log, log, events.span)
    if isinstance(events.rows, pa.Table):
        with suppress(TooLarge):
            return _read_stored_here(feed, terms, events.rows, since, low)
    since = _first_moving_by_spark(feed, since, low)
    live = stored_rows.live_frame(feed.store, feed.table, since, low)
    marks = in_schema(arrow_of(live.where(column(terms.key[0]).isNull())), nothing.schema)
    return _StoredSlice(since, _with_truncates(feed, terms, marks, since, [0]), None, low)


def _read_stored_here(
    feed: FeedInputs, terms: FeedTerms, events: pa.Table, since: int, low: Position | None
) -> _StoredSlice:
    store, table = feed.store, feed.table
    with store.memory.lease() as lease:
        keys = _keys(terms, events, since)
        stored = stored_rows.stored_slice(store, table, terms.columns, keys, since, lease, low=low)
        moving = stored_rows.first_moving_instant(stored, since, low)
        if moving < since:
            keys = _keys(terms, events, moving, all_since=True)
            stored = stored_rows.stored_slice(store, table, terms.columns, keys, moving, lease, low=low)
            since = moving
    stored = _with_truncates(feed, terms, stored, since, low)
    is_mark = np.asarray(pc.is_null(stored[terms.key[0]]))
    marks, records = (take_rows(stored, np.flatnonzero(kind)) for kind in (is_mark, ~is_mark))
    return _StoredSlice(since, marks, records, low)


def _record_frame(feed: FeedInputs, terms: FeedTerms, stored: _StoredSlice, schema: pa.Schema) -> DataFrame:
    """The stored rows of records as a frame, in the columns of a slice. Missing columns are NULL."""
    if feed.table is None or stored.since is None:
        fields = [(field.name, pa.string() if field.name == FILE else field.type) for field in schema]
        return frame_of(feed.store, pa.schema(fields).empty_table())
    rows = stored_rows.live_frame(feed.store, feed.table, stored.since, stored.low)
    rows = rows.where(column(terms.key[0]).isNotNull())
    types = {col.name: spark_type(col.type) for col in terms.columns}
    there = {*rows.columns}
    values = (column(name) if name in there else sf.lit(None).cast(types[name]) for name in schema.names)
    return rows.select(*values)


def _first_moving_by_spark(feed: FeedInputs, since: int, low: Position | None) -> int:
    """The first instant that can change for any record, as in `first_moving_instant` (V134)."""
    if low is None:
        return since
    assert feed.table is not None
    rows = stored_rows.live_frame(feed.store, feed.table, since, low)
    own = sf.least(sf.unix_micros(VALID_FROM), sf.unix_micros(column(MEMORY).getField(OWN_TIME)))
    (row,) = rows.where(stored_rows.behind_place(rows, low)).agg(sf.min(own)).collect()
    return since if row[0] is None else min(since, row[0])


def _events_of_present_log(feed: FeedInputs, events: pa.Table) -> pa.Table:
    """The events, without messages of former logs (V136)."""
    known = feed.stored_log
    if known is None or known.former is None:
        return events
    return events.filter(
        pa.array(~are_of_former_logs(feed.terms(None, known), number_events(events, known.number)))
    )


def _with_truncates(
    feed: FeedInputs, terms: FeedTerms, stored: pa.Table, since: int, low: Position | None
) -> pa.Table:
    """The slice with truncates that are earlier in time but follow some of the messages in the log."""
    known = feed.stored_log
    if known is None or known.truncate is None or feed.table is None or not feed.table.rows:
        return stored
    if low is None or known.truncate < low:
        later = stored.filter(
            pc.and_(memory_field(stored, OWN_TIME).is_valid(), pa.array(micros(stored[VALID_FROM]) >= since))
        )
        places = [tuple(place.values()) for place in memory_field(later, SEQUENCE).to_pylist() if place]
        if not places or tuple(known.truncate) < min(places):
            return stored
    marks = stored_rows.stored_truncates(feed.store, feed.table, terms.columns).cast(stored.schema)
    joined = pa.concat_tables([stored, marks])
    same = [tuple(place.values()) for place in joined.select([FILE, POSITION]).to_pylist()]
    first = {place: number for number, place in reversed(list(enumerate(same)))}
    return joined.take(pa.array(sorted(first.values())))


def _refuse(
    feed: FeedInputs, terms: FeedTerms, counts: Mapping[str, int], samples: Mapping[str, pa.Table]
) -> None:
    """Raise Refused for counted faults, with their keys."""
    if any(counts.get(name) for name in FAULTS):
        keys = {name: keys_of_rows(feed.store, rows, terms.key) for name, rows in samples.items()}
        ordering, settled = feed.ordering, feed.memory.settled
        refuse_feed_faults(counts, lambda name: keys.get(name, []), terms, ordering, settled)


def _first_instant(terms: FeedTerms, at: np.ndarray) -> int | None:
    """The first instant that the feed can touch, or None if it touches nothing."""
    timely = move_past_settled(at, terms.settled) if terms.log else at[~in_interval(at, terms.settled)]
    instants = [int(timely.min())] if len(timely) else []
    if terms.window is not None and (instants or terms.all_keys):
        # Withdrawn messages of a log no longer raise others, which can fall to much earlier times (V135).
        instants.append(stored_rows.BEGINNING if terms.log else terms.window[0])
    return min(instants, default=None)


def _keys(
    terms: FeedTerms, events: pa.Table, since: int, *, all_since: bool = False
) -> stored_rows.KeysSince | None:
    """The keys of events, and the instants from which their records can change.

    Returns None if all records can change.
    """
    truncate = pc.equal(events[KIND], FactKind.TRUNCATE.value)
    if terms.all_keys or pc.any(truncate).as_py():
        return None
    of_each = terms.window is None and not all_since
    at = micros(events[AT]) if of_each else np.full(len(events), since)
    return stored_rows.KeysSince(
        events.select(list(terms.key)),
        np.maximum(move_past_settled(at, terms.settled) if terms.log else at, since),
    )
