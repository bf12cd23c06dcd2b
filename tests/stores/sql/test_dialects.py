"""Dialects: registration, lookup, quoting, and forms of statements (R44, R45)."""

import importlib.metadata

import pytest
from historizing import Place, dataset, document, load_of, model_of, second, versions

from backstory.dialects import (
    Dialect,
    DuckDB,
    Postgres,
    Spark,
    SqlServer,
    assert_dialect_conforms,
    dialect_names,
    get_dialect,
    register_dialect,
)
from backstory.doors.historize.hist_state import sync_hist
from backstory.doors.historize.load import prepare_load
from backstory.doors.historize.model import ModelColumn
from backstory.doors.historize.sql_target import base_steps
from backstory.errors import UsageError
from backstory.stores.sql import dialects
from backstory.stores.sql.columns import Datatype, instant_text
from backstory.stores.sql.duckdb_engine import open_duckdb
from backstory.strategies.scd2.statements import hist_steps


@pytest.fixture
def registered(monkeypatch):
    """Registrations for this test only, as after a start."""
    monkeypatch.setattr(dialects, "_registered", dict(dialects._registered))
    monkeypatch.setattr(dialects, "_searched", [])


class Quack(Dialect):
    """A foreign dialect, made only from the contract, which runs on DuckDB."""

    DIALECT_NAME = "quack"
    RESERVED_KEYWORDS = DuckDB.RESERVED_KEYWORDS

    def timestamp_literal(self, instant):
        return f"CAST('{instant_text(instant)}' AS TIMESTAMP)"

    def map_logical_type(self, datatype, max_length=None, precision=None, scale=None, *, strict=True):
        if datatype is Datatype.DECIMAL:
            return f"NUMERIC({precision},{scale})"
        return {
            Datatype.FLOAT: "DOUBLE",
            Datatype.BINARY: "BLOB",
            Datatype.STRING: "TEXT",
            Datatype.JSON: "TEXT",
        }.get(datatype, str(datatype))

    def canonical_text(self, sql, datatype, precision=None, scale=None):
        match datatype:
            case Datatype.DECIMAL:
                return f"({sql})::NUMERIC({precision},{scale})::TEXT"
            case Datatype.FLOAT:
                return f"({sql})::TEXT::NUMERIC({precision},{scale})::TEXT"
            case Datatype.TIMESTAMP:
                return f"strftime({sql}, '%Y-%m-%d %H:%M:%S.%f')"
            case Datatype.TIME:
                return f"strftime(DATE '1970-01-01' + {sql}, '%H:%M:%S.%f')"
            case Datatype.BINARY:
                return f"lower(to_hex({sql}))"
            case _:
                return f"({sql})::TEXT"

    def hash_expression(self, text_sql):
        return f"sha256({text_sql})"

    def render_alter_column_type(self, table, column, old_type):
        return None

    def get_execution_engine(self, url):
        return open_duckdb(url)


# Registration


def test_a_registered_dialect_conforms_and_keeps_a_history(registered, tmp_path):
    """R44: A dialect registered by the decorator passes the examination and keeps a history."""
    assert register_dialect(Quack) is Quack
    url = f"duckdb://{tmp_path / 'quack.duckdb'}"
    with open_duckdb(url) as engine:
        assert_dialect_conforms(get_dialect("quack"), engine)
    place = Place("quack", url, tmp_path).mode("four_step")
    place.base("a:1 b:1").load("r1", 1)
    assert place.base("a:2").load("r2", 2).status == "success"
    assert place.history() == versions("a 1 [1,2) changed r2 \n a 2 [2,-) changed r2 \n b 1 [1,2) deleted r2")
    place.close()


def test_a_missing_capability_is_an_error_when_planned(registered, tmp_path):
    """R44: A dialect without MERGE refuses `engine: merge` before anything runs."""
    register_dialect(Quack)
    place = Place("quack", "duckdb://", tmp_path).mode("merge")
    with pytest.raises(UsageError, match="has no MERGE"):
        place.loads("r1", 1, skip_base=True)
    assert place.rows("SELECT table_name FROM information_schema.tables") == []
    place.close()


def test_the_decorator_accepts_options(registered):
    """R44: `@register_dialect(replace=True)` is the other form."""

    @register_dialect(replace=True)
    class Other(DuckDB):
        supports_hist_merge = False

    assert type(get_dialect("duckdb")) is Other


def like(**changes):
    return type("Wrong", (Quack,), changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"DIALECT_NAME": ""}, "needs a DIALECT_NAME and RESERVED_KEYWORDS"),
        ({"RESERVED_KEYWORDS": frozenset()}, "needs a DIALECT_NAME and RESERVED_KEYWORDS"),
        ({"RESERVED_KEYWORDS": frozenset({"select"})}, "not in upper case"),
        ({"DIALECT_NAME": "duckdb"}, "the name 'duckdb' is taken"),
        ({"DIALECT_NAME": "spark"}, "the name 'spark' is taken"),
        (
            {"hash_expression": Dialect.hash_expression, "canonical_text": Dialect.canonical_text},
            "lacks canonical_text, hash_expression",
        ),
        ({"render_add_column": Dialect.render_drop_column}, "render_add_column takes arguments that differ"),
        (
            {"render_alter_column_type": Dialect.render_add_column},
            "render_alter_column_type takes arguments that differ",
        ),
        ({"string_literal": Dialect.quote_ident}, "string_literal takes arguments that differ"),
        ({"quote_ident": None}, "quote_ident takes arguments that differ"),
    ],
)
def test_dialects_that_break_the_contract_are_refused(registered, changes, message):
    """R44, D18: A missing or used name, a missing method and a wrong signature are refused."""
    before = dialect_names()
    with pytest.raises(UsageError, match=message) as refused:
        register_dialect(like(**changes))
    assert refused.value.code == "wrong-dialect"
    assert dialect_names() == before


def test_other_names_of_dialects_stay_reserved(registered):
    """H4: `spark` means `spark_iceberg`, even after a replacement."""
    with pytest.raises(UsageError, match="'spark' is taken"):
        register_dialect(like(DIALECT_NAME="spark"), replace=True)
    names = {"spark": Spark, "sqlserver": SqlServer, "mssql": SqlServer, "postgresql": Postgres}
    assert {name: type(get_dialect(name)) for name in names} == names


@pytest.mark.parametrize(
    ("name", "message"), [("oracle", "no dialect 'oracle'"), ("spark_delta", "Delta tables")]
)
def test_an_unknown_dialect_is_refused_with_the_available_names(name, message):
    """H4, 5.3: Every unknown name is refused, including Delta."""
    with pytest.raises(UsageError, match=message) as refused:
        get_dialect(name)
    assert "duckdb, mssql, postgres" in refused.value.remedy


PACKAGE = """
from backstory.dialects import DuckDB

class Packaged(DuckDB):
    DIALECT_NAME = "packaged"
"""


def install(folder, module, entry_points):
    """Create a distribution as pip installs it."""
    (folder / f"{module}.py").write_text(PACKAGE)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_dialects_of_installed_packages_are_loaded(registered, tmp_path, monkeypatch):
    """R44, 5.4: The entry points `backstory.dialects` are loaded once, at the first lookup."""
    install(tmp_path, "packaged_dialect", "[backstory.dialects]\npackaged = packaged_dialect:Packaged\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert [point.name for point in importlib.metadata.entry_points(group=dialects.GROUP)] == ["packaged"]
    assert "packaged" in dialect_names()
    assert type(get_dialect("packaged")).__name__ == "Packaged"
    assert_dialect_conforms(get_dialect("packaged"))


# Names

NAMES = {
    DuckDB: {"order": '"order"', "Select": '"Select"', "Upper": "Upper", 'a"b': '"a""b"', "1st": '"1st"'},
    Postgres: {"order": '"order"', "user": '"user"', "Upper": '"Upper"', 'a"b': '"a""b"', "1st": '"1st"'},
    Spark: {"order": "`order`", "Upper": "Upper", "a`b": "`a``b`", 'a"b': '`a"b`', "1st": "`1st`"},
    SqlServer: {"order": "[order]", "percent": "[percent]", "a]b": "[a]]b]", "a[b": "[a[b]", "1st": "[1st]"},
}


@pytest.mark.parametrize("dialect", NAMES)
def test_names_are_quoted_only_if_necessary(dialect):
    """R45: Reserved words, leading digits, special characters and folded upper case are quoted. Quotes are
    doubled."""
    identifiers = {name: dialect().render_identifier(name) for name in NAMES[dialect]}
    assert identifiers == NAMES[dialect]
    left, right = dialect.QUOTES
    for name in ("", "two words", "ä", "a-b", "a.b"):
        assert dialect().render_identifier(name) == f"{left}{name}{right}"
    assert dialect().render_identifier("customer_id") == "customer_id"
    assert dialect().render_table_identifier("s", "my table") == f"s.{left}my table{right}"
    assert dialect().render_table_identifier(None, "t_1") == "t_1"


LITERALS = {
    DuckDB: ("'a\\''b'", "TIMESTAMP '2025-01-02 00:00:01.500000'", "TRUE", "DATE '2025-01-02'"),
    Postgres: ("E'a\\\\''b'", "TIMESTAMPTZ '2025-01-02 00:00:01.500000+00'", "TRUE", "DATE '2025-01-02'"),
    Spark: ("'a\\\\\\'b'", "TIMESTAMP '2025-01-02 00:00:01.500000Z'", "TRUE", "DATE '2025-01-02'"),
    SqlServer: (
        "N'a\\''b'",
        "CAST('2025-01-02T00:00:01.500000' AS DATETIME2(6))",
        "1",
        "CAST('2025-01-02' AS DATE)",
    ),
}


@pytest.mark.parametrize("dialect", LITERALS)
def test_literals_are_written_as_each_dialect_requires(dialect):
    """R21, R32: Instants are in UTC with six digits. Quotes are doubled, and backslashes too if they escape."""
    made = ("a\\'b", second(1.5), True, second(0).date())
    assert tuple(dialect().render_literal(value) for value in made) == LITERALS[dialect]


# Keys


@pytest.mark.parametrize(
    ("dialect", "hashed"),
    [
        (DuckDB, "sha256("),
        (Postgres, "encode(sha256(convert_to("),
        (Spark, "sha2("),
        (SqlServer, "LOWER(CONVERT(VARCHAR(64), HASHBYTES('SHA2_256', CAST("),
    ],
)
def test_a17_a18_parts_of_a_key_are_hashed_in_the_order_of_names(dialect, hashed):
    """R5, A17, A18: The order of business keys does not matter. The pepper is last, and the hash is outside."""
    made = set()
    for columns in ("b* a*", "a* b*"):
        model = model_of(document(dataset(columns)))
        made.add(load_of(model, dialect()).base_key("s"))
    (sql,) = made
    assert sql.startswith(hashed)
    assert sql.index("a~") < sql.index("b~") < sql.index("{{ pepper }}")


# Statements of SQL Server and of the four steps, as text


def load(dialect, name="rc_aw_customer", columns="k* a"):
    model = model_of(document(dataset(columns, name)))
    (base,) = model.target_datasets
    return prepare_load(model, base, sync_hist(base, None, second(0)), dialect())


def test_a6_sql_server_updates_through_the_alias():
    """A6, R44: Closes and deletes name the alias first. Inserts and steps without MERGE have the common form."""
    steps = {
        step.step: step.sql for step in [*hist_steps(load(SqlServer).pair), *base_steps(load(SqlServer))]
    }
    for step in ("close_changed", "close_deleted"):
        assert steps[step].startswith("UPDATE h\n")
        assert "\nFROM rawcore.rc_aw_customer_hist h\n" in steps[step]
        assert "AS h" not in steps[step]
    assert steps["base_replace"].startswith("DELETE b\nFROM rawcore.rc_aw_customer b\nWHERE EXISTS (")
    assert "FROM rawcore.rc_aw_customer AS r\nWHERE EXISTS (SELECT 1 FROM" in steps["insert_changed"]


def test_sql_server_has_its_own_schema_statements():
    """4.5: ADD has no COLUMN, sp_rename takes names as texts, and NULL is repeated in a type change."""
    dialect = SqlServer()
    wide = ModelColumn(target_column_name="order", datatype=Datatype.STRING, max_length=20)
    statements = [
        dialect.render_add_column("s.t", wide),
        dialect.render_rename_column("s", "t", "a]b'", "c'd"),
        dialect.render_rename_table("s", "t", "u"),
        dialect.render_alter_column_type("s.t", wide, "nvarchar(10)"),
        dialect.render_alter_column_type("s.t", wide.model_copy(update={"nullable": False}), "nvarchar(10)"),
        dialect.render_create_schema_if_not_exists("meta"),
    ]
    assert statements == [
        "ALTER TABLE s.t ADD [order] NVARCHAR(20) NULL",
        "EXEC sp_rename N'[s].[t].[a]]b'']', N'c''d', 'COLUMN'",
        "EXEC sp_rename N'[s].[t]', N'u'",
        "ALTER TABLE s.t ALTER COLUMN [order] NVARCHAR(20) NULL",
        "ALTER TABLE s.t ALTER COLUMN [order] NVARCHAR(20) NOT NULL",
        "IF SCHEMA_ID(N'meta') IS NULL EXEC(N'CREATE SCHEMA [meta]')",
    ]


def test_a1_to_a5_the_four_steps_have_the_required_parts():
    """A1 to A5: The steps have aliases, NULL-safe comparisons, guards and the state, but no MERGE, and each
    column once."""
    steps = {step.step: step.sql for step in hist_steps(load(DuckDB).pair)}
    assert list(steps) == ["close_changed", "close_deleted", "insert_changed", "insert_new"]
    assert all("MERGE" not in sql and "TRUNCATE" not in sql.upper() for sql in steps.values())
    assert steps["close_changed"].startswith("UPDATE rawcore.rc_aw_customer_hist AS h\n")
    assert "version_state = 'changed'" in steps["close_changed"]
    assert "r.row_hash IS DISTINCT FROM h.row_hash" in steps["close_changed"]
    assert "version_state = 'deleted'" in steps["close_deleted"]
    assert "NOT EXISTS (SELECT 1 FROM rawcore.rc_aw_customer AS r" in steps["close_deleted"]
    changed = steps["insert_changed"]
    assert "FROM rawcore.rc_aw_customer AS r\nWHERE EXISTS (" in changed
    for part in ("h.version_ended_at = {{ load_timestamp }}", "h.version_state = 'changed'"):
        assert part in changed
    names, _, rest = steps["insert_new"].partition("\n)\nSELECT\n")
    columns = [line.strip(" ,") for line in names.splitlines()[1:]]
    values = [line.strip(" ,") for line in rest.partition("\nFROM ")[0].splitlines()]
    assert values[columns.index("version_state")] == "'new'"
    assert len(columns) == len(values) == len(set(columns))
    assert columns.count("row_hash") == 1


def test_a_dialect_without_an_engine_only_prints_sql():
    """H3: SQL Server's statements are written but not run."""
    with pytest.raises(UsageError, match="only prints SQL") as refused:
        SqlServer().get_execution_engine("mssql://server/db")
    assert "`sql=True`" in refused.value.remedy


@pytest.mark.parametrize(("dialect", "url"), [(DuckDB, "postgresql://x"), (Postgres, "duckdb:///x")])
def test_an_engine_refuses_addresses_of_other_databases(dialect, url):
    """An engine accepts only its own addresses."""
    with pytest.raises(UsageError):
        dialect().get_execution_engine(url)
