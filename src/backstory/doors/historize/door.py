"""Historize a model: on a warehouse, on a database, or as a text of SQL."""

from pathlib import Path
from typing import TYPE_CHECKING

from backstory.doors.historize.asked import Asked
from backstory.doors.historize.dialects.registry import get_dialect
from backstory.doors.historize.pepper import find_pepper
from backstory.doors.historize.receipts import HistoryReceipt
from backstory.doors.historize.run import open_model, run_model
from backstory.doors.historize.script import script
from backstory.doors.historize.sql_target import SqlTarget
from backstory.errors import UsageError

if TYPE_CHECKING:
    from backstory.tables.store import Store

SPARK = "spark_iceberg"


def needs_spark(path: str | Path, dialect: str | None) -> bool:
    """Whether the loads run on Spark; UsageError for a wrong model or an unknown dialect."""
    model, _ = open_model(path, tell=False)
    return get_dialect(dialect or model.dialect).DIALECT_NAME == SPARK


def historize_on_spark(path: str | Path, store: "Store", asked: Asked) -> list[HistoryReceipt]:
    """Load a model's datasets into a warehouse; a receipt for each."""
    from backstory.doors.historize.spark_target import SparkTarget

    model, folder = open_model(path)
    return run_model(model, folder, SparkTarget(store, find_pepper(model.environment)), asked)


def historize_on_database(
    path: str | Path, dialect: str | None, url: str | None, asked: Asked
) -> list[HistoryReceipt]:
    """Load a model's datasets into a database; the connection is closed at the end."""
    model, folder = open_model(path)
    chosen = get_dialect(dialect or model.dialect)
    if url is None:
        raise UsageError(
            "no-url",
            f"The dialect {chosen.DIALECT_NAME} needs to know where its database is.",
            "Give --url, such as duckdb:///path/file.duckdb or postgresql://user@host:port/database.",
        )
    pepper = find_pepper(model.environment)
    with chosen.get_execution_engine(url) as engine:
        return run_model(model, folder, SqlTarget(chosen, engine, pepper), asked)


def sql_of(path: str | Path, dialect: str | None, only: str | None = None) -> str:
    """The statements of a model; for Spark with the history written out as four steps, too."""
    model, folder = open_model(path)
    return script(model, folder, get_dialect(dialect or model.dialect), only)
