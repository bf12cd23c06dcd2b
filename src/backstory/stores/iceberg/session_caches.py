"""What a session keeps of tables, and may show of them after another writer committed.

Iceberg's catalog caches tables unless it is told not to, Spark the rows of what somebody cached. Spark reads
by name, so both must be brought up to date before it does, and after each commit for whoever reads beside us.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from backstory.spark.late import LateSpark
from backstory.stores.iceberg.jvm import caches, catalog

if TYPE_CHECKING:
    from backstory.model.table import TableName
    from backstory.stores.iceberg.store import Store

# Where the metadata of a table was when rows that somebody cached were last compared with it.
_COMPARED: Final[dict[tuple[str, str], str]] = {}


def refresh(store: "Store", table: "TableName", metadata: str | None = None) -> None:
    """From now on the session reads the table, by its name, as it stands now or later.

    With the place of the table's metadata, rows that somebody cached are dropped only where it is a new one.
    """
    if isinstance(store.session, LateSpark) and store.session.started is None:
        return
    named = catalog(store.spark, store.catalog)
    if caches(store.jvm, named):
        named.invalidateTable(store.identifier(table))
    if not store.spark._jsparkSession.sharedState().cacheManager().isEmpty():  # noqa: SLF001 - Python has no name for it
        _refresh_rows(store, table, metadata)


def announce(store: "Store", *tables: "TableName") -> None:
    """The session reads these tables as a commit made them, which holds whatever Java says now."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):
        for each in tables:
            refresh(store, each)


def _refresh_rows(store: "Store", table: "TableName", metadata: str | None) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    name = store.sql_name(table)
    if metadata is None or _COMPARED.get((store.address, name)) != metadata:
        # The table was dropped; or a cached frame cannot be planned again, and is no longer cached then.
        with suppress(PySparkException, Py4JJavaError):
            store.spark.sql(f"REFRESH TABLE {name}")
        _COMPARED[store.address, name] = metadata or ""
