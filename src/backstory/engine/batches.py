"""A batch of files as a delivery: planned on the driver, or by the same plan in Spark's tasks."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from backstory.engine.buckets import Shipment, plan_in_buckets
from backstory.engine.deliver import Plan, deliver
from backstory.engine.either_way import plan_either_way
from backstory.engine.outcome import Outcome
from backstory.formats.memory import TooLarge
from backstory.formats.values.mended import tell, with_mended
from backstory.model.change import Change, Committed, Note
from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.observe.metrics import timed
from backstory.stores.iceberg.store import Store as IcebergStore
from backstory.stores.iceberg.store import StoredTable as IcebergTable
from backstory.stores.port import DISORDER, Store, StoredTable, require_layout
from backstory.stores.tables import existing, read_slice
from backstory.strategies.versions.spoilt import refuse_spoilt


class Batches(Protocol):
    """What a door hands over: files for a table."""

    @property
    def table(self) -> TableName:
        """The table that they change."""

    @property
    def door(self) -> str:
        """The door's name, for the commit."""

    @property
    def layouts(self) -> Sequence[Layout]:
        """The layouts of the tables that the door writes."""

    def unchanged(self) -> AbstractContextManager[None]:
        """While the files are read: Refused if one changes meanwhile."""

    def token(self, table: StoredTable) -> str:
        """A digest by which the same delivery is recognised when it comes again."""

    def batch(self, table: StoredTable) -> Shipment:
        """The files, to be read as rows of the table; Refused if they are none of it."""


def deliver_batch(store: Store, delivered: Batches) -> Committed:
    """Bring the files into their table: one commit, or none when nothing changes.

    A delivery whose token is the table's newest one has been here before and writes nothing.
    """
    return deliver(store, BatchDelivery(delivered))


@dataclass(frozen=True, slots=True)
class BatchDelivery:
    """The files as a delivery of one table."""

    delivered: Batches

    @property
    def tables(self) -> Sequence[TableName]:
        """The table that they change."""
        return [self.delivered.table]

    @contextmanager
    def planned(self, store: Store) -> Iterator[Plan[Committed]]:
        """Read the files and plan them; too large for the driver's memory, where Spark runs."""
        table = require_layout(existing(store, self.delivered.table), *self.delivered.layouts)
        with ExitStack() as kept:
            with self.delivered.unchanged():
                with timed("digest"):
                    note = Note(self.delivered.door, self.delivered.token(table))
                again = note.token == table.newest_token
                outcome = None if again else kept.enter_context(self._outcome(store, table))
            if outcome is None:
                yield Plan(table, None, note, lambda _: Committed(None, {}))
                return
            counts = with_mended(outcome.counts, outcome.mended)

            def receipt(committed: Committed | None) -> Committed:
                tell(outcome.mended)
                return Committed(None if committed is None else committed.snapshot_id, counts)

            marks = {DISORDER: "true"} if outcome.disorder else {}
            change = Change(counts, outcome.gone, outcome.come, properties=marks) if outcome.changes else None
            yield Plan(table, change, note, receipt)

    def _outcome(self, store: Store, table: StoredTable) -> AbstractContextManager[Outcome]:
        batch = self.delivered.batch(table)
        here, tasks = partial(_plan_here, store, table, batch), partial(_plan_by_tasks, store, table, batch)
        return plan_either_way(store, self.delivered.table, here, tasks)


def _plan_by_tasks(store: Store, table: StoredTable, batch: Shipment) -> AbstractContextManager[Outcome]:
    if not isinstance(store, IcebergStore) or not isinstance(table, IcebergTable):
        raise TooLarge
    return plan_in_buckets(store, table, batch)


def _plan_here(store: Store, table: StoredTable, batch: Shipment, kept: ExitStack) -> Outcome:
    lease = kept.enter_context(store.memory.lease())
    with timed("decode"):
        decoded = batch.decode(lease)
    with timed("slice"):
        stored = read_slice(store, table, decoded.keys, None if table.disorderly else decoded.since)
    with timed("plan"):
        refuse_spoilt(stored, table.shape if batch.keeps_history and not table.disorderly else None)
        actions = decoded.plan(stored)
    return Outcome(
        actions.removed, actions.added, actions.counts, not actions.empty, actions.disorder, decoded.mended
    )
