"""A feed becomes one commit of a table of layout `versions`, or none (native.md, section 2.5)."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyroaring import BitMap64

from backstory.doors.native.absences import Absences, absences, taken_back
from backstory.doors.native.feeds.agreement import agree
from backstory.doors.native.feeds.options import FeedRequest
from backstory.doors.native.feeds.planning import PlannedFeed, planned_feed
from backstory.doors.native.feeds.receipts import COUNTS, FeedPlan, FeedReceipt
from backstory.doors.native.feeds.remembering import remembering
from backstory.doors.native.feeds.row_meaning import meaning_property, with_stored_meaning
from backstory.doors.native.feeds.source_rows import with_key
from backstory.doors.native.feeds.stream import StreamBatch
from backstory.doors.native.feeds.terms import Feed
from backstory.doors.native.instants import interval_text
from backstory.doors.native.receipts import columns_left_out
from backstory.doors.native.refusals import refuse_absences
from backstory.doors.native.retyping import with_floats_as_stored
from backstory.doors.native.settings import policy_property, refuses_absences
from backstory.doors.native.source import Source
from backstory.engine.deliver import Plan
from backstory.errors import Refused
from backstory.model.change import Change, Committed, Note
from backstory.model.instant import EPOCH, iso
from backstory.model.layout import MEMORY, VALID_FROM, Layout
from backstory.model.remembered import ORDERED_BY, OWN_TIME, RECORDED, ROLE, SETTLED, Role
from backstory.model.table import TableName
from backstory.spark.settled import hold_settings
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, instant
from backstory.stores.iceberg.positions import add_places, positions_of
from backstory.stores.iceberg.store import Store, load
from backstory.stores.port import require_layout
from backstory.strategies.copies.touched import DRIVES

if TYPE_CHECKING:
    pass

DOOR: Final = "native"
Answer = FeedReceipt | FeedPlan


@dataclass(frozen=True, slots=True)
class NativeFeed:
    """A feed as a delivery, perhaps a batch of a stream; `zoned`: its times without a zone are in UTC."""

    name: TableName
    source: Source
    request: FeedRequest
    zoned: bool = False
    batch: StreamBatch | None = None

    @property
    def tables(self) -> Sequence[TableName]:
        """The one table."""
        return [self.name]

    @contextmanager
    def planned(self, store: Store) -> Iterator[Plan[Answer]]:
        """The plan on the table as it stands; Refused for what would not be right."""
        with hold_settings(store.session), translate_faults(self.name):
            table = load(store, self.name)
            if table is not None:
                require_layout(table, Layout.VERSIONS)
            kept = {} if table is None else table.properties
            source = self.source if table is None else with_floats_as_stored(self.source, table.shape, {})
            request = with_stored_meaning(self.request, kept, source.fields.names)
            if table is not None and request.apply_as_truncates is not None:
                source = with_key(source, table.shape.key)
            agreement = agree(store, table, self.name, source, request, zoned=self.zoned)
            remembered = remembering(store, table)
            feed = Feed(store, table, source, request, agreement, remembered)
            with planned_feed(feed) as planned:
                absent = absences(table, agreement.evolved, "feed", sets_columns=planned.sets_columns)
                if planned.added and refuses_absences(kept, self.request):
                    refuse_absences(absent.new, {}, absent.kind)
                change = _change(feed, planned, meaning_property(self.request, kept))
                note = Note(DOOR, "") if change is None else self._note(feed, planned, absent)
                yield Plan(table, change, note, self._receipt(feed, planned, absent), self.request.dry_run)

    def _note(self, feed: Feed, planned: PlannedFeed, absent: Absences) -> Note:
        """What the commit says: its token is a digest of the events (V14)."""
        content = json.dumps([str(self.name), iso(feed.remembered.recorded), planned.content])
        token = hashlib.sha256(content.encode()).hexdigest()
        stream = {} if self.batch is None else self.batch.properties()
        recorded = {RECORDED: iso(feed.remembered.recorded)}
        return Note(DOOR, token, {**recorded, **absent.properties, **stream})

    def _receipt(
        self, feed: Feed, planned: PlannedFeed, absent: Absences
    ) -> Callable[[Committed | None], Answer]:
        table, counts = str(self.name), {name: planned.counts.get(name, 0) for name in COUNTS}
        evolved = feed.agreement.evolved
        foreign = () if feed.table is None else feed.table.foreign_writes
        gone = absent.in_words(all_of_them=bool(evolved.added))
        changes = [*evolved.changes, *gone, *columns_left_out(evolved)] if planned.added else []
        if self.request.dry_run:
            keys = {name: planned.keys(name) for name in COUNTS if counts[name]}
            driving = {
                name.removeprefix(DRIVES): count
                for name, count in planned.counts.items()
                if name.startswith(DRIVES)
            }
            plan = FeedPlan(table, counts, keys, driving, changes, planned.taken_back, foreign)
            return lambda _committed: plan

        def receipt(committed: Committed | None) -> FeedReceipt:
            if committed is None or committed.snapshot_id is None:
                return FeedReceipt(table, counts, warnings=foreign)
            recorded = iso(feed.remembered.recorded)
            return FeedReceipt(table, counts, changes, recorded, committed.snapshot_id, foreign)

        return receipt


def _change(feed: Feed, planned: PlannedFeed, meaning: Mapping[str, str]) -> Change | None:
    """What is to commit, and what rows mean from now on; None where nothing changes (V59)."""
    agreement, table = feed.agreement, feed.table
    policy = policy_property({} if table is None else table.properties, feed.request)
    if not planned.added:
        return Change(properties=policy, snapshot=True) if table is not None and policy else None
    evolved, settings = agreement.evolved, agreement.settings
    properties = {
        ORDERED_BY: agreement.ordering.as_property(),
        **feed.remembered.properties(),
        **settings.properties(),
        **policy,
        **taken_back(table, evolved),
        **meaning,
        **_log_properties(feed, planned),
    }
    counts = {name: planned.counts.get(name, 0) for name in COUNTS}
    if table is None:
        _refuse_untyped_key(feed)
        return Change(counts, come=planned.come, into=evolved.shape, properties=properties)
    kept = table.properties
    return Change(
        counts,
        _with_settled(feed, planned),
        planned.come,
        evolved.shape if evolved.shape.columns != table.shape.columns else None,
        properties={name: value for name, value in properties.items() if kept.get(name) != value},
        expected=planned.added,
    )


def _log_properties(feed: Feed, planned: PlannedFeed) -> dict[str, str]:
    """How far the log is known, and what is settled where it is a new one (V136)."""
    if planned.log is None:
        return {}
    settled = feed.terms(None, planned.log).settled
    times = [None if each is None else EPOCH + timedelta(microseconds=each) for each in settled]
    told = planned.log.settles is not None
    return {**planned.log.properties(), **({SETTLED: interval_text(tuple(times))} if told else {})}


def _with_settled(feed: Feed, planned: PlannedFeed) -> Any:
    """The places of rows that go: with a new log those too of facts that are settled by it, but of logs."""
    if planned.log is None or planned.log.settles is None or feed.table is None:
        return planned.gone
    memory = column(MEMORY)
    settled = feed.terms(None, planned.log).settled
    assert settled
    until = instant(settled[1])
    gone_with = (column(VALID_FROM) <= until) & (memory[ROLE] == Role.FACT.value) & memory[OWN_TIME].isNull()
    rows = feed.store.spark.table(feed.store.sql_name(feed.table.shape.table))
    places = positions_of(rows.where(gone_with))
    gone = planned.gone
    if gone is None:
        return places or None
    if isinstance(gone, pa.Table):
        return add_places(places, gone)
    return {each: places.get(each, BitMap64()) | gone.get(each, BitMap64()) for each in {*places, *gone}}


def _refuse_untyped_key(feed: Feed) -> None:
    """Raises Refused where truncates alone would make a table: no key tells of which type keys are."""
    from pyspark.sql.types import NullType

    key = feed.agreement.evolved.shape.key
    if untyped := [name for name in key if isinstance(feed.source.fields[name].dataType, NullType)]:
        raise Refused(
            "untyped-key",
            f"No row of the first delivery has a value in {untyped[0]}, so the key has no type.",
            "Nothing was written; begin with a delivery that has rows with a key.",
        )
