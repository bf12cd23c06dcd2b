"""The rows of Iceberg's scan tasks, with the file and the position of each."""

from typing import TYPE_CHECKING, Any

from backstory.spark.versions import frame_of_plan
from backstory.stores.iceberg.scripts import TASKS_OPTION
from backstory.stores.iceberg.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def rows_of_tasks(store: Store, group: str, tables: tuple[Any, Any]) -> "DataFrame":
    """The rows of the tasks that are staged by this name, as `stage_tasks` gives the two tables.

    The table by which Iceberg's rewriting reads does not show places where rows have ids; the relation of an
    ordinary one does.
    """
    (ordinary, staged), none, sql = tables, store.jvm.scala.Option.empty(), store.jvm.org.apache.spark.sql
    relations = sql.execution.datasources.v2.DataSourceV2Relation
    if staged is None:
        options = sql.util.CaseInsensitiveStringMap({TASKS_OPTION: group})
        plan = relations.create(ordinary, none, none, options).withMetadataColumns()
    else:
        shown = relations.create(ordinary, none, none).withMetadataColumns()
        plan = shown.copy(staged, *(shown.productElement(place) for place in range(1, shown.productArity())))
    return frame_of_plan(store.spark, store.jvm, plan)
