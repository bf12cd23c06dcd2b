"""Where a delivery is planned: by the driver, or in Spark's tasks where it cannot hold the rows (E7)."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final, TypeVar

import structlog

from backstory.engine.runs import DRIVER, TASKS, note_way
from backstory.formats.memory import TooLarge
from backstory.model.table import TableName
from backstory.stores.port import Store

LOG = structlog.get_logger()
Planned = TypeVar("Planned")

IN_TASKS: Final = "planned in Spark's tasks"
NO_MEMORY: Final = "driver-memory is 0"
TOO_LARGE: Final = "more than driver-memory holds"
NOT_HERE: Final = "rows that Spark alone reads or converts exactly"


@contextmanager
def plan_either_way(
    store: Store,
    table: TableName,
    here: Callable[[ExitStack], Planned | None],
    tasks: Callable[[], AbstractContextManager[Planned]],
) -> Iterator[Planned]:
    """The plan that `here` makes, while it lasts, else the one that `tasks` make; a log line then says why.

    `here` gives None, or raises TooLarge, for what is not for the driver; what it holds or spills goes with
    the stack that it is given.
    """
    why = NO_MEMORY
    if store.memory.most:
        with ExitStack() as kept:
            plan, why = _plan_here(here, kept)
            if plan is not None:
                note_way(DRIVER)
                yield plan
                return
    LOG.info(IN_TASKS, table=str(table), reason=why)
    note_way(TASKS)
    with tasks() as plan:
        yield plan


def _plan_here(here: Callable[[ExitStack], Planned | None], kept: ExitStack) -> tuple[Planned | None, str]:
    try:
        return here(kept), NOT_HERE
    except TooLarge:
        return None, TOO_LARGE
