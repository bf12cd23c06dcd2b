"""A merge planned in Spark's tasks, none of whose rows are on the driver."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from backstory.doors.odf.sides import MergeSides
from backstory.spark.on_disk import persist_on_disk
from backstory.strategies.events.happened import Happened
from backstory.strategies.events.numbering import close_gaps
from backstory.strategies.events.pruning import prune_log
from backstory.strategies.events.sides import PLACE
from backstory.strategies.events.tasks import plan_in_tasks
from backstory.strategies.events.terms import Strategy
from backstory.strategies.observed import observed

# A log of so many rows is worth a look at the delivered keys first.
LONG: Final = 100_000


@contextmanager
def plan_by_tasks(sides: MergeSides) -> Iterator[Happened]:
    """What the batch adds to the log."""
    arrived, terms = sides.arrived, sides.terms
    cached = persist_on_disk(arrived.rows)
    try:
        count = cached.count()
        rows = cached
        if terms.strategy is Strategy.CHANGELOG and not arrived.placed:
            rows = close_gaps(cached, PLACE)  # a correction's two halves stand right beside each other
        logged = sides.logged()
        if logged is not None and sides.stored > LONG:
            logged = prune_log(logged, rows, terms)
        with plan_in_tasks(logged, rows, terms, sides.moment, count + sides.stored) as happened:
            yield replace(happened, observed=observed(cached)[arrived.seen])
    finally:
        cached.unpersist()
