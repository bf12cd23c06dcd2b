"""Base and open versions of a small load from files of this machine, where Spark need not read them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.historize.model import ColumnRole
from backstory.doors.historize.scopes import hist_scope
from backstory.doors.historize.spark_tables import LOAD_COLUMNS
from backstory.doors.historize.spark_work import SparkWork
from backstory.doors.historize.table_plan import TablePlan
from backstory.engine.parts import Rows
from backstory.engine.steps import PlacedRows
from backstory.formats.delivered import arrow_schema
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.local_rows import PLACE_HERE, LocalRows
from backstory.stores.iceberg.search_bounds import without
from backstory.stores.iceberg.slice import of_keys
from backstory.stores.iceberg.store import StoredTable
from backstory.stores.metadata.hidden import Unreadable
from backstory.strategies.scd2.plan import earlier_columns
from backstory.strategies.scd2.terms import BASE, IN_SCOPE, LIVE, OPEN, LoadTerms


def local_sides(
    work: SparkWork, base: TablePlan, hist: TablePlan
) -> Iterator[tuple[str, tuple[Rows, PlacedRows]]]:
    """The base's rows and what a load compares of open versions, each if it can be read here; also by place.

    Both are so where the tables stay as they are, and no condition of the model's is asked of their rows.
    Reading raises Unreadable where Spark must read after all.
    """
    load, rules = work.load, work.load.dataset.historization
    if not load.live("v") and not (load.deletes_base and load.delete_scope):
        flags = {LIVE: True, **({} if work.run.skip_base else {IN_SCOPE: load.deletes_base})}
        if (rows := _rows(work, base, _base_names(work, base), flags)) is not None:
            yield BASE, rows
    if not load.closes_deleted or not hist_scope(load.dataset, load.hist, load.dialect, "v"):
        dating = rules.effective_dating
        own = (ColumnRole.ROW_HASH, ColumnRole.STARTED)
        names = [load.dataset.key, *own, *([dating.column] if dating else [])]
        flags = {IN_SCOPE: load.closes_deleted}
        if (rows := _rows(work, hist, list(dict.fromkeys(names)), flags, open_=True)) is not None:
            yield OPEN, rows


def open_versions(work: SparkWork, hist: TablePlan, lease: MemoryLease, rows: pa.Table) -> pa.Table:
    """All columns of these open versions, in their order, with their places and ids."""
    key = work.load.dataset.key
    schema = pa.schema([*arrow_schema({each.name: each.type for each in hist.into.columns}), *_place(hist)])
    if hist.table is None or not len(rows):
        return schema.empty_table()
    names = [name for name in schema.names if name not in rows.column_names]
    try:
        rest = LocalRows(work.store, hist.table, lease).at(rows, names)
    except (TooLarge, Unreadable):
        versions = hist.rows.where(column(ColumnRole.ENDED).isNull())
        found = of_keys(work.store, versions, rows.select([key])).select(*map(quoted, schema.names)).toArrow()
        return found.take(pc.index_in(rows[key], value_set=found[key].combine_chunks())).cast(schema)
    values = [(rest if name in names else rows)[name] for name in schema.names]
    return pa.table(values, names=schema.names).cast(schema)


def earlier_here(
    work: SparkWork, hist: TablePlan, terms: LoadTerms, lease: MemoryLease, keys: pa.ChunkedArray
) -> pa.Table | None:
    """The versions of these records that ended; None where Spark must look for them."""
    if work.load.archive or hist.table is None or not hist.as_stored:
        return None
    here, ended = LocalRows(work.store, hist.table, lease), ColumnRole.ENDED
    among = {terms.key: keys.combine_chunks()}
    try:
        return here.read(earlier_columns(terms), [ended], lambda rows: pc.is_valid(rows[ended]), among=among)
    except (TooLarge, Unreadable):
        return None


def _base_names(work: SparkWork, base: TablePlan) -> list[str]:
    """The columns of the base that count."""
    load = work.load
    if not work.run.skip_base:
        return [name for name in base.wanted.names if name not in LOAD_COLUMNS]
    names = [load.dataset.key, *(each.input or each.name for each in load.mirrored), ColumnRole.ROW_HASH]
    return list(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class _Side:
    """Columns of all rows of a table, or of its open versions, with places and `flags`."""

    work: SparkWork
    table: StoredTable
    schema: pa.Schema
    flags: Mapping[str, bool]
    open: bool

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """These columns of all rows."""
        ended = ColumnRole.ENDED
        with self.work.store.memory.lease() as lease:
            here = LocalRows(self.work.store, self.table, lease)
            chosen, where = (
                (lambda rows: pc.is_null(rows[ended]), without(ended)) if self.open else (None, None)
            )
            names = [each for each in schema.names if each not in self.flags]
            for rows in here.batches(names, [ended] if self.open else [], chosen, where=where):
                yield self._flagged(rows, schema)

    def at(self, places: pa.Table) -> pa.Table:
        """All columns of the rows at these places."""
        names = [each for each in self.schema.names if each not in (*self.flags, *places.column_names)]
        with self.work.store.memory.lease() as lease:
            rest = LocalRows(self.work.store, self.table, lease).at(places, names)
        both = dict(zip(rest.column_names, rest.columns, strict=True))
        both |= dict(zip(places.column_names, places.columns, strict=True))
        return self._flagged(pa.table(both), self.schema)

    def _flagged(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        columns = {
            name: pa.repeat(self.flags[name], len(rows)) if name in self.flags else rows[name]
            for name in schema.names
        }
        return pa.table(columns).cast(schema)


def _rows(
    work: SparkWork, plan: TablePlan, names: Sequence[str], flags: Mapping[str, bool], *, open_: bool = False
) -> tuple[Rows, PlacedRows] | None:
    """These columns of all rows, or of open versions, with places and flags; None where Spark must read."""
    types = arrow_schema({each.name: each.type for each in plan.into.columns})
    schema = pa.schema(
        [
            *(types.field(name) for name in names),
            *_place(plan),
            *(pa.field(name, pa.bool_()) for name in flags),
        ]
    )
    keyed = pa.schema([schema.field(work.load.dataset.key), *_place(plan)])
    if not plan.filled:
        return Rows(schema, lambda: ()), PlacedRows(Rows(keyed, lambda: ()), lambda _: schema.empty_table())
    if plan.table is None or not plan.as_stored:
        return None
    side = _Side(work, plan.table, schema, flags, open_)
    return (
        Rows(schema, partial(side.tables, schema)),
        PlacedRows(Rows(keyed, partial(side.tables, keyed)), side.at),
    )


def _place(plan: TablePlan) -> list[pa.Field]:
    return [*PLACE_HERE, *(pa.field(name, pa.int64()) for name in plan.ids)]
