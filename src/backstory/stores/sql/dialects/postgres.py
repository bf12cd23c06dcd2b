"""PostgreSQL, 11 and later."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from backstory.stores.sql.columns import Datatype, instant_text
from backstory.stores.sql.dialects.dialect import keywords
from backstory.stores.sql.dialects.templates import BOOLEAN_TEXT, TemplateDialect

if TYPE_CHECKING:
    from backstory.stores.sql.engines.engine import Engine

_TYPES = {
    Datatype.STRING: "TEXT",
    Datatype.INTEGER: "INTEGER",
    Datatype.BIGINT: "BIGINT",
    Datatype.DECIMAL: "NUMERIC({precision},{scale})",
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
_TEXTS = {
    Datatype.DECIMAL: "CAST(CAST({sql} AS NUMERIC({precision},{scale})) AS TEXT)",
    Datatype.FLOAT: "CAST(CAST(CAST({sql} AS TEXT) AS NUMERIC({precision},{scale})) AS TEXT)",
    Datatype.BOOLEAN: BOOLEAN_TEXT,
    Datatype.DATE: "to_char({sql}, 'YYYY-MM-DD')",
    Datatype.TIME: "to_char(TIMESTAMP '1970-01-01' + {sql}, 'HH24:MI:SS.US')",
    Datatype.TIMESTAMP: "to_char({sql} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')",
    Datatype.BINARY: "encode({sql}, 'hex')",
    Datatype.UUID: "lower(CAST({sql} AS TEXT))",
}


class Postgres(TemplateDialect):
    """PostgreSQL, which the tests run."""

    DIALECT_NAME: ClassVar[str] = "postgres"
    RESERVED_KEYWORDS: ClassVar[frozenset[str]] = keywords("postgres")
    SQLGLOT_NAME: ClassVar[str] = "postgres"
    TYPES: ClassVar[Mapping[Datatype, str]] = _TYPES
    LIMITED: ClassVar[str] = "VARCHAR({length})"
    TEXTS: ClassVar[Mapping[Datatype, str]] = _TEXTS
    CAST_TEXT: ClassVar[str] = "CAST({sql} AS TEXT)"
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

    def hash_expression(self, text_sql: str) -> str:
        return f"encode(sha256(convert_to({text_sql}, 'UTF8')), 'hex')"

    def secret_reference(self, name: str) -> str | None:
        return f"current_setting('backstory.{name}')"

    def get_execution_engine(self, url: str) -> "Engine":
        from backstory.stores.sql.engines.postgres import open_postgres

        return open_postgres(url)
