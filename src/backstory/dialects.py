"""Databases that histories are kept on: the dialects, and how to add one of your own."""

from backstory.doors.historize.conformance import assert_dialect_conforms
from backstory.doors.historize.dialects.dialect import Dialect
from backstory.doors.historize.dialects.duckdb import DuckDB
from backstory.doors.historize.dialects.postgres import Postgres
from backstory.doors.historize.dialects.registry import dialect_names, get_dialect, register_dialect
from backstory.doors.historize.dialects.spark import Spark
from backstory.doors.historize.dialects.sqlserver import SqlServer
from backstory.doors.historize.engines.engine import Engine

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
