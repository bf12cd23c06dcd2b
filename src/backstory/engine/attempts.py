"""Do something to tables, and do it again when another writer came first."""

from collections.abc import Callable, Sequence
from tempfile import gettempdir
from typing import TypeVar

import structlog
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_before_delay,
    wait_exponential_jitter,
)

from backstory.errors import TryAgain
from backstory.formats.wrapping.room import DISK_FULL
from backstory.model.table import TableName
from backstory.observe.metrics import CONFLICTS, RETRIES
from backstory.stores.port import Store
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
