"""Ask a warehouse in SQL."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from backstory.errors import Failed, UsageError
from backstory.tables.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def asked(store: Store, query: str) -> "DataFrame":
    """The answer to one query of Spark SQL; a table is `schema.table`, in this catalog.

    Raises UsageError for a query that Spark cannot read.
    """
    from pyspark.errors import AnalysisException, ParseException

    try:
        with _here(store):
            return store.spark.sql(query)
    except (AnalysisException, ParseException) as wrong:
        raise UsageError(
            "wrong-query", _cause(wrong), "`backstory tables` lists the tables; put `` around odd names."
        ) from None


@contextmanager
def answering() -> Iterator[None]:
    """While the rows of an answer come, an error of Spark is one of the query."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as stop:
        raise Failed("query-failed", _cause(stop), "Mend the query.") from None


@contextmanager
def _here(store: Store) -> Iterator[None]:
    """The session's catalog is the warehouse's meanwhile."""
    before = store.spark.catalog.currentCatalog()
    store.spark.catalog.setCurrentCatalog(store.catalog)
    try:
        yield
    finally:
        store.spark.catalog.setCurrentCatalog(before)


def _cause(wrong: Exception) -> str:
    """What Spark says, without its code and its plan."""
    text = str(wrong).partition("SQLSTATE")[0].strip()
    return text.splitlines()[0][:300] if text else type(wrong).__name__
