"""SQL Server 2022: its text is written and parsed here, and not run (decision H3)."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import ClassVar

from backstory.stores.sql.columns import Datatype, SqlColumn, instant_text
from backstory.stores.sql.dialects.dialect import keywords
from backstory.stores.sql.dialects.templates import TemplateDialect

# Reserved words of Transact-SQL that sqlglot's tokenizer has no need to know.
_RESERVED = """
    BACKUP BREAK BROWSE BULK CHECKPOINT CLUSTERED COMPUTE CONTAINS CONTAINSTABLE DBCC DENY DISK
    DISTRIBUTED DUMP ERRLVL EXEC EXIT FILE FILLFACTOR FREETEXT HOLDLOCK IDENTITY IDENTITYCOL INDEX KEY
    KILL LINENO LOAD NATIONAL NOCHECK NONCLUSTERED OFF OFFSETS OPEN OPENQUERY OPENROWSET OPENXML PERCENT
    PLAN PRECISION PRINT PROC PROCEDURE PUBLIC RAISERROR READ READTEXT RECONFIGURE REPLICATION RESTORE
    RESTRICT RETURN REVERT ROWCOUNT ROWGUIDCOL RULE SAVE SCHEMA SECURITYAUDIT SETUSER SHUTDOWN
    STATISTICS SYSTEM_USER TABLESAMPLE TEXTSIZE TOP TRAN TRANSACTION TRIGGER TRUNCATE TSEQUAL UPDATETEXT
    USE USER VARYING WAITFOR WHILE WRITETEXT
"""

_TYPES = {
    Datatype.STRING: "NVARCHAR(MAX)",
    Datatype.INTEGER: "INT",
    Datatype.BIGINT: "BIGINT",
    Datatype.DECIMAL: "DECIMAL({precision},{scale})",
    Datatype.FLOAT: "FLOAT",
    Datatype.BOOLEAN: "BIT",
    Datatype.DATE: "DATE",
    Datatype.TIME: "TIME(6)",
    Datatype.TIMESTAMP: "DATETIME2(6)",
    Datatype.BINARY: "VARBINARY(MAX)",
    Datatype.UUID: "UNIQUEIDENTIFIER",
    Datatype.JSON: "NVARCHAR(MAX)",
}
_TEXTS = {
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
    """SQL Server 2022 and later."""

    DIALECT_NAME: ClassVar[str] = "mssql"
    RESERVED_KEYWORDS: ClassVar[frozenset[str]] = keywords("tsql", *_RESERVED.split())
    SQLGLOT_NAME: ClassVar[str] = "tsql"
    QUOTES: ClassVar[tuple[str, str]] = ("[", "]")
    TYPES: ClassVar[Mapping[Datatype, str]] = _TYPES
    LIMITED: ClassVar[str] = "NVARCHAR({length})"
    TEXTS: ClassVar[Mapping[Datatype, str]] = _TEXTS
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
