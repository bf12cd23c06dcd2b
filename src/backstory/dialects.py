"""The dialects of databases that hold histories, and the interface for a custom dialect."""

from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.dialects import (
    DuckDB,
    Postgres,
    Spark,
    SqlServer,
    dialect_names,
    get_dialect,
    register_dialect,
)
from backstory.stores.sql.engine import Engine
from backstory.testing.conformance import assert_dialect_conforms

__all__ = [
    "Dialect",
    "DuckDB",
    "Engine",
    "Postgres",
    "Spark",
    "SqlServer",
    "assert_dialect_conforms",
    "dialect_names",
    "get_dialect",
    "register_dialect",
]
