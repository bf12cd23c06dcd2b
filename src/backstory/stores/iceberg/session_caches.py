"""What a session keeps of tables, and may show of them after another writer committed.

Iceberg's catalog caches tables unless it is told not to, Spark the rows of what somebody cached. Spark reads
by name, so both must be brought up to date before it does, and after each commit for whoever reads beside us.
Each session has catalogs of its own: a stream's batches are written in a copy of the session that began it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from backstory.spark.late import LateSpark
from backstory.spark.versions import renew_kept_rows
from backstory.stores.iceberg.jvm import caches, catalog, loaded_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backstory.model.table import TableName
    from backstory.stores.iceberg.store import Store

# Where the metadata of a table was when rows that somebody cached were last compared with it.
_COMPARED: Final[dict[tuple[str, str], str]] = {}
# Sessions whose owners brought them here, as long as these have them.
_SESSIONS: "Final[WeakSet[SparkSession]]" = WeakSet()
# Tables that were committed while a plan's frames are kept; None where no frames are.
_LATER: "Final[ContextVar[list[tuple[Store, TableName]] | None]]" = ContextVar("later", default=None)


def watch(session: "SparkSession | LateSpark") -> None:
    """From now on each commit is announced in this session too, whichever session it is made in."""
    if not isinstance(session, LateSpark):
        _SESSIONS.add(session)


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

    waiting = _LATER.get()
    with suppress(Py4JError, OSError):
        for each in tables:
            for beside in _catalogs_beside(store):
                beside.invalidateTable(store.identifier(each))
            if waiting is None:
                refresh(store, each)
            else:
                waiting.append((store, each))


@contextmanager
def announcing_later() -> Iterator[None]:
    """Commits within the block are announced at its end, when the frames of their plan are no longer kept.

    Spark would plan such a frame anew on the newer table, and keep it as that for good.
    """
    waiting: list[tuple[Store, TableName]] = []
    before = _LATER.set(waiting)
    try:
        yield
    finally:
        _LATER.reset(before)
        for store, table in waiting:
            announce(store, table)


def _catalogs_beside(store: "Store") -> Iterator[Any]:
    """The caching catalogs that other sessions have under the same name, as far as these loaded them."""
    from py4j.protocol import Py4JError

    if isinstance(store.session, LateSpark):
        return
    for session in [*_SESSIONS]:
        if session is store.session:
            continue
        with suppress(Py4JError, OSError):  # a session that has ended reads nothing
            found = loaded_catalog(session, store.catalog)
            if found is not None and caches(store.jvm, found):
                yield found


def _refresh_rows(store: "Store", table: "TableName", metadata: str | None) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    name = store.sql_name(table)
    if metadata is None or _COMPARED.get((store.address, name)) != metadata:
        # The table was dropped; or a cached frame cannot be planned again, and is no longer cached then.
        with suppress(PySparkException, Py4JJavaError):
            renew_kept_rows(store.spark, name)
        _COMPARED[store.address, name] = metadata or ""
