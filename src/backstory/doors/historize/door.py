"""Historize a model: on a warehouse, on a database, or as a text of SQL."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from backstory.doors.historize.load_request import LoadRequest
from backstory.doors.historize.model import Model
from backstory.doors.historize.pepper import find_pepper
from backstory.doors.historize.receipts import HistoryReceipt
from backstory.doors.historize.run import open_model, run_model
from backstory.doors.historize.script import script
from backstory.doors.historize.sql_target import SqlTarget
from backstory.errors import UsageError
from backstory.stores.sql.dialects.dialect import Dialect
from backstory.stores.sql.dialects.registry import get_dialect

if TYPE_CHECKING:
    from backstory.stores.iceberg.store import Store

SPARK = "spark_iceberg"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model, the folder that its files are relative to, and the dialect that it is loaded in."""

    model: Model
    folder: Path
    dialect: Dialect

    @property
    def on_spark(self) -> bool:
        """Whether the loads run on Spark."""
        return self.dialect.DIALECT_NAME == SPARK


def choose(path: str | Path, dialect: str | None) -> Chosen:
    """A model and its dialect, or another; UsageError for a wrong model or an unknown dialect."""
    model, folder = open_model(path)
    return Chosen(model, folder, get_dialect(dialect or model.dialect))


def historize_on_spark(chosen: Chosen, store: "Store", asked: LoadRequest) -> list[HistoryReceipt]:
    """Load a model's datasets into a warehouse; a receipt for each."""
    from backstory.doors.historize.spark_target import SparkTarget

    pepper = find_pepper(chosen.model.environment)
    return run_model(chosen.model, chosen.folder, SparkTarget(store, pepper), asked)


def historize_on_database(chosen: Chosen, url: str | None, asked: LoadRequest) -> list[HistoryReceipt]:
    """Load a model's datasets into a database; the connection is closed at the end."""
    dialect = chosen.dialect
    if url is None:
        raise UsageError(
            "no-url",
            f"The dialect {dialect.DIALECT_NAME} needs the address of its database.",
            "Use `url=ADDRESS`, such as duckdb:///path/file.duckdb or postgresql://user@host:port/database.",
        )
    pepper = find_pepper(chosen.model.environment)
    with dialect.get_execution_engine(url) as engine:
        return run_model(chosen.model, chosen.folder, SqlTarget(dialect, engine, pepper), asked)


def sql_of(chosen: Chosen, only: str | None = None) -> str:
    """The statements of a model; for Spark with the history written out as four steps, too."""
    return script(chosen.model, chosen.folder, chosen.dialect, only)
