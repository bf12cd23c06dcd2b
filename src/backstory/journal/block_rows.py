"""The rows of a dataset's blocks, read by Spark or from files, under their original column names."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from backstory.journal.arrow_hash import hash_text, words_of_table
from backstory.journal.chain import Block
from backstory.journal.row_hash import Slice, slice_hashes
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import rows_at
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.schema import fields_of, spark_schema
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.parquet_files import spark_name
from backstory.stores.metadata.table_rows import MOST_IN_ARROW, TableReader
from backstory.stores.metadata.values import whole_numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class SparkRows:
    """The rows and columns of a dataset, read by Spark."""

    store: IcebergStore
    table: IcebergTable

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The columns in their order, each with its type in the form of Spark's `simpleString`."""
        schema = spark_schema(self.store.jvm, self.table.iceberg.schema())
        return [(each.name, each.dataType.simpleString()) for each in schema]

    def slices(
        self, blocks: Sequence[Block], namings: Mapping[int, Mapping[str, str]]
    ) -> dict[int | None, Slice]:
        """The rows of each block and, under None, the rows of no block.

        There is one pass for each naming of columns. `namings` maps renamed system columns to their names in
        a block, for each block.
        """
        slices: dict[int | None, Slice] = {block.sequence: Slice() for block in blocks}
        if self.table.iceberg.currentSnapshot() is None:
            return slices
        borders = [(block.sequence, *block.offsets) for block in blocks if block.offsets]
        with translate_faults(self.table.shape.table):
            rows = self._rows()
            passes = [namings[number] for number, _, _ in borders] or [{}]
            for names in {tuple(each.items()): each for each in passes}.values():
                # The offset is always the first column (decision O7).
                built = slice_hashes(rows, rows.columns[0], borders, names)
                slices |= {
                    number: each
                    for number, each in built.items()
                    if number is None or namings[number] == names
                }
        return slices

    def count_repeated(self, block: Block) -> int:
        """The number of rows of a block whose offset is also the offset of another row."""
        from pyspark.sql.functions import count, count_distinct

        rows = self._rows()
        offset = rows[quote(rows.columns[0])]
        with translate_faults(self.table.shape.table):
            rows = rows.where(offset.between(*block.offsets or ()))
            (row,) = rows.agg((count(offset) - count_distinct(offset)).alias("rows")).collect()
        return int(row["rows"])

    def _rows(self) -> "DataFrame":
        """The rows of the snapshot from which the blocks were read, with the current names of columns."""
        store, table = self.store, self.table
        snapshot = table.iceberg.currentSnapshot()
        rows = rows_at(store, table.shape.table, int(snapshot.snapshotId()))
        now = {each["id"]: each["name"] for each in fields_of(store.jvm, table.iceberg.schema())}
        then = {
            each["name"]: each["id"]
            for each in fields_of(store.jvm, table.iceberg.schemas().get(snapshot.schemaId()))
        }
        return rows.toDF(*(now.get(then[name], name) for name in rows.columns))


SAME: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class SmallRows:
    """The rows and columns of a small dataset, from files.

    Raises Unreadable if only Spark can read or hash them.
    """

    files: TableReader

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The columns in their order, each with its type in the form of Spark's `simpleString`."""
        return [(each["name"], spark_name(each["type"])) for each in self.files.table.fields]

    def slices(
        self, blocks: Sequence[Block], namings: Mapping[int, Mapping[str, str]]
    ) -> dict[int | None, Slice]:
        """The rows of each block and, under None, the rows of no block.

        There is one pass for each naming of columns. `namings` maps renamed system columns to their names in
        a block, for each block.
        """
        slices: dict[int | None, Slice] = {block.sequence: Slice() for block in blocks}
        if self.files.table.snapshot is None:
            return slices
        spans = {block.sequence: block.offsets for block in blocks if block.offsets}
        passes = [namings[number] for number in spans] or [SAME]
        for names in {tuple(each.items()): each for each in passes}.values():
            words = _hash_rows(self._rows, names)
            slices |= {
                number: words.slice_between(*span)
                for number, span in spans.items()
                if namings[number] == names
            }
            slices |= words.slice_outside(spans.values())
        return slices

    def count_repeated(self, block: Block) -> int:
        """The number of rows of a block whose offset is also the offset of another row."""
        assert block.offsets is not None
        (start, end), offsets = block.offsets, whole_numbers(self._rows.column(0))
        inside = offsets[(offsets >= start) & (offsets <= end)]
        return len(inside) - len(np.unique(inside))

    @cached_property
    def _rows(self) -> pa.Table:
        """The rows of the newest snapshot, with the current names of columns."""
        table, snapshot = self.files.table, self.files.table.snapshot
        assert snapshot is not None
        then = table.fields_then(snapshot.get("schema-id"))
        rows = self.files.rows(snapshot, then, [each["name"] for each in then], MOST_IN_ARROW)
        now = {each["id"]: each["name"] for each in table.fields}
        names = [now.get(each["id"], each["name"]) for each in then]
        if any(pa.types.is_nested(each.type) for each in rows.schema) or len(set(names)) < len(names):
            raise Unreadable("nested values, or two columns with one name")
        if not pa.types.is_integer(rows.schema[0].type):  # the offset is always the first column
            raise Unreadable("offsets that are not numbers")
        return rows.rename_columns(names)


@dataclass(frozen=True, slots=True)
class _RowWords:
    """The hash words of rows, sorted by offset. Rows without an offset are at the end."""

    offsets: np.ndarray
    words: np.ndarray

    def slice_between(self, start: int, end: int) -> Slice:
        """The rows from one offset to another, including both."""
        first, last = self._span(start, end)
        return self._slice(np.arange(first, last))

    def slice_outside(self, spans: Iterable[tuple[int, int]]) -> dict[int | None, Slice]:
        """The rows outside all spans, under the key None. The result is empty if there are no such rows."""
        outside = np.ones(self.words.shape[1], dtype=bool)
        for span in spans:
            outside[slice(*self._span(*span))] = False
        return {None: self._slice(np.flatnonzero(outside))} if outside.any() else {}

    def _span(self, start: int, end: int) -> tuple[int, int]:
        first, last = np.searchsorted(self.offsets, [start, end + 1])
        return int(first), int(last)

    def _slice(self, places: np.ndarray) -> Slice:
        if not len(places):
            return Slice()
        offsets = self.offsets[places[places < len(self.offsets)]].tolist()
        row_hash = hash_text(np.bitwise_xor.reduce(self.words[:, places], axis=1))
        return Slice(len(places), row_hash, *(offsets[0], offsets[-1]) if offsets else (None, None))


def _hash_rows(rows: pa.Table, names: Mapping[str, str]) -> _RowWords:
    """The hash words of rows. `names` maps renamed columns to their names when the rows were written."""
    renamed = rows.rename_columns([names.get(name, name) for name in rows.column_names])
    words = words_of_table(renamed, renamed.column_names[0])
    has_offset, offsets = rows.column(0).is_valid().to_numpy(), whole_numbers(rows.column(0))
    order = np.argsort(offsets, kind="stable")
    in_order = np.concatenate([words[:, has_offset][:, order], words[:, ~has_offset]], axis=1)
    return _RowWords(offsets[order], in_order)
