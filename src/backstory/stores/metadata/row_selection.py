"""Reads of chosen rows of a Parquet file, from few of its row groups, and most columns from even fewer."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backstory.formats.memory import MemoryLease
from backstory.stores.metadata.parquet_files import (
    Field,
    MayHave,
    Values,
    groups_with,
    matching_groups,
    positions_in,
    read_fields,
)
from backstory.stores.metadata.values import booleans, integers, truths_of

# Up to this many rows or bytes of a file are read together, or one larger row group.
AT_ONCE: Final = 1 << 20
BYTES_AT_ONCE: Final = 1 << 28
ChooseRows = Callable[[pa.Table], Values]


def _always(_: object) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The `fields` to read in each file, and the rows. `choose` returns their mask from `filter_fields`.

    `may_have` returns whether a row group may contain such rows, from its statistics. `partition_ids` are the
    ids of partition source fields.
    """

    fields: Sequence[Field]
    partition_ids: Collection[int]
    filter_fields: Sequence[Field] = ()
    choose: ChooseRows | None = None
    may_have: MayHave = _always

    def parts(
        self, file: pq.ParquetFile, live_mask: Callable[[], pa.Array | None], hold: Callable[[int], None]
    ) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """The rows of a file and their positions, for some row groups at a time.

        `live_mask` returns the mask of the file's rows that are not deleted, or None if all are live. `hold`
        is called with the size of a part, first a lower bound, then the exact size. It may raise TooLarge.
        """
        for groups in combine_groups(
            file.metadata, matching_groups(file, self.filter_fields, self.may_have), AT_ONCE
        ):
            if (part := self._rows(file, groups, live_mask, hold)) is not None:
                yield part

    def _rows(
        self,
        file: pq.ParquetFile,
        groups: Sequence[int],
        live_mask: Callable[[], pa.Array | None],
        hold: Callable[[int], None],
    ) -> tuple[pa.Table, np.ndarray] | None:
        first, mask = pa.table({}), None
        if self.choose is not None:
            first = read_fields(file, self.filter_fields, self.partition_ids, hold, groups)
            mask = truths_of(self.choose(first))
        if (live := live_mask()) is not None:
            visible = truths_of(live.take(integers(positions_in(file.metadata, groups))))
            mask = visible if mask is None else mask & visible
        if mask is None:
            rows = read_fields(file, self.fields, self.partition_ids, hold, groups)
            return rows, positions_in(file.metadata, groups)
        if not mask.any():
            return None
        groups, group_mask = groups_with(file.metadata, groups, mask)
        # The filter fields are not read again, except for structs, which may have been read in part.
        known = {
            name: first[name].filter(booleans(mask))
            for name in (field["name"] for field in self.fields if field in self.filter_fields)
            if name in first.column_names
        }
        del first
        size = sum(values.nbytes for values in known.values())
        rest = [field for field in self.fields if field["name"] not in known]
        some = None if group_mask.true_count == len(group_mask) else group_mask
        rows = read_fields(file, rest, self.partition_ids, lambda more: hold(size + more), groups, some)
        columns = known | dict(zip(rows.column_names, rows.columns, strict=True))
        places = positions_in(file.metadata, groups)[truths_of(group_mask)]
        return pa.table({field["name"]: columns[field["name"]] for field in self.fields}), places


@dataclass(slots=True)
class HeldParts:
    """Parts of a file's rows that are kept in memory, and their lease."""

    lease: MemoryLease
    name: str
    parts: list[pa.Table] = field(default_factory=list)
    kept: int = 0

    def hold(self, size: int) -> None:
        """Hold the kept bytes and `size` more bytes. Raises TooLarge if the lease cannot hold them."""
        self.lease.hold(self.name, self.kept + size)

    def keep(self, rows: pa.Table) -> None:
        """Keep the remaining rows of a part."""
        self.parts.append(rows)
        self.kept += rows.nbytes

    def whole(self) -> list[pa.Table]:
        """All parts. From now on the lease only holds these parts."""
        self.hold(0)
        return self.parts


def combine_groups(metadata: pq.FileMetaData, groups: Sequence[int], at_once: int) -> Iterator[list[int]]:
    """Row groups that are read together. Their other rows are released before the next batch."""
    batch, rows, size = list[int](), 0, 0
    for number in groups:
        group = metadata.row_group(number)
        batch.append(number)
        rows += group.num_rows
        size += group.total_byte_size
        if rows >= at_once or size >= BYTES_AT_ONCE:
            yield batch
            batch, rows, size = [], 0, 0
    if batch:
        yield batch
