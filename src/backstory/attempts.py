"""Do something to tables, and do it again when another writer came first."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import stamina
import structlog
from stamina.instrumentation import RetryDetails, set_on_retry_hooks

from backstory.errors import TryAgain
from backstory.model.table import TableName
from backstory.observe.metrics import CONFLICTS, RETRIES
from backstory.tables.locks import writing
from backstory.tables.store import Store

ATTEMPTS = 6
SECONDS = 120.0

log = structlog.get_logger()

Result = TypeVar("Result")


def attempted(store: Store, tables: Sequence[TableName], act: Callable[[], Result]) -> Result:
    """What `act` gives, which holds the tables' locks of this process and loads them anew each time.

    A conflict with another process, or a catalog that is busy, is waited out and tried again, a few
    times with growing pauses; then TryAgain.
    """
    with writing(store, *tables):
        for attempt in stamina.retry_context(on=TryAgain, attempts=ATTEMPTS, timeout=SECONDS):
            with attempt, _conflicts_counted():
                return act()
    raise AssertionError("unreachable")


@contextmanager
def _conflicts_counted() -> Iterator[None]:
    try:
        yield
    except TryAgain:
        CONFLICTS.inc()
        raise


def _tell(details: RetryDetails) -> None:
    RETRIES.inc()
    cause = details.caused_by
    code = cause.code if isinstance(cause, TryAgain) else type(cause).__name__
    log.warning(
        f"trying again in {details.wait_for:.1f} s: {cause}", code=code, attempt=details.retry_num + 1
    )


set_on_retry_hooks([_tell])
