"""Base and open versions of a small load from files of this machine, where Spark need not read them."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.historize.model import ColumnRole
from backstory.doors.historize.scopes import hist_scope
from backstory.doors.historize.spark_tables import LOAD_COLUMNS
from backstory.doors.historize.spark_work import SparkWork
from backstory.doors.historize.table_plan import TablePlan
from backstory.engine.parts import Rows
from backstory.formats.delivered import arrow_schema
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.local_rows import PLACE_HERE, LocalRows
from backstory.stores.iceberg.search_bounds import without
from backstory.stores.iceberg.slice import of_keys
from backstory.stores.metadata.hidden import Unreadable
from backstory.strategies.scd2.plan import earlier_columns
from backstory.strategies.scd2.terms import BASE, IN_SCOPE, LIVE, OPEN, LoadTerms


def local_sides(work: SparkWork, base: TablePlan, hist: TablePlan) -> Iterator[tuple[str, Rows]]:
    """The base's rows and what a load compares of open versions, each if it can be read here.

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
        names = [load.dataset.key, ColumnRole.ROW_HASH, *([dating.column] if dating else [])]
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


def _rows(
    work: SparkWork, plan: TablePlan, names: Sequence[str], flags: Mapping[str, bool], *, open_: bool = False
) -> Rows | None:
    """These columns of all rows, or of open versions, with places and flags; None where Spark must read."""
    types = arrow_schema({each.name: each.type for each in plan.into.columns})
    stored = pa.schema([*(types.field(name) for name in names), *_place(plan)])
    schema = pa.schema([*stored, *(pa.field(name, pa.bool_()) for name in flags)])
    table, ended = plan.table, ColumnRole.ENDED
    if not plan.filled:
        return Rows(schema, lambda: ())
    if table is None or not plan.as_stored:
        return None

    def tables() -> Iterator[pa.Table]:
        with work.store.memory.lease() as lease:
            here = LocalRows(work.store, table, lease)
            chosen, where = (lambda rows: pc.is_null(rows[ended]), without(ended)) if open_ else (None, None)
            batches = here.batches(stored.names, [ended] if open_ else [], chosen, where=where)
            for rows in batches:
                values = [pa.repeat(value, len(rows)) for value in flags.values()]
                yield pa.table([*rows.cast(stored).columns, *values], schema=schema)

    return Rows(schema, tables)


def _place(plan: TablePlan) -> list[pa.Field]:
    return [*PLACE_HERE, *(pa.field(name, pa.int64()) for name in plan.ids)]
