"""Spark with Iceberg tables: SQL for people; loads run as one pass (decision H2)."""

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from backstory.doors.historize.hashing import instant_text
from backstory.stores.sql.columns import Datatype, SqlColumn
from backstory.stores.sql.dialects.dialect import Dialect, keywords

_TYPES = {
    Datatype.STRING: "STRING",
    Datatype.INTEGER: "INT",
    Datatype.BIGINT: "BIGINT",
    Datatype.FLOAT: "DOUBLE",
    Datatype.BOOLEAN: "BOOLEAN",
    Datatype.DATE: "DATE",
    Datatype.TIME: "STRING",
    Datatype.TIMESTAMP: "TIMESTAMP",
    Datatype.BINARY: "BINARY",
    Datatype.UUID: "STRING",
    Datatype.JSON: "STRING",
}


class Spark(Dialect):
    """Spark SQL on Iceberg tables."""

    DIALECT_NAME: ClassVar[str] = "spark_iceberg"
    RESERVED_KEYWORDS: ClassVar[frozenset[str]] = keywords("spark")
    SQLGLOT_NAME: ClassVar[str] = "spark"
    QUOTES: ClassVar[tuple[str, str]] = ("`", "`")
    supports_merge: ClassVar[bool] = True
    supports_hist_merge: ClassVar[bool] = True
    supports_transactions: ClassVar[bool] = False

    def string_literal(self, text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def timestamp_literal(self, instant: datetime) -> str:
        return f"TIMESTAMP '{instant_text(instant)}Z'"

    def map_logical_type(
        self,
        datatype: Datatype,
        max_length: int | None = None,
        precision: int | None = None,
        scale: int | None = None,
        *,
        strict: bool = True,
    ) -> str:
        del max_length, strict
        if datatype is Datatype.DECIMAL:
            return f"DECIMAL({precision},{scale})"
        return _TYPES[datatype]

    def canonical_text(
        self, sql: str, datatype: Datatype, precision: int | None = None, scale: int | None = None
    ) -> str:
        match datatype:
            case Datatype.DECIMAL:
                return self._digits(f"CAST({sql} AS DECIMAL({precision},{scale}))", scale or 0)
            case Datatype.FLOAT:
                exact = f"CAST(CAST({sql} AS STRING) AS DECIMAL({precision},{scale}))"
                return self._digits(exact, scale or 0)
            case Datatype.BOOLEAN:
                return f"CASE WHEN {sql} THEN 'true' WHEN NOT {sql} THEN 'false' END"
            case Datatype.DATE:
                return f"date_format({sql}, 'yyyy-MM-dd')"
            case Datatype.TIME:
                # Times are stored as text with the digits that they need.
                return f"rpad(CASE WHEN {sql} LIKE '%.%' THEN {sql} ELSE concat({sql}, '.') END, 15, '0')"
            case Datatype.TIMESTAMP:
                return self._instant(sql)
            case Datatype.BINARY:
                return f"lower(hex({sql}))"
            case Datatype.UUID:
                return f"lower({sql})"
            case _:
                return f"CAST({sql} AS STRING)"

    @staticmethod
    def _instant(sql: str) -> str:
        """By way of a time without a zone: shifted into a zone with summer time some instants are none."""
        seconds = f"CAST(unix_micros({sql}) AS DECIMAL(20,0)) / 1000000"
        text = f"CAST(TIMESTAMP_NTZ '1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, {seconds}) AS STRING)"
        return f"rpad(concat({text}, CASE WHEN length({text}) = 19 THEN '.' ELSE '' END), 26, '0')"

    @staticmethod
    def _digits(sql: str, scale: int) -> str:
        return f"replace(format_number({sql}, {scale}), ',', '')"

    def hash_expression(self, text_sql: str) -> str:
        return f"sha2({text_sql}, 256)"

    def null_safe_ne(self, a: str, b: str) -> str:
        return f"NOT ({a} <=> {b})"

    def render_create_table_if_not_exists_from_columns(self, table: str, columns: Sequence[SqlColumn]) -> str:
        return f"{super().render_create_table_if_not_exists_from_columns(table, columns)}\nUSING iceberg"

    def render_rename_table(self, schema: str, old: str, new: str) -> str:
        names = [self.render_table_identifier(schema, name) for name in (old, new)]
        return f"ALTER TABLE {names[0]} RENAME TO {names[1]}"
