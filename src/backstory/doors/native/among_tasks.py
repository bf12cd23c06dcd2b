"""A copy among events planned in Spark's tasks: sifted and folded by bucket of the key."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from backstory.doors.native.acts import (
    COME,
    GONE,
    places_that_go,
    rows_of_acts,
    rows_to_write,
    sampled_keys,
    sum_counts,
)
from backstory.doors.native.buckets import acts_of_buckets, numbered_rows, slice_of_bucket
from backstory.doors.native.feeds.stored import live_rows_of
from backstory.doors.native.planned import NEW, REOPENED, PlannedCopy, PlannedRows
from backstory.doors.native.refusals import keys_of_rows, refuse_faults
from backstory.doors.native.sides import CopySides
from backstory.errors import MAX_KEYS
from backstory.formats.delivered import arrow_schema
from backstory.spark.on_disk import persist_on_disk
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.workers import carrying
from backstory.strategies.comparable import comparable
from backstory.strategies.copies.frames import version
from backstory.strategies.copies.sifted import DELIVERED, FAULTS, plan_rows
from backstory.strategies.copies.terms import CopyTerms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVERY: Final = "every record that appears"


@contextmanager
def plan_among(sides: CopySides) -> Iterator[PlannedCopy]:
    """The plan of a copy, while it lasts; Refused for what would not be right."""
    with ExitStack() as kept:
        delivered = persist_on_disk(_delivered(sides))
        kept.callback(delivered.unpersist)
        count, content = _content(sides, delivered)
        stored = 0 if sides.table is None else sides.table.rows
        acts = persist_on_disk(_acts(sides, delivered, count + stored))
        kept.callback(acts.unpersist)
        counts = sum_counts(acts)
        few = {
            kind: _keys_of(sides.terms, acts, kind).limit(MAX_KEYS).toArrow()
            for kind in FAULTS
            if counts[kind]
        }
        refuse_faults(sides.store, sides.terms.key, counts, few)
        back = _reappearing(sides, acts)
        yield PlannedCopy(
            sides.terms,
            counts,
            back.count(),
            counts[DELIVERED],
            lambda: content,
            partial(_keys, sides, acts, back),
            lambda: _rows(sides.terms, acts, counts),
        )


def _delivered(sides: CopySides) -> "DataFrame":
    """The copy's rows in numbered columns."""
    names = sides.terms.delivered
    return sides.delivered.select(*(column(name).alias(f"d{number}") for number, name in enumerate(names)))


def _content(sides: CopySides, delivered: "DataFrame") -> tuple[int, int]:
    """How many rows the copy has, and a number made of them."""
    from pyspark.sql.functions import bit_xor, coalesce, count, lit, xxhash64

    values = (
        comparable(column(f"d{number}"), sides.types[name].dataType)
        for number, name in enumerate(sides.terms.delivered)
    )
    row = delivered.agg(count(lit(1)), coalesce(bit_xor(xxhash64(*values)), lit(0))).collect()[0]
    return int(row[0]), int(row[1])


def _acts(sides: CopySides, delivered: "DataFrame", rows: int) -> "DataFrame":
    terms = sides.terms
    live = live_rows_of(sides.stored, terms.at).where(column(terms.key[0]).isNotNull())
    names = [each.name for each in terms.columns]
    mine = [f"d{terms.delivered.index(name)}" for name in terms.key]
    theirs = [f"c{names.index(name)}" for name in terms.key]
    both = [(delivered, mine), (numbered_rows(live, terms.columns, sides.salt), theirs)]
    return acts_of_buckets(both, rows, terms.columns, partial(_plan_bucket, terms))


def _plan_bucket(terms: CopyTerms, delivered: pa.Table, stored: pa.Table) -> pa.Table:
    types = {each.name: each.type for each in terms.columns}
    schema = arrow_schema({name: types[name] for name in terms.delivered})
    rows = schema.empty_table()
    if delivered.num_columns:
        numbered = [f"d{number}" for number in range(len(schema))]
        rows = delivered.select(numbered).rename_columns(schema.names).cast(schema)
    with carrying():
        slice_ = slice_of_bucket(stored, terms.columns, ids=terms.ids)
        plan = plan_rows(terms, rows, slice_, lambda versions: versions)
        return rows_of_acts(terms.columns, replace(plan, samples={**plan.samples, EVERY: plan.appeared}))


def _reappearing(sides: CopySides, acts: "DataFrame") -> "DataFrame":
    """The records that appear of which there are versions at other times."""
    key = list(sides.terms.key)
    versions = sides.stored.where(version()).select(*map(quoted, key))
    return _keys_of(sides.terms, acts, EVERY).join(versions, key, "left_semi")


def _keys(sides: CopySides, acts: "DataFrame", back: "DataFrame", *kinds: str) -> list[str]:
    """Up to ten keys of the records of these kinds."""
    key, found = list(sides.terms.key), list[str]()
    for kind in kinds:
        rows = _keys_of(sides.terms, acts, kind)
        if kind == REOPENED:
            rows = back
        elif kind == NEW:
            rows = _keys_of(sides.terms, acts, EVERY).join(back, key, "left_anti")
        found += keys_of_rows(sides.store, rows.limit(MAX_KEYS).toArrow(), sides.terms.key)
    return found[:MAX_KEYS]


def _keys_of(terms: CopyTerms, acts: "DataFrame", kind: str) -> "DataFrame":
    return sampled_keys(acts, terms.columns, terms.key, kind)


def _rows(terms: CopyTerms, acts: "DataFrame", counts: Counter[str]) -> PlannedRows:
    come = rows_to_write(acts, terms.columns, ids=terms.ids) if counts[COME] else None
    return PlannedRows(places_that_go(acts) if counts[GONE] else None, come, counts[GONE], counts[COME])
