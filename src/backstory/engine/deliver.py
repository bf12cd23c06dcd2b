"""A delivery is decoded, planned against the slice of the table it can touch, and committed once.

Do something to tables, and do it again when another writer came first.

Archived histories: every command reads them, and no delivery writes to them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from tempfile import gettempdir
from typing import Final, Generic, Protocol, TypeVar

import structlog
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_before_delay,
    wait_exponential_jitter,
)

from backstory.engine.run_context import complete_note, note_seconds, rehearse
from backstory.errors import Refused, TryAgain
from backstory.formats.wrapping.room import DISK_FULL, translate_disk_errors
from backstory.model.change import Change, Commit, Note
from backstory.model.table import TableName
from backstory.observe.metrics import CONFLICTS, RETRIES
from backstory.stores.commit import commit
from backstory.stores.iceberg.sessions import announce_later
from backstory.stores.port import Store, StoredTable
from backstory.stores.tables import lock_tables

CONFLICT = "conflict"
ATTEMPTS = 6
SECONDS = 120.0
FIRST, LONGEST = 0.1, 2.0
# Up to so much more, drawn anew each time.
SPREAD = 1.0

log = structlog.get_logger()

Result = TypeVar("Result")


def attempt(store: Store, tables: Sequence[TableName], act: Callable[[], Result]) -> Result:
    """What `act` gives, which holds the tables' locks of this process and loads them anew each time.

    Else as `tried`.
    """
    with lock_tables(store, *tables):
        try:
            return retry(act)
        except TryAgain as error:
            if error.code != DISK_FULL:
                raise
            raise _with_folders(error, store) from error


def _with_folders(full: TryAgain, store: Store) -> TryAgain:
    """The error for a full disk, with the folders that may be on it."""
    where = f"Tables are in {store.searched}, temporary files in {gettempdir()}."
    return TryAgain(full.code, f"{full.message} {where}", full.remedy, full.keys)


def _may_pass(error: BaseException) -> bool:
    """Whether it may be otherwise in a moment; room on a disk must be made."""
    return isinstance(error, TryAgain) and error.code != DISK_FULL


def _is_over(state: RetryCallState) -> bool:
    """Whether to give up: after a few tries, or after some time where writers take turns."""
    assert state.outcome is not None
    error = state.outcome.exception()
    turns = isinstance(error, TryAgain) and error.code == CONFLICT
    return stop_before_delay(SECONDS)(state) or (not turns and state.attempt_number >= ATTEMPTS)


def retry(act: Callable[[], Result], failed: Callable[[TryAgain], object] = lambda _: None) -> Result:
    """What `act` gives; a conflict or a busy catalog is waited out and tried again, then TryAgain.

    With growing pauses of which a part is drawn anew each time: writers that met once do not meet again.
    A few times; beside a writer that commits all the time, as a stream does, for two minutes: each time one
    of the two was first, and luck turns. Each pause is a line of the log. `failed` is told of each attempt
    that another one follows.
    """

    def tell(state: RetryCallState) -> None:
        assert state.outcome is not None
        error = state.outcome.exception()
        assert isinstance(error, TryAgain)
        RETRIES.inc()
        attempt = state.attempt_number
        log.warning(
            f"trying again in {state.upcoming_sleep:.1f} s: {error}", code=error.code, attempt=attempt
        )
        failed(error)

    def once() -> Result:
        try:
            return act()
        except TryAgain:
            CONFLICTS.inc()
            raise

    retrying = Retrying(
        retry=retry_if_exception(_may_pass),
        stop=_is_over,
        wait=wait_exponential_jitter(multiplier=FIRST, max=LONGEST, jitter=SPREAD),
        before_sleep=tell,
        reraise=True,
    )
    return retrying(once)


# A property of a table: since when it is archived.
ARCHIVED: Final = "backstory.archived"


def refuse_archived(table: StoredTable | None, change: Change | None) -> None:
    """Raise Refused for a delivery to an archived table; it may be dropped, renamed, and read by cursors."""
    since = table and table.properties.get(ARCHIVED)
    if table is None or not since:
        return
    moves = change is not None and (
        change.dropped or bool(change.tags) or (change.into and change.into.table != table.shape.table)
    )
    if not moves:
        raise Refused(
            "archived",
            f"{table.shape.table} is archived since {since}: it can be read, not written.",
            f"Deliver to another table. To go on with this one, take its property `{ARCHIVED}` away.",
        )


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
    receipt: Callable[[Commit | None], Result]
    dry_run: bool = False


class Delivery(Protocol[Place_contra, Result]):
    """What a door hands over, for a kind of store."""

    @property
    def tables(self) -> Sequence[TableName]:
        """The tables that nobody else in this process may write meanwhile."""

    def open_plan(self, store: Place_contra) -> AbstractContextManager[Plan[Result]]:
        """The plan on the tables as they stand; Refused for what would not be right."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """A change of one table as a delivery; `plan` gives the table as it stands, and what becomes of it."""

    tables: Sequence[TableName]
    note: Note
    plan: Callable[[], tuple[StoredTable | None, Change | None]]
    dry_run: bool = False

    @contextmanager
    def open_plan(self, _store: Store) -> Iterator[Plan[Commit | None]]:
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
        with note_seconds("plan"):
            plan = held.enter_context(delivery.open_plan(store))
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
    with note_seconds("commit"):
        committed = commit(store, plan.table, plan.change, complete_note(plan.note))
    return plan.receipt(committed)
