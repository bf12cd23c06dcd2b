"""The rows of a dataset's blocks, read by Spark as the blocks were written.

The rows of a small dataset's blocks, read out of its files as the blocks were written.
"""

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
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.parquet_files import spark_name
from backstory.stores.metadata.table_rows import MOST_IN_ARROW, TableReader
from backstory.stores.metadata.values import whole_numbers

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
        schema = spark_schema(self.store.jvm, self.table.iceberg.schema())
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

    def count_repeated(self, block: Block) -> int:
        """How many rows of a block have the offset of another one."""
        from pyspark.sql.functions import count, count_distinct

        rows = self._rows()
        offset = rows[quote(rows.columns[0])]
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


SAME: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class SmallRows:
    """The rows and columns of a dataset; raises Unreadable for what Spark alone reads or hashes."""

    files: TableReader

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The columns in their order, each with its type as Spark's `simpleString`."""
        return [(each["name"], spark_name(each["type"])) for each in self.files.table.fields]

    def slices(
        self, found: Sequence[Block], namings: Mapping[int, Mapping[str, str]]
    ) -> dict[int | None, Slice]:
        """The rows of each block, and under None those of no block; one pass for each naming of the columns.

        `namings` has for each block the names that system columns had then, where they have others now.
        """
        slices: dict[int | None, Slice] = {block.sequence: Slice() for block in found}
        if self.files.table.snapshot is None:
            return slices
        spans = {block.sequence: block.offsets for block in found if block.offsets}
        passes = [namings[number] for number in spans] or [SAME]
        for names in {tuple(each.items()): each for each in passes}.values():
            hashed = _hash_rows(self._rows, names)
            slices |= {
                number: hashed.between(*span) for number, span in spans.items() if namings[number] == names
            }
            slices |= hashed.outside(spans.values())
        return slices

    def count_repeated(self, block: Block) -> int:
        """How many rows of a block have the offset of another one."""
        assert block.offsets is not None
        (start, end), offsets = block.offsets, whole_numbers(self._rows.column(0))
        inside = offsets[(offsets >= start) & (offsets <= end)]
        return len(inside) - len(np.unique(inside))

    @cached_property
    def _rows(self) -> pa.Table:
        """The rows of the newest snapshot, by the names that columns have now."""
        table, snapshot = self.files.table, self.files.table.snapshot
        assert snapshot is not None
        then = table.fields_then(snapshot.get("schema-id"))
        rows = self.files.rows(snapshot, then, [each["name"] for each in then], MOST_IN_ARROW)
        now = {each["id"]: each["name"] for each in table.fields}
        names = [now.get(each["id"], each["name"]) for each in then]
        if any(pa.types.is_nested(each.type) for each in rows.schema) or len(set(names)) < len(names):
            raise Unreadable("values with parts, or two columns of one name")
        if not pa.types.is_integer(rows.schema[0].type):  # the offset is always the first column
            raise Unreadable("offsets that are not numbers")
        return rows.rename_columns(names)


@dataclass(frozen=True, slots=True)
class _RowWords:
    """The words of rows in the order of their offsets; those of rows without one are behind them."""

    offsets: np.ndarray
    words: np.ndarray

    def between(self, start: int, end: int) -> Slice:
        """The rows from one offset to another."""
        first, last = self._span(start, end)
        return self._slice(np.arange(first, last))

    def outside(self, spans: Iterable[tuple[int, int]]) -> dict[int | None, Slice]:
        """The rows that are in none of the spans, under None; nothing if there are none."""
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
        told = hash_text(np.bitwise_xor.reduce(self.words[:, places], axis=1))
        return Slice(len(places), told, *(offsets[0], offsets[-1]) if offsets else (None, None))


def _hash_rows(rows: pa.Table, names: Mapping[str, str]) -> _RowWords:
    """The words of rows; `names` are those that columns had when these were written."""
    named = rows.rename_columns([names.get(name, name) for name in rows.column_names])
    words, known = words_of_table(named, named.column_names[0]), rows.column(0).is_valid().to_numpy()
    offsets = whole_numbers(rows.column(0))
    order = np.argsort(offsets, kind="stable")
    return _RowWords(offsets[order], np.concatenate([words[:, known][:, order], words[:, ~known]], axis=1))
