"""Databases that histories are kept on: the dialects, and how to add one of your own."""

from backstory.stores.sql.dialects.dialect import Dialect
from backstory.stores.sql.dialects.duckdb import DuckDB
from backstory.stores.sql.dialects.postgres import Postgres
from backstory.stores.sql.dialects.registry import dialect_names, get_dialect, register_dialect
from backstory.stores.sql.dialects.spark import Spark
from backstory.stores.sql.dialects.sqlserver import SqlServer
from backstory.stores.sql.engines.engine import Engine
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
