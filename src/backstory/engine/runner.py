"""The one way in: every plan of a delivery is made whole, in parts by key, or in Spark's tasks."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from backstory.engine.driver import plan_here
from backstory.engine.either_way import plan_either_way
from backstory.engine.planned import Planned, PlanTerms
from backstory.engine.tasks import plan_in_tasks


@contextmanager
def run_plan(terms: PlanTerms) -> Iterator[Planned]:
    """The plan of a delivery, while it lasts: by the driver where its memory suffices, else in Spark's tasks.

    A line of the log has the reason for tasks. Raises Refused for what the plan refuses.
    """
    here, tasks = partial(plan_here, terms), partial(_by_tasks, terms)
    with plan_either_way(terms.store, terms.table, here, tasks) as plan:
        yield plan


@contextmanager
def _by_tasks(terms: PlanTerms) -> Iterator[Planned]:
    with ExitStack() as kept:
        yield plan_in_tasks(terms, kept)
