"""A copy beside what its table has at its instant: both sides as frames, and the one join of them."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from itertools import islice
from operator import or_
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from backstory.doors.native.asked import SnapshotRequest
from backstory.doors.native.evolution import Evolved
from backstory.doors.native.instants import Placing, placed
from backstory.doors.native.refusals import keys_of, refuse_duplicates, refuse_null_keys, refuse_spoilt
from backstory.doors.native.retyping import retyped_rows
from backstory.doors.native.settings import TableSettings
from backstory.doors.native.source import Source
from backstory.formats.delivered import arrow_schema
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.schema import Column
from backstory.stores.iceberg.frames import spark_fields
from backstory.stores.iceberg.lineage import keeps_row_ids
from backstory.stores.iceberg.literals import column, micros_of, quoted
from backstory.stores.iceberg.positions import coded_file
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.strategies.copies.alike import alike, comparable
from backstory.strategies.copies.plan import (
    NOW,
    RENEWED,
    CopyTerms,
    carries_over,
    differs,
    has,
    loses,
    outcome,
    spoilt,
    state,
    stored_states,
    there,
    valued,
)
from backstory.strategies.copies.rows import Written
from backstory.strategies.scd2.plan import CHANGED, DELIVERED, Outcomes, outcomes

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

CONTENT: Final = "content"
NO_KEY: Final = "no key"
# So many pairs of columns are looked at for one that has another name: each is counted over all records.
SUCCESSIONS: Final = 64


@dataclass(frozen=True)
class CopySides:
    """A copy and its table, side by side, and where the copy stands among what is known.

    With the `salt` files are coded on their way through the join.
    """

    store: Store
    table: StoredTable | None
    source: Source
    evolved: Evolved
    settings: TableSettings
    asked: SnapshotRequest
    place: Placing
    terms: CopyTerms
    salt: int = field(default_factory=lambda: uuid4().time_low)

    @property
    def ids(self) -> bool:
        """Whether the table's rows have ids."""
        return self.table is not None and keeps_row_ids(self.table)

    @cached_property
    def delivered(self) -> "DataFrame":
        """The copy's rows, in the columns that the table will have."""
        evolved = self.evolved
        casts = (_cast(evolved, each, each.name) for each in evolved.delivered)
        return self.source.frame().selectExpr(*casts)

    @cached_property
    def stored(self) -> "DataFrame":
        """The table's rows, in the columns that it will have, with their places and ids."""
        return stored_rows(self.store, self.table, self.evolved)


def sides_of(
    store: Store,
    table: StoredTable | None,
    source: Source,
    *,
    evolved: Evolved,
    settings: TableSettings,
    asked: SnapshotRequest,
) -> CopySides:
    """Both sides in the columns that the table will have; Refused for an instant without a place."""
    place = placed(table, partial(stored_rows, store, table, evolved), asked)
    terms = _terms(evolved, settings, place, asked)
    return CopySides(store, table, source, evolved, settings, asked, place, terms)


def _terms(evolved: Evolved, settings: TableSettings, place: Placing, asked: SnapshotRequest) -> CopyTerms:
    """What the copy is compared by (V16, V18, V39, N1)."""
    shape, names = evolved.shape, [each.name for each in evolved.delivered]
    data = [name for name in names if name not in shape.key]
    filled = evolved.added if asked.backfill_added and place.following is None else frozenset[str]()
    users = [each.name for each in shape.user_columns if each.name not in shape.key]
    return CopyTerms(
        columns=shape.columns,
        types=spark_fields(arrow_schema({each.name: each.type for each in shape.columns})),
        key=shape.key,
        delivered=tuple(names),
        compared=tuple(name for name in data if settings.tracks(name) and name not in filled),
        renewed=tuple(name for name in data if settings.overwrites(name) or name in filled),
        tracked=tuple(name for name in users if settings.tracks(name)),
        overwritten=tuple(name for name in users if settings.overwrites(name)),
        at=micros_of(place.at),
        recorded=micros_of(place.recorded),
        following=None if place.following is None else micros_of(place.following),
        in_order=place.in_order,
        restated=asked.restate and not place.in_order,
        successions=tuple(islice(evolved.successions, SUCCESSIONS)),
    )


def stored_rows(store: Store, table: StoredTable | None, evolved: Evolved) -> "DataFrame":
    """All stored rows under their new names and types, with their places and ids; none without a table."""
    shape = evolved.shape
    if table is None or evolved.stored is None:
        fields = ", ".join(f"{quoted(each.name)} {spark_type(each.type)}" for each in shape.columns)
        return store.spark.createDataFrame([], f"{fields}, {FILE} string, {POSITION} bigint")
    if evolved.retyped:
        return retyped_rows(store, table, evolved)
    old = {new: name for name, new in evolved.renamed.items()}
    columns = [
        _cast(evolved, each, old.get(each.name, each.name))
        if evolved.stored.column(each.name)
        else f"CAST(NULL AS {spark_type(each.type)}) AS {quoted(each.name)}"
        for each in shape.columns
    ]
    places = [FILE, POSITION, *([ROW_ID] if keeps_row_ids(table) else [])]
    return store.spark.table(store.sql_name(shape.table)).selectExpr(*columns, *places)


def _cast(evolved: Evolved, told: Column, name: str) -> str:
    """The column in the type that the table will have; as text, for which Java is asked once."""
    wanted = evolved.shape.column(told.name)
    assert wanted is not None
    return f"CAST({quoted(name)} AS {spark_type(wanted.type)}) AS {quoted(told.name)}"


@contextmanager
def compared(sides: CopySides, kinds: Sequence[Written]) -> Iterator[Outcomes]:
    """The outcomes of the copy, with what rows of these kinds come of it; identical rows of a key are one.

    Raises Refused for a NULL in a key, for rows of one key that differ, and for a spoilt slice.
    """
    key = sides.terms.key
    with _joined(sides, kinds, sides.delivered) as found:
        refuse_null_keys(sides.delivered, key, found.failed[NO_KEY])
        refuse_spoilt(_spoilt_keys(sides, found), key)
        if not found.repeats_delivered:
            yield found
            return
    with _joined(sides, kinds, _collapsed(sides)) as found:
        yield found


def _joined(
    sides: CopySides, kinds: Sequence[Written], delivered: "DataFrame"
) -> AbstractContextManager[Outcomes]:
    from pyspark.sql.functions import bit_xor, coalesce, lit

    terms = sides.terms
    return outcomes(
        delivered,
        stored_states(sides.stored.withColumn(FILE, coded_file(sides.salt)), terms),
        terms.key,
        differs(terms),
        there() if sides.asked.deletes == "close" else lit(False),
        {NO_KEY: reduce(or_, (column(name).isNull() for name in terms.key))},
        sums={CONTENT: coalesce(bit_xor(content_of(terms)), lit(0))},
        tallies=_tallies(sides, kinds),
        pairs=_pairs(terms),
    )


def content_of(terms: CopyTerms) -> "SparkColumn":
    """A hash of a delivered row; those of all rows together are the copy's content."""
    from pyspark.sql.functions import xxhash64

    return xxhash64(*(comparable(column(name), terms.types[name].dataType) for name in terms.delivered))


def _tallies(sides: CopySides, rows: Sequence[Written]) -> "dict[str, SparkColumn]":
    """What is counted of the actions: kinds of records, rows to write, in a dry run columns that drive."""
    terms, kinds = sides.terms, outcome(sides.terms)
    found = {**kinds, **{f"row {place}": row.where for place, row in enumerate(rows)}}
    found |= {f"loses {name}": loses(name) for name in terms.compared}
    changes = kinds[CHANGED] | kinds[RENEWED]
    for name in (*terms.compared, *terms.renewed) if sides.asked.dry_run else ():
        found[f"column {name}"] = changes & ~alike(DELIVERED, state(NOW), [name], terms.types)
    return found


def _pairs(terms: CopyTerms) -> "dict[str, SparkColumn]":
    """What is counted of the records on both sides."""
    found = {f"has {name}": has(name) for name in terms.compared}
    for place, pair in enumerate(terms.successions):
        found |= {f"valued {place}": valued(*pair), f"alike {place}": carries_over(*pair)}
    return found


def _spoilt_keys(sides: CopySides, found: Outcomes) -> list[str]:
    if sides.terms.in_order and not found.repeats_stored:
        return []
    return keys_of(spoilt(sides.stored, sides.terms), sides.terms.key)


def _collapsed(sides: CopySides) -> "DataFrame":
    """One row of each key; Refused for keys whose rows differ."""
    from pyspark.sql.functions import count_distinct, first, lit, struct

    one, kinds, terms = "backstory: one", "backstory: kinds", sides.terms
    rest = [name for name in terms.delivered if name not in terms.key]
    values = (comparable(column(name), terms.types[name].dataType).alias(name) for name in rest)
    row, told = struct(*map(quoted, terms.delivered)), struct(lit(0), *values)
    key = [quoted(name) for name in terms.key]
    counted = sides.delivered.groupBy(*key).agg(first(row).alias(one), count_distinct(told).alias(kinds))
    refuse_duplicates(keys_of(counted.where(column(kinds) > 1), terms.key), terms.key)
    return counted.select(f"{quoted(one)}.*")
