"""Do something to tables, and do it again when another writer came first."""

import random
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar

import structlog

from backstory.errors import TryAgain
from backstory.model.table import TableName
from backstory.observe.metrics import CONFLICTS, RETRIES
from backstory.tables.locks import writing
from backstory.tables.store import Store

ATTEMPTS = 6
SECONDS = 120.0
FIRST, LONGEST = 0.1, 5.0
# Up to a second more, drawn anew each time: writers that met once do not meet again at the next attempt.
SPREAD = 1.0
DICE = random.SystemRandom()

log = structlog.get_logger()

Result = TypeVar("Result")


def attempted(store: Store, tables: Sequence[TableName], act: Callable[[], Result]) -> Result:
    """What `act` gives, which holds the tables' locks of this process and loads them anew each time.

    Else as `tried`.
    """
    with writing(store, *tables):
        return tried(act)


def tried(act: Callable[[], Result], failed: Callable[[TryAgain], object] = lambda _: None) -> Result:
    """What `act` gives; a conflict or a busy catalog is waited out and tried again, then TryAgain.

    A few times, with growing pauses; each pause is a line of the log. `failed` is told of each attempt
    that another one follows.
    """
    began = time.monotonic()
    for number in count(1):
        try:
            return act()
        except TryAgain as error:
            CONFLICTS.inc()
            pause = min(FIRST * 2.0 ** (number - 1) + DICE.uniform(0, SPREAD), LONGEST)
            if number == ATTEMPTS or time.monotonic() - began + pause > SECONDS:
                raise
            log.warning(f"trying again in {pause:.1f} s: {error}", code=error.code, attempt=number)
            failed(error)
        RETRIES.inc()
        time.sleep(pause)
    raise AssertionError("unreachable")
