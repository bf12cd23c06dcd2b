"""The registry of dialects: built-in, registered, and from packages (section 5.4)."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, ClassVar, TypeVar, overload

from backstory.errors import UsageError
from backstory.stores.sql.columns import Datatype, SqlColumn, instant_text
from backstory.stores.sql.dialect import BOOLEAN_TEXT, Dialect, TemplateDialect, keywords

if TYPE_CHECKING:
    from backstory.stores.sql.engine import Engine

_DECIMAL = "DECIMAL({precision},{scale})"
# The types of DuckDB, PostgreSQL, Spark and SQL Server. In DuckDB, a history's times are in UTC, in a type
# without a zone, which has the same meaning in every session. PostgreSQL's json keeps the text, unlike jsonb.
_TYPES: Mapping[Datatype, tuple[str, str, str, str]] = {
    Datatype.STRING: ("VARCHAR", "TEXT", "STRING", "NVARCHAR(MAX)"),
    Datatype.INTEGER: ("INTEGER", "INTEGER", "INT", "INT"),
    Datatype.BIGINT: ("BIGINT", "BIGINT", "BIGINT", "BIGINT"),
    Datatype.DECIMAL: (_DECIMAL, "NUMERIC({precision},{scale})", _DECIMAL, _DECIMAL),
    Datatype.FLOAT: ("DOUBLE", "DOUBLE PRECISION", "DOUBLE", "FLOAT"),
    Datatype.BOOLEAN: ("BOOLEAN", "BOOLEAN", "BOOLEAN", "BIT"),
    Datatype.DATE: ("DATE", "DATE", "DATE", "DATE"),
    Datatype.TIME: ("TIME", "TIME", "STRING", "TIME(6)"),
    Datatype.TIMESTAMP: ("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP", "DATETIME2(6)"),
    Datatype.BINARY: ("BLOB", "BYTEA", "BINARY", "VARBINARY(MAX)"),
    Datatype.UUID: ("UUID", "UUID", "STRING", "UNIQUEIDENTIFIER"),
    Datatype.JSON: ("VARCHAR", "JSON", "STRING", "NVARCHAR(MAX)"),
}
_DUCKDB_TYPES, _POSTGRES_TYPES, _SPARK_TYPES, _SQLSERVER_TYPES = (
    {datatype: types[place] for datatype, types in _TYPES.items()} for place in range(4)
)
# A day and a time add up to the next day if the time is 24:00:00.
_END_OF_DAY = "CASE WHEN {{sql}} = TIME '24:00:00' THEN '24:00:00.000000' ELSE {} END"
_DUCKDB_TEXTS = {
    Datatype.DECIMAL: "CAST(CAST({sql} AS DECIMAL({precision},{scale})) AS VARCHAR)",
    Datatype.FLOAT: "CAST(CAST(CAST({sql} AS VARCHAR) AS DECIMAL({precision},{scale})) AS VARCHAR)",
    Datatype.BOOLEAN: BOOLEAN_TEXT,
    Datatype.DATE: "strftime({sql}, '%Y-%m-%d')",
    Datatype.TIME: _END_OF_DAY.format("strftime(DATE '1970-01-01' + {sql}, '%H:%M:%S.%f')"),
    Datatype.TIMESTAMP: "strftime({sql}, '%Y-%m-%d %H:%M:%S.%f')",
    Datatype.BINARY: "lower(hex({sql}))",
    Datatype.UUID: "lower(CAST({sql} AS VARCHAR))",
}


class DuckDB(TemplateDialect):
    """DuckDB, which runs in this process."""

    DIALECT_NAME: ClassVar[str] = "duckdb"
    RESERVED_KEYWORDS: ClassVar[frozenset[str]] = keywords("duckdb")
    SQLGLOT_NAME: ClassVar[str] = "duckdb"
    TYPES: ClassVar[Mapping[Datatype, str]] = _DUCKDB_TYPES
    LIMITED: ClassVar[str] = "VARCHAR({length})"
    TEXTS: ClassVar[Mapping[Datatype, str]] = _DUCKDB_TEXTS
    CAST_TEXT: ClassVar[str] = "CAST({sql} AS VARCHAR)"
    supports_hist_merge: ClassVar[bool] = True

    def canonical_text(
        self, sql: str, datatype: Datatype, precision: int | None = None, scale: int | None = None
    ) -> str:
        if datatype not in (Datatype.DECIMAL, Datatype.FLOAT) or precision is None or precision != scale:
            return super().canonical_text(sql, datatype, precision, scale)
        # If a type has no digit before the point, DuckDB writes .50 and cannot read 1e-07. So one digit is
        # added.
        wide = f"DECIMAL({precision + 1},{scale})"
        if datatype is Datatype.FLOAT:
            sql = f"CAST(CAST({sql} AS VARCHAR) AS {wide})"
        return f"CAST(CAST(CAST({sql} AS DECIMAL({precision},{scale})) AS {wide}) AS VARCHAR)"

    def timestamp_literal(self, instant: datetime) -> str:
        return f"TIMESTAMP '{instant_text(instant)}'"

    def hash_expression(self, text_sql: str) -> str:
        return f"sha256({text_sql})"

    def secret_reference(self, name: str) -> str | None:
        return f"getvariable('backstory_{name}')"

    def get_execution_engine(self, url: str) -> "Engine":
        from backstory.stores.sql.duckdb_engine import open_duckdb

        return open_duckdb(url)


def _postgres_time(value: str, pattern: str) -> str:
    """The text of a day or an instant, as in DuckDB even if it is infinite or in a year before 1.

    PostgreSQL's `to_char` has no text for infinity, and numbers the years before 1 without a sign.
    """
    early = f"to_char(extract(year FROM {value}) + 1, 'FM0000') || to_char({value}, '-MM-DD{pattern}')"
    return (
        f"CASE WHEN isfinite({value}) THEN CASE WHEN {value} >= '0001-01-01' "
        f"THEN to_char({value}, 'YYYY-MM-DD{pattern}') ELSE regexp_replace({early}, '^-0+', '-') END "
        f"ELSE CAST({value} AS TEXT) END"
    )


_POSTGRES_TEXTS = {
    Datatype.DECIMAL: "CAST(CAST({sql} AS NUMERIC({precision},{scale})) AS TEXT)",
    Datatype.FLOAT: "CAST(CAST(CAST({sql} AS TEXT) AS NUMERIC({precision},{scale})) AS TEXT)",
    Datatype.BOOLEAN: BOOLEAN_TEXT,
    Datatype.DATE: _postgres_time("{sql}", ""),
    Datatype.TIME: _END_OF_DAY.format("to_char(TIMESTAMP '1970-01-01' + {sql}, 'HH24:MI:SS.US')"),
    Datatype.TIMESTAMP: _postgres_time("({sql} AT TIME ZONE 'UTC')", " HH24:MI:SS.US"),
    Datatype.BINARY: "encode({sql}, 'hex')",
    Datatype.UUID: "lower(CAST({sql} AS TEXT))",
}


class Postgres(TemplateDialect):
    """PostgreSQL 11 and later. The tests run its SQL."""

    DIALECT_NAME: ClassVar[str] = "postgres"
    RESERVED_KEYWORDS: ClassVar[frozenset[str]] = keywords("postgres")
    SQLGLOT_NAME: ClassVar[str] = "postgres"
    TYPES: ClassVar[Mapping[Datatype, str]] = _POSTGRES_TYPES
    LIMITED: ClassVar[str] = "VARCHAR({length})"
    TEXTS: ClassVar[Mapping[Datatype, str]] = _POSTGRES_TEXTS
    CAST_TEXT: ClassVar[str] = "CAST({sql} AS TEXT)"
    supports_hist_merge: ClassVar[bool] = True

    def should_quote(self, name: str) -> bool:
        # Unquoted names fold to lower case.
        return super().should_quote(name) or name != name.lower()

    def string_literal(self, text: str) -> str:
        if "\\" not in text:
            return super().string_literal(text)
        # This form is correct whether standard_conforming_strings is on or off.
        return "E" + super().string_literal(text.replace("\\", "\\\\"))

    def timestamp_literal(self, instant: datetime) -> str:
        return f"TIMESTAMPTZ '{instant_text(instant)}+00'"

    def hash_expression(self, text_sql: str) -> str:
        return f"encode(sha256(convert_to({text_sql}, 'UTF8')), 'hex')"

    def secret_reference(self, name: str) -> str | None:
        return f"current_setting('backstory.{name}')"

    def get_execution_engine(self, url: str) -> "Engine":
        from backstory.stores.sql.postgres_engine import open_postgres

        return open_postgres(url)


# The cast uses a time without a zone, because some local times do not exist in zones with summer time.
_ZONELESS = (
    "CAST(TIMESTAMP_NTZ '1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, "
    "CAST(unix_micros({sql}) AS DECIMAL(20,0)) / 1000000) AS STRING)"
)
_SPARK_TEXTS = {
    Datatype.DECIMAL: "replace(format_number(CAST({sql} AS DECIMAL({precision},{scale})), {scale}), ',', '')",
    Datatype.FLOAT: (
        "replace(format_number(CAST(CAST({sql} AS STRING) AS DECIMAL({precision},{scale})), {scale}),"
        " ',', '')"
    ),
    Datatype.BOOLEAN: BOOLEAN_TEXT,
    Datatype.DATE: "date_format({sql}, 'yyyy-MM-dd')",
    # Times are stored as strings, without trailing zeros.
    Datatype.TIME: "rpad(CASE WHEN {sql} LIKE '%.%' THEN {sql} ELSE concat({sql}, '.') END, 15, '0')",
    Datatype.TIMESTAMP: (
        f"rpad(concat({_ZONELESS}, CASE WHEN length({_ZONELESS}) = 19 THEN '.' ELSE '' END), 26, '0')"
    ),
    Datatype.BINARY: "lower(hex({sql}))",
    Datatype.UUID: "lower({sql})",
}


class Spark(TemplateDialect):
    """Spark SQL on Iceberg tables. Its SQL is for people, because loads run in one pass (decision H2)."""

    DIALECT_NAME: ClassVar[str] = "spark_iceberg"
    RESERVED_KEYWORDS: ClassVar[frozenset[str]] = keywords("spark")
    SQLGLOT_NAME: ClassVar[str] = "spark"
    QUOTES: ClassVar[tuple[str, str]] = ("`", "`")
    TYPES: ClassVar[Mapping[Datatype, str]] = _SPARK_TYPES
    LIMITED: ClassVar[str] = "STRING"
    TEXTS: ClassVar[Mapping[Datatype, str]] = _SPARK_TEXTS
    CAST_TEXT: ClassVar[str] = "CAST({sql} AS STRING)"
    supports_hist_merge: ClassVar[bool] = True
    supports_transactions: ClassVar[bool] = False

    def string_literal(self, text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def timestamp_literal(self, instant: datetime) -> str:
        return f"TIMESTAMP '{instant_text(instant)}Z'"

    def hash_expression(self, text_sql: str) -> str:
        return f"sha2({text_sql}, 256)"

    def null_safe_ne(self, a: str, b: str) -> str:
        return f"NOT ({a} <=> {b})"

    def render_create_table_if_not_exists_from_columns(self, table: str, columns: Sequence[SqlColumn]) -> str:
        return f"{super().render_create_table_if_not_exists_from_columns(table, columns)}\nUSING iceberg"

    def render_rename_table(self, schema: str, old: str, new: str) -> str:
        names = [self.render_table_identifier(schema, name) for name in (old, new)]
        return f"ALTER TABLE {names[0]} RENAME TO {names[1]}"


# Reserved words of Transact-SQL that sqlglot's tokenizer lacks.
_RESERVED = """
    BACKUP BREAK BROWSE BULK CHECKPOINT CLUSTERED COMPUTE CONTAINS CONTAINSTABLE DBCC DENY DISK
    DISTRIBUTED DUMP ERRLVL EXEC EXIT FILE FILLFACTOR FREETEXT HOLDLOCK IDENTITY IDENTITYCOL INDEX KEY
    KILL LINENO LOAD NATIONAL NOCHECK NONCLUSTERED OFF OFFSETS OPEN OPENQUERY OPENROWSET OPENXML PERCENT
    PLAN PRECISION PRINT PROC PROCEDURE PUBLIC RAISERROR READ READTEXT RECONFIGURE REPLICATION RESTORE
    RESTRICT RETURN REVERT ROWCOUNT ROWGUIDCOL RULE SAVE SCHEMA SECURITYAUDIT SETUSER SHUTDOWN
    STATISTICS SYSTEM_USER TABLESAMPLE TEXTSIZE TOP TRAN TRANSACTION TRIGGER TRUNCATE TSEQUAL UPDATETEXT
    USE USER VARYING WAITFOR WHILE WRITETEXT
"""

_SQLSERVER_TEXTS = {
    Datatype.INTEGER: "CAST({sql} AS VARCHAR(20))",
    Datatype.BIGINT: "CAST({sql} AS VARCHAR(20))",
    Datatype.DECIMAL: "CAST(CAST({sql} AS DECIMAL({precision},{scale})) AS VARCHAR(60))",
    Datatype.FLOAT: "CAST(CAST({sql} AS DECIMAL({precision},{scale})) AS VARCHAR(60))",
    Datatype.BOOLEAN: "CASE WHEN {sql} = 1 THEN 'true' WHEN {sql} = 0 THEN 'false' END",
    Datatype.DATE: "CONVERT(VARCHAR(10), {sql}, 23)",
    Datatype.TIME: "CONVERT(VARCHAR(15), CAST({sql} AS TIME(6)), 114)",
    Datatype.TIMESTAMP: "CONVERT(VARCHAR(26), CAST({sql} AS DATETIME2(6)), 121)",
    Datatype.BINARY: "LOWER(CONVERT(VARCHAR(MAX), {sql}, 2))",
    Datatype.UUID: "LOWER(CAST({sql} AS VARCHAR(36)))",
}
_UTF8 = "Latin1_General_100_BIN2_UTF8"


class SqlServer(TemplateDialect):
    """SQL Server 2022 and later. Its SQL is written and parsed here, but not run (decision H3)."""

    DIALECT_NAME: ClassVar[str] = "mssql"
    RESERVED_KEYWORDS: ClassVar[frozenset[str]] = keywords("tsql", *_RESERVED.split())
    SQLGLOT_NAME: ClassVar[str] = "tsql"
    QUOTES: ClassVar[tuple[str, str]] = ("[", "]")
    TYPES: ClassVar[Mapping[Datatype, str]] = _SQLSERVER_TYPES
    LIMITED: ClassVar[str] = "NVARCHAR({length})"
    TEXTS: ClassVar[Mapping[Datatype, str]] = _SQLSERVER_TEXTS
    CAST_TEXT: ClassVar[str] = "CAST({sql} AS NVARCHAR(MAX))"

    def string_literal(self, text: str) -> str:
        return "N" + super().string_literal(text)

    def timestamp_literal(self, instant: datetime) -> str:
        return f"CAST('{instant_text(instant).replace(' ', 'T')}' AS DATETIME2(6))"

    def boolean_literal(self, value: bool) -> str:  # noqa: FBT001
        return "1" if value else "0"

    def render_literal(self, value: object) -> str:
        if isinstance(value, date) and not isinstance(value, datetime):
            return f"CAST('{value.isoformat()}' AS DATE)"
        return super().render_literal(value)

    def concat_expression(self, parts: Sequence[str]) -> str:
        return f"({' + '.join(parts)})" if len(parts) > 1 else parts[0]

    def hash_expression(self, text_sql: str) -> str:
        utf8 = f"CAST(({text_sql}) COLLATE {_UTF8} AS VARCHAR(MAX))"
        return f"LOWER(CONVERT(VARCHAR(64), HASHBYTES('SHA2_256', {utf8}), 2))"

    def render_update_exists(
        self, target: str, alias: str, assignments: Mapping[str, str], where: str
    ) -> str:
        values = ",\n  ".join(f"{name} = {value}" for name, value in assignments.items())
        return f"UPDATE {alias}\nSET\n  {values}\nFROM {target} {alias}\nWHERE {where}"

    def render_delete_detection_statement(self, target: str, alias: str, where: str) -> str:
        return f"DELETE {alias}\nFROM {target} {alias}\nWHERE {where}"

    def current_instant(self) -> str:
        return "SYSUTCDATETIME()"

    def render_create_schema_if_not_exists(self, schema: str) -> str:
        built = self.string_literal(f"CREATE SCHEMA {self.quote_ident(schema)}")
        return f"IF SCHEMA_ID({self.string_literal(schema)}) IS NULL EXEC({built})"

    def render_create_table_if_not_exists_from_columns(self, table: str, columns: Sequence[SqlColumn]) -> str:
        built = super().render_create_table_if_not_exists_from_columns(table, columns)
        body = built.replace("CREATE TABLE IF NOT EXISTS", "CREATE TABLE", 1)
        return f"IF OBJECT_ID({self.string_literal(table)}) IS NULL\n{body}"

    def render_add_column(self, table: str, column: SqlColumn) -> str:
        return f"ALTER TABLE {table} ADD {self.render_identifier(column.name)} {self.type_of(column)} NULL"

    def render_rename_column(self, schema: str, table: str, old: str, new: str) -> str:
        path = ".".join(self.quote_ident(part) for part in (schema, table, old))
        return f"EXEC sp_rename {self.string_literal(path)}, {self.string_literal(new)}, 'COLUMN'"

    def render_rename_table(self, schema: str, old: str, new: str) -> str:
        path = ".".join(self.quote_ident(part) for part in (schema, old))
        return f"EXEC sp_rename {self.string_literal(path)}, {self.string_literal(new)}"

    def render_alter_column_type(self, table: str, column: SqlColumn, old_type: str) -> str | None:
        del old_type
        null = "NULL" if column.nullable else "NOT NULL"
        name = self.render_identifier(column.name)
        return f"ALTER TABLE {table} ALTER COLUMN {name} {self.type_of(column)} {null}"


GROUP = "backstory.dialects"
OTHER_NAMES = {"spark": "spark_iceberg", "sqlserver": "mssql", "postgresql": "postgres"}
NOT_BUILT = {"spark_delta": "Delta tables are not supported yet; `spark` writes Iceberg tables."}

Kind = TypeVar("Kind", bound=type[Dialect])

_registered: dict[str, type[Dialect]] = {}
_searched: list[str] = []


@overload
def register_dialect(dialect: Kind, *, replace: bool = False) -> Kind: ...


@overload
def register_dialect(dialect: None = None, *, replace: bool = False) -> Callable[[Kind], Kind]: ...


def register_dialect(dialect: Kind | None = None, *, replace: bool = False) -> Kind | Callable[[Kind], Kind]:
    """Register a dialect by its DIALECT_NAME. It can be used as a decorator.

    Raises UsageError for a name that is taken, unless `replace` is true. Also raises UsageError for a dialect
    that lacks keywords or a method of the contract, or whose methods take other arguments.
    """
    if dialect is None:
        return lambda kind: register_dialect(kind, replace=replace)
    if why := contract_fault(dialect):
        raise _refusal(dialect, why)
    name = dialect.DIALECT_NAME
    if name in OTHER_NAMES or (name in _registered and not replace):
        raise _refusal(dialect, f"the name {name!r} is taken")
    _registered[name] = dialect
    return dialect


def contract_fault(dialect: type[Dialect]) -> str | None:
    """The dialect's first violation of the contract, as a sentence, or None if there is no violation."""
    if not dialect.DIALECT_NAME or not dialect.RESERVED_KEYWORDS:
        return "it needs a DIALECT_NAME and RESERVED_KEYWORDS"
    if any(word != word.upper() for word in dialect.RESERVED_KEYWORDS):
        return "its RESERVED_KEYWORDS are not in upper case"
    if missing := sorted(dialect.__abstractmethods__):
        return f"it lacks {', '.join(missing)}"
    for method, ours in inspect.getmembers(Dialect, inspect.isfunction):
        theirs = getattr(dialect, method)
        if not callable(theirs) or _parameters(theirs) != _parameters(ours):
            return f"{method} takes arguments that differ from the contract's"
    return None


def get_dialect(name: str) -> Dialect:
    """The dialect with this name. Raises UsageError with the known names if there is no such dialect."""
    if name in NOT_BUILT and name not in _registered:
        raise UsageError("unknown-dialect", NOT_BUILT[name], f"Known are {', '.join(dialect_names())}.")
    dialect = _registered.get(OTHER_NAMES.get(name, name))
    if dialect is None:
        _search()
        dialect = _registered.get(OTHER_NAMES.get(name, name))
    if dialect is None:
        raise UsageError(
            "unknown-dialect", f"There is no dialect {name!r}.", f"Known are {', '.join(dialect_names())}."
        )
    return dialect()


def dialect_names() -> list[str]:
    """The names of all dialects, including aliases."""
    _search()
    return sorted({*_registered, *OTHER_NAMES})


def _search() -> None:
    """Load the dialects of installed packages, once."""
    if not _searched:
        _searched.append(GROUP)
        for point in entry_points(group=GROUP):
            register_dialect(point.load())


def _parameters(method: Callable[..., object]) -> list[tuple[str, object]]:
    return [(parameter.name, parameter.kind) for parameter in inspect.signature(method).parameters.values()]


def _refusal(dialect: type[Dialect], why: str) -> UsageError:
    return UsageError("wrong-dialect", f"{dialect.__name__} cannot be registered: {why}.", "Fix the dialect.")


for _kind in (DuckDB, Postgres, SqlServer, Spark):
    register_dialect(_kind)
