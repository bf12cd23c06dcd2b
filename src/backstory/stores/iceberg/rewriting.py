"""Write rows of data files into other files: those that stay are the rows that they were."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backstory.model.layout import YEAR
from backstory.stores.iceberg.data_files import write_frame
from backstory.stores.iceberg.jvm import rewriting
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.scripts import TASKS_OPTION, forget_tasks, scan_tasks_of, stage_tasks
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.refusals import conflict

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A file is to hold so much, unless the table says that it may hold less.
TARGET = 128 << 20
TARGET_PROPERTY = "write.target-file-size-bytes"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Iceberg's scan tasks of files that make way, and its objects for those that take their place."""

    tasks: Sequence[Any]
    files: Sequence[Any]

    @property
    def freed(self) -> int:
        """The bytes of the files that make way."""
        return sum(int(task.file().fileSizeInBytes()) for task in self.tasks)


def rewrite(
    store: Store,
    table: StoredTable,
    locations: Iterable[str],
    keeping: "Callable[[DataFrame], DataFrame]" = lambda rows: rows,
) -> Rewritten:
    """New files with those rows of these files that are kept, sorted as the table is; committed by nobody.

    Rows keep their ids and the numbers of their last update. Raises TryAgain if a file is gone.
    """
    wanted = list(locations)
    tasks = list(scan_tasks_of(store.jvm, table.iceberg, wanted).values())
    if len(tasks) < len(set(wanted)):
        raise conflict(table.shape.table)
    size = sum(int(task.file().fileSizeInBytes()) for task in tasks)
    with rewriting(store.jvm, table.iceberg) as (group, _):
        stage_tasks(store.jvm, table.iceberg, group, store.jvm.java.util.ArrayList(tasks))
        try:
            rows = store.spark.read.format("iceberg").option(TASKS_OPTION, group).load(group)
            return Rewritten(tasks, write_frame(store, table, _sorted(table, keeping(rows), size)))
        finally:
            forget_tasks(store.jvm, table.iceberg, group)


def target_size(table: StoredTable) -> int:
    """How large a file is to be."""
    return min(TARGET, table.number(TARGET_PROPERTY, TARGET))


def stage_rewrite(
    transaction: Any, done: Rewritten, properties: dict[str, str], *, every: bool = False
) -> Any:
    """The operation of a transaction in which the files take the place of those that were read.

    A delete file that hides rows of one of them alone goes too; what hides rows of several stays, unless
    `every` one goes, as where each file with hidden rows was read.
    """
    operation = transaction.newRewrite()
    seen = transaction.startMetadata().currentSnapshot()
    operation.validateFromSnapshot(seen.snapshotId())
    gone = set()
    for task in done.tasks:
        operation.deleteFile(task.file())
        for deletes in task.deletes():
            place = (str(deletes.location()), deletes.contentOffset())
            if (every or deletes.referencedDataFile() is not None) and place not in gone:
                gone.add(place)
                operation.deleteFile(deletes)
    for file in done.files:
        operation.addFile(file)
    for name, value in properties.items():
        operation.set(name, value)
    return operation


def _sorted(table: StoredTable, rows: "DataFrame", size: int) -> "DataFrame":
    """The rows as they are to lie: apart by partition, then in the order of the key, or of offsets."""
    by = [*_partition(table), *(column(name) for name in _order(table))]
    parts = max(1, -(-size // target_size(table)))
    parted = rows.repartitionByRange(parts, *by) if parts > 1 and by else rows.coalesce(parts)
    return parted.sortWithinPartitions(*by) if by else parted


def _partition(table: StoredTable) -> "list[Column]":
    from pyspark.sql.functions import year

    found = {(str(each.transform()), each.sourceId()) for each in table.iceberg.spec().fields()}
    transforms = [(kind, str(table.iceberg.schema().findColumnName(id_))) for kind, id_ in sorted(found)]
    return [year(column(name)) if kind == YEAR else column(name) for kind, name in transforms if name]


def _order(table: StoredTable) -> Sequence[str]:
    """Rows of an event log lie in the order of their first column, the offset."""
    return table.shape.key if table.shape.layout.sorted else table.shape.names[:1]
