"""The examination of dialects: ours pass, and each fault is found and named (section 5.4, R44)."""

import contextlib
import inspect
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from backstory.dialects import DuckDB, Postgres, Spark, SqlServer, assert_dialect_conforms
from backstory.stores.sql.columns import Datatype
from backstory.testing.conformance_bench import SCHEMA

pytestmark = pytest.mark.database
SCHEMAS = "SELECT schema_name FROM information_schema.schemata WHERE schema_name NOT LIKE 'pg%' ORDER BY 1"


@pytest.mark.parametrize("dialect", [DuckDB, Postgres, Spark, SqlServer])
def test_our_dialects_render_conforming_statements(dialect):
    """R44, R11: Every statement is complete and parsed, with aligned lists and placeholders."""
    assert_dialect_conforms(dialect())


@pytest.mark.parametrize("dialect", [DuckDB, Postgres])
def test_our_databases_conform(dialect, request):
    """R4, R14 to R18, R22, A23 to A27, A31: Vectors, literals, scenarios and schema changes hold, and nothing
    of the examination is left."""
    url = request.getfixturevalue(f"{dialect.DIALECT_NAME}_url")
    with dialect().get_execution_engine(url) as engine:
        before = engine.fetch_all(SCHEMAS)
        assert_dialect_conforms(dialect(), engine)
        after = engine.fetch_all(SCHEMAS)
    assert before == after
    assert (SCHEMA,) not in after


def test_an_examination_runs_after_an_interrupted_examination(duckdb_url):
    """A schema that was left behind is reused."""
    with DuckDB().get_execution_engine(duckdb_url) as engine:
        engine.execute(f"CREATE SCHEMA {SCHEMA}")
        engine.execute(f"CREATE TABLE {SCHEMA}.rc_c (wrong INT)")
        assert_dialect_conforms(DuckDB(), engine)


def test_the_examination_needs_no_pytest_and_no_asserts():
    """Any test tool may call it, including under `python -O`."""
    code = (
        "import sys\n"
        "from backstory.dialects import DuckDB, assert_dialect_conforms\n"
        "class Wrong(DuckDB):\n"
        "    def null_safe_ne(self, a, b): return 'nothing'\n"
        "assert_dialect_conforms(DuckDB())\n"
        "try: assert_dialect_conforms(Wrong())\n"
        "except AssertionError as told: print(told)\n"
        "print('pytest' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["null_safe_ne: nothing lacks an operand", "False"]


def wrong(method, change, base=DuckDB):
    """A dialect with one method that differs from ours."""

    def changed(self, *arguments, **more):
        return change(getattr(base, method)(self, *arguments, **more))

    changed.__signature__ = inspect.signature(getattr(base, method))
    return type("Wrong", (base,), {method: changed})()


IN_WRITING = {
    "quote_ident": lambda sql: f'"{sql[1:-1].replace(chr(34) * 2, chr(34))}"',
    "string_literal": lambda sql: f"'{sql[1:-1].replace(chr(39) * 2, chr(39))}'",
    "timestamp_literal": lambda sql: sql.replace(".600000", ""),
    "render_literal": lambda sql: "None" if sql == "NULL" else sql,
    "should_quote": lambda _: False,
    "render_identifier": lambda sql: sql.strip('"'),
    "render_table_identifier": lambda sql: sql.rpartition(".")[2],
    "map_logical_type": lambda _: "",
    "canonical_text": lambda _: "'x'",
    "hash_expression": lambda sql: f"{sql})",
    "concat_expression": lambda sql: sql.replace("s.c", "'"),
    "current_instant": lambda _: "None",
    "null_safe_ne": lambda sql: sql.replace("s.b", "s.a"),
    "render_create_schema_if_not_exists": lambda sql: sql + ";",
    "render_create_table_if_not_exists_from_columns": lambda sql: sql.replace('"uuid" UUID,', ""),
    "render_add_column": lambda _: None,
    "render_rename_column": lambda sql: sql + '"',
    "render_rename_table": lambda sql: sql + "; " + sql,
    "render_drop_column": lambda sql: sql + " {name}",
    "render_alter_column_type": lambda _: "",
}
STATEMENTS = {
    "close_changed": ("render_update_exists", lambda sql: sql.replace("{{ load_run_id }}", "'r1'")),
    "base_insert": ("render_insert_select_guarded", lambda sql: sql.replace("s.row_hash,", "")),
    "insert_changed": (
        "render_insert_select_guarded",
        lambda sql: sql.replace("{{ load_timestamp_text }}", "'x'"),
    ),
    "merge": ("render_hist_merge_statement", lambda sql: sql.replace("s.rc_types_key,", "", 1)),
    "base_delete": ("render_delete_detection_statement", lambda sql: f"{sql} AND <object object>"),
}


@pytest.mark.parametrize("method", IN_WRITING)
def test_a_fault_in_a_rendered_text_names_its_method(method):
    """Each method of the contract is examined, and the error names the faulty one."""
    with pytest.raises(AssertionError, match=f"^{method}"):
        assert_dialect_conforms(wrong(method, IN_WRITING[method]))


@pytest.mark.parametrize("step", STATEMENTS)
def test_a_fault_of_a_statement_is_named_by_its_step(step):
    """A lost placeholder, a misaligned list and an incomplete merge are found."""
    with pytest.raises(AssertionError, match=rf"^{step} \("):
        assert_dialect_conforms(wrong(*STATEMENTS[step]))


def test_a_wrong_method_signature_is_named():
    """R44: A method with other parameters is a fault, although Python would allow it."""
    kind = type("Wrong", (DuckDB,), {"render_drop_column": lambda _, table: f"ALTER TABLE {table}"})
    with pytest.raises(
        AssertionError, match=r"^register_dialect: render_drop_column takes arguments that differ"
    ):
        assert_dialect_conforms(kind())


def canonical(datatype, change):
    """DuckDB with another canonical text for one type."""

    class Wrong(DuckDB):
        def canonical_text(self, sql, datatype_, precision=None, scale=None):
            right = super().canonical_text(sql, datatype_, precision, scale)
            return change(sql, right) if datatype_ is datatype else right

    Wrong.canonical_text.__signature__ = inspect.signature(DuckDB.canonical_text)
    return Wrong()


@pytest.mark.parametrize(
    ("datatype", "change"),
    [
        (Datatype.STRING, lambda sql, _: f"trim(CAST({sql} AS VARCHAR))"),
        (Datatype.INTEGER, lambda sql, _: f"CAST(abs(CAST({sql} AS BIGINT)) AS VARCHAR)"),
        (Datatype.BIGINT, lambda sql, _: f"CAST(CAST({sql} AS DOUBLE) AS VARCHAR)"),
        (Datatype.DECIMAL, lambda sql, _: f"CAST(CAST({sql} AS DECIMAL(38,10)) AS VARCHAR)"),
        (Datatype.FLOAT, lambda sql, _: f"CAST({sql} AS VARCHAR)"),
        (Datatype.BOOLEAN, lambda sql, _: f"upper(CAST({sql} AS VARCHAR))"),
        (Datatype.DATE, lambda sql, _: f"strftime({sql}, '%d.%m.%Y')"),
        (Datatype.TIME, lambda sql, _: f"CAST({sql} AS VARCHAR)"),
        (Datatype.TIMESTAMP, lambda sql, _: f"CAST({sql} AS VARCHAR)"),
        (Datatype.BINARY, lambda sql, _: f"hex({sql})"),
        (Datatype.UUID, lambda sql, _: f"upper(CAST({sql} AS VARCHAR))"),
        (Datatype.JSON, lambda sql, _: f"replace(CAST({sql} AS VARCHAR), ' ', '')"),
    ],
)
def test_every_canonical_text_is_compared_with_the_reference(datatype, change):
    """R4: The error names the type that a database prints differently."""
    with (
        DuckDB().get_execution_engine("duckdb://") as engine,
        pytest.raises(
            AssertionError, match=rf"^(canonical_text of {datatype}|render_literal|golden vector)\b"
        ),
    ):
        assert_dialect_conforms(canonical(datatype, change), engine)


@pytest.mark.parametrize(
    ("method", "change", "pattern"),
    [
        ("hash_expression", lambda sql: f"upper({sql})", "golden vector"),
        ("hash_expression", lambda sql: sql.replace("sha256", "md5"), "golden vector"),
        ("null_safe_ne", lambda sql: sql.replace("IS DISTINCT FROM", "<>"), "^null_safe_ne"),
        ("string_literal", lambda sql: sql.replace("\\", "\\\\"), "^string_literal"),
        ("timestamp_literal", lambda sql: sql.replace("9999-", "9998-"), "^render_literal"),
        ("render_delete_detection_statement", lambda sql: f"{sql} AND 1 = 0", "^A24"),
        ("render_delete_detection_statement", lambda sql: sql.replace("NOT EXISTS", "EXISTS"), "^A2"),
        (
            "render_hist_merge_statement",
            lambda sql: sql.replace("UPDATE SET", "UPDATE SET city = 'x',"),
            "^A24, .* MERGE",
        ),
        (
            "render_hist_merge_statement",
            lambda sql: sql.replace("t.version_ended_at IS NULL", "1 = 0"),
            "^merge|MERGE",
        ),
        ("render_add_column", lambda sql: f"{sql} DEFAULT 1", "^render_add_column"),
        (
            "render_rename_table",
            lambda sql: sql.partition(" RENAME")[0] + " RENAME TO other",
            "^render_rename_table",
        ),
        (
            "render_alter_column_type",
            lambda sql: sql.replace("BIGINT", "VARCHAR"),
            "^render_alter_column_type",
        ),
    ],
)
def test_a_fault_visible_only_in_a_database_is_named(method, change, pattern):
    """Hashes, NULLs, backslashes, conditions and table changes can only be checked in a database."""
    with DuckDB().get_execution_engine("duckdb://") as engine, pytest.raises(AssertionError, match=pattern):
        assert_dialect_conforms(wrong(method, change), engine)


class Guardless(DuckDB):
    """A dialect that inserts even if a version is open."""

    def render_insert_select_guarded(
        self, target: str, columns: Sequence[str], select: Sequence[str], source: str, alias: str, where: str
    ) -> str:
        condition = where.partition(" AND NOT EXISTS")[0]
        return super().render_insert_select_guarded(target, columns, select, source, alias, condition)


class Closing(DuckDB):
    """A dialect that closes every open version."""

    def render_update_exists(
        self, target: str, alias: str, assignments: Mapping[str, str], where: str
    ) -> str:
        return super().render_update_exists(target, alias, assignments, where.partition("\n  AND ")[0])


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [(Guardless, r"^A26, the same run again, four steps"), (Closing, r"^A24, .*, four steps")],
)
def test_a_step_that_does_too_much_fails_its_scenario(kind, pattern):
    """D7 to D9: Scenarios reveal missing guards."""
    with DuckDB().get_execution_engine("duckdb://") as engine, pytest.raises(AssertionError, match=pattern):
        assert_dialect_conforms(kind(), engine)


def test_an_engine_without_rollback_is_found(monkeypatch):
    """R19: A dialect that declares transactions must support rollback."""
    with DuckDB().get_execution_engine("duckdb://") as engine:
        monkeypatch.setattr(engine, "transaction", contextlib.nullcontext)
        with pytest.raises(AssertionError, match=r"^transaction"):
            assert_dialect_conforms(DuckDB(), engine)


def test_an_engine_without_locks_is_found(monkeypatch):
    """R31: Without locks, no load could run."""
    with DuckDB().get_execution_engine("duckdb://") as engine:
        monkeypatch.setattr(engine, "lock", lambda _: contextlib.nullcontext(False))
        with pytest.raises(AssertionError, match=r"^lock"):
            assert_dialect_conforms(DuckDB(), engine)
