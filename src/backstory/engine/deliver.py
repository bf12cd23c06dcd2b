"""A delivery is decoded, planned against the slice of the table it can touch, and committed once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from backstory.engine.archive import refuse_archived
from backstory.engine.attempts import attempt
from backstory.engine.rehearsal import rehearse
from backstory.engine.runs import marked, noting_seconds
from backstory.formats.wrapping.room import translate_disk_errors
from backstory.model.change import Change, Committed, Note
from backstory.model.table import TableName
from backstory.stores.commit import commit
from backstory.stores.iceberg.sessions import announce_later
from backstory.stores.port import Store, StoredTable

log = structlog.get_logger()

Result = TypeVar("Result")
Place = TypeVar("Place", bound=Store)
Place_contra = TypeVar("Place_contra", bound=Store, contravariant=True)


@dataclass(frozen=True, slots=True)
class Plan(Generic[Result]):
    """What a delivery makes of a table as it stands: a change, or None where there is nothing to commit.

    `table` is None if the change makes it. `receipt` is asked with the commit, or with None. In a dry run
    the change is told instead of committed.
    """

    table: StoredTable | None
    change: Change | None
    note: Note
    receipt: Callable[[Committed | None], Result]
    dry_run: bool = False


class Delivery(Protocol[Place_contra, Result]):
    """What a door hands over, for a kind of store."""

    @property
    def tables(self) -> Sequence[TableName]:
        """The tables that nobody else in this process may write meanwhile."""

    def planned(self, store: Place_contra) -> AbstractContextManager[Plan[Result]]:
        """The plan on the tables as they stand; Refused for what would not be right."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """A change of one table as a delivery; `plan` gives the table as it stands, and what becomes of it."""

    tables: Sequence[TableName]
    note: Note
    plan: Callable[[], tuple[StoredTable | None, Change | None]]
    dry_run: bool = False

    @contextmanager
    def planned(self, _store: Store) -> Iterator[Plan[Committed | None]]:
        """The commit is the receipt."""
        table, change = self.plan()
        yield Plan(table, change, self.note, lambda committed: committed, self.dry_run)


def deliver(store: Place, delivery: Delivery[Place, Result]) -> Result:
    """Bring the delivery into its table: one commit, or none when nothing changes.

    A conflict with another writer is planned anew on the newer table, for two minutes; then TryAgain, as for
    a disk that is full.
    """
    with translate_disk_errors(", ".join(map(str, delivery.tables))):
        return attempt(store, delivery.tables, lambda: deliver_once(store, delivery))


def deliver_once(store: Place, delivery: Delivery[Place, Result]) -> Result:
    """The same, tried once, for a caller that holds the locks and counts the attempts himself."""
    with announce_later(), ExitStack() as held:
        with noting_seconds("plan"):
            plan = held.enter_context(delivery.planned(store))
        return carry_out(store, plan)


def carry_out(store: Store, plan: Plan[Result]) -> Result:
    """Commit what was planned, and give its receipt; the only call of a store's commit.

    A line of the log warns of what other programs did to the table.
    """
    refuse_archived(plan.table, plan.change)
    for told in () if plan.table is None else plan.table.foreign_writes:
        log.warning(f"{plan.table.shape.table}: {told}" if plan.table else told)
    if plan.change is None:
        return plan.receipt(None)
    if plan.dry_run:
        rehearse(None if plan.table is None else plan.table.shape, plan.change)
        return plan.receipt(None)
    with noting_seconds("commit"):
        committed = commit(store, plan.table, plan.change, marked(plan.note))
    return plan.receipt(committed)
