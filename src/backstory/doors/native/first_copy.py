"""The first copy of a table without rows: each of its rows begins a version, and is written as it comes."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from backstory.doors.native.sides import CopySides
from backstory.doors.native.stored_side import DELIVERED, delivered_here
from backstory.engine.driver import DriverPlan
from backstory.engine.held_rows import ROWS_IN_PIECE, together
from backstory.engine.parts import parts_by_key
from backstory.engine.planned import FirstRows
from backstory.engine.sides import LocalSide
from backstory.errors import MAX_KEYS
from backstory.formats.delivered import arrow_schema, shaped
from backstory.formats.digest import digest
from backstory.formats.memory import MemoryLease
from backstory.model.change import Pieces
from backstory.model.layout import IS_CURRENT, RECORDED_AT, VALID_FROM, VALID_TO
from backstory.model.places import ROW_ID
from backstory.spark.on_disk import persist_on_disk
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.literals import column, instant
from backstory.stores.iceberg.schema import spark_type
from backstory.strategies.comparable import fingerprint
from backstory.strategies.copies.rows import OPEN, begun
from backstory.strategies.copies.sifted import CONTENT, is_faultless
from backstory.strategies.copies.sifted import DELIVERED as ROWS_DELIVERED
from backstory.strategies.copies.touched import APPEARED
from backstory.strategies.part_plan import ADDED, REMOVED, PartPlan, PlanSums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS, KEYS, FAULTY = "rows", "keys", "faulty"


def first_rows(sides: CopySides, local: Mapping[str, LocalSide], lease: MemoryLease) -> DriverPlan | None:
    """The plan of a first copy by the driver; its rows go from file to file.

    The columns of key and scope are read first, and alone. None where a row is faulty or a key comes twice:
    then all values must be looked at.
    """
    terms = sides.terms
    keys = delivered_here(sides, [*terms.key, *(name for name, _ in terms.scope or ())])
    if keys is None or local[DELIVERED].columns is None:
        return None
    sums = PlanSums()
    for part in parts_by_key({DELIVERED: keys}, terms.key, lease):
        alone = part[DELIVERED]
        if not is_faultless(terms, alone):
            return None
        few = {APPEARED: alone.select(list(terms.key)).slice(0, MAX_KEYS)} if len(alone) else {}
        sums.add(PartPlan({}, {APPEARED: len(alone), ROWS_DELIVERED: len(alone)}, few))
    count = sums.added[ADDED] = sums.counts[ROWS_DELIVERED]
    end = OPEN if terms.following is None else terms.following

    def opening() -> Iterator[pa.Table]:
        sums.counts[CONTENT] = 0
        for piece in together(local[DELIVERED].rows.tables(), ROWS_IN_PIECE):
            sums.counts[CONTENT] += digest(piece)
            whole = begun(piece, terms.at, np.full(len(piece), end), terms.recorded)
            yield shaped(whole, terms.columns, ids=terms.ids)

    return DriverPlan(sums, {ADDED: Pieces(opening) if count else None, APPEARED: None}, {REMOVED: None})


def first_frames(sides: CopySides, kept: ExitStack) -> FirstRows | None:
    """The same by Spark. What it keeps goes with `kept`."""
    from pyspark.sql.functions import bit_xor, coalesce, count, count_distinct, count_if, lit

    terms, delivered = sides.terms, sides.delivered
    if sides.source.batches is None:  # rows of files are the same each time, those of a frame may be others
        delivered = persist_on_disk(delivered)
        kept.callback(delivered.unpersist)
    key = [column(name) for name in terms.key]
    values = [(column(each.name), each.dataType) for each in delivered.schema]
    faulty = reduce(or_, (each.isNull() for each in key))
    for name, value in terms.scope or ():
        faulty |= ~column(name).eqNullSafe(lit(value))
    row = delivered.agg(
        count(lit(1)).alias(ROWS),
        count_distinct(*key).alias(KEYS),
        count_if(faulty).alias(FAULTY),
        coalesce(bit_xor(fingerprint(values, 0)[0]), lit(0)).alias(CONTENT),
    ).collect()[0]
    if row[FAULTY] or row[KEYS] < row[ROWS]:
        return None
    number = row[ROWS]
    counts = Counter({APPEARED: number, ROWS_DELIVERED: number, CONTENT: row[CONTENT]})
    appearing = delivered.select(*key)
    types = {each.name: each.type for each in terms.columns}
    schema = arrow_schema({name: types[name] for name in terms.key})
    few = arrow_of(appearing.limit(MAX_KEYS)).rename_columns(schema.names).cast(schema)
    sums = PlanSums(counts, {APPEARED: few} if number else {}, {}, Counter({ADDED: number, APPEARED: number}))
    return FirstRows(sums, {ADDED: _opening(sides, delivered), APPEARED: appearing})


def _opening(sides: CopySides, delivered: "DataFrame") -> "DataFrame":
    """The versions that the rows begin: their own columns are the same in all of them."""
    from pyspark.sql.functions import lit

    terms = sides.terms
    own: dict[str, Any] = {
        VALID_FROM: instant(terms.at),
        VALID_TO: lit(None) if terms.following is None else instant(terms.following),
        IS_CURRENT: lit(terms.following is None),
        RECORDED_AT: instant(terms.recorded),
    }
    values = {**{name: column(name) for name in terms.delivered}, **own}
    row = [
        values.get(each.name, lit(None)).cast(spark_type(each.type)).alias(each.name)
        for each in terms.columns
    ]
    ids = [lit(None).cast("bigint").alias(ROW_ID)] if terms.ids else []
    return delivered.select(*row, *ids)
