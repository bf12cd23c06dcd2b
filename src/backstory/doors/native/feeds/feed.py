"""Deliver a feed, or a batch of a stream, to a table of layout `versions`, in at most one commit."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pyspark.sql.types import NullType

from backstory.doors.native.feeds.agreement import (
    FeedInputs,
    gather_feed,
    meaning_property,
    with_stored_meaning,
)
from backstory.doors.native.feeds.expressions import with_key
from backstory.doors.native.feeds.planning import PlannedFeed, open_feed_plan
from backstory.doors.native.instants import interval_text
from backstory.doors.native.options import ApplyRequest
from backstory.doors.native.receipts import (
    FEED_COUNTS,
    FeedPlan,
    FeedReceipt,
    answer_without_changes,
    columns_left_out,
)
from backstory.doors.native.refusals import refuse_absences
from backstory.doors.native.retyping import with_floats_as_stored
from backstory.doors.native.settings import (
    Absences,
    find_absences,
    mistakes_property,
    policy_property,
    refuses_absences,
)
from backstory.doors.native.sources import SourceRows
from backstory.doors.native.stored_rows import join_places
from backstory.doors.native.whole_rows import refuse_feed
from backstory.engine.deliver import Plan
from backstory.errors import Refused
from backstory.model.change import Change, Commit, Note
from backstory.model.instant import EPOCH, iso
from backstory.model.layout import MEMORY, VALID_FROM, Layout
from backstory.model.versions_layout import ORDERED_BY, OWN_TIME, RECORDED, ROLE, SETTLED, Role
from backstory.spark.session import hold_settings
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, instant
from backstory.stores.iceberg.positions import positions_of
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, load
from backstory.stores.port import require_layout
from backstory.strategies.copies.plan import DRIVES, TAKEN_BACK

# Properties with the stream and the batch of a commit.
STREAM: Final = "backstory.stream"
BATCH: Final = "backstory.batch"

DOOR: Final = "native"
Answer = FeedReceipt | FeedPlan


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A batch of a stream: the id of its query, and its number."""

    query: str
    number: int

    def properties(self) -> dict[str, str]:
        """The properties of the batch's commit."""
        return {STREAM: self.query, BATCH: str(self.number)}

    def is_committed(self, table: IcebergTable) -> bool:
        """Whether this batch, or a later batch of its query, is committed."""
        for commit in table.lineage:
            if commit.properties.get(STREAM) == self.query:
                return int(commit.properties.get(BATCH) or -1) >= self.number
        return False


@contextmanager
def open_feed(
    source: SourceRows, request: ApplyRequest, batch: StreamBatch | None, store: IcebergStore, *, zoned: bool
) -> Iterator[Plan[Answer]]:
    """The plan of a feed, or of a batch of a stream, against the table's current state.

    If `zoned` is true, times without a zone are in UTC. Raises Refused for a feed that would corrupt the
    history.
    """
    with hold_settings(store.session), translate_faults(request.into):
        table = load(store, request.into)
        if table is not None:
            require_layout(table, Layout.VERSIONS)
            refuse_feed(request.into, table.properties)
        if not source.fields.names and not request.all_keys:  # a JSON file without lines
            foreign = () if table is None else table.foreign_writes
            answer = answer_without_changes(request, foreign)
            yield Plan(table, None, Note(DOOR, ""), lambda _: answer, request.dry_run)
            return
        properties = {} if table is None else table.properties
        rows = source if table is None else with_floats_as_stored(source, table.shape, {})
        meant = with_stored_meaning(request, properties, source.fields.names)
        if table is not None and meant.apply_as_truncates is not None:
            rows = with_key(rows, table.shape.key)
        feed = gather_feed(store, table, rows, meant, zoned=zoned)
        with open_feed_plan(feed) as planned:
            absent = find_absences(table, feed.evolved, "feed", sets_columns=planned.sets_columns)
            if planned.new_row_count and refuses_absences(properties, request):
                refuse_absences(absent.new, {}, absent.kind)
            change = _change(feed, planned, meaning_property(request, properties))
            note = Note(DOOR, "") if change is None else _note(feed, planned, absent, batch)
            yield Plan(table, change, note, _report(feed, planned, absent), request.dry_run)


def _note(feed: FeedInputs, planned: PlannedFeed, absent: Absences, batch: StreamBatch | None) -> Note:
    """The note for the commit. Its token is a digest of the events (V14)."""
    recorded = iso(feed.memory.recorded)
    content = json.dumps([str(feed.request.into), recorded, planned.content])
    token = hashlib.sha256(content.encode()).hexdigest()
    stream = {} if batch is None else batch.properties()
    return Note(DOOR, token, {RECORDED: recorded, **absent.properties, **stream})


def _report(feed: FeedInputs, planned: PlannedFeed, absent: Absences) -> Callable[[Commit | None], Answer]:
    table, counts = str(feed.request.into), _outcomes(planned)
    evolved = feed.evolved
    foreign = () if feed.table is None else feed.table.foreign_writes
    lines = absent.as_lines(all_of_them=bool(evolved.added))
    changes = [*evolved.changes, *lines, *columns_left_out(evolved)] if planned.new_row_count else []
    if feed.request.dry_run:
        keys = {name: planned.keys(name) for name in FEED_COUNTS if counts[name]}
        driving = {
            name.removeprefix(DRIVES): count
            for name, count in planned.counts.items()
            if name.startswith(DRIVES)
        }
        withdrawn = planned.counts.get(TAKEN_BACK, 0)
        plan = FeedPlan(table, counts, keys, driving, changes, withdrawn, foreign)
        return lambda _committed: plan

    def receipt(commit: Commit | None) -> FeedReceipt:
        if commit is None or commit.snapshot_id is None:
            return FeedReceipt(table, counts, warnings=foreign)
        return FeedReceipt(table, counts, changes, iso(feed.memory.recorded), commit.snapshot_id, foreign)

    return receipt


def _outcomes(planned: PlannedFeed) -> dict[str, int]:
    return {name: planned.counts.get(name, 0) for name in FEED_COUNTS}


def _change(feed: FeedInputs, planned: PlannedFeed, meaning: Mapping[str, str]) -> Change | None:
    """The Change of a feed, or None if nothing changes (V59).

    `meaning` is the table property with the feed's options.
    """
    table, evolved = feed.table, feed.evolved
    policy = policy_property({} if table is None else table.properties, feed.request)
    if not planned.new_row_count:
        return Change(properties=policy, snapshot=True) if table is not None and policy else None
    properties = {
        ORDERED_BY: feed.ordering.as_property(),
        **feed.memory.properties(),
        **feed.settings.properties(),
        **policy,
        **mistakes_property(table, evolved),
        **meaning,
        **_log_properties(feed, planned),
    }
    if table is None:
        key = evolved.shape.key
        if untyped := [name for name in key if isinstance(feed.source.fields[name].dataType, NullType)]:
            raise Refused(  # all changes are truncates
                "untyped-key",
                f"No row of the first delivery has a value in {untyped[0]}, so the key has no type.",
                "Nothing was written; begin with a delivery that has rows with a key.",
            )
        return Change(_outcomes(planned), added=planned.new_rows, into=evolved.shape, properties=properties)
    stored = table.properties
    return Change(
        _outcomes(planned),
        _removed_places(feed, planned),
        planned.new_rows,
        evolved.shape if evolved.shape.columns != table.shape.columns else None,
        properties={name: value for name, value in properties.items() if stored.get(name) != value},
        expected=planned.new_row_count,
    )


def _log_properties(feed: FeedInputs, planned: PlannedFeed) -> dict[str, str]:
    """The progress of the log, and the settled interval if the log is new (V136)."""
    if planned.log is None:
        return {}
    settled = feed.terms(None, planned.log).settled
    times = [None if instant is None else EPOCH + timedelta(microseconds=instant) for instant in settled]
    settles = planned.log.settles is not None
    return {**planned.log.properties(), **({SETTLED: interval_text(tuple(times))} if settles else {})}


def _removed_places(feed: FeedInputs, planned: PlannedFeed) -> Any:
    """The positions of removed rows. A new log also removes settled facts that are not messages of a log."""
    if planned.log is None or planned.log.settles is None or feed.table is None:
        return planned.removed_places
    memory = column(MEMORY)
    settled = feed.terms(None, planned.log).settled
    assert settled
    until = instant(settled[1])
    gone_with = (column(VALID_FROM) <= until) & (memory[ROLE] == Role.FACT.value) & memory[OWN_TIME].isNull()
    rows = feed.store.spark.table(feed.store.sql_name(feed.table.shape.table))
    return join_places(planned.removed_places, positions_of(rows.where(gone_with)))
