"""A part of a load by key: stage, base and open versions come together once, as Arrow tables.

Records of different keys never meet in it, so that it runs on the driver, over all rows or part by part, and
in Spark's tasks.
"""

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from backstory.strategies.scd2.mirror import plan_base
from backstory.strategies.scd2.parts import LoadPart
from backstory.strategies.scd2.plan import plan_begins, plan_history
from backstory.strategies.scd2.terms import BASE, EARLIER, LIVE, OPEN, STAGED, LoadTerms


def as_they_are(rows: pa.Table) -> pa.Table:
    """The rows, which have all columns."""
    return rows


def plan_load(
    terms: LoadTerms,
    sides: Mapping[str, pa.Table],
    whole: Callable[[pa.Table], pa.Table] = as_they_are,
) -> LoadPart:
    """The rows of base and history that go and come, counts, and what the load is refused for.

    Without a stage the base stays as it is. Where earlier versions are a side, too, the versions that begin
    are made; else rows of the base say which do. `whole` gives all columns of some open versions.
    """
    if STAGED in sides:
        part, live = plan_base(terms, sides[STAGED], sides[BASE])
    else:
        base = sides[BASE]
        part, live = LoadPart(), base.filter(pc.fill_null(base[LIVE], False))
    if live is None:
        return part
    history = plan_history(terms, live, sides[OPEN], whole)
    if EARLIER in sides and history.rows:
        history += plan_begins(terms, history, sides[EARLIER])
    return part + history
