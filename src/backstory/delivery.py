"""A delivery is decoded, planned against the slice of the table it can touch, and committed once."""

from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pyarrow as pa

from backstory.attempts import attempted
from backstory.model.receipt import Receipt
from backstory.model.table import TableName
from backstory.strategies.actions import Actions
from backstory.tables.commit import Note, commit
from backstory.tables.data_files import write_rows
from backstory.tables.slice import read_slice
from backstory.tables.store import Store, StoredTable, existing
from backstory.tables.vectors import positions_by_file, write_deletions

# Threads that stay: each has a connection to the JVM of its own.
_BESIDE = ThreadPoolExecutor(8, thread_name_prefix="deletions")


class Change(Protocol):
    """A decoded delivery: what it can touch, and what it makes of that."""

    @property
    def keys(self) -> pa.Table:
        """The key columns of every row, repeated keys included."""

    @property
    def since(self) -> int | None:
        """Versions that ended before this instant (microseconds) play no part; None reads all."""

    def plan(self, stored: pa.Table) -> Actions:
        """The actions, given the slice of the table."""


class Delivery(Protocol):
    """What a door hands over."""

    @property
    def table(self) -> TableName:
        """The table that it changes."""

    @property
    def door(self) -> str:
        """The door's name, for the commit."""

    def token(self, table: StoredTable) -> str:
        """A digest by which the same delivery is recognised when it comes again."""

    def decode(self, table: StoredTable) -> Change:
        """The delivery as typed rows; raises Refused for what cannot be read."""


def deliver(store: Store, delivery: Delivery) -> Receipt:
    """Bring the delivery into its table: one commit, or none when nothing changes.

    A delivery whose token is the table's newest one has been here before and writes nothing. A
    conflict with another writer is planned anew on the newer table, a few times; then TryAgain.
    """
    return attempted(store, [delivery.table], lambda: _deliver_once(store, delivery))


def _deliver_once(store: Store, delivery: Delivery) -> Receipt:
    table = existing(store, delivery.table)
    token = delivery.token(table)
    if token == table.newest_token:
        return Receipt(str(delivery.table))
    change = delivery.decode(table)
    since = None if table.disorderly else change.since
    actions = change.plan(read_slice(store, table, change.keys, since))
    if actions.empty:
        return Receipt(str(delivery.table), actions.counts)
    note = Note(delivery.door, token, actions.counts)
    return Receipt(str(delivery.table), actions.counts, apply(store, table, actions, note))


def apply(store: Store, table: StoredTable, actions: Actions, note: Note) -> int:
    """Commit the actions, and give the snapshot's id."""
    hidden = _BESIDE.submit(write_deletions, store, table, positions_by_file(actions.removed))
    data_files = write_rows(store, table, actions.added)
    deletions = hidden.result()
    return commit(store, table, data_files, deletions, note, disorder=actions.disorder)
