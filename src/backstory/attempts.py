"""Do something to tables, and do it again when another writer came first."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import stamina

from backstory.errors import TryAgain
from backstory.model.table import TableName
from backstory.tables.locks import writing
from backstory.tables.store import Store

ATTEMPTS = 6
SECONDS = 120.0

Result = TypeVar("Result")


def attempted(store: Store, tables: Sequence[TableName], act: Callable[[], Result]) -> Result:
    """What `act` gives, which holds the tables' locks of this process and loads them anew each time.

    A conflict with another process, or a catalog that is busy, is waited out and tried again, a few
    times with growing pauses; then TryAgain.
    """
    with writing(store, *tables):
        for attempt in stamina.retry_context(on=TryAgain, attempts=ATTEMPTS, timeout=SECONDS):
            with attempt:
                return act()
    raise AssertionError("unreachable")
