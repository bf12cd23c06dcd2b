"""A feed beside its table, and what it is planned by."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from uuid import uuid4

from backstory.doors.native.feeds.agreement import Agreement
from backstory.doors.native.feeds.events import EventTerms, Unmodified
from backstory.doors.native.feeds.logs import LogProgress, stored_log
from backstory.doors.native.feeds.options import FeedRequest
from backstory.doors.native.feeds.remembering import Remembering
from backstory.doors.native.field_ids import ids_of_columns
from backstory.doors.native.source import Source
from backstory.stores.iceberg.lineage import keeps_row_ids
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.strategies.feeds.terms import FeedTerms


@dataclass(frozen=True)
class Feed:
    """A feed, the table that it comes to, and what they agree on.

    With the `salt` files are coded on their way through Spark's tasks.
    """

    store: Store
    table: StoredTable | None
    source: Source
    request: FeedRequest
    agreement: Agreement
    remembered: Remembering
    salt: int = field(default_factory=lambda: uuid4().time_low)

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns."""
        return self.agreement.evolved.shape.key

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The ids of the columns beside the key's; a table that is made numbers its columns from 1."""
        shape = self.agreement.evolved.shape
        if self.table is None:
            ids = {each.name: number for number, each in enumerate(shape.columns, 1)}
        else:
            ids = ids_of_columns(self.store, self.table, self.agreement.evolved)
        return {each.name: ids[each.name] for each in shape.user_columns if each.name not in shape.key}

    def event_terms(self, *, counted: bool) -> EventTerms:
        """What makes events of the source's rows; `counted`: these have a number in their source."""
        request, evolved = self.request, self.agreement.evolved
        names = {each.name for each in evolved.delivered}
        delivered = tuple(each for each in evolved.shape.user_columns if each.name in names)
        images = self.source.images
        return EventTerms(
            delivered,
            self.key,
            self.numbers,
            self.agreement.ordering,
            Unmodified(request.ignore_nulls or False, request.unmodified, request.columns_to_update),
            counted,
            tuple(each for each in delivered if each.name in images and each.name not in self.key),
        )

    @property
    def stored_log(self) -> LogProgress | None:
        """What is known of the log whose messages the table has."""
        return None if self.table is None else stored_log(self.table.properties)

    def terms(self, last: int | None, log: LogProgress | None = None) -> FeedTerms:
        """What the feed is planned by; `last` is the time of its last event, `log` is how far it gets."""
        shape, settings = self.agreement.evolved.shape, self.agreement.settings
        users = list(self.numbers)
        settled = tuple(None if each is None else micros_of(each) for each in self.remembered.settled)
        if log is not None and log.settles is not None:
            settled = (
                None,
                max(log.settles, *(each for each in settled[1:] if each is not None), log.settles),
            )
        return FeedTerms(
            columns=shape.columns,
            key=shape.key,
            tracked=tuple(name for name in users if settings.tracks(name)),
            recorded=micros_of(self.remembered.recorded),
            numbers=self.numbers,
            overwritten=tuple(name for name in users if settings.overwrites(name)),
            sequence=tuple(name for _, part in self.agreement.ordering.memory_part for name, _ in part.parts),
            settled=settled,  # type: ignore[arg-type]  # no or two
            drops=self.request.late == "drop",
            window=_window(self.request, last),
            all_keys=self.request.all_keys,
            ids=self.table is not None and keeps_row_ids(self.table),
            log=self.agreement.ordering.log,
            former=None if log is None else log.former_logs,
        )


def _window(request: FeedRequest, last: int | None) -> tuple[int, int] | None:
    """The time that is restated; without an end it ends just behind the last event (V86)."""
    if request.restate_from is None:
        return None
    start = micros_of(request.restate_from)
    if request.restate_until is not None:
        return start, micros_of(request.restate_until)
    return start, max(start, start if last is None else last) + 1
