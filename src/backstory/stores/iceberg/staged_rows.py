"""The rows of Iceberg's scan tasks, with the file and the position of each."""

from typing import TYPE_CHECKING, Any

from backstory.stores.iceberg.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def rows_of_tasks(store: Store, tables: tuple[Any, Any]) -> "DataFrame":
    """The rows of staged tasks, as `stage_tasks` gives the two tables.

    The table by which Iceberg's rewriting reads does not show places where rows have ids; the relation of an
    ordinary one does.
    """
    from pyspark.sql import DataFrame

    (ordinary, staged), none = tables, store.jvm.scala.Option.empty()
    relations = store.jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation
    shown = relations.create(ordinary, none, none).withMetadataColumns()
    others = [shown.productElement(place) for place in range(1, shown.productArity())]
    session = store.spark._jsparkSession  # noqa: SLF001
    rows = store.jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, shown.copy(staged, *others))
    return DataFrame(rows, store.spark)
