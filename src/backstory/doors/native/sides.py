"""A copy beside its table, both in the columns that the table will have."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Final

from backstory.doors.native.evolution import Evolved
from backstory.doors.native.instants import Placing, placed
from backstory.doors.native.request import SnapshotRequest
from backstory.doors.native.retyping import retyped_rows
from backstory.doors.native.scopes import among_events, scope_text, typed_scope
from backstory.doors.native.settings import TableSettings
from backstory.doors.native.source import Source
from backstory.formats.delivered import arrow_schema
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.schema import Column
from backstory.model.types import ColumnType, Kind, parts_added
from backstory.stores.iceberg.frames import spark_fields
from backstory.stores.iceberg.lineage import keeps_row_ids
from backstory.stores.iceberg.literals import micros_of, quoted, text_literal
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.strategies.copies.terms import CopyTerms
from backstory.strategies.feeds.marks import scope_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

# So many pairs of columns are looked at for one that has another name: each is counted over all records.
SUCCESSIONS: Final = 64


@dataclass(frozen=True)
class CopySides:
    """A copy and its table, side by side, and where the copy stands among what is known."""

    store: Store
    table: StoredTable | None
    source: Source
    evolved: Evolved
    settings: TableSettings
    asked: SnapshotRequest
    place: Placing
    terms: CopyTerms

    @cached_property
    def types(self) -> "StructType":
        """The columns that the table will have, as Spark's."""
        return spark_fields(arrow_schema({each.name: each.type for each in self.terms.columns}))

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
    scope = typed_scope(asked.scope, evolved.shape, settings)
    place = placed(store, table, asked, scope_text(scope))
    ids = table is not None and keeps_row_ids(table)
    terms = replace(
        _terms(evolved, settings, place, asked, ids=ids),
        scope=scope,
        beside=tuple(scope_of(each) or () for each in place.beside),
    )
    if place.among:
        terms = replace(terms, among=among_events(store, table, evolved, place, terms))
    return CopySides(store, table, source, evolved, settings, asked, place, terms)


def _terms(
    evolved: Evolved, settings: TableSettings, place: Placing, asked: SnapshotRequest, *, ids: bool
) -> CopyTerms:
    """What the copy is compared by (V16, V18, V39, N1)."""
    shape, names = evolved.shape, [each.name for each in evolved.delivered]
    data = [name for name in names if name not in shape.key]
    filled = evolved.added if asked.backfill_added and place.following is None else frozenset[str]()
    users = [each.name for each in shape.user_columns if each.name not in shape.key]
    return CopyTerms(
        columns=shape.columns,
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
        closes=asked.deletes == "close",
        ids=ids,
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
        _stored(evolved.stored.column(each.name), each, old.get(each.name, each.name))
        for each in shape.columns
    ]
    places = [FILE, POSITION, *([ROW_ID] if keeps_row_ids(table) else [])]
    return store.spark.table(store.sql_name(shape.table)).selectExpr(*columns, *places)


def _stored(before: Column | None, now: Column, name: str) -> str:
    """A stored column, if there is one, in its type to be; fields that come to a struct are NULL."""
    value = "NULL" if before is None else quoted(name)
    if before is not None and parts_added(before.type, now.type):
        value = _grown(value, before.type, now.type)
    return f"CAST({value} AS {spark_type(now.type)}) AS {quoted(now.name)}"


def _grown(value: str, before: ColumnType, now: ColumnType, depth: int = 0) -> str:
    """A nested value, as Spark's text, with NULL in the fields that its structs do not have yet."""
    if before == now:
        return value
    old, inner = dict(before.parts), f"part_{depth}"
    if now.kind is Kind.LIST:
        return f"transform({value}, {inner} -> {_grown(inner, old['element'], now.parts[0][1], depth + 1)})"
    if now.kind is Kind.MAP:
        grown = _grown(inner, old["value"], dict(now.parts)["value"], depth + 1)
        return f"transform_values({value}, (key_{depth}, {inner}) -> {grown})"
    parts = (
        f"{text_literal(name)}, "
        + (_grown(f"{value}.{quoted(name)}", old[name], type_, depth) if name in old else "NULL")
        for name, type_ in now.parts
    )
    return f"CASE WHEN {value} IS NOT NULL THEN named_struct({', '.join(parts)}) END"


def _cast(evolved: Evolved, told: Column, name: str) -> str:
    """The column in the type that the table will have; as text, for which Java is asked once."""
    wanted = evolved.shape.column(told.name)
    assert wanted is not None
    return f"CAST({quoted(name)} AS {spark_type(wanted.type)}) AS {quoted(told.name)}"
