"""The rows of a dataset's blocks, read by Spark as the blocks were written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backstory.journal.chain import Block
from backstory.journal.row_hash import Slice, slice_hashes
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import rows_at
from backstory.stores.iceberg.literals import quoted
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.spark_types import spark_schema
from backstory.stores.iceberg.store import Store, StoredTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class SparkRows:
    """The rows and columns of a dataset."""

    store: Store
    table: StoredTable

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The columns in their order, each with its type as Spark's `simpleString`."""
        schema = spark_schema(self.store, self.table.iceberg.schema())
        return [(each.name, each.dataType.simpleString()) for each in schema]

    def slices(
        self, found: Sequence[Block], namings: Mapping[int, Mapping[str, str]]
    ) -> dict[int | None, Slice]:
        """The rows of each block, and under None those of no block; one pass for each naming of the columns.

        `namings` has for each block the names that system columns had then, where they have others now.
        """
        slices: dict[int | None, Slice] = {block.sequence: Slice() for block in found}
        if self.table.iceberg.currentSnapshot() is None:
            return slices
        wanted = [(block.sequence, *block.offsets) for block in found if block.offsets]
        with translate_faults(self.table.shape.table):
            rows = self._rows()
            passes = [namings[number] for number, _, _ in wanted] or [{}]
            for names in {tuple(each.items()): each for each in passes}.values():
                # The offset is always the first column (decision O7).
                built = slice_hashes(rows, rows.columns[0], wanted, names)
                slices |= {
                    number: each
                    for number, each in built.items()
                    if number is None or namings[number] == names
                }
        return slices

    def repeated(self, block: Block) -> int:
        """How many rows of a block have the offset of another one."""
        from pyspark.sql.functions import count, count_distinct

        rows = self._rows()
        offset = rows[quoted(rows.columns[0])]
        with translate_faults(self.table.shape.table):
            rows = rows.where(offset.between(*block.offsets or ()))
            (found,) = rows.agg((count(offset) - count_distinct(offset)).alias("rows")).collect()
        return int(found["rows"])

    def _rows(self) -> "DataFrame":
        """The rows of the snapshot that the blocks were read from, by the names that columns have now."""
        store, table = self.store, self.table
        snapshot = table.iceberg.currentSnapshot()
        rows = rows_at(store, table.shape.table, int(snapshot.snapshotId()))
        now = {each["id"]: each["name"] for each in fields_of(store.jvm, table.iceberg.schema())}
        then = {
            each["name"]: each["id"]
            for each in fields_of(store.jvm, table.iceberg.schemas().get(snapshot.schemaId()))
        }
        return rows.toDF(*(now.get(then[name], name) for name in rows.columns))
