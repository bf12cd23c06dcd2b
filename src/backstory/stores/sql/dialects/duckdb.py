"""DuckDB."""

from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from backstory.doors.historize.hashing import instant_text
from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.dialects.dialect import Dialect, keywords

if TYPE_CHECKING:
    from backstory.stores.sql.engines.engine import Engine

_TYPES = {
    Datatype.INTEGER: "INTEGER",
    Datatype.BIGINT: "BIGINT",
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


class DuckDB(Dialect):
    """DuckDB, which runs here."""

    DIALECT_NAME: ClassVar[str] = "duckdb"
    RESERVED_KEYWORDS: ClassVar[frozenset[str]] = keywords("duckdb")
    SQLGLOT_NAME: ClassVar[str] = "duckdb"
    supports_merge: ClassVar[bool] = True
    supports_hist_merge: ClassVar[bool] = True

    def timestamp_literal(self, instant: datetime) -> str:
        return f"TIMESTAMP '{instant_text(instant)}'"

    def map_logical_type(
        self,
        datatype: Datatype,
        max_length: int | None = None,
        precision: int | None = None,
        scale: int | None = None,
        *,
        strict: bool = True,
    ) -> str:
        if datatype is Datatype.DECIMAL:
            return f"DECIMAL({precision},{scale})"
        if datatype is Datatype.STRING:
            return f"VARCHAR({max_length})" if strict and max_length else "VARCHAR"
        return _TYPES[datatype]

    def canonical_text(
        self, sql: str, datatype: Datatype, precision: int | None = None, scale: int | None = None
    ) -> str:
        match datatype:
            case Datatype.DECIMAL:
                return f"CAST(CAST({sql} AS DECIMAL({precision},{scale})) AS VARCHAR)"
            case Datatype.BOOLEAN:
                return f"CASE WHEN {sql} THEN 'true' WHEN NOT {sql} THEN 'false' END"
            case Datatype.DATE:
                return f"strftime({sql}, '%Y-%m-%d')"
            case Datatype.TIME:
                return f"strftime(DATE '1970-01-01' + {sql}, '%H:%M:%S.%f')"
            case Datatype.TIMESTAMP:
                return f"strftime({sql}, '%Y-%m-%d %H:%M:%S.%f')"
            case Datatype.BINARY:
                return f"lower(hex({sql}))"
            case Datatype.UUID:
                return f"lower(CAST({sql} AS VARCHAR))"
            case Datatype.FLOAT:
                return f"CAST(CAST(CAST({sql} AS VARCHAR) AS DECIMAL({precision},{scale})) AS VARCHAR)"
            case _:
                return f"CAST({sql} AS VARCHAR)"

    def hash_expression(self, text_sql: str) -> str:
        return f"sha256({text_sql})"

    def secret_reference(self, name: str) -> str | None:
        return f"getvariable('backstory_{name}')"

    def get_execution_engine(self, url: str) -> "Engine":
        from backstory.stores.sql.engines.duckdb import open_duckdb

        return open_duckdb(url)
