"""The stage of a small load as rows of the base, made here: DuckDB computes keys and hashes as Spark does."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa

from backstory.doors.historize.columns import business_keys, user_columns
from backstory.doors.historize.expressions import Expressions
from backstory.doors.historize.load import Load
from backstory.doors.historize.model import ColumnRole, ModelColumn
from backstory.doors.historize.resolve import schema_of
from backstory.doors.historize.spark_tables import LOAD_COLUMNS
from backstory.doors.historize.spark_work import SparkWork
from backstory.doors.historize.stage import Stage
from backstory.doors.historize.stage_rows import column_type, stage_batches
from backstory.engine.held_rows import together
from backstory.engine.parts import Rows as SideRows
from backstory.engine.sides import LocalSide
from backstory.formats.delivered import arrow_schema
from backstory.model.table import TableName
from backstory.reading.frames.point_in_time import all_are_current
from backstory.stores.iceberg.local_rows import LocalRows
from backstory.stores.iceberg.store import load
from backstory.stores.metadata.columns import widens
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.sql.alike import ALIKE, in_years
from backstory.stores.sql.dialects.duckdb import DuckDB
from backstory.stores.sql.engines.duckdb import open_duckdb
from backstory.strategies.scd2.terms import LIVE

# What rows are called in expressions that are computed here.
GIVEN: Final = "given"
# An engine is asked for the keys and hashes of so many rows.
ROWS_AT_ONCE: Final = 1 << 18
# Reads columns of a stage, some rows at a time.
Reading = Callable[[Sequence[ModelColumn]], Iterator[pa.Table]]


def staged_here(work: SparkWork) -> LocalSide | None:
    """The stage's rows as rows of the base, and of each whether it is live.

    None where Spark must read or compute them; reading raises Unreadable where that shows later, and what
    `read_stage` raises.
    """
    columns = user_columns(work.load.dataset)
    stage = work.run.stage
    if stage is None or any(each.datatype not in ALIKE for each in columns):
        return None
    read = partial(stage_batches, stage) if stage.path else _of_table(work, stage, columns)
    if read is None:
        return None
    local, key = replace(work.load, dialect=DuckDB()), work.load.dataset.key
    values = {**local.base_values(GIVEN, ()), LIVE: "TRUE" + local.live(GIVEN)}

    def fewer(names: Sequence[str]) -> SideRows:
        needed = business_keys(work.load.dataset) if {*names} == {key} else columns
        return _side(work, read, needed, {name: values[name] for name in names})

    rows = _side(work, read, columns, values)

    def chosen(which: Callable[[pa.Table], pa.Array]) -> SideRows:
        def tables() -> Iterator[pa.Table]:
            for each in together(read(columns), ROWS_AT_ONCE):
                keys = _staged(work, business_keys(work.load.dataset), {key: values[key]}, each)
                if len(few := each.filter(which(keys))):
                    yield _staged(work, columns, values, few).cast(rows.schema)

        return SideRows(rows.schema, tables)

    return LocalSide(rows, columns=fewer, chosen=chosen)


def _side(
    work: SparkWork, read: Reading, columns: Sequence[ModelColumn], values: Mapping[str, str]
) -> SideRows:
    """Rows of these values, made of these columns of the stage."""
    types = arrow_schema({each.name: column_type(each) for each in columns})
    schema = _staged(work, columns, values, types.empty_table()).schema

    def tables() -> Iterator[pa.Table]:
        for rows in together(read(columns), ROWS_AT_ONCE):
            yield _staged(work, columns, values, rows).cast(schema)

    return SideRows(schema, tables)


def _staged(
    work: SparkWork, columns: Sequence[ModelColumn], values: Mapping[str, str], rows: pa.Table
) -> pa.Table:
    if not all(in_years(rows[each.name]) for each in columns):
        raise Unreadable("instants that Spark and DuckDB write in two ways")
    fixed = {
        ColumnRole.LOAD_RUN_ID: pa.repeat(work.run.run_id, len(rows)),
        ColumnRole.LOADED_AT: pa.repeat(pa.scalar(work.run.instant, pa.timestamp("us", "UTC")), len(rows)),
    }
    known = {**fixed, **dict(zip(rows.column_names, rows.columns, strict=True))}
    found = computed_here(work, rows, {name: sql for name, sql in values.items() if name not in known})
    return pa.table({name: known[name] if name in known else found[name] for name in values})


def expressions_here(load_: Load) -> Expressions:
    """Keys and hashes of a load as `computed_here` computes them."""
    return Expressions(DuckDB(), schema_of(load_.model, load_.dataset))


def computed_here(work: SparkWork, rows: pa.Table, values: Mapping[str, str]) -> pa.Table:
    """These expressions of DuckDB's, of `GIVEN` rows and in their order; no statement has the pepper."""
    dialect = DuckDB()
    secret = dialect.secret_reference("pepper")
    assert secret is not None
    resolved = {
        dialect.quote_ident(name): work.resolved(sql, dialect, secret) for name, sql in values.items()
    }
    told = ", ".join(f"{sql} AS {name}" for name, sql in resolved.items())
    with open_duckdb("duckdb://") as engine:
        engine.bind_secret("pepper", work.pepper)
        return engine.rows(f"SELECT {told} FROM {engine.bring(GIVEN, rows, [])}")


def _of_table(work: SparkWork, stage: Stage, columns: Sequence[ModelColumn]) -> Reading | None:
    """Reads a table whose files lie here; None where Spark must read, convert or refuse its rows."""
    found = load(work.store, TableName(*stage.table))
    if found is None or not all_are_current(found.shape):
        return None
    stored = arrow_schema({each.name: each.type for each in found.shape.columns})
    wanted = arrow_schema({each.name: column_type(each) for each in columns})
    sources = _sources(columns)
    if not {*sources.values()} <= {*stored.names} or not all(
        widens(stored.field(sources[each.name]).type, each.type) for each in wanted
    ):
        return None
    brought = [stored.field(name) for name in LOAD_COLUMNS if name in stored.names]

    def tables(asked: Sequence[ModelColumn]) -> Iterator[pa.Table]:
        sources = _sources(asked)
        schema = pa.schema([wanted.field(name) for name in sources])
        if len(asked) == len(columns):
            sources |= {each.name: each.name for each in brought}
            schema = pa.schema([*schema, *brought])
        with work.store.memory.lease() as lease:
            for rows in LocalRows(work.store, found, lease).batches(list(dict.fromkeys(sources.values()))):
                yield pa.table([rows[each] for each in sources.values()], names=[*sources]).cast(schema)

    return tables


def _sources(columns: Sequence[ModelColumn]) -> dict[str, str]:
    """What the stage calls the columns."""
    return {each.name: each.input or each.name for each in columns}
