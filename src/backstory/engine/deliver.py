"""Plan a delivery against the slice of a table that it can touch, and commit it once.

After a conflict with another writer, the delivery is planned again. Deliveries to archived tables are
refused.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from tempfile import gettempdir
from typing import Final, Generic, TypeVar

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
from backstory.formats.memory import DISK_FULL, translate_disk_errors
from backstory.model.change import Change, Commit, Note
from backstory.model.table import TableName
from backstory.observe import CONFLICTS, RETRIES
from backstory.stores.iceberg.commit import commit
from backstory.stores.iceberg.sessions import announce_later
from backstory.stores.port import Store, StoredTable
from backstory.stores.tables import lock_tables

CONFLICT = "conflict"
ATTEMPTS = 6
SECONDS = 120.0
FIRST, LONGEST = 0.1, 2.0
# Seconds: the upper bound of a random addition to each pause.
SPREAD = 1.0

log = structlog.get_logger()

Result = TypeVar("Result")


def attempt(store: Store, tables: Sequence[TableName], act: Callable[[], Result]) -> Result:
    """Return the result of `act`, retried as in `retry`, while this process locks the tables.

    `act` must load the tables each time. Raises the errors of `retry`; the error for a full disk names the
    folders.
    """
    with lock_tables(store, *tables):
        try:
            return retry(act)
        except TryAgain as error:
            if error.code != DISK_FULL:
                raise
            where = f"Tables are in {store.description}, temporary files in {gettempdir()}."
            raise TryAgain(error.code, f"{error.message} {where}", error.remedy, error.keys) from error


def _may_pass(error: BaseException) -> bool:
    """Whether another attempt may succeed.

    The result is False if the disk is full, because a person must first free space.
    """
    return isinstance(error, TryAgain) and error.code != DISK_FULL


def _is_over(state: RetryCallState) -> bool:
    """Whether to give up: after `ATTEMPTS` attempts, or after `SECONDS` if writers conflict."""
    assert state.outcome is not None
    error = state.outcome.exception()
    turns = isinstance(error, TryAgain) and error.code == CONFLICT
    return stop_before_delay(SECONDS)(state) or (not turns and state.attempt_number >= ATTEMPTS)


def retry(act: Callable[[], Result], failed: Callable[[TryAgain], object] = lambda _: None) -> Result:
    """Return the result of `act`, which is called again after a conflict, or if a catalog is busy.

    Pauses grow and have a random part, so that two writers do not collide again. Conflicts are retried for
    two minutes, because a stream commits all the time. After other errors, `act` is called at most `ATTEMPTS`
    times. Each pause is logged. `failed` is called with the error of each attempt that is followed by another
    attempt. In the end, the last TryAgain is raised.
    """

    def log_retry(state: RetryCallState) -> None:
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
        before_sleep=log_retry,
        reraise=True,
    )
    return retrying(once)


# A table property: the time when the table was archived.
ARCHIVED: Final = "backstory.archived"


def refuse_archived(table: StoredTable | None, change: Change | None) -> None:
    """Raise Refused for a delivery to an archived table.

    An archived table may be dropped, renamed, and read by cursors.
    """
    since = table and table.properties.get(ARCHIVED)
    if table is None or not since:
        return
    moves = change is not None and (
        change.dropped or bool(change.tags) or (change.into and change.into.table != table.shape.table)
    )
    if not moves:
        raise Refused(
            "archived",
            f"{table.shape.table} has been archived since {since}. It can be read, but not written.",
            f"Deliver to another table. To write to this one again, remove its property `{ARCHIVED}`.",
        )


Place = TypeVar("Place", bound=Store)


@dataclass(frozen=True, slots=True)
class Plan(Generic[Result]):
    """The effect of a delivery on a table: a change, or None if there is nothing to commit.

    A change that creates its table has no `table`. `receipt` is called with the commit, or with None if
    there is no commit. In a dry run, the change is only reported.
    """

    table: StoredTable | None
    change: Change | None
    note: Note
    receipt: Callable[[Commit | None], Result]
    dry_run: bool = False


OpenPlan = Callable[[Place], AbstractContextManager[Plan[Result]]]


def deliver(store: Place, tables: Sequence[TableName], open_plan: OpenPlan[Place, Result]) -> Result:
    """Plan and commit a delivery of a door: one commit, or none if nothing changes.

    `open_plan` makes the plan against the current tables, as a context. It raises Refused if the result would
    be wrong. This process locks the tables during the delivery. After a conflict with another writer, the
    delivery is planned again on the newer table, for up to two minutes. Raises TryAgain after these two
    minutes, and for a full disk.
    """
    with translate_disk_errors(", ".join(map(str, tables))):
        return attempt(store, tables, lambda: deliver_once(store, open_plan))


def deliver_once(store: Place, open_plan: OpenPlan[Place, Result]) -> Result:
    """Plan and commit once, for a caller that holds the locks and counts the attempts.

    No other function calls a store's `commit`. Writes of other programs to the table are logged as warnings.
    """
    with announce_later(), ExitStack() as stack:
        with note_seconds("plan"):
            plan = stack.enter_context(open_plan(store))
        refuse_archived(plan.table, plan.change)
        if plan.table is not None:
            for foreign_write in plan.table.foreign_writes:
                log.warning(f"{plan.table.shape.table}: {foreign_write}")
        if plan.change is None:
            return plan.receipt(None)
        if plan.dry_run:
            rehearse(None if plan.table is None else plan.table.shape, plan.change)
            return plan.receipt(None)
        with note_seconds("commit"):
            committed = commit(store, plan.table, plan.change, complete_note(plan.note))
        return plan.receipt(committed)


def deliver_change(
    store: Store,
    tables: Sequence[TableName],
    note: Note,
    plan: Callable[[], tuple[StoredTable | None, Change | None]],
    *,
    dry_run: bool = False,
) -> Commit | None:
    """Deliver a change to one table. `plan` returns the current table and the change."""
    return deliver(store, tables, lambda _: nullcontext(_plan_change(*plan(), note, dry_run=dry_run)))


def commit_change(
    store: Store, table: StoredTable | None, change: Change | None, note: Note, *, dry_run: bool = False
) -> Commit | None:
    """Commit a change to a table once, for a caller that counts the attempts."""
    return deliver_once(store, lambda _: nullcontext(_plan_change(table, change, note, dry_run=dry_run)))


def _plan_change(
    table: StoredTable | None, change: Change | None, note: Note, *, dry_run: bool
) -> Plan[Commit | None]:
    return Plan(table, change, note, lambda committed: committed, dry_run)
