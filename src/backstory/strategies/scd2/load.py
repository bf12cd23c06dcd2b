"""A part of a load by key: stage, base and open versions come together once, as Arrow tables.

Records of different keys never meet in it, so that it runs on the driver, over all rows or part by part, and
in Spark's tasks.
"""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.delivered import in_schema
from backstory.strategies.part_plan import PartPlan, Whole, as_they_are
from backstory.strategies.scd2.mirror import plan_base
from backstory.strategies.scd2.parts import APPEARED, BEGINS, BOTH, COMES, PLACES
from backstory.strategies.scd2.plan import Earlier, earlier_of, plan_begins, plan_history
from backstory.strategies.scd2.terms import APPEARS, BASE, BEGINNING, EARLIER, LIVE, OPEN, STAGED, LoadTerms


def plan_load(
    terms: LoadTerms,
    sides: Mapping[str, pa.Table],
    whole: Whole = as_they_are,
) -> PartPlan:
    """The rows of base and history to add and remove, counts, and what the load is refused for.

    Without a stage the base stays as it is. `whole` gives all columns of some open versions.
    """
    if STAGED in sides:
        part, live = plan_base(terms, sides[STAGED], sides[BASE])
    else:
        base = sides[BASE]
        part, live = PartPlan(), base.filter(pc.fill_null(base[LIVE], False))
    return part if live is None else part + plan_history(terms, live, sides[OPEN], whole)


def plan_part(
    terms: LoadTerms,
    kinds: Mapping[str, pa.Schema],
    sides: Mapping[str, pa.Table],
    whole: Whole = as_they_are,
) -> PartPlan:
    """The same in the columns of the tables; rows that both tables get are held once."""
    part = plan_load(terms, sides, whole)
    rows = dict(part.rows)
    if _begin_as_they_come(rows):
        del rows[APPEARED]
        rows[BOTH] = rows.pop(COMES)
    shaped = {kind: in_schema(each, kinds[kind]) for kind, each in rows.items() if kind not in PLACES}
    return replace(part, rows={**rows, **shaped})


def _begin_as_they_come(rows: Mapping[str, pa.Table]) -> bool:
    """Whether each row that comes into the base begins a version, and no other row does."""
    come, appeared = rows.get(COMES), rows.get(APPEARED)
    if come is None or appeared is None or not len(come) or len(come) != len(appeared):
        return False
    same = {*appeared.column_names} <= {*come.column_names}
    return same and bool(come.select(appeared.column_names).equals(appeared))


def plan_beginnings(
    terms: LoadTerms, schema: pa.Schema, sides: Mapping[str, pa.Table], _whole: Whole
) -> PartPlan:
    """The versions that rows of the base begin, in the columns of `schema`; earlier ones may be a side."""
    rows = sides[BEGINNING]
    appears, rows = rows[APPEARS], rows.drop_columns([APPEARS])
    earlier = earlier_of(terms, sides[EARLIER]) if EARLIER in sides else Earlier()
    part = plan_begins(terms, rows.filter(pc.invert(appears)), rows.filter(appears), earlier)
    return replace(part, rows={BEGINS: in_schema(part.rows[BEGINS], schema)})
