"""The sides of a load of a warehouse: its stage, the base and open versions; and versions that ended.

The driver reads the files of each side that it can read; Spark reads the others, and all of them in tasks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.historize.local_stage import staged_here
from backstory.doors.historize.model import ColumnRole
from backstory.doors.historize.scopes import hist_scope, increment_scope
from backstory.doors.historize.spark_tables import LOAD_COLUMNS, stage_rows
from backstory.doors.historize.spark_work import SparkWork
from backstory.doors.historize.table_plan import TablePlan
from backstory.engine.parts import Rows
from backstory.engine.sides import LocalSide, Side
from backstory.engine.sift import ComparedSide, RowCounts, SiftTerms
from backstory.formats.delivered import arrow_schema
from backstory.formats.memory import UNPACKED, MemoryLease, TooLarge, typed_size
from backstory.formats.rows import arrow_type
from backstory.formats.wrapping.batch_file import Format
from backstory.model.layout import ROW_HASH
from backstory.model.places import FILE, POSITION
from backstory.model.table import TableName
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.local_rows import PLACE_HERE, LocalRows
from backstory.stores.iceberg.search_bounds import without
from backstory.stores.iceberg.slice import PLACE, of_keys
from backstory.stores.iceberg.store import StoredTable, load
from backstory.stores.metadata.hidden import Unreadable
from backstory.strategies.scd2.parts import counts_of_same
from backstory.strategies.scd2.plan import earlier_columns
from backstory.strategies.scd2.terms import BASE, IN_SCOPE, LIVE, OPEN, STAGED, LoadTerms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def load_sides(work: SparkWork, base: TablePlan, hist: TablePlan) -> dict[str, Side]:
    """The sides of a load, with the flags that its plan asks of their rows.

    With a base that is taken as it is there is no stage.
    """
    if work.run.skip_base:
        sides = {BASE: _untouched_base(work, base)}
    else:
        sides = {STAGED: _staged(work, base), BASE: _base(work, base)}
    return sides | {OPEN: _open(work, hist)}


def schema_of(plan: TablePlan, names: Sequence[str], places: Sequence[pa.Field], *flags: str) -> pa.Schema:
    """These columns of a table, in the types that it will have, and columns of flags."""
    types = arrow_schema({each.name: each.type for each in plan.into.columns})
    fields = [*map(types.field, names), *places, *(pa.field(name, pa.bool_()) for name in flags)]
    return pa.schema(fields)


def ids_of(plan: TablePlan) -> list[pa.Field]:
    """The column of the ids of rows, where rows have ids."""
    return [pa.field(name, pa.int64()) for name in plan.ids]


def staged_rows(work: SparkWork) -> "DataFrame":
    """The stage's rows as rows of the base, keys and hashes computed."""
    assert work.run.stage is not None
    rows, brought = stage_rows(work.store, work.run.stage, work.load, work.secret)
    values = work.load.base_values("s", brought)
    return rows.alias("s").select(*(work.sql(sql).alias(name) for name, sql in values.items()))


def archived(work: SparkWork) -> "DataFrame | None":
    """The versions that were pruned out of the history; None where there is no archive."""
    if work.load.archive is None:
        return None
    return work.store.spark.table(work.store.sql_name(TableName(work.load.schema, work.load.archive.table)))


def earlier_versions(work: SparkWork, hist: TablePlan, terms: LoadTerms) -> "DataFrame":
    """The versions that ended, including archived ones, in the columns that a plan asks of them.

    Times of archived ones are NULL: they were pruned, so they are long before the load.
    """
    from pyspark.sql.functions import lit

    closed = hist.rows.where(column(ColumnRole.ENDED).isNotNull())
    rows = closed.select(*map(quoted, earlier_columns(terms)))
    if (pruned := archived(work)) is not None and work.load.archive is not None:
        nothing = (lit(None).cast(each.dataType).alias(each.name) for each in rows.schema.fields[1:])
        key = column(work.load.archive.key).alias(terms.key)
        rows = rows.unionByName(pruned.select(key, *nothing))
    return rows


def read_earlier(work: SparkWork, hist: TablePlan, terms: LoadTerms, keys: pa.ChunkedArray) -> pa.Table:
    """The versions of these records that ended: by the driver where it can read them, else by Spark."""
    ended, searched = ColumnRole.ENDED, {terms.key: keys.combine_chunks()}
    if work.load.archive is None and hist.table is not None and hist.as_stored:
        try:
            with work.store.memory.lease() as lease:
                here = LocalRows(work.store, hist.table, lease)
                columns = earlier_columns(terms)
                return here.read(columns, [ended], lambda rows: pc.is_valid(rows[ended]), among=searched)
        except (TooLarge, Unreadable):
            pass
    with translate_faults(hist.wanted.table):
        return arrow_of(of_keys(work.store, earlier_versions(work, hist, terms), pa.table(searched)))


@dataclass(frozen=True, slots=True)
class _StoredRows:
    """Columns of all rows of a table, or of its open versions, with places and `flags`."""

    work: SparkWork
    plan: TablePlan
    schema: pa.Schema
    flags: Mapping[str, bool]
    open: bool = False

    def side(self) -> LocalSide | None:
        """The rows from files; None where Spark must read them."""
        if self.plan.filled and not self.plan.as_stored:
            return None
        return LocalSide(
            self._columns(self.schema.names), columns=self._columns, is_empty=not self.plan.filled
        )

    def _columns(self, names: Sequence[str]) -> Rows:
        schema = pa.schema([each for each in self.schema if each.name in names])
        return Rows(schema, partial(self.tables, schema))

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """These columns of all rows."""
        if not self.plan.filled:
            return
        ended = ColumnRole.ENDED
        chosen, where = (
            ((lambda rows: pc.is_null(rows[ended])), without(ended)) if self.open else (None, None)
        )
        names = [each for each in schema.names if each not in self.flags]
        with self._read() as rows:
            for each in rows.batches(names, [ended] if self.open else [], chosen, where=where):
                yield self._flagged(each, schema)

    @contextmanager
    def _read(self) -> Iterator[LocalRows]:
        assert self.plan.table is not None
        with self.work.store.memory.lease() as lease:
            yield LocalRows(self.work.store, self.plan.table, lease)

    def _flagged(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        columns = {
            name: pa.repeat(self.flags[name], len(rows)) if name in self.flags else rows[name]
            for name in schema.names
        }
        return pa.table(columns).cast(schema)


def _staged(work: SparkWork, base: TablePlan) -> Side:
    schema = schema_of(base, [*work.load.base_values("s", ())], [], LIVE)

    def frame() -> "DataFrame":
        return staged_rows(work).alias("r").select(*map(quoted, schema.names[:-1]), _live(work, "r"))

    return Side(schema, frame, lambda _lease, _met: staged_here(work), *_size_and_count(work))


def load_sift(terms: LoadTerms, sides: Mapping[str, Side]) -> SiftTerms:
    """The columns by which a row is the same in stage, base and history."""
    base = ComparedSide(BASE, [ROW_HASH], [ROW_HASH], LIVE)
    pairs = [(base, ComparedSide(OPEN, [ROW_HASH], [ROW_HASH, ColumnRole.STARTED]))]
    if STAGED in sides:
        staged = ComparedSide(STAGED, terms.compared, terms.needed, lengths=terms.lengths)
        pairs.insert(0, (staged, ComparedSide(BASE, terms.compared, ())))
    return SiftTerms(pairs, _settled)


def _settled(rows: Mapping[str, RowCounts]) -> dict[str, int]:
    """The counts of a plan of rows that are the same everywhere."""
    counts = counts_of_same(OPEN, rows[OPEN].rows)
    return counts if STAGED not in rows else {**counts, **counts_of_same(BASE, rows[STAGED].rows)}


def _untouched_base(work: SparkWork, base: TablePlan) -> Side:
    """The base's rows with the columns that a version takes."""
    load = work.load
    names = [load.dataset.key, *(each.input or each.name for each in load.mirrored), ColumnRole.ROW_HASH]
    names = list(dict.fromkeys(names))
    schema = schema_of(base, names, [], LIVE)
    rows = _StoredRows(work, base, schema, {LIVE: True})

    def frame() -> "DataFrame":
        return base.rows.alias("r").select(*map(column, names), _live(work, "r"))

    return _side(schema, frame, None if load.live("v") else rows, base)


def _base(work: SparkWork, base: TablePlan) -> Side:
    """The base's rows, with all columns where some get the flag of deletion."""
    load, places = work.load, ids_of(base)
    names = base.into.names if _flags(work) else base.wanted.names
    compared = [name for name in base.wanted.names if name not in LOAD_COLUMNS]
    flags = {LIVE: True, IN_SCOPE: load.deletes_base}
    rows = _StoredRows(work, base, schema_of(base, compared, [*PLACE_HERE, *places], *flags), flags)
    asks = base.filled and (load.live("v") or (load.deletes_base and load.delete_scope))

    def frame() -> "DataFrame":
        kept = base.rows.select(*map(quoted, names), FILE, POSITION, *base.ids).alias("v")
        return kept.select("*", _live(work, "v"), _base_scope(work))

    schema = schema_of(base, names, [*PLACE, *places], *flags)
    return _side(schema, frame, None if asks else rows, base)


def _open(work: SparkWork, hist: TablePlan) -> Side:
    """The open versions: the driver reads the columns that are compared, and others by place."""
    load, places = work.load, ids_of(hist)
    dating = load.dataset.historization.effective_dating
    dated = [dating.column] if dating else []
    names = dict.fromkeys([load.dataset.key, ColumnRole.ROW_HASH, ColumnRole.STARTED, *dated])
    flags = {IN_SCOPE: load.closes_deleted}
    schema = schema_of(hist, [*names], [*PLACE_HERE, *places], *flags)
    rows = _StoredRows(work, hist, schema, flags, open=True)
    asks = hist.filled and load.closes_deleted and hist_scope(load.dataset, load.hist, load.dialect, "v")

    def frame() -> "DataFrame":
        open_ = hist.rows.where(column(ColumnRole.ENDED).isNull())
        return _whole_versions(hist, open_).alias("v").select("*", _versions_scope(work))

    whole = schema_of(hist, hist.into.names, [*PLACE, *places], *flags)
    return _side(whole, frame, None if asks else rows, hist, partial(_all_columns, work, hist))


def _side(
    schema: pa.Schema,
    frame: "Callable[[], DataFrame]",
    rows: _StoredRows | None,
    plan: TablePlan,
    whole: Callable[[MemoryLease, pa.Table], pa.Table] | None = None,
) -> Side:
    """A side of a table, all of whose rows the driver reads where `rows` are given."""

    def local(lease: MemoryLease, _met: LocalSide | None) -> LocalSide | None:
        side = None if rows is None else rows.side()
        return side if side is None or whole is None else replace(side, whole=partial(whole, lease))

    count = 0 if plan.table is None else plan.table.rows
    return Side(schema, frame, local, _size_of(plan.table), count)


def _whole_versions(hist: TablePlan, rows: "DataFrame") -> "DataFrame":
    return rows.select(*map(quoted, hist.into.names), FILE, POSITION, *hist.ids)


def _all_columns(work: SparkWork, hist: TablePlan, lease: MemoryLease, rows: pa.Table) -> pa.Table:
    """All columns of these open versions, in their order, with their places and ids."""
    key = work.load.dataset.key
    schema = schema_of(hist, hist.into.names, [*PLACE_HERE, *ids_of(hist)])
    if hist.table is None or not len(rows):
        return schema.empty_table()
    names = [name for name in schema.names if name not in rows.column_names]
    try:
        rest = LocalRows(work.store, hist.table, lease).at(rows, names)
    except (TooLarge, Unreadable):
        versions = hist.rows.where(column(ColumnRole.ENDED).isNull())
        found = arrow_of(_whole_versions(hist, of_keys(work.store, versions, rows.select([key]))))
        return found.take(pc.index_in(rows[key], value_set=found[key].combine_chunks())).cast(schema)
    values = [(rest if name in names else rows)[name] for name in schema.names]
    return pa.table(values, names=schema.names).cast(schema)


def _size_and_count(work: SparkWork) -> tuple[int, int | None]:
    """How much memory the rows of the stage may take, and how many they are; None where Spark must count."""
    stage = work.run.stage
    if stage is not None and stage.path is not None:
        size = stage.path.stat().st_size if stage.path.is_file() else 0
        return max(1, size * (UNPACKED if stage.format is Format.PARQUET else 1)), None
    table = None if stage is None else load(work.store, TableName(*stage.table))
    return _size_of(table), None if table is None else table.rows


def _size_of(table: StoredTable | None) -> int:
    if table is None:
        return 1
    return typed_size(table.rows, [arrow_type(each.type) for each in table.shape.columns], table.bytes)


def _live(work: SparkWork, alias: str) -> "Column":
    return work.sql("TRUE" + work.load.live(alias)).alias(LIVE)


def _flags(work: SparkWork) -> bool:
    """Whether a row of the base that the stage lacks gets a flag instead of being deleted."""
    soft = work.load.dataset.historization.soft_delete
    return soft is not None and soft.on_delete == "flag"


def _base_scope(work: SparkWork) -> "Column":
    """Which stored rows go, or get the flag, when the stage does not have them."""
    load = work.load
    scope = increment_scope(load.model, load.dataset, load.dialect, "v") if load.delete_scope else None
    live = load.live("v") if _flags(work) else ""
    return work.sql(f"({scope or 'TRUE'}){live}" if load.deletes_base else "FALSE").alias(IN_SCOPE)


def _versions_scope(work: SparkWork) -> "Column":
    """Which open versions a deletion may close."""
    load = work.load
    scope = hist_scope(load.dataset, load.hist, load.dialect, "v") if load.closes_deleted else "FALSE"
    return work.sql(scope or "TRUE").alias(IN_SCOPE)
