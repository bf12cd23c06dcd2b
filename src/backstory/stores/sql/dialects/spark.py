"""Spark with Iceberg tables: SQL for people; loads run as one pass (decision H2)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import ClassVar

from backstory.stores.sql.columns import Datatype, SqlColumn, instant_text
from backstory.stores.sql.dialects.dialect import keywords
from backstory.stores.sql.dialects.templates import BOOLEAN_TEXT, TemplateDialect

_TYPES = {
    Datatype.STRING: "STRING",
    Datatype.INTEGER: "INT",
    Datatype.BIGINT: "BIGINT",
    Datatype.DECIMAL: "DECIMAL({precision},{scale})",
    Datatype.FLOAT: "DOUBLE",
    Datatype.BOOLEAN: "BOOLEAN",
    Datatype.DATE: "DATE",
    Datatype.TIME: "STRING",
    Datatype.TIMESTAMP: "TIMESTAMP",
    Datatype.BINARY: "BINARY",
    Datatype.UUID: "STRING",
    Datatype.JSON: "STRING",
}
# By way of a time without a zone: shifted into a zone with summer time some instants are none.
_ZONELESS = (
    "CAST(TIMESTAMP_NTZ '1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, "
    "CAST(unix_micros({sql}) AS DECIMAL(20,0)) / 1000000) AS STRING)"
)
_TEXTS = {
    Datatype.DECIMAL: "replace(format_number(CAST({sql} AS DECIMAL({precision},{scale})), {scale}), ',', '')",
    Datatype.FLOAT: (
        "replace(format_number(CAST(CAST({sql} AS STRING) AS DECIMAL({precision},{scale})), {scale}),"
        " ',', '')"
    ),
    Datatype.BOOLEAN: BOOLEAN_TEXT,
    Datatype.DATE: "date_format({sql}, 'yyyy-MM-dd')",
    # Times are stored as text with the digits that they need.
    Datatype.TIME: "rpad(CASE WHEN {sql} LIKE '%.%' THEN {sql} ELSE concat({sql}, '.') END, 15, '0')",
    Datatype.TIMESTAMP: (
        f"rpad(concat({_ZONELESS}, CASE WHEN length({_ZONELESS}) = 19 THEN '.' ELSE '' END), 26, '0')"
    ),
    Datatype.BINARY: "lower(hex({sql}))",
    Datatype.UUID: "lower({sql})",
}


class Spark(TemplateDialect):
    """Spark SQL on Iceberg tables."""

    DIALECT_NAME: ClassVar[str] = "spark_iceberg"
    RESERVED_KEYWORDS: ClassVar[frozenset[str]] = keywords("spark")
    SQLGLOT_NAME: ClassVar[str] = "spark"
    QUOTES: ClassVar[tuple[str, str]] = ("`", "`")
    TYPES: ClassVar[Mapping[Datatype, str]] = _TYPES
    LIMITED: ClassVar[str] = "STRING"
    TEXTS: ClassVar[Mapping[Datatype, str]] = _TEXTS
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
