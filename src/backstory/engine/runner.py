"""The single entry point for plans of deliveries: whole, in parts by key, or in Spark's tasks.

Tasks plan if the driver cannot hold or read the rows (E7).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Final, TypeVar

import structlog

from backstory.engine.driver import plan_on_driver
from backstory.engine.plans import PlanResult, PlanTerms
from backstory.engine.run_context import DRIVER, TASKS, note_way
from backstory.engine.tasks import plan_in_tasks
from backstory.formats.memory import TooLarge
from backstory.model.table import TableName
from backstory.spark.connect import needs_java
from backstory.stores.iceberg.store import IcebergStore
from backstory.stores.port import Store

LOG = structlog.get_logger()
Planned = TypeVar("Planned")

IN_TASKS: Final = "planned in Spark's tasks"
NO_MEMORY: Final = "driver-memory is 0"
TOO_LARGE: Final = "more than driver-memory holds"
NOT_HERE: Final = "rows that Spark alone reads or converts exactly"


@contextmanager
def plan_here_or_in_tasks(
    store: Store,
    table: TableName,
    here: Callable[[ExitStack], Planned | None],
    tasks: Callable[[ExitStack], Planned],
) -> Iterator[Planned]:
    """A context manager for the plan made by `here`, or by `tasks` if `here` makes none.

    If tasks plan, a log line gives the reason. `here` returns None or raises TooLarge if the driver cannot
    plan. The rows that a plan holds are released with its stack.
    """
    plan, reason = None, NO_MEMORY
    if store.memory.most:
        with ExitStack() as kept:
            try:
                plan, reason = here(kept), NOT_HERE
            except TooLarge:
                reason = TOO_LARGE
            if plan is not None:
                note_way(DRIVER)
                yield plan
                return
    if isinstance(store, IcebergStore) and not store.has_java:
        raise needs_java(f"A delivery that Spark's tasks plan ({reason})")
    LOG.info(IN_TASKS, table=str(table), reason=reason)
    note_way(TASKS)
    with ExitStack() as kept:
        yield tasks(kept)


def run_plan(terms: PlanTerms) -> AbstractContextManager[PlanResult]:
    """The plan of a delivery, as a context manager.

    The driver makes it if its memory suffices, and otherwise Spark's tasks. A log line gives the reason for
    tasks. Raises Refused if the plan refuses the delivery.
    """
    here, tasks = partial(plan_on_driver, terms), partial(plan_in_tasks, terms)
    return plan_here_or_in_tasks(terms.store, terms.table, here, tasks)
