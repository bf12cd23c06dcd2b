"""The conformance examination of an SQL dialect: every statement is checked, and can be run (section 5.4)."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import sqlglot
from sqlglot import exp

from backstory.doors.historize.load import Load
from backstory.doors.historize.model import ColumnRole, ModelColumn, base_columns
from backstory.doors.historize.resolve import schema_of
from backstory.doors.historize.sql_target import base_steps
from backstory.stores.sql import ddl
from backstory.stores.sql.columns import Datatype, instant_text
from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.dialects import contract_fault
from backstory.stores.sql.engine import PLACEHOLDER, Engine, Statement, fill_placeholders
from backstory.strategies.scd2.statements import hist_merge, hist_steps
from backstory.strategies.scd2.transitions import BEGINNINGS, CLOSINGS
from backstory.testing.conformance_bench import (
    DAY,
    NASTY_NAMES,
    NASTY_TEXTS,
    PEPPER,
    SCHEMA,
    Bench,
    Hashes,
    bring_rows,
    dataset_of,
    examination,
    examine_hashes,
    examine_inequality,
    examine_literals,
    examine_types,
    fresh,
    history_of,
    require,
    require_equal,
    sample_model,
    steps_run,
    typed_column,
)


class _Stop(Exception):
    """An exception that rolls back a transaction."""


def examine_transactions(bench: Bench) -> None:
    """Examine locks, and the rollback of a failed transaction if the dialect supports it."""
    with examination("lock"):
        for _ in range(2):
            with bench.engine.lock(SCHEMA) as taken:
                require(taken is True, "a free lock is not granted")
    with examination("transaction"):
        table = bench.make("rc_taken_back", [ModelColumn(target_column_name="a", datatype=Datatype.BIGINT)])
        if not bench.dialect.supports_transactions:
            return
        with suppress(_Stop), bench.engine.transaction():
            bench.insert("rc_taken_back", {"a": 1})
            raise _Stop
        require_equal(
            bench.engine.execute_scalar(f"SELECT COUNT(*) FROM {table}"),
            0,
            of="the count of rows after a rollback",
        )


# Scenarios

Snapshot = Mapping[str, str]
# The loads, each with its scenario, run, second and content of the base. A value is the record's name.
LIFE: Sequence[tuple[str, str, int, Snapshot]] = (
    ("A23, the first load", "r1", 1, {"a": "1", "b": "1"}),
    ("A24, a change and a deletion", "r'2\\{{ load_timestamp }}", 2, {"a": "2"}),
    ("A26, the same run again", "r'2\\{{ load_timestamp }}", 2, {"a": "2"}),
    ("A25, a key that returns", "r3", 3, {"a": "2", "b": "1"}),
    ("a load that changes nothing", "r4", 4, {"a": "2", "b": "1"}),
    ("everything at once", "r5", 5, {"b": "2", "c": "1"}),
    ("everything returns", "r6", 6, {"a": "2", "b": "2", "c": "2"}),
)


# The history after all loads: a record and its name, the second and the state of the version's begin, and of
# its end.
VERSIONS: Sequence[tuple[str, str, int, str, int | None, str]] = (
    ("a", "1", 1, "new", 2, "changed"),
    ("b", "1", 1, "new", 2, "deleted"),
    ("a", "2", 2, "changed", 5, "deleted"),
    ("b", "1", 3, "new", 5, "changed"),
    ("b", "2", 5, "changed", None, ""),
    ("c", "1", 5, "new", 6, "changed"),
    ("a", "2", 6, "new", None, ""),
    ("c", "2", 6, "changed", None, ""),
)
RUNS: Mapping[int, str] = {second: run for _, run, second, _ in LIFE}


def examine_scenarios(bench: Bench) -> None:
    """Run all scenarios with the four steps, and with the MERGE if the dialect supports it."""
    ways = [False, True] if bench.dialect.supports_hist_merge else [False]
    for merges in ways:
        way = "MERGE" if merges else "four steps"
        life = _Life.begun(bench, merges=merges)
        for scenario, _, second, snapshot in LIFE:
            life.load(f"{scenario}, {way}", second, snapshot)
        for steps in range(1, 4):
            life = _Life.begun(bench, merges=merges)
            life.load(LIFE[0][0], *LIFE[0][2:])
            life.interrupt(f"A27, stopped after step {steps}, {way}", steps)


@dataclass
class _Life:
    """A history in the database, and the second of its last load."""

    bench: Bench
    full: Load
    second: int = 0

    @classmethod
    def begun(cls, bench: Bench, *, merges: bool) -> "_Life":
        model = sample_model()
        return cls(bench, fresh(bench, model, dataset_of(model, "rc_c"), merges=merges))

    def load(self, scenario: str, second: int, snapshot: Snapshot) -> None:
        """Load a snapshot. Compare the table with the expected versions, and the counts of rows."""
        load = self._load_of(second, snapshot)
        steps = [hist_merge(load.pair)] if load.merges else hist_steps(load.pair)
        counts = steps_run(self.bench, steps, RUNS[second], _instant(second))
        self._compare(scenario, second)
        if not load.merges:
            begun = Counter(f"insert_{state}" for _, _, begin, state, *_ in VERSIONS if begin == second)
            ended = Counter(f"close_{state}" for *_, end, state in VERSIONS if end == second)
            repeats = second == self.second
            with examination(scenario):
                expected = {step.step: 0 if repeats else (begun + ended)[step.step] for step in steps}
                require_equal(counts, expected, of="the count of rows that each step touched")
        self.second = second

    def interrupt(self, scenario: str, steps: int) -> None:
        """Start the load of scenario A24, stop after some steps, and run it again with the same timestamp."""
        _, run, second, snapshot = LIFE[1]
        load, started = self._load_of(second, snapshot), _instant(second)
        steps_run(self.bench, hist_steps(load.pair)[:steps], run, started)
        again = [hist_merge(load.pair)] if load.merges else hist_steps(load.pair)
        steps_run(self.bench, again, run, started)
        self._compare(scenario, second)

    def _load_of(self, second: int, snapshot: Snapshot) -> Load:
        rows = [_values(key, name) for key, name in snapshot.items()]
        return bring_rows(self.bench, self.full, rows, RUNS[second], _instant(second))

    def _compare(self, scenario: str, second: int) -> None:
        dataset = self.full.dataset
        hashes = Hashes(schema_of(self.full.model, dataset), PEPPER)
        expected = []
        for record, name, begin, begun_as, last, ended_as in VERSIONS:
            end = last if last and last <= second else None
            values, started = _values(record, name), _instant(begin)
            key = hashes.base_key(dataset, values)
            version = {
                dataset.hist_key: hashes.hist_key(dataset, key, started),
                dataset.key: key,
                **values,
                ColumnRole.ROW_HASH: hashes.row_hash(dataset, values),
                ColumnRole.STARTED: instant_text(started),
                ColumnRole.ENDED: end and instant_text(_instant(end)),
                ColumnRole.STATE: ended_as if end else begun_as,
                ColumnRole.LOAD_RUN_ID: RUNS[end or begin],
                ColumnRole.LOADED_AT: instant_text(started),
            }
            expected += [version] if begin <= second else []
        with examination(scenario):
            stored = self.bench.texts(self.full.hist_table, self.full.hist.target_columns)
            ordered = sorted(expected, key=lambda row: str(row[dataset.hist_key]))
            require_equal(stored, ordered, of="the history")


def _instant(second: int) -> datetime:
    return DAY + timedelta(seconds=second)


def _values(record: str, name: str) -> dict[str, Any]:
    return {"cust_id": record, "name": name, "city": None}


def run_examination(dialect: Dialect, engine: Engine) -> None:
    """Run the dialect's statements. Raises an AssertionError with the method or scenario that fails."""
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
    """Examine each schema change, and the database's description of the table after it."""
    names = [name for name in NASTY_NAMES if name]
    columns = [ModelColumn(target_column_name="a", datatype=Datatype.INTEGER, nullable=False)]
    columns += [_rename_column(columns[0], name) for name in names]
    for name in ("rc renamed", "rc changed"):
        bench.drop(name)
    table = bench.make("rc changed", columns)
    _require_table(bench, "rc changed", dict.fromkeys(["a", *names], Datatype.INTEGER))
    bench.insert("rc changed", dict.fromkeys(["a", *names], 7))
    more = _rename_column(typed_column(Datatype.DECIMAL), "add ed")
    with examination("render_add_column"):
        bench.engine.execute(bench.dialect.render_add_column(table, more))
        _require_row(bench, table, "add ed", None)
    with examination("render_rename_column"):
        for old, new in (("a", "group"), (names[1], "b"), ("b", names[1])):
            bench.engine.execute(bench.dialect.render_rename_column(SCHEMA, "rc changed", old, new))
        _require_row(bench, table, "group", 7)
    _examine_widening(bench, table, names[0])
    with examination("render_drop_column"):
        bench.engine.execute(bench.dialect.render_drop_column(table, "group"))
    with examination("render_rename_table"):
        bench.engine.execute(bench.dialect.render_rename_table(SCHEMA, "rc changed", "rc renamed"))
        bench.leftovers.append("rc renamed")
        require(bench.engine.introspect_table(SCHEMA, "rc changed") is None, "the old name still exists")
        _require_row(bench, bench.table("rc renamed"), names[0], 7)
        renamed = bench.engine.introspect_table(SCHEMA, "rc renamed") or {}
        require_equal(set(renamed), {*names, "add ed"}, of="the renamed table's columns")


def _examine_widening(bench: Bench, table: str, name: str) -> None:
    with examination("render_alter_column_type"):
        wide = ModelColumn(target_column_name=name, datatype=Datatype.BIGINT)
        stored = (bench.engine.introspect_table(SCHEMA, "rc changed") or {})[name]
        sql = bench.dialect.render_alter_column_type(table, wide, stored)
        if sql is None or not bench.dialect.supports_alter_column_type:
            return
        bench.engine.execute(sql)
        stored = (bench.engine.introspect_table(SCHEMA, "rc changed") or {})[name]
        column = ddl.logical_type(stored, bench.dialect)
        require_equal(column and column.datatype, Datatype.BIGINT, of=stored)
        _require_row(bench, table, name, 7)


def _rename_column(column: ModelColumn, name: str) -> ModelColumn:
    return column.model_copy(update={"target_column_name": name, "nullable": True})


def _require_table(bench: Bench, name: str, expected: Mapping[str, Datatype]) -> None:
    with examination("introspect_table"):
        require(bench.engine.introspect_table(SCHEMA, "not there") is None, "a missing table must be None")
        stored = bench.engine.introspect_table(SCHEMA, name) or {}
        types = {column: ddl.logical_type(type_, bench.dialect) for column, type_ in stored.items()}
        datatypes = {column: type_ and type_.datatype for column, type_ in types.items()}
        require_equal(datatypes, dict(expected), of="the columns")


def _require_row(bench: Bench, table: str, column: str, expected: object) -> None:
    sql = f"SELECT {bench.dialect.render_identifier(column)} FROM {table}"
    require_equal(bench.engine.fetch_all(sql), [(expected,)], of=sql)


CLOSE = frozenset({"load_timestamp", "load_run_id"})
INSERT = CLOSE | {"load_timestamp_text", "pepper"}
# The placeholders of each statement.
KEPT = {
    "base_delete": CLOSE | {"pepper"},
    "base_replace": CLOSE | {"pepper"},
    "base_insert": CLOSE | {"pepper"},
    **dict.fromkeys(CLOSINGS, CLOSE),
    **dict.fromkeys(BEGINNINGS, INSERT),
    "merge": INSERT,
}
# Strings that Python writes if a value is missing when a string is formatted.
PYTHON = re.compile(r"\bNone\b|\bEllipsis\b|\bNotImplemented\b|<[\w. ]+ object|\b(?:Datatype|Role)\.|[{}]")
INSTANT = datetime(2025, 1, 2, 3, 4, 5, 600000, tzinfo=UTC)


def assert_dialect_conforms(dialect: Dialect, engine: Engine | None = None) -> None:
    """Examine a dialect.

    Raises an AssertionError with the method or scenario that fails. Without an engine, the statements for a
    sample model are written and their form is checked. The SQL of a dialect with a SQLGLOT_NAME is also
    parsed. With an engine, the statements are run: the golden vectors, literals, the four steps, the MERGE,
    and schema changes. The run creates and drops the schema `backstory_conformance`.
    """
    with examination("register_dialect"):
        require(contract_fault(type(dialect)) is None, contract_fault(type(dialect)))
    _examine_names(dialect)
    _examine_literals(dialect)
    _examine_types(dialect)
    _examine_expressions(dialect)
    for profile in ("elevata_v1", "strict_v2"):
        for statement in _statements(dialect, profile):
            with examination(f"{statement.step} ({profile})"):
                _require_shape(dialect, statement.sql, KEPT[statement.step])
                _require_aligned(dialect, statement.sql)
    _examine_schema_changes(dialect)
    if engine is not None:
        run_examination(dialect, engine)


# Names, literals, types, expressions


def _examine_names(dialect: Dialect) -> None:
    with examination("quote_ident"):
        quoted = {name: dialect.quote_ident(name) for name in NASTY_NAMES}
        require(len(set(quoted.values())) == len(quoted), "two names have the same SQL")
        for name, sql in quoted.items():
            if dialect.SQLGLOT_NAME and name:
                parsed = sqlglot.parse_one(f"SELECT {sql}", read=dialect.SQLGLOT_NAME).find(exp.Identifier)
                require_equal((parsed and parsed.name, parsed and parsed.quoted), (name, True), of=sql)
    with examination("should_quote"):
        plain = ("customer_id", "_x", "rc_c_hist_key")
        require_equal([name for name in plain if dialect.should_quote(name)], [], of=plain)
        words = (*sorted(dialect.RESERVED_KEYWORDS), "select", "1st", "two words", "")
        missed = [word for word in words if not dialect.should_quote(word)]
        missed += [word for word in words if not dialect.should_quote(word.lower())]
        require_equal(missed, [], of="words that must be quoted")
    with examination("render_identifier"):
        require_equal(dialect.render_identifier("select"), dialect.quote_ident("select"), of="select")
        require_equal(dialect.render_identifier("name_"), "name_", of="name_")
    with examination("render_table_identifier"):
        require_equal(dialect.render_table_identifier(None, "t_"), "t_", of="a table without schema")
        both = dialect.render_table_identifier("two words", "select")
        parts = [dialect.quote_ident(part) for part in ("two words", "select")]
        require_equal(both, ".".join(parts), of="a table")


def _examine_literals(dialect: Dialect) -> None:
    with examination("string_literal"):
        for text in NASTY_TEXTS:
            sql = dialect.string_literal(text)
            require_equal(dialect.render_literal(text), sql, of=f"render_literal({text!r})")
            if dialect.SQLGLOT_NAME:
                parsed = sqlglot.parse_one(sql, read=dialect.SQLGLOT_NAME)
                require_equal(parsed.this, text, of=sql)
    with examination("timestamp_literal"):
        east = INSTANT.astimezone(timezone(timedelta(hours=5, minutes=30)))
        sql = dialect.timestamp_literal(INSTANT)
        require_equal(dialect.timestamp_literal(east), sql, of="the same instant in another zone")
        require(re.search(r"2025-01-02.03:04:05\.600000", sql), f"{sql} is not UTC with six digits")
        first = dialect.timestamp_literal(datetime(1, 1, 1, tzinfo=UTC))
        require("0001-01-01" in first, f"{first} has a year of less than four digits")
    with examination("render_literal"):
        values = (None, True, -1, 1.5, Decimal("-0.10"), date(2025, 1, 2), INSTANT)
        for value in values:
            sql = dialect.render_literal(value)
            _require_shape(dialect, f"SELECT {sql}", frozenset())
        require_equal(dialect.render_literal(INSTANT), dialect.timestamp_literal(INSTANT), of="an instant")
        for wrong in (INSTANT.replace(tzinfo=None), object()):
            require(_refuses(dialect, wrong), f"{wrong!r} is not refused with ValueError")


def _refuses(dialect: Dialect, value: object) -> bool:
    try:
        dialect.render_literal(value)
    except ValueError:
        return True
    return False


def _columns() -> list[ModelColumn]:
    return base_columns(dataset_of(sample_model(), "rc_types"))


def _examine_types(dialect: Dialect) -> None:
    for datatype in Datatype:
        with examination(f"map_logical_type of {datatype}"):
            for strict in (True, False):
                type_ = dialect.map_logical_type(datatype, 10, 20, 6, strict=strict)
                require(type_, "it returns nothing")
                _require_shape(dialect, f"SELECT {dialect.cast_expression('NULL', type_)}", frozenset())


def _examine_expressions(dialect: Dialect) -> None:
    for datatype in Datatype:
        with examination(f"canonical_text of {datatype}"):
            sql = dialect.canonical_text("s.operand", datatype, 20, 6)
            require("s.operand" in sql, f"{sql} does not mention its operand")
            _require_shape(dialect, f"SELECT {sql} FROM x AS s", frozenset())
    written = {
        "hash_expression": (dialect.hash_expression("s.a"), ["s.a"]),
        "concat_expression": (dialect.concat_expression(["s.a", "s.b", "s.c"]), ["s.a", "s.b", "s.c"]),
        "current_instant": (dialect.current_instant(), []),
    }
    for method, (sql, operands) in written.items():
        with examination(method):
            require(all(operand in sql for operand in operands), f"{sql} lacks an operand")
            _require_shape(dialect, f"SELECT {sql} FROM x AS s", frozenset())
    with examination("null_safe_ne"):
        sql = dialect.null_safe_ne("s.a", "s.b")
        require("s.a" in sql and "s.b" in sql, f"{sql} lacks an operand")
        _require_shape(dialect, f"SELECT 1 FROM x AS s WHERE {sql}", frozenset())


# Statements


def _statements(dialect: Dialect, profile: str) -> Iterator[Statement]:
    """Every statement for a load into the table with columns of all types."""
    model = sample_model(profile)
    dataset = dataset_of(model, "rc_types")
    load = Load(dialect, model, dataset, history_of(dataset), stage="stage_")
    with examination("base_steps"):
        yield from base_steps(load)
    with examination("hist_steps"):
        yield from hist_steps(load.pair)
    if dialect.supports_hist_merge:
        with examination("render_hist_merge_statement"):
            yield hist_merge(load.pair)


def _examine_schema_changes(dialect: Dialect) -> None:
    table = dialect.render_table_identifier(SCHEMA, "select")
    column = ModelColumn(target_column_name="order", datatype=Datatype.BIGINT)
    written = {
        "render_create_schema_if_not_exists": dialect.render_create_schema_if_not_exists(SCHEMA),
        "render_create_table_if_not_exists_from_columns": (
            dialect.render_create_table_if_not_exists_from_columns(table, _columns())
        ),
        "render_add_column": dialect.render_add_column(table, column),
        "render_rename_column": dialect.render_rename_column(SCHEMA, "select", "from", "order"),
        "render_rename_table": dialect.render_rename_table(SCHEMA, "select", "from"),
        "render_drop_column": dialect.render_drop_column(table, "order"),
        "render_alter_column_type": dialect.render_alter_column_type(table, column, "INTEGER"),
    }
    for method, sql in written.items():
        with examination(method):
            if sql is None and method == "render_alter_column_type":
                continue
            require(sql, "it returns nothing")
            assert sql is not None
            _require_shape(dialect, sql, frozenset())
    with examination("render_create_table_if_not_exists_from_columns"):
        sql = written["render_create_table_if_not_exists_from_columns"] or ""
        missing = [part.name for part in _columns() if dialect.render_identifier(part.name) not in sql]
        require_equal(missing, [], of="the missing columns")


# Form of statements


def _require_shape(dialect: Dialect, sql: str, placeholders: frozenset[str]) -> None:
    """Require one complete statement that has these placeholders and no leftovers of Python's formatting."""
    require(isinstance(sql, str) and sql.strip(), "it returns nothing")
    used = frozenset(PLACEHOLDER.findall(sql))
    require_equal(used, placeholders, of="the placeholders")
    bare = _bare(dialect, PLACEHOLDER.sub("0", sql))
    require(bare.count("(") == bare.count(")"), f"parentheses are left open in {sql}")
    require(not re.search(r"['\"`]", bare), f"quotes are left open in {sql}")
    require(not bare.rstrip().endswith(";"), "a statement has no semicolon at its end")
    leftover = PYTHON.search(bare)
    require(leftover is None, f"{leftover and leftover[0]} is left in {sql}")
    if dialect.SQLGLOT_NAME:
        require_equal(len(_parse_literals(dialect, sql)), 1, of="the count of statements")


def _bare(dialect: Dialect, sql: str) -> str:
    """The statement without its string literals and quoted names."""
    left, right = (re.escape(mark) for mark in dialect.QUOTES)
    text = r"'(?:[^'\\]|''|\\.)*'"
    return re.sub(rf"{text}|{left}(?:(?!{right}).|{right}{right})*{right}", " ", sql, flags=re.DOTALL)


def _parse_literals(dialect: Dialect, sql: str) -> list[Any]:
    """The statements as sqlglot parses them, with a literal for each placeholder."""
    values = dict.fromkeys(PLACEHOLDER.findall(sql), "'x'")
    parsed = sqlglot.parse(fill_placeholders(sql, values), read=dialect.SQLGLOT_NAME)
    return [statement for statement in parsed if statement]


def _require_aligned(dialect: Dialect, sql: str) -> None:
    """Require that an INSERT names each column once, and has a value for each column."""
    if not dialect.SQLGLOT_NAME:
        return
    for insert in _parse_literals(dialect, sql)[0].find_all(exp.Insert):
        columns = [column.name for column in insert.this.expressions]
        body = insert.expression
        values = body.selects if isinstance(body, exp.Select) else body.expressions
        require(columns, "an INSERT names no columns")
        require_equal(len(set(columns)), len(columns), of="the count of different columns")
        require_equal(len(values), len(columns), of="the count of values")
