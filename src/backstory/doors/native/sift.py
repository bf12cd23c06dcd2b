"""A copy sifted by Spark: one join excludes the records that do not differ."""

from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from backstory.doors.native.refusals import rows_without_key
from backstory.doors.native.sides import CopySides
from backstory.engine.planned import Sifted
from backstory.engine.sides import Side
from backstory.engine.staging import storable
from backstory.errors import MAX_KEYS
from backstory.formats.delivered import arrow_schema
from backstory.model.layout import IS_CURRENT, RECORDED_AT, VALID_FROM, VALID_TO
from backstory.model.places import FILE, ROW_ID
from backstory.stores.iceberg.literals import column, instant, quoted
from backstory.stores.iceberg.positions import coded_file
from backstory.stores.iceberg.schema import spark_type
from backstory.strategies.comparable import comparable
from backstory.strategies.copies.frames import (
    BEFORE,
    NEXT,
    REPLACED,
    begun_never,
    carries_over,
    differs,
    has,
    of,
    spoilt,
    state,
    stored_states,
    there,
    valued,
)
from backstory.strategies.copies.plan import plan_copy
from backstory.strategies.copies.sifted import CARRIED, CONTENT, DIFFERING, NO_KEY, SPOILT, VALUED
from backstory.strategies.copies.sifted import DELIVERED as ROWS_DELIVERED
from backstory.strategies.copies.terms import CopyTerms
from backstory.strategies.copies.touched import APPEARED, HAD, UNCHANGED, Touched
from backstory.strategies.copies.touched import Side as RowSide
from backstory.strategies.part_plan import ADDED, PartPlan, PlanSums, Whole
from backstory.strategies.sift.join import APPEARED as UNPAIRED
from backstory.strategies.sift.join import (
    CHANGED,
    DELIVERED,
    VANISHED,
    Outcomes,
    first_outcomes,
    outcomes,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TOUCHED: Final = "touched"
# Of a key: one of its rows, and how many of them differ. No column of a source is called so.
ONE: Final = "backstory: one"
KINDS: Final = "backstory: kinds"


def sift_copy(sides: CopySides, salt: int, kept: ExitStack) -> Sifted:
    """What the plan has to look at: stored records that may differ, beside what the copy delivers of them.

    Identical rows of a key are one. Counted are all records; faults alone where the copy has any.
    """
    terms = sides.terms
    found = kept.enter_context(_compared(sides, sides.delivered, salt))
    faults = {}
    if found.failed[NO_KEY]:
        faults[NO_KEY] = rows_without_key(sides.delivered, terms.key)
    elif (spoilt_keys := _spoilt(sides, found)) is not None:
        faults[SPOILT] = spoilt_keys
    elif found.repeats_delivered:
        kinds = _kinds_of_rows(sides)
        faults[DIFFERING] = kinds.where(column(KINDS) > 1)
        if not _few_keys(sides, faults):
            faults = {}
            found = kept.enter_context(_compared(sides, kinds.select(f"{quoted(ONE)}.*"), salt))
    few = _few_keys(sides, faults)
    if few:
        counts = {kind: found.failed.get(kind, len(rows)) for kind, rows in few.items()}
        return Sifted(None, partial(_plan_touched, terms), PlanSums(Counter(counts), few), {})
    return _with_counts(sides, found)


def _with_counts(sides: CopySides, found: Outcomes) -> Sifted:
    terms = sides.terms
    counts = Counter(found.pairs)
    counts.update({APPEARED: found.appeared, UNCHANGED: found.same, ROWS_DELIVERED: found.delivered})
    counts[CONTENT] = found.sums[CONTENT]
    appearing, few = _appearing(terms, found), {}
    if found.appeared:
        few = _few_keys(sides, {APPEARED: appearing})
    sums = PlanSums(counts, few, {}, Counter({ADDED: found.appeared, APPEARED: found.appeared}))
    rows = {ADDED: _opening(terms, found), APPEARED: appearing}
    if not (found.changed or found.vanished):
        return Sifted(None, partial(_plan_touched, terms), sums, rows)
    touched = _touched_rows(terms, found)
    side = Side(_arrow_schema(touched), lambda: touched)
    return Sifted({TOUCHED: side}, partial(_plan_touched, terms), sums, rows)


def _compared(sides: CopySides, delivered: "DataFrame", salt: int) -> AbstractContextManager[Outcomes]:
    from pyspark.sql.functions import bit_xor, coalesce, lit

    terms = sides.terms
    checks = {NO_KEY: reduce(or_, (column(name).isNull() for name in terms.key))}
    sums = {CONTENT: coalesce(bit_xor(_content(sides)), lit(0))}
    stored = stored_states(sides.stored.withColumn(FILE, coded_file(salt)), terms)
    # Rows of files and tables are the same whenever they are read; those of a frame may be others.
    if (sides.table is None or not sides.table.rows) and sides.source.batches is not None:
        return nullcontext(first_outcomes(delivered, stored, terms.key, checks, sums))
    pairs = {f"{HAD}{name}": has(terms, name) for name in terms.compared}
    for number, pair in enumerate(terms.successions):
        pairs |= {f"{VALUED}{number}": valued(terms, *pair), f"{CARRIED}{number}": carries_over(terms, *pair)}
    return outcomes(
        delivered,
        stored,
        terms.key,
        differs(terms, sides.types),
        there(terms) if terms.closes else lit(False),
        checks,
        sums=sums,
        pairs=pairs,
    )


def _content(sides: CopySides) -> "Column":
    """A hash of a delivered row; those of all rows together are the copy's content."""
    from pyspark.sql.functions import xxhash64

    types = sides.types
    return xxhash64(*(comparable(column(name), types[name].dataType) for name in sides.terms.delivered))


def _spoilt(sides: CopySides, found: Outcomes) -> "DataFrame | None":
    """Stored rows of records that are spoilt (V119); None where none can be."""
    if sides.table is None or not sides.table.rows:
        return None
    if sides.terms.in_order and not found.repeats_stored:
        rows = begun_never(sides.stored).where(column(VALID_TO).isNull())
    else:
        rows = spoilt(sides.stored, sides.terms)
    return rows if rows.limit(1).count() else None


def _kinds_of_rows(sides: CopySides) -> "DataFrame":
    """Each key with one row, and how many rows it has that differ."""
    from pyspark.sql.functions import count_distinct, first, lit, struct

    terms = sides.terms
    rest = [name for name in terms.delivered if name not in terms.key]
    values = (comparable(column(name), sides.types[name].dataType).alias(name) for name in rest)
    row, others = struct(*map(quoted, terms.delivered)), struct(lit(0), *values)
    key = [quoted(name) for name in terms.key]
    return sides.delivered.groupBy(*key).agg(first(row).alias(ONE), count_distinct(others).alias(KINDS))


def _few_keys(sides: CopySides, rows: "Mapping[str, DataFrame]") -> dict[str, pa.Table]:
    """Up to ten keys of rows of each kind that has any."""
    terms = sides.terms
    types = {each.name: each.type for each in terms.columns}
    schema = arrow_schema({name: types[name] for name in terms.key})
    few = {}
    for kind, each in rows.items():
        keys = each.select(*map(quoted, terms.key)).distinct().limit(MAX_KEYS).toArrow()
        if len(keys):
            few[kind] = keys.rename_columns(schema.names).cast(schema)
    return few


def _touched_rows(terms: CopyTerms, found: Outcomes) -> "DataFrame":
    """The records that are stored and may differ: a struct of each of their sides."""
    from pyspark.sql.functions import col

    states = [BEFORE]
    if not terms.in_order:
        states += [REPLACED, *([NEXT] if terms.following is not None else [])]
    structs = [col(DELIVERED), *(col(state(name)).alias(name) for name in states)]
    return found.actions.where(column("action").isin(CHANGED, VANISHED)).select(*structs)


def _arrow_schema(frame: "DataFrame") -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return storable(to_arrow_schema(frame.schema))


def _plan_touched(terms: CopyTerms, sides: Mapping[str, pa.Table], _whole: Whole) -> PartPlan:
    """The plan of touched records; the sift has counted the values that records had."""
    plan = plan_copy(terms, _touched(terms, sides[TOUCHED]))
    counts = {name: count for name, count in plan.counts.items() if not name.startswith(HAD)}
    return PartPlan(plan.rows, counts, plan.samples)


def _touched(terms: CopyTerms, rows: pa.Table) -> Touched:
    """The sides of touched records; those that no record of the copy can have are empty."""
    types = arrow_schema({each.name: each.type for each in terms.columns})
    sides = {name: _side(rows[name].combine_chunks(), types) for name in rows.column_names}
    schema = sides[BEFORE].rows.schema
    nothing = pa.table([pa.nulls(len(rows), each.type) for each in schema], schema=schema)
    nowhere = RowSide(nothing, np.zeros(len(rows), bool))
    return Touched(*(sides.get(name, nowhere) for name in (DELIVERED, BEFORE, REPLACED, NEXT)))


def _side(rows: pa.StructArray, types: pa.Schema) -> RowSide:
    names = [field.name for field in rows.type]
    values = [
        each.cast(types.field(name).type) if name in types.names else each
        for name, each in zip(names, rows.flatten(), strict=True)
    ]
    return RowSide(pa.table(values, names=names), np.asarray(rows.is_valid()))


def _appearing(terms: CopyTerms, found: Outcomes) -> "DataFrame":
    """The keys of records of which no version counts."""
    from pyspark.sql.functions import col

    keys = (col(f"{DELIVERED}.{quoted(name)}").alias(name) for name in terms.key)
    return found.actions.where(column("action") == UNPAIRED).select(*keys)


def _opening(terms: CopyTerms, found: Outcomes) -> "DataFrame":
    """The versions of records without any that counts: their own columns are the same in all of them."""
    from pyspark.sql.functions import lit

    following = lit(None) if terms.following is None else instant(terms.following)
    own = {
        VALID_FROM: instant(terms.at),
        VALID_TO: following,
        IS_CURRENT: lit(terms.following is None),
        RECORDED_AT: instant(terms.recorded),
    }
    values = {**{name: of(DELIVERED, name) for name in terms.delivered}, **own}
    row = [
        values.get(each.name, lit(None)).cast(spark_type(each.type)).alias(each.name)
        for each in terms.columns
    ]
    ids = [lit(None).cast("bigint").alias(ROW_ID)] if terms.ids else []
    return found.actions.where(column("action") == UNPAIRED).select(*row, *ids)
