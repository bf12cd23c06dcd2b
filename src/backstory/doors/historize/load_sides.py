"""The sides of a load into a warehouse (stage, base, open and closed versions), and its settings.

The driver reads the files that it can read exactly, and computes keys and hashes in DuckDB with the same
results as Spark. Spark reads the other sides. If tasks plan the load, Spark reads all sides.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.historize.model import (
    LOAD_COLUMNS,
    ColumnRole,
    ModelColumn,
    business_keys,
    foreign_keys,
    user_columns,
    words_of,
)
from backstory.doors.historize.preflight import collidable_columns
from backstory.doors.historize.spark_tables import SparkWork, TablePlan, stage_rows
from backstory.doors.historize.stage import column_type, stage_batches
from backstory.engine.plans import KeepRows, LocalSide, Side, SideRows, columnar_side, empty_side
from backstory.engine.row_buffers import combine_tables
from backstory.engine.sift import ComparedSide, RowCounts, SiftTerms
from backstory.formats.batch_file import Format
from backstory.formats.delivered import arrow_schema
from backstory.formats.memory import UNPACKED, MemoryLease, TooLarge, typed_size
from backstory.formats.rows import arrow_type
from backstory.model.layout import FILE, POSITION, ROW_HASH
from backstory.model.table import TableName
from backstory.reading.frames import all_are_current
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, quote
from backstory.stores.iceberg.slice import PLACE, PLACE_SCHEMA, LocalRows, rows_of_keys
from backstory.stores.iceberg.store import IcebergTable
from backstory.stores.metadata.parquet_files import widens
from backstory.stores.metadata.searches import IsNull, OneOf
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.dialects import DuckDB
from backstory.stores.sql.duckdb_engine import SAME_TEXT, has_usual_years, open_duckdb
from backstory.strategies.scd2 import plan as scd2

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# The alias for rows in expressions that DuckDB computes.
ROWS_ALIAS: Final = "given"
# The number of rows whose keys and hashes are computed in one query.
ROWS_AT_ONCE: Final = 1 << 18
# A function that reads the rows of a stage, in batches.
StageReader = Callable[[], Iterator[pa.Table]]


def local_stage_side(work: SparkWork, schema: pa.Schema) -> LocalSide | None:
    """The stage's rows as rows of the base, with the flag `LIVE`, or None if Spark must read or compute them.

    `schema` has the base's columns and the flag. Reading raises the errors of `read_stage`, and Unreadable if
    Spark turns out to be needed.
    """
    columns = user_columns(work.load.dataset)
    stage = work.run.stage
    if stage is None or any(each.datatype not in SAME_TEXT for each in columns):
        return None
    read = partial(stage_batches, stage, columns) if stage.path else _table_reader(work, columns)
    if read is None:
        return None
    local = replace(work.load, dialect=DuckDB())
    values = {**local.base_values(ROWS_ALIAS, ()), scd2.LIVE: "TRUE" + local.live(ROWS_ALIAS)}

    def compute(read: StageReader, some: pa.Schema) -> Iterator[pa.Table]:
        wanted = {name: values[name] for name in some.names}
        for rows in combine_tables(read(), ROWS_AT_ONCE):
            yield _base_rows(work, columns, wanted, rows).cast(some)

    def select_rows(keep: KeepRows) -> SideRows:
        return SideRows(schema, partial(compute, lambda: keep(read()), schema))

    return replace(columnar_side(schema, partial(compute, read)), select=select_rows)


def _base_rows(
    work: SparkWork, columns: Sequence[ModelColumn], values: Mapping[str, str], rows: pa.Table
) -> pa.Table:
    """Rows with the given values (SQL by name), computed from the given columns of the stage."""
    if not all(has_usual_years(rows[each.name]) for each in columns):
        raise Unreadable("instants that Spark and DuckDB write in two ways")
    fixed = {
        ColumnRole.LOAD_RUN_ID: pa.repeat(work.run.run_id, len(rows)),
        ColumnRole.LOADED_AT: pa.repeat(pa.scalar(work.run.instant, pa.timestamp("us", "UTC")), len(rows)),
    }
    known = {**fixed, **dict(zip(rows.column_names, rows.columns, strict=True))}
    computed = compute_locally(work, rows, {name: sql for name, sql in values.items() if name not in known})
    return pa.table({name: known[name] if name in known else computed[name] for name in values})


def compute_locally(work: SparkWork, rows: pa.Table, values: Mapping[str, str]) -> pa.Table:
    """The values of SQL expressions on the rows (alias `ROWS_ALIAS`), computed by DuckDB.

    The pepper is bound as a secret. The order of the rows is preserved.
    """
    dialect = DuckDB()
    secret = dialect.secret_reference("pepper")
    assert secret is not None
    expressions = {
        dialect.quote_ident(name): work.fill_placeholders(sql, dialect, secret)
        for name, sql in values.items()
    }
    listed = ", ".join(f"{sql} AS {name}" for name, sql in expressions.items())
    with open_duckdb("duckdb://") as engine:
        engine.bind_secret("pepper", work.pepper)
        return engine.rows(f"SELECT {listed} FROM {engine.bring(ROWS_ALIAS, rows, [])}")


def _table_reader(work: SparkWork, columns: Sequence[ModelColumn]) -> StageReader | None:
    """A reader for the files of a stage table, or None if Spark must read, convert or refuse its rows."""
    table = work.stage_table
    if table is None or not all_are_current(table.shape):
        return None
    stored = arrow_schema({each.name: each.type for each in table.shape.columns})
    wanted = arrow_schema({each.name: column_type(each) for each in columns})
    sources = {each.name: each.source for each in columns}
    if not {*sources.values()} <= {*stored.names} or not all(
        widens(stored.field(sources[each.name]).type, each.type) for each in wanted
    ):
        return None
    load_columns = [stored.field(name) for name in work.stage_load_columns]
    sources |= {each.name: each.name for each in load_columns}
    schema = pa.schema([*wanted, *load_columns])

    def tables() -> Iterator[pa.Table]:
        with work.store.memory.lease() as lease:
            for rows in LocalRows(work.store, table, lease).batches(list(dict.fromkeys(sources.values()))):
                yield pa.table([rows[each] for each in sources.values()], names=[*sources]).cast(schema)

    return tables


def load_terms(work: SparkWork, newest: datetime | None) -> scd2.LoadTerms:
    """The settings of a load. `newest` is the latest start or end in its history."""
    load, rules = work.load, work.load.dataset.historization
    columns = user_columns(load.dataset)
    compared = [*columns, *foreign_keys(load.dataset)]
    texts = [each for each in columns if each.datatype is Datatype.STRING and each.max_length]
    dating = rules.effective_dating
    return scd2.LoadTerms(
        key=load.dataset.key,
        business=tuple(each.name for each in business_keys(load.dataset)),
        mirrored={each.name: each.source for each in load.mirrored_columns},
        filled=load.filled_columns,
        instant=work.run.instant,
        run=work.run.run_id,
        words=words_of(load.labels),
        compared=(*(each.name for each in compared), ColumnRole.ROW_HASH),
        needed=(*(each.name for each in columns if not each.nullable), *work.stage_load_columns),
        lengths={each.name: each.max_length or 0 for each in texts},
        unsure={each.name: each.hash_as.scale if each.hash_as else None for each in collidable_columns(load)},
        collapses=rules.duplicate_keys == "collapse_identical",
        dated=dating.column if dating and dating.late_policy == "reject" else None,
        flag=_deletion_flag(work),
        late=newest is not None and newest >= work.run.instant,
        first=work.base is None,
    )


def _deletion_flag(work: SparkWork) -> scd2.Flag | None:
    """The flag for base rows that are missing from the stage, or None if these rows are deleted."""
    local = replace(work.load, dialect=DuckDB())
    if not local.flag_values or work.run.skip_base:
        return None
    flagged = compute_locally(work, pa.table({"row": [1]}), local.flag_values)
    live = compute_locally(work, flagged, {scd2.LIVE: "TRUE" + local.live(ROWS_ALIAS)})
    return scd2.Flag(flagged.to_pylist()[0], live[scd2.LIVE][0].as_py())


def load_sides(work: SparkWork, base: TablePlan, hist: TablePlan) -> dict[str, Side]:
    """The sides of a load, with the flags that its plan needs. If the base is kept, there is no stage."""
    if work.run.skip_base:
        sides = {scd2.BASE: _kept_base_side(work, base)}
    else:
        sides = {scd2.STAGED: _stage_side(work, base), scd2.BASE: _base_side(work, base)}
    return sides | {scd2.OPEN: _open_side(work, hist)}


def side_schema(plan: TablePlan, names: Sequence[str], places: Sequence[pa.Field], *flags: str) -> pa.Schema:
    """The schema of the named columns of a table with their future types, followed by places and flags."""
    types = arrow_schema({each.name: each.type for each in plan.into.columns})
    fields = [*map(types.field, names), *places, *(pa.field(name, pa.bool_()) for name in flags)]
    return pa.schema(fields)


def ids_of(plan: TablePlan) -> list[pa.Field]:
    """The column of row ids, or an empty list if rows have no ids."""
    return [pa.field(name, pa.int64()) for name in plan.ids]


def stage_frame(work: SparkWork) -> "DataFrame":
    """The stage's rows as rows of the base, with keys and hashes computed by Spark."""
    assert work.run.stage is not None
    values = work.load.base_values("s", work.stage_load_columns)
    rows = stage_rows(work, work.run.stage).alias("s")
    return rows.select(*(work.sql(sql).alias(name) for name, sql in values.items()))


def pruned_keys(work: SparkWork, name: str) -> "DataFrame | None":
    """The keys of pruned versions, as the column `name`, or None if there is no archive."""
    archive = work.load.archive
    if archive is None:
        return None
    rows = work.store.spark.table(work.store.sql_name(TableName(work.load.schema, archive.table)))
    return rows.select(column(archive.key).alias(name))


def earlier_versions(work: SparkWork, hist: TablePlan, terms: scd2.LoadTerms) -> "DataFrame":
    """The closed versions, including archived versions, with the columns that a plan needs.

    Times of archived versions are NULL, because these versions ended long before the load.
    """
    closed = hist.rows.where(column(ColumnRole.ENDED).isNotNull())
    rows = closed.select(*map(quote, scd2.earlier_columns(terms)))
    pruned = pruned_keys(work, terms.key)
    return rows if pruned is None else rows.unionByName(pruned, allowMissingColumns=True)


def read_earlier(work: SparkWork, hist: TablePlan, terms: scd2.LoadTerms, keys: pa.ChunkedArray) -> pa.Table:
    """The closed versions of records with these keys, read by the driver if possible, or else by Spark."""
    ended, searched = ColumnRole.ENDED, {terms.key: keys.combine_chunks()}
    if work.load.archive is None and hist.table is not None and hist.as_stored:
        try:
            with work.store.memory.lease() as lease:
                here = LocalRows(work.store, hist.table, lease)
                columns = scd2.earlier_columns(terms)
                wanted = {name: OneOf(values) for name, values in searched.items()}
                return here.read(columns, [ended], lambda rows: pc.is_valid(rows[ended]), [wanted])
        except (TooLarge, Unreadable):
            pass
    with translate_faults(hist.wanted.table):
        return arrow_of(rows_of_keys(work.store, earlier_versions(work, hist, terms), pa.table(searched)))


def _stage_side(work: SparkWork, base: TablePlan) -> Side:
    schema = side_schema(base, [*work.load.base_values("s", ())], [], scd2.LIVE)

    def frame() -> "DataFrame":
        live = work.sql(_live_sql(work, "r")).alias(scd2.LIVE)
        return stage_frame(work).alias("r").select(*map(quote, schema.names[:-1]), live)

    return Side(schema, frame, lambda _lease, _met: local_stage_side(work, schema), *_size_and_count(work))


def load_sift(terms: scd2.LoadTerms, sides: Mapping[str, Side]) -> SiftTerms:
    """The columns by which the rows of stage, base and history are compared."""
    base = ComparedSide(scd2.BASE, [ROW_HASH, *terms.filled.values()], [ROW_HASH], scd2.LIVE)
    open_ = ComparedSide(scd2.OPEN, [ROW_HASH, *terms.filled], [ROW_HASH, ColumnRole.STARTED])
    pairs = [(base, open_)]
    if scd2.STAGED in sides:
        staged = ComparedSide(scd2.STAGED, terms.compared, terms.needed, lengths=terms.lengths)
        pairs.insert(0, (staged, ComparedSide(scd2.BASE, terms.compared, ())))
    return SiftTerms(pairs, _same_counts)


def _same_counts(rows: Mapping[str, RowCounts]) -> dict[str, int]:
    """The counts in a plan for rows that are the same on all sides."""
    pairs = {scd2.OPEN: scd2.OPEN, scd2.STAGED: scd2.BASE}  # a side with the rows, and the match's name
    sizes = {name: rows[side].rows for side, name in pairs.items() if side in rows}
    matches = {name: scd2.CountedMatch(same=n, delivered=n, stored=n) for name, n in sizes.items()}
    return {key: n for name, match in matches.items() for key, n in match.counts(name).items()}


def _kept_base_side(work: SparkWork, base: TablePlan) -> Side:
    """The rows of a kept base, with the columns that a version has."""
    load = work.load
    sources = (each.source for each in load.mirrored_columns)
    names = list(dict.fromkeys([load.dataset.key, *sources, ColumnRole.ROW_HASH]))
    return _table_side(work, base, names, {scd2.LIVE: _live_sql(work, "b")}, placed=False)


def _base_side(work: SparkWork, base: TablePlan) -> Side:
    """The base's rows. They have all columns if some rows will be flagged as deleted."""
    load, in_scope = work.load, "FALSE"
    if load.deletes_base:
        live = load.live("b") if load.flag_values else ""
        in_scope = f"({load.delete_scope}){live}" if load.delete_scope else f"TRUE{live}"
    names = base.into.names if load.flag_values else base.wanted.names
    flags = {scd2.LIVE: _live_sql(work, "b"), scd2.IN_SCOPE: in_scope}
    return _table_side(work, base, names, flags, [name for name in names if name not in LOAD_COLUMNS])


def _open_side(work: SparkWork, hist: TablePlan) -> Side:
    """The open versions. The driver reads the compared columns first, and other columns later by place."""
    load = work.load
    dating = load.dataset.historization.effective_dating
    dated = [dating.column] if dating else []
    compared = [load.dataset.key, ColumnRole.ROW_HASH, ColumnRole.STARTED, *dated, *load.filled_columns]
    flags = {scd2.IN_SCOPE: (load.hist_scope or "TRUE") if load.closes_deleted else "FALSE"}
    return _table_side(work, hist, hist.into.names, flags, list(dict.fromkeys(compared)), open_=True)


def _table_side(
    work: SparkWork,
    plan: TablePlan,
    names: Sequence[str],
    flags: Mapping[str, str],
    compared: Sequence[str] = (),
    *,
    placed: bool = True,
    open_: bool = False,
) -> Side:
    """The rows of a table, or only its open versions, with these columns, places, and flags (SQL by name).

    In flags, the alias of the rows is `h` for versions, and `b` for rows of a base. The driver reads the rows
    if the table is as stored and each flag is constant. It then reads the `compared` columns, by default all.
    """
    constants = {name: sql == "TRUE" for name, sql in flags.items() if sql in {"TRUE", "FALSE"}}
    places, ids = (PLACE_SCHEMA, ids_of(plan)) if placed else ((), [])

    def local(lease: MemoryLease, _met: LocalSide | None) -> LocalSide | None:
        schema = side_schema(plan, names, [*places, *ids], *flags)
        if plan.table is None or not plan.has_rows:
            return empty_side(schema)
        if not plan.as_stored or len(constants) < len(flags):
            return None
        rows = columnar_side(schema, partial(_stored_tables, work, plan.table, constants, open_))
        if compared:
            assert rows.columns is not None
            read = rows.columns([*compared, *(field.name for field in (*places, *ids)), *flags])
            rows = replace(rows, rows=read)
        stored = LocalRows(work.store, plan.table, lease)
        whole = partial(_all_columns, stored, side_schema(plan, names, [*places, *ids]))
        return replace(rows, whole=whole) if open_ else rows

    def frame() -> "DataFrame":
        stored = plan.rows.where(column(ColumnRole.ENDED).isNull()) if open_ else plan.rows
        rows = stored.select(*map(quote, names), *([FILE, POSITION, *plan.ids] if placed else []))
        marks = (work.sql(sql).alias(name) for name, sql in flags.items())
        return rows.alias("h" if open_ else "b").select("*", *marks)

    schema = side_schema(plan, names, [*PLACE, *ids] if placed else [], *flags)
    return Side(schema, frame, local, _size_of(plan.table), 0 if plan.table is None else plan.table.rows)


def _stored_tables(
    work: SparkWork,
    table: IcebergTable,
    flags: Mapping[str, bool],
    open_: bool,  # noqa: FBT001
    schema: pa.Schema,
) -> Iterator[pa.Table]:
    names, ended = [name for name in schema.names if name not in flags], ColumnRole.ENDED
    with work.store.memory.lease() as lease:
        rows = LocalRows(work.store, table, lease)
        for batch in rows.batches(names, searches=[{ended: IsNull()}] if open_ else []):
            columns = (
                pa.repeat(flags[name], len(batch)) if name in flags else batch[name] for name in schema.names
            )
            yield pa.table([*columns], names=schema.names).cast(schema)


def _all_columns(rows: LocalRows, schema: pa.Schema, some: pa.Table) -> pa.Table:
    """Some of the rows in the same order, with all columns of the schema.

    Missing columns are read by place. Raises TooLarge if the lease cannot hold them.
    """
    if not len(some):
        return schema.empty_table()
    names = [name for name in schema.names if name not in some.column_names]
    rest = rows.read_at(some, names)
    values = [(rest if name in names else some)[name] for name in schema.names]
    return pa.table(values, names=schema.names).cast(schema)


def _size_and_count(work: SparkWork) -> tuple[int, int | None]:
    """The estimated bytes of the stage's rows in memory, and their number, or None if Spark must count."""
    stage = work.run.stage
    if stage is not None and stage.path is not None:
        size = stage.path.stat().st_size if stage.path.is_file() else 0
        return max(1, size * (UNPACKED if stage.format is Format.PARQUET else 1)), None
    table = work.stage_table
    return _size_of(table), None if table is None else table.rows


def _size_of(table: IcebergTable | None) -> int:
    if table is None:
        return 1
    return typed_size(table.rows, [arrow_type(each.type) for each in table.shape.columns], table.bytes)


def _live_sql(work: SparkWork, alias: str) -> str:
    """SQL for whether a row is live. It is TRUE if rows have no deletion flag."""
    return "TRUE" + work.load.live(alias)
