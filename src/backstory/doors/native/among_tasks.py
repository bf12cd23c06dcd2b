"""A copy among events planned in Spark's tasks: sifted and folded by bucket of the key."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from backstory.doors.native.acts import ACT, ADDED, COME, COUNTED, GONE, REMOVED, SAMPLED, rows_of_acts
from backstory.doors.native.feeds.stored import lengthened, live_rows_of
from backstory.doors.native.planned import NEW, REOPENED, PlannedCopy, PlannedRows
from backstory.doors.native.refusals import keys_of_rows, refuse_faults
from backstory.doors.native.sides import CopySides
from backstory.engine.buckets import ROWS_IN_BUCKET
from backstory.errors import MAX_KEYS
from backstory.formats.delivered import arrow_schema
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.positions import coded_file
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.workers import carrying
from backstory.strategies.copies.alike import comparable
from backstory.strategies.copies.frames import version
from backstory.strategies.copies.sifted import DELIVERED, FAULTS, plan_rows
from backstory.strategies.copies.terms import CopyTerms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BUCKET: Final = "bucket"
EVERY: Final = "every record that appears"


@contextmanager
def planned_among(sides: CopySides) -> Iterator[PlannedCopy]:
    """The plan of a copy, while it lasts; Refused for what would not be right."""
    with ExitStack() as kept:
        delivered = _delivered(sides).persist()
        kept.callback(delivered.unpersist)
        count, content = _content(sides, delivered)
        stored = 0 if sides.table is None else sides.table.rows
        acts = _acts(sides, delivered, 1 + (count + stored) // ROWS_IN_BUCKET).persist()
        kept.callback(acts.unpersist)
        counts: Counter[str] = Counter()
        for row in acts.where(column("act") == COUNTED).select("told").collect():
            counts.update(json.loads(row.told))
        few = {kind: _sample(sides.terms, acts, kind) for kind in FAULTS if counts[kind]}
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


def _acts(sides: CopySides, delivered: "DataFrame", buckets: int) -> "DataFrame":
    from pyspark.sql.functions import lit, pmod, xxhash64

    terms, shape = sides.terms, [each.name for each in sides.terms.columns]

    def bucket(names: list[str]) -> "Column":
        pairs = zip(terms.key, names, strict=True)
        values = (_with_one_zero(sides, name, column(number)) for name, number in pairs)
        return pmod(xxhash64(*values), lit(buckets)).alias(BUCKET)

    live = live_rows_of(sides.stored, terms.at).where(column(terms.key[0]).isNotNull())
    live = live.withColumn(FILE, coded_file(sides.salt))
    live = live if ROW_ID in live.columns else live.withColumn(ROW_ID, lit(None).cast("bigint"))
    numbered = [column(name).alias(f"c{number}") for number, name in enumerate(shape)]
    live = live.select(*numbered, *(column(name).alias(new) for new, name in _PLACES.items()))
    mine = [f"d{terms.delivered.index(name)}" for name in terms.key]
    theirs = [f"c{shape.index(name)}" for name in terms.key]
    left, right = delivered.select("*", bucket(mine)), live.select("*", bucket(theirs))
    declared = ", ".join(f"c{number} {spark_type(each.type)}" for number, each in enumerate(terms.columns))
    plan = partial(_plan_bucket, terms)
    return left.groupBy(BUCKET).cogroup(right.groupBy(BUCKET)).applyInArrow(plan, f"{ACT}, {declared}")


_PLACES: Final = {"file": FILE, "position": POSITION, "id": ROW_ID}


def _with_one_zero(sides: CopySides, name: str, value: "Column") -> "Column":
    from pyspark.sql.functions import lit
    from pyspark.sql.types import FractionalType

    type_ = sides.types[name].dataType
    return value + lit(0).cast(type_) if isinstance(type_, FractionalType) else value


def _plan_bucket(terms: CopyTerms, delivered: pa.Table, stored: pa.Table) -> pa.Table:
    types = {each.name: each.type for each in terms.columns}
    schema = arrow_schema({name: types[name] for name in terms.delivered})
    ids = [pa.field(ROW_ID, pa.int64())] if terms.ids else []
    places = [pa.field(FILE, pa.int64()), pa.field(POSITION, pa.int64())]
    whole = pa.schema([*arrow_schema(types), *places, *ids])
    with carrying():
        rows, slice_ = schema.empty_table(), whole.empty_table()
        if delivered.num_columns:
            numbered = [f"d{number}" for number in range(len(schema))]
            rows = delivered.select(numbered).rename_columns(schema.names).cast(schema)
        if stored.num_columns:
            names = {f"c{number}": each.name for number, each in enumerate(terms.columns)}
            names |= {new: name for new, name in _PLACES.items() if name != ROW_ID or terms.ids}
            slice_ = lengthened(stored.select(list(names)).rename_columns(list(names.values())), whole)
        plan = plan_rows(terms, rows, slice_, lambda versions: versions)
        return rows_of_acts(terms.columns, replace(plan, samples={**plan.samples, EVERY: plan.appeared}))


def _keys_of(terms: CopyTerms, acts: "DataFrame", kind: str) -> "DataFrame":
    numbers = {each.name: number for number, each in enumerate(terms.columns)}
    rows = acts.where((column("act") == SAMPLED) & (column("told") == kind))
    return rows.select(*(column(f"c{numbers[name]}").alias(name) for name in terms.key))


def _sample(terms: CopyTerms, acts: "DataFrame", kind: str) -> pa.Table:
    return _keys_of(terms, acts, kind).limit(MAX_KEYS).toArrow()


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


def _rows(terms: CopyTerms, acts: "DataFrame", counts: Counter[str]) -> PlannedRows:
    come: Any = None
    if counts[COME]:
        numbered = [column(f"c{number}").alias(each.name) for number, each in enumerate(terms.columns)]
        ids = [column("id").alias(ROW_ID)] if terms.ids else []
        come = acts.where(column("act") == ADDED).select(*numbered, *ids)
    gone = acts.where(column("act") == REMOVED)
    places = gone.select(column("file").alias(FILE), column("position").alias(POSITION))
    return PlannedRows(places if counts[GONE] else None, come, counts[GONE], counts[COME])
