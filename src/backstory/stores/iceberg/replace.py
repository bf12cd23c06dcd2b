"""Rows that go and rows that come, both where Spark runs, in one commit."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backstory.observe.metrics import timed
from backstory.stores.iceberg.commit import Note, commit, discarding
from backstory.stores.iceberg.data_files import write_frame
from backstory.stores.iceberg.faults import conflict, translated
from backstory.stores.iceberg.literals import quoted
from backstory.stores.iceberg.positions import positions_of
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.iceberg.vectors import Positions, write_deletions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def replace_rows(
    store: Store,
    table: StoredTable,
    gone: "DataFrame | Positions",
    come: "DataFrame | None",
    note: Note,
    *,
    count: int | None = None,
    disorder: bool = False,
    staged: Any = None,
) -> int:
    """Take the rows at `_file` and `_pos` away and add others, and give the snapshot's id.

    With `staged`, a transaction, the table gets its shape in the same commit, and the rows that come
    are of that shape. Raises TryAgain if another writer came first, or if not `count` rows come.
    """
    with timed("write"), translated(table.shape.table), discarding(table) as written:
        files = []
        if come is not None:
            pending = table if staged is None else StoredTable(table.shape, staged.table())
            names = [field["name"] for field in fields_of(store.jvm, pending.iceberg.schema())]
            files = write_frame(store, pending, come.select(*map(quoted, names)))
            written.extend(files)
        if count not in {None, sum(int(file.recordCount()) for file in files)}:
            raise conflict(table.shape.table)  # what they were made of is not what was counted
        positions = gone if isinstance(gone, Mapping) else positions_of(gone)
        deletions = write_deletions(store, table, positions)
        written.extend(deletions.added)
    with timed("commit"):
        return commit(table, files, deletions, note, disorder=disorder, staged=staged)
