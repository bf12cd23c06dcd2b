"""A copy planned in Spark's tasks: sifted by one join, what is touched planned where it lies."""

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from backstory.doors.native.acts import (
    ACT,
    COME,
    GONE,
    places_that_go,
    rows_of_acts,
    rows_to_write,
    sampled_keys,
    sum_counts,
)
from backstory.doors.native.among_tasks import plan_among
from backstory.doors.native.planned import NEW, REOPENED, PlannedCopy, PlannedRows
from backstory.doors.native.refusals import (
    keys_of,
    keys_of_rows,
    refuse_duplicates,
    refuse_null_keys,
    refuse_spoilt,
    rows_without_key,
)
from backstory.doors.native.sides import CopySides
from backstory.errors import MAX_KEYS
from backstory.formats.delivered import arrow_schema
from backstory.model.layout import IS_CURRENT, RECORDED_AT, VALID_FROM, VALID_TO
from backstory.model.places import FILE, ROW_ID
from backstory.spark.on_disk import persist_on_disk
from backstory.stores.iceberg.literals import column, instant, quoted
from backstory.stores.iceberg.positions import coded_file
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.workers import carrying, map_batches
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
    version,
)
from backstory.strategies.copies.plan import plan_copy
from backstory.strategies.copies.sifted import CARRIED, NO_KEY, VALUED
from backstory.strategies.copies.terms import CopyTerms
from backstory.strategies.copies.touched import (
    APPEARED,
    HAD,
    UNCHANGED,
    Side,
    Touched,
)
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

CONTENT: Final = "content"


@contextmanager
def plan_by_tasks(sides: CopySides) -> Iterator[PlannedCopy]:
    """The plan of a copy, none of whose rows are on the driver; identical rows of a key are one.

    Raises Refused for a NULL in a key, for rows of one key that differ, and for a spoilt slice.
    """
    with ExitStack() as kept:
        if sides.terms.among is not None or sides.terms.scope is not None:
            yield kept.enter_context(plan_among(sides))
            return
        found = kept.enter_context(_sifted(sides, sides.delivered))
        key, delivered = sides.terms.key, sides.delivered
        refuse_null_keys(found.failed[NO_KEY], key, lambda: keys_of(rows_without_key(delivered, key), key))
        refuse_spoilt(_spoilt_keys(sides, found), key)
        if found.repeats_delivered:
            kept.close()
            found = kept.enter_context(_sifted(sides, _collapsed(sides)))
        acts = None
        if found.changed or found.vanished:
            acts = persist_on_disk(_acts(sides, found))
            kept.callback(acts.unpersist)
        yield _planned(sides, found, acts)


def _sifted(sides: CopySides, delivered: "DataFrame") -> AbstractContextManager[Outcomes]:
    from pyspark.sql.functions import bit_xor, coalesce, lit

    terms = sides.terms
    checks = {NO_KEY: reduce(or_, (column(name).isNull() for name in terms.key))}
    sums = {CONTENT: coalesce(bit_xor(_content(sides)), lit(0))}
    stored = stored_states(sides.stored.withColumn(FILE, coded_file(sides.salt)), terms)
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


def _spoilt_keys(sides: CopySides, found: Outcomes) -> list[str]:
    if sides.terms.in_order and not found.repeats_stored:
        open_ = begun_never(sides.stored).where(column(VALID_TO).isNull())
        return keys_of(open_, sides.terms.key)
    return keys_of(spoilt(sides.stored, sides.terms), sides.terms.key)


def _collapsed(sides: CopySides) -> "DataFrame":
    """One row of each key; Refused for keys whose rows differ."""
    from pyspark.sql.functions import count_distinct, first, lit, struct

    one, kinds, terms = "backstory: one", "backstory: kinds", sides.terms
    rest = [name for name in terms.delivered if name not in terms.key]
    values = (comparable(column(name), sides.types[name].dataType).alias(name) for name in rest)
    row, said = struct(*map(quoted, terms.delivered)), struct(lit(0), *values)
    key = [quoted(name) for name in terms.key]
    counted = sides.delivered.groupBy(*key).agg(first(row).alias(one), count_distinct(said).alias(kinds))
    refuse_duplicates(keys_of(counted.where(column(kinds) > 1), terms.key), terms.key)
    return counted.select(f"{quoted(one)}.*")


def _acts(sides: CopySides, found: Outcomes) -> "DataFrame":
    """The plan of the touched records that have stored versions, batch by batch."""
    from pyspark.sql.functions import col

    terms, states = sides.terms, [BEFORE]
    if not terms.in_order:
        states += [REPLACED, *([NEXT] if terms.following is not None else [])]
    structs = [col(DELIVERED), *(col(state(name)).alias(name) for name in states)]
    touched = found.actions.where(column("action").isin(CHANGED, VANISHED)).select(*structs)
    columns = ", ".join(f"c{number} {spark_type(each.type)}" for number, each in enumerate(terms.columns))
    return map_batches(touched, partial(_plan_batches, terms), f"{ACT}, {columns}")


def _plan_batches(terms: CopyTerms, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        with carrying():
            plan = plan_copy(terms, _touched(terms, batch))
        yield from rows_of_acts(terms.columns, plan).to_batches()


def _touched(terms: CopyTerms, batch: pa.RecordBatch) -> Touched:
    """The sides of a batch; those that no record of the copy can have are empty."""
    types = arrow_schema({each.name: each.type for each in terms.columns})
    sides = {name: _side(batch.column(place), types) for place, name in enumerate(batch.schema.names)}
    schema = sides[BEFORE].rows.schema
    nothing = pa.table([pa.nulls(batch.num_rows, each.type) for each in schema], schema=schema)
    nowhere = Side(nothing, np.zeros(batch.num_rows, bool))
    return Touched(*(sides.get(name, nowhere) for name in (DELIVERED, BEFORE, REPLACED, NEXT)))


def _side(rows: pa.StructArray, types: pa.Schema) -> Side:
    names = [field.name for field in rows.type]
    values = [
        each.cast(types.field(name).type) if name in types.names else each
        for name, each in zip(names, rows.flatten(), strict=True)
    ]
    return Side(pa.table(values, names=names), np.asarray(rows.is_valid()))


def _planned(sides: CopySides, found: Outcomes, acts: "DataFrame | None") -> PlannedCopy:
    counts = Counter[str]() if acts is None else sum_counts(acts)
    counts.update({APPEARED: found.appeared, UNCHANGED: found.same})
    counts |= found.pairs  # of all records, touched or not
    stored = sides.table is not None and sides.table.rows
    reopened = _reappearing(sides, found).count() if stored and counts[APPEARED] else 0
    return PlannedCopy(
        sides.terms,
        counts,
        reopened,
        found.delivered,
        lambda: found.sums[CONTENT],
        partial(_keys, sides, found, acts),
        lambda: _rows(sides, found, acts, counts),
    )


def _appearing(terms: CopyTerms, found: Outcomes) -> "DataFrame":
    """The keys of records that were not there at the copy's instant."""
    from pyspark.sql.functions import col

    keys = (col(f"{DELIVERED}.{quoted(name)}").alias(name) for name in terms.key)
    action = column("action")
    return found.actions.where((action == UNPAIRED) | ((action == CHANGED) & ~there(terms))).select(*keys)


def _reappearing(sides: CopySides, found: Outcomes) -> "DataFrame":
    """Those of them of which there are versions elsewhere: closed ones, or any where later ones are known."""
    versions, key = sides.stored.where(version()), list(sides.terms.key)
    if sides.terms.in_order:
        versions = versions.where(column(VALID_TO).isNotNull())
    named = versions.select(*map(quoted, key))
    return named.join(_appearing(sides.terms, found), key, "left_semi").distinct()


def _keys(sides: CopySides, found: Outcomes, acts: "DataFrame | None", *kinds: str) -> list[str]:
    """Up to ten keys of the records of these kinds."""
    keys = [key for kind in kinds for key in _keys_of_kind(sides, found, acts, kind)]
    return keys[:MAX_KEYS]


def _keys_of_kind(sides: CopySides, found: Outcomes, acts: "DataFrame | None", kind: str) -> list[str]:
    terms = sides.terms
    if kind in {APPEARED, NEW, REOPENED}:
        appearing = _appearing(terms, found)
        if kind == APPEARED:
            return keys_of(appearing, terms.key)
        seen = _reappearing(sides, found)
        return keys_of(
            seen if kind == REOPENED else appearing.join(seen, list(terms.key), "left_anti"), terms.key
        )
    if acts is None:
        return []
    samples = sampled_keys(acts, terms.columns, terms.key, kind).limit(MAX_KEYS)
    return keys_of_rows(sides.store, samples.toArrow(), terms.key)


def _rows(sides: CopySides, found: Outcomes, acts: "DataFrame | None", counts: Counter[str]) -> PlannedRows:
    come = []
    if found.appeared:
        come.append(_opening(sides.terms, found))
    if acts is not None and counts[COME]:
        come.append(rows_to_write(acts, sides.terms.columns, ids=sides.terms.ids))
    return PlannedRows(
        places_that_go(acts) if acts is not None and counts[GONE] else None,
        reduce(lambda one, other: one.unionByName(other), come) if come else None,
        counts[GONE],
        found.appeared + counts[COME],
    )


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
