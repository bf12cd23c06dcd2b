"""DuckDB."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from backstory.stores.sql.columns import Datatype, instant_text
from backstory.stores.sql.dialects.dialect import keywords
from backstory.stores.sql.dialects.templates import BOOLEAN_TEXT, TemplateDialect

if TYPE_CHECKING:
    from backstory.stores.sql.engines.engine import Engine

_TYPES = {
    Datatype.STRING: "VARCHAR",
    Datatype.INTEGER: "INTEGER",
    Datatype.BIGINT: "BIGINT",
    Datatype.DECIMAL: "DECIMAL({precision},{scale})",
    Datatype.FLOAT: "DOUBLE",
    Datatype.BOOLEAN: "BOOLEAN",
    Datatype.DATE: "DATE",
    Datatype.TIME: "TIME",
    # Times of a history are UTC; a type without zone says so in every session.
    Datatype.TIMESTAMP: "TIMESTAMP",
    Datatype.BINARY: "BLOB",
    Datatype.UUID: "UUID",
    Datatype.JSON: "VARCHAR",
}
_TEXTS = {
    Datatype.DECIMAL: "CAST(CAST({sql} AS DECIMAL({precision},{scale})) AS VARCHAR)",
    Datatype.FLOAT: "CAST(CAST(CAST({sql} AS VARCHAR) AS DECIMAL({precision},{scale})) AS VARCHAR)",
    Datatype.BOOLEAN: BOOLEAN_TEXT,
    Datatype.DATE: "strftime({sql}, '%Y-%m-%d')",
    Datatype.TIME: "strftime(DATE '1970-01-01' + {sql}, '%H:%M:%S.%f')",
    Datatype.TIMESTAMP: "strftime({sql}, '%Y-%m-%d %H:%M:%S.%f')",
    Datatype.BINARY: "lower(hex({sql}))",
    Datatype.UUID: "lower(CAST({sql} AS VARCHAR))",
}


class DuckDB(TemplateDialect):
    """DuckDB, which runs here."""

    DIALECT_NAME: ClassVar[str] = "duckdb"
    RESERVED_KEYWORDS: ClassVar[frozenset[str]] = keywords("duckdb")
    SQLGLOT_NAME: ClassVar[str] = "duckdb"
    TYPES: ClassVar[Mapping[Datatype, str]] = _TYPES
    LIMITED: ClassVar[str] = "VARCHAR({length})"
    TEXTS: ClassVar[Mapping[Datatype, str]] = _TEXTS
    CAST_TEXT: ClassVar[str] = "CAST({sql} AS VARCHAR)"
    supports_hist_merge: ClassVar[bool] = True

    def canonical_text(
        self, sql: str, datatype: Datatype, precision: int | None = None, scale: int | None = None
    ) -> str:
        if datatype not in (Datatype.DECIMAL, Datatype.FLOAT) or precision is None or precision != scale:
            return super().canonical_text(sql, datatype, precision, scale)
        # Without a digit before the point DuckDB writes .50, and does not read 1e-07: there is room for one.
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
        from backstory.stores.sql.engines.duckdb import open_duckdb

        return open_duckdb(url)
