"""The part of a dialect's examination that a database runs (section 5.4)."""

from collections.abc import Mapping

from backstory.doors.historize.model import ModelColumn
from backstory.stores.sql import ddl
from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.engine import Engine
from backstory.testing.conformance_bench import Bench
from backstory.testing.conformance_sample import (
    NASTY_NAMES,
    SCHEMA,
    examined,
    require,
    require_equal,
)
from backstory.testing.conformance_scenarios import examine_scenarios, examine_transactions
from backstory.testing.conformance_values import (
    examine_hashes,
    examine_inequality,
    examine_literals,
    examine_types,
    typed_column,
)


def run_examination(dialect: Dialect, engine: Engine) -> None:
    """Run what the dialect writes; AssertionError names the method or the scenario that is wrong."""
    bench = Bench(dialect, engine)
    with bench.schema():
        examine_hashes(bench)
        examine_inequality(bench)
        examine_literals(bench)
        examine_types(bench)
        examine_transactions(bench)
        examine_scenarios(bench)
        examine_schema_changes(bench)


# Schema changes


def examine_schema_changes(bench: Bench) -> None:
    """Each change, and what the database then says of the table."""
    names = [name for name in NASTY_NAMES if name]
    columns = [ModelColumn(target_column_name="a", datatype=Datatype.INTEGER, nullable=False)]
    columns += [_renamed(columns[0], name) for name in names]
    for gone in ("rc renamed", "rc changed"):
        bench.drop(gone)
    table = bench.make("rc changed", columns)
    _require_table(bench, "rc changed", dict.fromkeys(["a", *names], Datatype.INTEGER))
    bench.insert("rc changed", dict.fromkeys(["a", *names], 7))
    more = _renamed(typed_column(Datatype.DECIMAL), "add ed")
    with examined("render_add_column"):
        bench.engine.execute(bench.dialect.render_add_column(table, more))
        _require_row(bench, table, "add ed", None)
    with examined("render_rename_column"):
        for old, new in (("a", "group"), (names[1], "b"), ("b", names[1])):
            bench.engine.execute(bench.dialect.render_rename_column(SCHEMA, "rc changed", old, new))
        _require_row(bench, table, "group", 7)
    _examine_widening(bench, table, names[0])
    with examined("render_drop_column"):
        bench.engine.execute(bench.dialect.render_drop_column(table, "group"))
    with examined("render_rename_table"):
        bench.engine.execute(bench.dialect.render_rename_table(SCHEMA, "rc changed", "rc renamed"))
        bench.leftovers.append("rc renamed")
        require(bench.engine.introspect_table(SCHEMA, "rc changed") is None, "the old name is still there")
        _require_row(bench, bench.table("rc renamed"), names[0], 7)
        found = bench.engine.introspect_table(SCHEMA, "rc renamed") or {}
        require_equal(set(found), {*names, "add ed"}, of="the renamed table's columns")


def _examine_widening(bench: Bench, table: str, name: str) -> None:
    with examined("render_alter_column_type"):
        wide = ModelColumn(target_column_name=name, datatype=Datatype.BIGINT)
        stored = (bench.engine.introspect_table(SCHEMA, "rc changed") or {})[name]
        sql = bench.dialect.render_alter_column_type(table, wide, stored)
        if sql is None or not bench.dialect.supports_alter_column_type:
            return
        bench.engine.execute(sql)
        stored = (bench.engine.introspect_table(SCHEMA, "rc changed") or {})[name]
        found = ddl.logical_type(stored, bench.dialect)
        require_equal(found and found.datatype, Datatype.BIGINT, of=stored)
        _require_row(bench, table, name, 7)


def _renamed(column: ModelColumn, name: str) -> ModelColumn:
    return column.model_copy(update={"target_column_name": name, "nullable": True})


def _require_table(bench: Bench, name: str, expected: Mapping[str, Datatype]) -> None:
    with examined("introspect_table"):
        require(bench.engine.introspect_table(SCHEMA, "not there") is None, "a missing table is None")
        stored = bench.engine.introspect_table(SCHEMA, name) or {}
        found = {each: ddl.logical_type(type_, bench.dialect) for each, type_ in stored.items()}
        told = {each: column and column.datatype for each, column in found.items()}
        require_equal(told, dict(expected), of="the columns")


def _require_row(bench: Bench, table: str, column: str, expected: object) -> None:
    sql = f"SELECT {bench.dialect.render_identifier(column)} FROM {table}"
    require_equal(bench.engine.fetch_all(sql), [(expected,)], of=sql)
