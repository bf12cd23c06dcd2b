"""Ask a warehouse in SQL; what is asked can only read."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from backstory.errors import Failed, UsageError
from backstory.model.table import TableName
from backstory.spark.parsed_queries import cause_of, tables_read
from backstory.stores.iceberg.faults import java_fault, lost_file
from backstory.stores.iceberg.sessions import refresh
from backstory.stores.iceberg.store import Store, require_here
from backstory.stores.iceberg.workers import error_of_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLANS: Final = "org.apache.spark.sql.catalyst.plans.logical."
LOOKING_UP: Final = ("DescribeColumn", "DescribeRelation", "ShowColumns", "ShowNamespaces", "ShowTables")
NAMED: Final = ("UnresolvedTable", "UnresolvedTableOrView", "UnresolvedView")
FILES: Final = "spark.sql.runSQLOnFiles"
REMEDY: Final = "`backstory tables` lists the tables; put `` around unusual names."


def run_query(store: Store, query: str) -> "DataFrame":
    """The answer to one query of Spark SQL; a table is `schema.table`, in this catalog.

    It may compute on rows of tables, list tables, or describe one: known by its parsed plan, before Spark
    looks at anything. Raises UsageError for anything else, and for what Spark cannot read.
    """
    from pyspark.errors import AnalysisException
    from pyspark.errors.exceptions.captured import UnsupportedOperationException

    with _within_catalog(store):
        named = _names_to_look_up(store, query)
        read = [] if named is not None else list(tables_read(store.spark, query))
        for name in read if named is None else named:
            _require_here(store, name)
        _refresh(store, read)
        try:
            return store.spark.sql(query)
        except (AnalysisException, UnsupportedOperationException) as wrong:  # of types too, in Spark 3.5
            raise UsageError("wrong-query", cause_of(wrong), REMEDY) from None


def _refresh(store: Store, names: Iterable[Sequence[str]]) -> None:
    """The session reads these tables as they stand, or a table of metadata of one as this one stands."""
    for name in names:
        own = name[1:] if name[0] == store.catalog else name
        if len(own) > 1:
            refresh(store, TableName(*own[:2]))


def _require_here(store: Store, name: Sequence[str]) -> None:
    """Raise UsageError if a name, or what it begins with, is a table where the warehouse stood before."""
    parts = name[name[0] == store.catalog :]
    for end in range(2, len(parts) + 1):  # behind a table's name stands that of its snapshots, or a branch
        require_here(store, TableName(".".join(parts[: end - 1]), parts[end - 1]))


def _names_to_look_up(store: Store, query: str) -> list[tuple[str, ...]] | None:
    """The names that a statement such as DESCRIBE or SHOW looks up; None for a query."""
    from pyspark.errors import AnalysisException

    try:
        plan = store.spark._jsparkSession.sessionState().sqlParser().parsePlan(query)  # noqa: SLF001
    except AnalysisException:
        return None  # it is told where the query is looked at
    if str(plan.getClass().getName()).removeprefix(PLANS) not in LOOKING_UP:
        return None
    children = plan.children()
    places = [children.apply(place) for place in range(children.size())]
    names = [each.multipartIdentifier() for each in places if each.nodeName() in NAMED]
    return [tuple(each.apply(part) for part in range(each.size())) for each in names]


@contextmanager
def translate_query_faults(table: TableName | str) -> Iterator[None]:
    """While the rows of an answer come, an error of Spark is one of the query, or of files that it reads.

    `table` is what it reads, for the error.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as stop:
        told = error_of_worker(str(stop)) or lost_file(stop, table)
        raise told or Failed("query-failed", cause_of(stop), "Fix the query.") from None
    except Py4JJavaError as stop:
        raise java_fault(stop, table) from None


@contextmanager
def _within_catalog(store: Store) -> Iterator[None]:
    """The session's catalog is the warehouse's meanwhile, and no name is taken for a file's."""
    before, files = store.spark.catalog.currentCatalog(), str(store.spark.conf.get(FILES))
    store.spark.catalog.setCurrentCatalog(store.catalog)
    store.spark.conf.set(FILES, "false")
    try:
        yield
    finally:
        store.spark.conf.set(FILES, files)
        store.spark.catalog.setCurrentCatalog(before)
