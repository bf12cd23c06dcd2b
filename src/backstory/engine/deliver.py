"""A delivery is decoded, planned against the slice of the table it can touch, and committed once."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from backstory.engine.attempts import attempted
from backstory.engine.buckets import Batch, spread
from backstory.formats.memory import Lease, TooLarge
from backstory.formats.values.mended import counted, tell
from backstory.model.layout import Layout
from backstory.model.receipt import Receipt
from backstory.model.table import TableName
from backstory.observe.metrics import timed
from backstory.stores.iceberg.commit import Note, commit, discarding
from backstory.stores.iceberg.data_files import write_rows
from backstory.stores.iceberg.faults import translated
from backstory.stores.iceberg.slice import read_slice
from backstory.stores.iceberg.store import Store, StoredTable, existing, require_layout
from backstory.stores.iceberg.vectors import positions_by_file, write_deletions
from backstory.strategies.actions import Actions

# Threads that stay: each has a connection to the JVM of its own.
_BESIDE = ThreadPoolExecutor(8, thread_name_prefix="deletions")


class Delivery(Protocol):
    """What a door hands over."""

    @property
    def table(self) -> TableName:
        """The table that it changes."""

    @property
    def door(self) -> str:
        """The door's name, for the commit."""

    @property
    def layouts(self) -> Sequence[Layout]:
        """The layouts of the tables that the door writes."""

    def token(self, table: StoredTable) -> str:
        """A digest by which the same delivery is recognised when it comes again."""

    def batch(self, table: StoredTable) -> Batch:
        """The delivery's files, to be read as rows of the table; Refused if they are none of it."""


def deliver(store: Store, delivery: Delivery) -> Receipt:
    """Bring the delivery into its table: one commit, or none when nothing changes.

    A delivery whose token is the table's newest one has been here before and writes nothing. A
    conflict with another writer is planned anew on the newer table, a few times; then TryAgain.
    What is too large for the driver's memory is planned where Spark runs, by the same plan.
    """
    return attempted(store, [delivery.table], lambda: _deliver_once(store, delivery))


def _deliver_once(store: Store, delivery: Delivery) -> Receipt:
    table = require_layout(existing(store, delivery.table), *delivery.layouts)
    with timed("digest"):
        token = delivery.token(table)
    if token == table.newest_token:
        return Receipt(str(delivery.table))
    batch, note = delivery.batch(table), Note(delivery.door, token, {})
    try:
        with store.memory.lease() as lease:
            return _planned_here(store, table, batch, note, lease)
    except TooLarge:
        return spread(store, table, batch, note)


def _planned_here(store: Store, table: StoredTable, batch: Batch, note: Note, lease: Lease) -> Receipt:
    with timed("decode"):
        change = batch.decode(lease)
    with timed("slice"):
        stored = read_slice(store, table, change.keys, None if table.disorderly else change.since)
    with timed("plan"):
        actions = change.plan(stored)
    counts = counted(actions.counts, change.mended)
    snapshot = None if actions.empty else apply(store, table, actions, replace(note, counts=counts))
    tell(change.mended)
    return Receipt(str(table.shape.table), counts, snapshot)


def apply(store: Store, table: StoredTable, actions: Actions, note: Note) -> int:
    """Commit the actions, and give the snapshot's id."""
    with timed("write"), translated(table.shape.table), discarding(table) as written:
        hidden = _BESIDE.submit(write_deletions, store, table, positions_by_file(actions.removed))
        try:
            data_files = write_rows(store, table, actions.added)
            written.extend(data_files)
        finally:
            deletions = hidden.result()
            written.extend(deletions.added)
    with timed("commit"):
        return commit(table, data_files, deletions, note, disorder=actions.disorder)
