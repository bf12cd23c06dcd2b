"""Ask a warehouse in SQL; what is asked can only read."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from backstory.errors import Failed, UsageError
from backstory.model.table import TableName
from backstory.spark.parsed_queries import cause_of, tables_read
from backstory.stores.iceberg.faults import java_fault, lost_file
from backstory.stores.iceberg.session_caches import refresh
from backstory.stores.iceberg.store import Store
from backstory.stores.iceberg.workers import carried

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLANS: Final = "org.apache.spark.sql.catalyst.plans.logical."
LOOKING_UP: Final = ("DescribeColumn", "DescribeRelation", "ShowColumns", "ShowNamespaces", "ShowTables")
FILES: Final = "spark.sql.runSQLOnFiles"
REMEDY: Final = "`backstory tables` lists the tables; put `` around odd names."


def asked(store: Store, query: str) -> "DataFrame":
    """The answer to one query of Spark SQL; a table is `schema.table`, in this catalog.

    It may compute on rows of tables, list tables, or describe one: known by its parsed plan, before Spark
    looks at anything. Raises UsageError for anything else, and for what Spark cannot read.
    """
    from pyspark.errors import AnalysisException

    with _here(store):
        if not _looks_up(store, query):
            _refresh(store, tables_read(store.spark, query))
        try:
            return store.spark.sql(query)
        except AnalysisException as wrong:
            raise UsageError("wrong-query", cause_of(wrong), REMEDY) from None


def _refresh(store: Store, names: Iterable[Sequence[str]]) -> None:
    """The session reads these tables as they stand, or a table of metadata of one as this one stands."""
    for name in names:
        own = name[1:] if name[0] == store.catalog else name
        if len(own) > 1:
            refresh(store, TableName(*own[:2]))


def _looks_up(store: Store, query: str) -> bool:
    """Whether it is one of the statements that show what there is."""
    from pyspark.errors import AnalysisException

    try:
        plan = store.spark._jsparkSession.sessionState().sqlParser().parsePlan(query)  # noqa: SLF001
    except AnalysisException:
        return False  # it is told where the query is looked at
    return str(plan.getClass().getName()).removeprefix(PLANS) in LOOKING_UP


@contextmanager
def answering() -> Iterator[None]:
    """While the rows of an answer come, an error of Spark is one of the query, or of files that it reads."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as stop:
        told = carried(str(stop)) or lost_file(stop)
        raise told or Failed("query-failed", cause_of(stop), "Mend the query.") from None
    except Py4JJavaError as stop:
        raise java_fault(stop) from None


@contextmanager
def _here(store: Store) -> Iterator[None]:
    """The session's catalog is the warehouse's meanwhile, and no name is taken for a file's."""
    before, files = store.spark.catalog.currentCatalog(), str(store.spark.conf.get(FILES))
    store.spark.catalog.setCurrentCatalog(store.catalog)
    store.spark.conf.set(FILES, "false")
    try:
        yield
    finally:
        store.spark.conf.set(FILES, files)
        store.spark.catalog.setCurrentCatalog(before)
