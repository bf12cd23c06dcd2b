"""Run a read-only Spark SQL query on a warehouse."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.errors.exceptions.captured import UnsupportedOperationException
from pyspark.sql import DataFrame

from backstory.errors import Failed, UsageError
from backstory.model.table import TableName
from backstory.spark.parsed_queries import cause_of, tables_read
from backstory.stores.iceberg.faults import file_error, java_fault
from backstory.stores.iceberg.sessions import refresh
from backstory.stores.iceberg.store import IcebergStore, require_here
from backstory.stores.iceberg.workers import error_of_worker

PLANS: Final = "org.apache.spark.sql.catalyst.plans.logical."
LOOKUPS: Final = ("DescribeColumn", "DescribeRelation", "ShowColumns", "ShowNamespaces", "ShowTables")
NAMED: Final = ("UnresolvedTable", "UnresolvedTableOrView", "UnresolvedView")
FILES: Final = "spark.sql.runSQLOnFiles"
REMEDY: Final = "`backstory tables` lists the tables; put `` around unusual names."


def run_query(store: IcebergStore, query: str) -> DataFrame:
    """The answer to one Spark SQL query, in which `schema.table` is a table of this catalog.

    The query may read rows, list tables or describe a table. Its parsed plan is checked before Spark runs it.
    Raises UsageError for any other statement, and for a query that Spark cannot analyze.
    """
    with _within_catalog(store):
        looked_up = _names_to_look_up(store, query)
        read = [] if looked_up is not None else list(tables_read(store.spark, query))
        for name in read if looked_up is None else looked_up:
            own = name[name[0] == store.catalog :]
            for end in range(2, len(own) + 1):  # a metadata table or a branch may follow the name of a table
                require_here(store, TableName(".".join(own[: end - 1]), own[end - 1]))
        for name in read:  # the session then reads the current state of the table and its metadata tables
            own = name[name[0] == store.catalog :]
            if len(own) > 1:
                refresh(store, TableName(*own[:2]))
        try:
            return store.spark.sql(query)
        except (
            AnalysisException,
            UnsupportedOperationException,
        ) as wrong:  # the latter for types in Spark 3.5
            raise UsageError("wrong-query", cause_of(wrong), REMEDY) from None


def _names_to_look_up(store: IcebergStore, query: str) -> list[tuple[str, ...]] | None:
    """The names that a statement such as DESCRIBE or SHOW looks up, or None for a query."""
    try:
        plan = store.spark._jsparkSession.sessionState().sqlParser().parsePlan(query)  # noqa: SLF001
    except AnalysisException:
        return None  # reported when the query is analyzed
    if str(plan.getClass().getName()).removeprefix(PLANS) not in LOOKUPS:
        return None
    children = plan.children()
    places = [children.apply(place) for place in range(children.size())]
    names = [each.multipartIdentifier() for each in places if each.nodeName() in NAMED]
    return [tuple(each.apply(part) for part in range(each.size())) for each in names]


@contextmanager
def translate_query_faults(table: TableName | str) -> Iterator[None]:
    """While an answer's rows are read, raise Spark's errors as errors of files or of the query.

    `table` is the table that the error names.
    """
    try:
        yield
    except PySparkException as stop:
        error = error_of_worker(str(stop)) or file_error(stop, table)
        raise error or Failed("query-failed", cause_of(stop), "Fix the query.") from None
    except Py4JJavaError as stop:
        raise java_fault(stop, table) from None


@contextmanager
def _within_catalog(store: IcebergStore) -> Iterator[None]:
    """Make the warehouse the session's catalog, and read no name as a file, until the block ends."""
    before, files = store.spark.catalog.currentCatalog(), str(store.spark.conf.get(FILES))
    store.spark.catalog.setCurrentCatalog(store.catalog)
    store.spark.conf.set(FILES, "false")
    try:
        yield
    finally:
        store.spark.conf.set(FILES, files)
        store.spark.catalog.setCurrentCatalog(before)
