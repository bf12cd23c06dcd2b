"""The inputs of a copy's plan: its rows and the stored rows, in the table's new columns, and its settings.

The driver reads the stored versions from files if their types allow it. Otherwise Spark reads them (V44,
V81).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native import stored_rows
from backstory.doors.native.evolution import EvolvedShape, data_column_ids, delivered_ids
from backstory.doors.native.feeds.logs import stored_log
from backstory.doors.native.instants import CopyPlace, interval_micros, place_copy
from backstory.doors.native.options import SnapshotRequest
from backstory.doors.native.retyping import cast_frame, retyped_rows, stored_column
from backstory.doors.native.settings import TableSettings
from backstory.doors.native.sources import ReadColumns, SourceRows
from backstory.doors.native.whole_rows import COPIES, DERIVED_NAMES, add_derived, derived_frame, source_schema
from backstory.engine.plans import LocalSide, SideRows, columnar_side, empty_side
from backstory.errors import bad_option
from backstory.formats.batch_file import source_changed
from backstory.formats.delivered import arrow_schema, in_schema, shape_rows
from backstory.formats.memory import MemoryLease
from backstory.model.change import NOTHING
from backstory.model.layout import FILE, MEMORY, POSITION, ROW_ID, VALID_FROM, VALID_TO
from backstory.model.table import Shape, spelling_hint
from backstory.model.versions_layout import KIND, ROLE, SCOPE, SEQUENCE, FactKind
from backstory.reading.options import exact_value
from backstory.spark.frame_files import FrameFiles, frame_files
from backstory.stores.iceberg.frames import keeps_row_ids
from backstory.stores.iceberg.literals import micros_of, quote
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.slice import LocalRows
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.metadata.parquet_files import ChooseRows, widens
from backstory.stores.metadata.searches import IsNull, OneOf, Searches
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.strategies.copies.plan import CopyTerms
from backstory.strategies.copies.version_rows import are_versions, copy_mark, micros
from backstory.strategies.feeds.copy_plan import FeedCopyTerms
from backstory.strategies.feeds.facts import scope_of
from backstory.strategies.feeds.terms import FeedTerms, Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The largest number of pairs of columns that are compared to find renames, over all records.
SUCCESSIONS: Final = 64
DELIVERED, SLICE, ELSEWHERE = "delivered", "slice", "versions elsewhere"
PLACES: Final = (FILE, POSITION, ROW_ID)


def typed_scope(values: Mapping[str, Any], shape: Shape, settings: TableSettings) -> Scope | None:
    """The scope as pairs of column and value, in the columns' types, sorted by name, or None if it is empty.

    Raises UsageError for unknown columns, for bytes and NaN, and for columns whose changes make no versions.
    Earlier values of these columns are not stored, so the records in the scope would be unknown.
    """
    if not values:
        return None
    users = {column.name: column.type for column in shape.user_columns}
    if lacking := [name for name in values if name not in users or not users[name].flat]:
        raise bad_option(
            f"`scope=` names no flat column of the copy: {', '.join(lacking)}.",
            f"{spelling_hint(lacking, users)}Its columns are {', '.join(users)}.",
        )
    if untracked := [name for name in values if name not in shape.key and not settings.tracks(name)]:
        raise bad_option(
            f"`scope=` names columns without history: {', '.join(untracked)}.",
            "Use key columns, or columns whose changes make versions.",
        )
    scope = tuple((name, exact_value(name, values[name], users[name])) for name in sorted(values))
    # Marks store the scope as JSON, which has no bytes, and NaN is equal to no value in it.
    if unequal := [name for name, value in scope if isinstance(value, bytes) or value != value]:  # noqa: PLR0124
        raise bad_option(
            f"`scope=` has bytes or NaN for the columns {', '.join(unequal)}.",
            "Use columns of other types, or other values.",
        )
    return scope


def feed_copy_terms(
    store: IcebergStore, table: IcebergTable, evolved: EvolvedShape, place: CopyPlace, terms: CopyTerms
) -> FeedCopyTerms:
    """The settings of a copy with known facts from its instant on, with its own mark and the other marks.

    If only copies are known, everything from the following instant on stays as it is, and no mark is needed.
    """
    shape, at = evolved.shape, micros_of(place.at)
    sequence = dict(terms.memory.parts).get(SEQUENCE)
    log = stored_log(table.properties)
    filled = () if place.has_facts else tuple(name for name in terms.renewed if name in terms.tracked)
    feed = FeedTerms(
        columns=shape.columns,
        key=shape.key,
        tracked=tuple(name for name in terms.tracked if name not in filled),
        recorded=terms.recorded,
        numbers=data_column_ids(table, evolved),
        overwritten=(*terms.overwritten, *filled),
        sequence=() if sequence is None else tuple(name for name, _ in sequence.parts),
        settled=interval_micros(place.settled or ()),
        ids=terms.ids,
        log=log is not None,
        following=terms.following,
    )
    marks = stored_rows.slice_schema(table, shape.columns).empty_table()
    if place.has_facts:
        marks = stored_rows.stored_marks(store, table, shape.columns, at)
    if place.has_facts and log is not None and log.truncate is not None:
        # In a log, a truncate has a different instant for each record.
        before = stored_rows.stored_truncates(store, table, shape.columns)
        marks = pa.concat_tables([marks, before.filter(pa.array(micros(before[VALID_FROM]) < at))])
    others = [
        (memory[KIND], memory[SCOPE]) != (FactKind.COPY.value, place.scope) or instant != place.at
        for memory, instant in zip(marks[MEMORY].to_pylist(), marks[VALID_FROM].to_pylist(), strict=True)
    ]
    others_here = marks.filter(pa.array(others, pa.bool_())).drop_columns([FILE, POSITION])
    own = copy_mark(at, terms.recorded, terms.memory, delivered_ids(table, evolved), place.scope)
    joined = [shape_rows(rows, shape.columns, ids=terms.ids) for rows in (others_here, own)]
    compared = (*terms.compared, *terms.renewed)
    restated = place.mark is not None and terms.restated
    return FeedCopyTerms(feed, at, pa.concat_tables(joined), compared, restated)


@dataclass(frozen=True)
class CopyInputs:
    """A copy and its table, with the shape, instant and settings of the plan."""

    store: IcebergStore
    table: IcebergTable | None
    source: SourceRows
    evolved: EvolvedShape
    settings: TableSettings
    request: SnapshotRequest
    place: CopyPlace
    terms: CopyTerms

    @cached_property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """The schema of each side of the plan, with the types that the table will have."""
        columns = self.evolved.shape.columns
        types = {column.name: column.type for column in columns}
        return {
            DELIVERED: arrow_schema({name: types[name] for name in self.terms.delivered}),
            SLICE: stored_rows.slice_schema(self.table, columns),
            ELSEWHERE: arrow_schema({name: types[name] for name in self.terms.key}),
        }

    @cached_property
    def delivered_frame(self) -> "DataFrame":
        """The copy's rows, in the table's new columns."""
        types = {column.name: column.type for column in self.evolved.shape.columns}
        names = [column.name for column in self.evolved.delivered]
        if not self.request.whole_rows:
            return cast_frame(self.source.frame(), {name: types[name] for name in names})
        own = {name: types[name] for name in names if name not in DERIVED_NAMES}
        return derived_frame(cast_frame(self.source.frame(), own), self.schemas[DELIVERED])

    @cached_property
    def frame_files(self) -> FrameFiles | None:
        """The files that the source's frame reads.

        Returns None if the driver can read the source, or if the frame may have other rows when it is read
        again.
        """
        return frame_files(self.source.frame()) if self.source.batches is None else None

    @property
    def is_repeatable(self) -> bool:
        """Whether the delivered rows can be read several times.

        This is true for rows that the driver can read, and for frames with `frame_files`.
        """
        return self.source.batches is not None or self.frame_files is not None

    def require_unchanged(self) -> None:
        """Raise Failed if a file of the frame has changed since the first read."""
        if self.frame_files is not None and (path := self.frame_files.changed_file()) is not None:
            raise source_changed(path)

    @cached_property
    def stored_frame(self) -> "DataFrame":
        """The stored rows in the table's new columns, with places and row ids.

        The frame is empty if the table does not exist.
        """
        store, table, evolved, shape = self.store, self.table, self.evolved, self.evolved.shape
        if table is None or evolved.stored is None:
            fields = ", ".join(f"{quote(column.name)} {spark_type(column.type)}" for column in shape.columns)
            return store.spark.createDataFrame([], f"{fields}, {FILE} string, {POSITION} bigint")
        if evolved.retyped:
            return retyped_rows(store, table, evolved)
        columns = [
            stored_column(evolved.stored.column(column.name), column, evolved.former_name(column.name))
            for column in shape.columns
        ]
        return store.spark.table(store.sql_name(shape.table)).selectExpr(
            *columns, *stored_rows.place_names(table)
        )


def gather_inputs(
    store: IcebergStore,
    table: IcebergTable | None,
    source: SourceRows,
    *,
    evolved: EvolvedShape,
    settings: TableSettings,
    request: SnapshotRequest,
) -> CopyInputs:
    """The inputs of a copy's plan. Raises Refused if the copy's instant is not accepted."""
    scope, text = typed_scope(request.scope, evolved.shape, settings), None
    if scope is not None:  # in marks: JSON with sorted keys, and strings for values that JSON lacks (V2)
        text = json.dumps(dict(scope), ensure_ascii=False, sort_keys=True, default=str)
    place = place_copy(store, table, request, evolved, text)
    terms = replace(
        _copy_terms(evolved, settings, place, request),
        scope=scope,
        ids=table is not None and keeps_row_ids(table),
    )
    if not place.in_order:
        assert table is not None
        terms = replace(terms, feed=feed_copy_terms(store, table, evolved, place, terms))
    return CopyInputs(store, table, source, evolved, settings, request, place, terms)


def _copy_terms(
    evolved: EvolvedShape, settings: TableSettings, place: CopyPlace, request: SnapshotRequest
) -> CopyTerms:
    """The terms for comparing the copy (V16, V18, V39, N1)."""
    shape, names = evolved.shape, [column.name for column in evolved.delivered]
    data = [name for name in names if name not in shape.key]
    filled = evolved.added if request.backfill_added and place.following is None else frozenset[str]()
    users = [column.name for column in shape.user_columns if column.name not in shape.key]
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
        restated=request.restate and not place.in_order,
        closes=request.deletes == "close",
        other_scopes=tuple(scope_of(scope) or () for scope in place.other_scopes),
        successions=() if request.whole_rows else tuple(islice(evolved.successions, SUCCESSIONS)),
        copies=COPIES.name if request.whole_rows else None,
    )


@dataclass(frozen=True, slots=True)
class _VersionReader:
    """A reader of stored columns with the names and types that the table will have.

    `stored` is the current schema with new names. `name` returns the stored name of a column.
    """

    here: LocalRows
    terms: CopyTerms
    stored: pa.Schema
    name: Callable[[str], str]

    def names(self, names: Iterable[str]) -> dict[str, str]:
        """The stored names of these columns, by new name. Columns that are not stored are omitted."""
        return {name: self.name(name) for name in names if name in {*self.stored.names, *PLACES}}

    def read(
        self,
        schema: pa.Schema,
        chosen: ChooseRows,
        where: Searches = NOTHING,
        wanted: Mapping[str, pa.Array] = NOTHING,
    ) -> Iterator[pa.Table]:
        """The chosen rows in these columns.

        `chosen` receives rows with stored names. `wanted` maps new names to the values to search for.
        """
        names, terms = self.names(schema.names), self.terms
        own: list[str | tuple[str, ...]] = [VALID_FROM, VALID_TO, (MEMORY, ROLE)]
        if terms.feed is not None:
            scope = (self.name(name) for name, _ in terms.scope or ())
            own = [VALID_FROM, *stored_rows.OF_TOUCHED, *dict.fromkeys([*map(self.name, terms.key), *scope])]
        bounds = {
            self.name(name): OneOf(values)
            for name, values in wanted.items()
            if stored_rows.is_bounded(self.stored.field(name).type)
        }
        for rows in self.here.batches([*names.values()], own, chosen, [bounds, where]):
            yield in_schema(rows.rename_columns([*names]), schema)

    def whole(self, schema: pa.Schema, rows: pa.Table) -> pa.Table:
        """The rows with all columns of the schema. Missing columns are read at the rows' places."""
        if not len(rows):
            return schema.empty_table()
        names = self.names(name for name in schema.names if name not in rows.column_names)
        rest = self.here.read_at(rows, [*names.values()]).rename_columns([*names])
        both = pa.table([*rows.columns, *rest.columns], names=[*rows.column_names, *rest.column_names])
        return in_schema(both, schema)


def read_delivered(inputs: CopyInputs) -> LocalSide | None:
    """The copy's rows, read without Spark, or None if Spark must read them."""
    whole, batches = inputs.schemas[DELIVERED], inputs.source.batches
    if batches is None:
        return None
    if not inputs.request.whole_rows:
        return columnar_side(whole, partial(_cast_rows, batches))
    own = source_schema(whole)
    return columnar_side(
        whole, lambda schema: (add_derived(rows).select(schema.names) for rows in _cast_rows(batches, own))
    )


def _cast_rows(batches: ReadColumns, schema: pa.Schema) -> Iterator[pa.Table]:
    for table in batches(schema.names):
        if not types_fit(table.schema, schema):
            raise Unreadable("values that Spark converts")
        yield table.cast(schema)


def read_stored(inputs: CopyInputs, lease: MemoryLease) -> LocalSide | None:
    """The versions that a copy can touch, in its decisive columns, or None if Spark must read them.

    A scoped copy into a table of events reads only its own records, and the records in its scope at its
    instant. All columns have the types that the table will have.
    """
    schema, terms = inputs.schemas[SLICE], inputs.terms
    if inputs.table is None or inputs.evolved.stored is None or not inputs.table.rows:
        return empty_side(schema)
    reader = _version_reader(inputs, lease)
    if reader is None:
        return None
    decisive = pa.schema(field for field in schema if field.name in _decisive_columns(terms))
    condition = {VALID_TO: IsNull()} if terms.in_order else NOTHING
    delivered = read_delivered(inputs)

    def slice_() -> Iterator[pa.Table]:
        chosen = partial(_is_touched, terms, reader.name(terms.key[0]))
        if terms.feed is None or not terms.scope or delivered is None or delivered.columns is None:
            yield from reader.read(decisive, chosen, condition)
            return
        of_scope = _keys_of_scope(reader, terms, delivered.columns(terms.key))
        lease.hold("keys of the scope", of_scope.nbytes)
        key = tuple(map(reader.name, terms.key))
        keyed = stored_rows.KeysSince(of_scope.rename_columns(key), np.full(len(of_scope), terms.at))
        of_keys = stored_rows.choose_touched_of_keys(keyed, key)
        yield from reader.read(
            decisive, of_keys, wanted={name: pc.unique(of_scope[name]) for name in terms.key}
        )

    whole = partial(reader.whole, schema)
    if terms.feed is not None:
        return LocalSide(SideRows(decisive, slice_), whole)

    def columns(names: Sequence[str]) -> SideRows:
        fewer = pa.schema(field for field in schema if field.name in names)
        return SideRows(fewer, lambda: reader.read(fewer, partial(_is_touched, terms, ""), condition))

    return LocalSide(SideRows(decisive, slice_), whole, columns)


def read_elsewhere(inputs: CopyInputs, lease: MemoryLease, keys: pa.Table) -> Iterator[pa.Table] | None:
    """The keys of versions at other times, or None if Spark must read them.

    The result includes every given key that has versions at other times, and perhaps other keys. Iterating
    raises Unreadable for values that only Spark can read.
    """
    reader, terms = _version_reader(inputs, lease), inputs.terms
    if reader is None:
        return None
    wanted = {name: pc.unique(keys[name]) for name in terms.key}
    schema = inputs.schemas[ELSEWHERE]
    return reader.read(schema, _is_closed if terms.in_order else are_versions, wanted=wanted)


def _version_reader(inputs: CopyInputs, lease: MemoryLease) -> _VersionReader | None:
    """A reader of the stored rows, or None if the driver cannot read them exactly."""
    table, before = inputs.table, inputs.evolved.stored
    if table is None or before is None or inputs.evolved.retyped:
        return None
    now = arrow_schema({column.name: column.type for column in inputs.evolved.shape.columns})
    stored = arrow_schema({column.name: column.type for column in before.columns})
    if not types_fit(stored, pa.schema([now.field(name) for name in stored.names])):
        return None
    former_name = inputs.evolved.former_name
    return _VersionReader(LocalRows(inputs.store, table, lease), inputs.terms, stored, former_name)


def _decisive_columns(terms: CopyTerms) -> set[str]:
    """The columns that decide which versions the copy changes."""
    times = (VALID_FROM,) if terms.in_order else (VALID_FROM, VALID_TO)
    own = () if terms.feed is None else (MEMORY, *(name for name, _ in terms.scope or ()))
    values = (*terms.compared, *terms.renewed, *(name for name, _ in terms.successions))
    return {*own, *terms.key, *values, *PLACES, *times}


def _keys_of_scope(reader: _VersionReader, terms: CopyTerms, delivered: SideRows) -> pa.Table:
    """The keys of the copy, and of the records that were in its scope at its instant (V42)."""
    scope = dict(terms.scope or ())
    of_scope: Iterable[pa.Table] = ()
    # No stored record has a value beyond the stored, narrower type, or in a column that is not stored.
    with suppress(pa.ArrowInvalid, KeyError):
        values = {name: pa.array([value], reader.stored.field(name).type) for name, value in scope.items()}
        chosen = partial(_in_scope, terms.at, {reader.name(name): array[0] for name, array in values.items()})
        of_scope = reader.read(delivered.schema, chosen, wanted=values)
    return pa.concat_tables([*delivered.tables(), *of_scope, delivered.schema.empty_table()])


def _in_scope(at: int, scope: Mapping[str, pa.Scalar], rows: pa.Table) -> pa.ChunkedArray:
    """A mask of the versions that have these values and are valid at an instant."""
    then = (micros(rows[VALID_FROM]) <= at) & (micros(rows[VALID_TO]) > at)
    same = (pc.fill_null(pc.equal(rows[name], value), False) for name, value in scope.items())
    return reduce(pc.and_, same, pc.and_(are_versions(rows), pa.chunked_array([pa.array(then)])))


def _is_touched(terms: CopyTerms, key: str, rows: pa.Table) -> pa.Array:
    """A mask of the rows that the copy can touch, as `touched_rows` selects them in Spark."""
    if terms.in_order:
        return pc.and_(are_versions(rows), pc.is_null(rows[VALID_TO]))
    touched = pc.and_(stored_rows.are_touched(terms.at, rows), pc.is_valid(rows[key]))
    if terms.following is None:
        return touched
    return pc.and_(touched, pa.chunked_array([micros(rows[VALID_FROM]) <= terms.following]))


def _is_closed(rows: pa.Table) -> pa.ChunkedArray:
    return pc.and_(are_versions(rows), pc.is_valid(rows[VALID_TO]))


def types_fit(came: pa.Schema, needed: pa.Schema) -> bool:
    """Whether the second schema's types can hold every value of the first schema's types."""
    pairs = zip(came, needed, strict=True)
    return all(pa.types.is_null(one.type) or widens(one.type, other.type) for one, other in pairs)
