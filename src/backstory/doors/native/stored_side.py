"""The stored side of a copy, read from files by the driver: what the copy can touch (V44, V81)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.feeds.stored import (
    OF_TOUCHED,
    KeysSince,
    is_bounded,
    may_be_touched,
    may_be_touched_of_keys,
)
from backstory.doors.native.sides import CopySides
from backstory.engine.parts import Rows
from backstory.engine.sides import LocalSide, nothing
from backstory.formats.delivered import arrow_schema, in_schema
from backstory.formats.memory import MemoryLease
from backstory.model.layout import MEMORY, VALID_FROM, VALID_TO
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.remembered import ROLE
from backstory.stores.iceberg.local_rows import ANY, PLACE_HERE, LocalRows
from backstory.stores.iceberg.search_bounds import without
from backstory.stores.metadata.columns import widens
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.row_selection import Chosen
from backstory.strategies.copies.rows import micros
from backstory.strategies.copies.terms import CopyTerms

DELIVERED, SLICE, ELSEWHERE = "delivered", "slice", "versions elsewhere"
PLACES: Final = (FILE, POSITION, ROW_ID)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads `stored` columns under the names, and in the types, that the table will have.

    `old` has the stored names of those that get new ones.
    """

    here: LocalRows
    terms: CopyTerms
    stored: pa.Schema
    old: Mapping[str, str]

    def name(self, name: str) -> str:
        """The stored name of a column."""
        return self.old.get(name, name)

    def names(self, names: Iterable[str]) -> dict[str, str]:
        """The stored names of those that are there, by their new ones."""
        return {name: self.name(name) for name in names if name in {*self.stored.names, *PLACES}}

    def read(
        self,
        schema: pa.Schema,
        chosen: Chosen,
        where: Any = None,
        among: Mapping[str, pa.Array] = ANY,
    ) -> Iterator[pa.Table]:
        """The chosen rows in these columns; `chosen` is asked with stored names, `among` has new ones."""
        names, terms = self.names(schema.names), self.terms
        own: list[str | tuple[str, ...]] = [VALID_FROM, VALID_TO, (MEMORY, ROLE)]
        if terms.among is not None:
            scope = (self.name(name) for name, _ in terms.scope or ())
            own = [VALID_FROM, *OF_TOUCHED, *dict.fromkeys([*map(self.name, terms.key), *scope])]
        bounds = self._bounds(among)
        for rows in self.here.batches([*names.values()], own, chosen, among=bounds, where=where):
            yield in_schema(rows.rename_columns([*names]), schema)

    def _bounds(self, among: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """The values by stored names and in stored types, of columns whose bounds pass over files."""
        bounds = {}
        for name, values in among.items():
            type_ = self.stored.field(name).type
            if not is_bounded(type_):
                continue
            try:
                bounds[self.name(name)] = values.cast(type_)
            except pa.ArrowInvalid:  # beyond a type that is widened: all rows are looked at
                continue
        return bounds

    def whole(self, schema: pa.Schema, rows: pa.Table) -> pa.Table:
        """These rows, which have some of the columns, in all of them."""
        if not len(rows):
            return schema.empty_table()
        names = self.names(name for name in schema.names if name not in rows.column_names)
        rest = self.here.at(rows, [*names.values()]).rename_columns([*names])
        both = pa.table([*rows.columns, *rest.columns], names=[*rows.column_names, *rest.column_names])
        return in_schema(both, schema)


def delivered_here(sides: CopySides, names: Sequence[str]) -> Rows | None:
    """These columns of the copy, read without Spark; None where Spark must read them."""
    schema = pa.schema(each for each in side_schemas(sides)[DELIVERED] if each.name in names)
    batches = sides.source.batches
    if batches is None:
        return None

    def tables() -> Iterator[pa.Table]:
        for table in batches(schema.names):
            if not fit(table.schema, schema):
                raise Unreadable("values that Spark converts")
            yield table.cast(schema)

    return Rows(schema, tables)


def stored_here(sides: CopySides, lease: MemoryLease) -> LocalSide | None:
    """The versions that a copy can touch, in the columns that decide; None where Spark must read them.

    Of a copy of a scope no other records are read but its own and those that were in the scope then. All are
    in the types that the table will have.
    """
    schema, terms = side_schemas(sides)[SLICE], sides.terms
    if sides.table is None or sides.evolved.stored is None or not sides.table.rows:
        return nothing(schema)
    reader = _reader(sides, lease)
    if reader is None:
        return None
    decisive = pa.schema(each for each in schema if each.name in _decisive(terms))
    condition = without(VALID_TO) if terms.in_order else None
    keys = delivered_here(sides, terms.key)

    def slice_() -> Iterator[pa.Table]:
        chosen = partial(_touched, terms, reader.name(terms.key[0]))
        if terms.among is None or not terms.scope or keys is None:
            yield from reader.read(decisive, chosen, condition)
            return
        of_scope = _keys_of_scope(reader, terms, keys)
        lease.hold("keys of the scope", of_scope.nbytes)
        mine = tuple(map(reader.name, terms.key))
        keyed = KeysSince(of_scope.rename_columns(mine), np.full(len(of_scope), terms.at))
        of_keys = may_be_touched_of_keys(keyed, mine)
        yield from reader.read(
            decisive, of_keys, among={name: pc.unique(of_scope[name]) for name in terms.key}
        )

    whole = partial(reader.whole, schema)
    if terms.among is not None:
        return LocalSide(Rows(decisive, slice_), whole)

    def columns(names: Sequence[str]) -> Rows:
        fewer = pa.schema(each for each in schema if each.name in names)
        return Rows(fewer, lambda: reader.read(fewer, partial(_touched, terms, ""), condition))

    return LocalSide(Rows(decisive, slice_), whole, columns)


def elsewhere_here(sides: CopySides, lease: MemoryLease, keys: pa.Table) -> Iterator[pa.Table] | None:
    """The keys of versions by which a record that appears was there before, at least those of these records.

    None where Spark must read them; reading raises Unreadable.
    """
    reader, terms = _reader(sides, lease), sides.terms
    if reader is None:
        return None
    among = {name: pc.unique(keys[name]) for name in terms.key}
    schema = side_schemas(sides)[ELSEWHERE]
    return reader.read(schema, _closed if terms.in_order else _version, among=among)


def _reader(sides: CopySides, lease: MemoryLease) -> _Reader | None:
    """A reader of the stored rows; None where they are not read exactly here."""
    table, before = sides.table, sides.evolved.stored
    if table is None or before is None or sides.evolved.retyped:
        return None
    now = arrow_schema({each.name: each.type for each in sides.evolved.shape.columns})
    stored = arrow_schema({each.name: each.type for each in before.columns})
    if not fit(stored, pa.schema([now.field(name) for name in stored.names])):
        return None
    old = {new: name for name, new in sides.evolved.renamed.items()}
    return _Reader(LocalRows(sides.store, table, lease), sides.terms, stored, old)


def _decisive(terms: CopyTerms) -> set[str]:
    """The columns by which is decided what becomes of a version."""
    times = (VALID_FROM,) if terms.in_order else (VALID_FROM, VALID_TO)
    own = () if terms.among is None else (MEMORY, *(name for name, _ in terms.scope or ()))
    values = (*terms.compared, *terms.renewed, *(name for name, _ in terms.successions))
    return {*own, *terms.key, *values, *PLACES, *times}


def _keys_of_scope(reader: _Reader, terms: CopyTerms, delivered: Rows) -> pa.Table:
    """The keys of the copy, and of the records that were in its scope at its instant (V42)."""
    scope = dict(terms.scope or ())
    of_scope: Iterable[pa.Table] = ()
    if scope.keys() <= set(reader.stored.names):
        values = {name: pa.array([value], reader.stored.field(name).type) for name, value in scope.items()}
        chosen = partial(_in_scope, terms.at, {reader.name(name): each[0] for name, each in values.items()})
        of_scope = reader.read(delivered.schema, chosen, among=values)
    return pa.concat_tables([*delivered.tables(), *of_scope, delivered.schema.empty_table()])


def _in_scope(at: int, scope: Mapping[str, pa.Scalar], rows: pa.Table) -> pa.ChunkedArray:
    """Which rows are versions that had these values at an instant."""
    then = (micros(rows[VALID_FROM]) <= at) & (micros(rows[VALID_TO]) > at)
    same = (pc.fill_null(pc.equal(rows[name], value), False) for name, value in scope.items())
    return reduce(pc.and_, same, pc.and_(_version(rows), pa.chunked_array([pa.array(then)])))


def _touched(terms: CopyTerms, key: str, rows: pa.Table) -> pa.Array:
    """Which rows are versions that the copy can touch, as `versions_touched` has it for Spark.

    Among events the facts of records count, too.
    """
    if terms.among is not None:
        return pc.and_(may_be_touched(terms.at, rows), pc.is_valid(rows[key]))
    if terms.in_order:
        return pc.and_(_version(rows), pc.is_null(rows[VALID_TO]))
    reached = micros(rows[VALID_TO]) >= terms.at
    if terms.following is not None:
        reached &= micros(rows[VALID_FROM]) <= terms.following
    return pc.and_(_version(rows).combine_chunks(), pa.array(reached))


def _closed(rows: pa.Table) -> pa.ChunkedArray:
    return pc.and_(_version(rows), pc.is_valid(rows[VALID_TO]))


def _version(rows: pa.Table) -> pa.ChunkedArray:
    return pc.is_null(pc.struct_field(rows[MEMORY], ROLE))


def fit(came: pa.Schema, needed: pa.Schema) -> bool:
    """Whether all values of these columns are values of those."""
    pairs = zip(came, needed, strict=True)
    return all(pa.types.is_null(one.type) or widens(one.type, other.type) for one, other in pairs)


def side_schemas(sides: CopySides) -> dict[str, pa.Schema]:
    """The columns of each side, in the types that the table will have."""
    columns = {each.name: each.type for each in sides.evolved.shape.columns}
    ids = [pa.field(ROW_ID, pa.int64())] if sides.terms.ids else []
    return {
        DELIVERED: arrow_schema({name: columns[name] for name in sides.terms.delivered}),
        SLICE: pa.schema([*arrow_schema(columns), *PLACE_HERE, *ids]),
        ELSEWHERE: arrow_schema({name: columns[name] for name in sides.terms.key}),
    }
