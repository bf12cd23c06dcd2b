"""The columns that the rule judges by, from those of a layout, and which rows are surely healthy.

A row is surely healthy by its own values and the version after it. Where one row of a record is not, the rule
judges the record, with all of its rows.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from backstory.model import remembered as memory
from backstory.model.layout import MEMORY, ROW_HASH, Layout
from backstory.model.types import Kind
from backstory.stores.iceberg.literals import column, micros_in
from backstory.upkeep.laws.fold_columns import surely_folded
from backstory.upkeep.laws.judged import FIELDS, NEXT, PREFIX, Judged, law_column
from backstory.upkeep.laws.terms import LawTerms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FLOOR: Final = PREFIX + "floor"
TIMELY: Final = frozenset({Kind.UTC_DATETIME, Kind.NAIVE_DATETIME, Kind.NAIVE_DATE})


def rule_columns(rows: "DataFrame", judged: Judged) -> "dict[str, Column]":
    """Each column that the rule judges by, NULL where the layout has none."""
    from pyspark.sql.functions import array, col, lit, unix_micros

    shape, span = judged.shape, judged.shape.layout.span
    assert span is not None
    types = {each.name: each.type.kind for each in shape.columns}
    timed = types.get(span.written) in TIMELY
    values: dict[str, Column] = {
        "start": micros_in(rows, span.start),
        "end": micros_in(rows, span.end),
        "written": micros_in(rows, span.written) if timed else lit(None).cast("bigint"),
        "keyed": _whole(judged.identity),
        "flag": column(span.flag) if span.flag else lit(None).cast("boolean"),
        "state": column(span.state) if span.state else lit(None).cast("string"),
        **_hashed(judged),
    }
    if shape.layout is Layout.VERSIONS:
        within = {
            name: col(MEMORY)[name] for name in (memory.ROLE, memory.KIND, memory.SCOPE, memory.COLUMNS)
        }
        values |= within | {
            name: unix_micros(col(MEMORY)[name])
            for name in (memory.ENDED_AT, memory.END_BEFORE, memory.OWN_TIME)
        }
        fields = rows.schema[MEMORY].dataType.fieldNames()  # type: ignore[attr-defined]
        values["sequence"] = (
            col(MEMORY)["sequence"] if "sequence" in fields else lit(None).cast("struct<a:int>")
        )
    else:
        values |= {name: lit(None).cast("string") for name in ("role", "kind", "scope")}
        values |= {name: lit(None).cast("bigint") for name in ("ended_at", "end_before", "time")}
        values |= {"columns": array(lit(None).cast("int")), "sequence": lit(None).cast("struct<a:int>")}
    return {PREFIX + name: values[name] for name in FIELDS}


def key_columns(judged: Judged) -> "dict[str, Column]":
    """The columns to judge the only row of a record by: whether its key is whole, and its hash."""
    columns = {"keyed": _whole(judged.identity), **(_hashed(judged) if judged.terms.hashed else {})}
    return {PREFIX + name: value for name, value in columns.items()}


def _hashed(judged: Judged) -> "dict[str, Column]":
    """A row's hash, and whether it is one that the row may have."""
    from pyspark.sql.functions import expr, lit

    hash_ = column(ROW_HASH) if judged.terms.hashed else lit(None).cast("string")
    if not judged.hashes:
        return {"hash": hash_, "rightly": lit(None).cast("boolean")}
    return {"hash": hash_, "rightly": hash_.isin("erased", *map(expr, judged.hashes))}


def surely_hashed() -> "Column":
    """Whether nothing is wrong with a row's hash."""
    from pyspark.sql.functions import coalesce, lit

    return law_column("hash").rlike("^([0-9a-f]{64}|erased)$") & coalesce(law_column("rightly"), lit(True))


def _whole(names: Sequence[str]) -> "Column":
    from functools import reduce
    from operator import and_

    from pyspark.sql.functions import lit

    return reduce(and_, (column(name).isNotNull() for name in names), lit(True))


def healthy(terms: LawTerms, *, foldable: bool) -> "Column":
    """Whether nothing is wrong with a row, given the start of the next version; NULL: not surely.

    `foldable` tells that the columns of `fold_columns` are there.
    """
    from pyspark.sql.functions import lit

    start, end = law_column("start"), law_column("end")
    open_ = end.isNull() if terms.far is None else end.isNull() | (end >= terms.far)
    if terms.grain and terms.far is not None:
        open_ = end >= terms.far
    follows = column(NEXT).isNull() | (~open_ & (column(NEXT) > start) & (column(NEXT) >= end))
    sure = law_column("keyed") & start.isNotNull() & (open_ | (start < end + terms.grain)) & follows
    if terms.flagged:
        sure &= law_column("flag") == open_
    if terms.stated:
        sure &= law_column("state").isNotNull() & ~((law_column("state") == "deleted") & open_)
        sure &= (law_column("state") != "new") | open_
    if terms.hashed:
        sure &= surely_hashed()
    if terms.remembers:
        sure &= _surely_recorded(terms)
        sure &= surely_folded(terms) if foldable else law_column("kind").isNull()
    return sure & lit(foldable or not terms.marks)


def _surely_recorded(terms: LawTerms) -> "Column":
    """A version, recorded times in order, and told to end before any later version was told of."""
    from pyspark.sql.functions import coalesce, lit

    written, ended = law_column("written"), law_column("ended_at")
    known = lit(True) if terms.newest is None else coalesce(ended, written) <= terms.newest
    moved = (written < ended) & (column(FLOOR).isNull() | (ended <= column(FLOOR)))
    sure = known & (ended.isNull() | moved) & written.isNotNull()
    kind = coalesce(law_column("kind"), lit(memory.Told.UPSERT)) == memory.Told.UPSERT
    return sure & kind & law_column("role").isNull() & law_column("scope").isNull()
