"""A batch of files as a delivery: planned on the driver, or by the same plan in Spark's tasks."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

from backstory.engine.batch_sides import OUT_OF_ORDER, BatchSides, Shipment
from backstory.engine.deliver import Plan, deliver
from backstory.engine.runner import run_plan
from backstory.formats.values.mended import tell, with_mended
from backstory.model.change import Change, Committed, Note
from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.observe.metrics import timed
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.port import DISORDER, Store, StoredTable, require_layout
from backstory.stores.tables import existing
from backstory.strategies.part_plan import ADDED, REMOVED


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
                if note.token == table.newest_token:
                    yield Plan(table, None, note, lambda _: Committed(None, {}))
                    return
                sides = BatchSides(store, table, self.delivered.batch(table), kept)
                with timed("plan"), translate_faults(self.delivered.table):
                    planned = kept.enter_context(run_plan(sides.terms()))
            sums = planned.sums
            disorder = sums.counts.pop(OUT_OF_ORDER, 0)
            counts = with_mended(sums.counts, sides.mended)

            def receipt(committed: Committed | None) -> Committed:
                tell(sides.mended)
                return Committed(None if committed is None else committed.snapshot_id, counts)

            change = None
            if sums.added[REMOVED] or sums.added[ADDED]:
                marks = {DISORDER: "true"} if disorder else {}
                gone, come = planned.places(REMOVED, table), planned.rows(ADDED)
                change = Change(counts, gone, come, properties=marks)
            yield Plan(table, change, note, receipt)
