"""PostgreSQL, 11 and later."""

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
    Datatype.FLOAT: "DOUBLE PRECISION",
    Datatype.BOOLEAN: "BOOLEAN",
    Datatype.DATE: "DATE",
    Datatype.TIME: "TIME",
    Datatype.TIMESTAMP: "TIMESTAMPTZ",
    Datatype.BINARY: "BYTEA",
    Datatype.UUID: "UUID",
    # json keeps the text as it came; jsonb would write it anew.
    Datatype.JSON: "JSON",
}


class Postgres(Dialect):
    """PostgreSQL, which the tests run."""

    DIALECT_NAME: ClassVar[str] = "postgres"
    RESERVED_KEYWORDS: ClassVar[frozenset[str]] = keywords("postgres")
    SQLGLOT_NAME: ClassVar[str] = "postgres"
    supports_merge: ClassVar[bool] = True
    supports_hist_merge: ClassVar[bool] = True

    def should_quote(self, name: str) -> bool:
        # Unquoted names fold to lower case.
        return super().should_quote(name) or name != name.lower()

    def string_literal(self, text: str) -> str:
        if "\\" not in text:
            return super().string_literal(text)
        # Right whatever standard_conforming_strings says.
        return "E" + super().string_literal(text.replace("\\", "\\\\"))

    def timestamp_literal(self, instant: datetime) -> str:
        return f"TIMESTAMPTZ '{instant_text(instant)}+00'"

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
            return f"NUMERIC({precision},{scale})"
        if datatype is Datatype.STRING:
            return f"VARCHAR({max_length})" if strict and max_length else "TEXT"
        return _TYPES[datatype]

    def canonical_text(
        self, sql: str, datatype: Datatype, precision: int | None = None, scale: int | None = None
    ) -> str:
        match datatype:
            case Datatype.DECIMAL:
                return f"CAST(CAST({sql} AS NUMERIC({precision},{scale})) AS TEXT)"
            case Datatype.BOOLEAN:
                return f"CASE WHEN {sql} THEN 'true' WHEN NOT {sql} THEN 'false' END"
            case Datatype.DATE:
                return f"to_char({sql}, 'YYYY-MM-DD')"
            case Datatype.TIME:
                return f"to_char(TIMESTAMP '1970-01-01' + {sql}, 'HH24:MI:SS.US')"
            case Datatype.TIMESTAMP:
                return f"to_char({sql} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')"
            case Datatype.BINARY:
                return f"encode({sql}, 'hex')"
            case Datatype.UUID:
                return f"lower(CAST({sql} AS TEXT))"
            case Datatype.FLOAT:
                return f"CAST(CAST(CAST({sql} AS TEXT) AS NUMERIC({precision},{scale})) AS TEXT)"
            case _:
                return f"CAST({sql} AS TEXT)"

    def hash_expression(self, text_sql: str) -> str:
        return f"encode(sha256(convert_to({text_sql}, 'UTF8')), 'hex')"

    def secret_reference(self, name: str) -> str | None:
        return f"current_setting('backstory.{name}')"

    def get_execution_engine(self, url: str) -> "Engine":
        from backstory.stores.sql.engines.postgres import open_postgres

        return open_postgres(url)
