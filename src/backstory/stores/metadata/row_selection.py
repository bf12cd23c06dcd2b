"""Read the chosen rows of a Parquet file: from few of its row groups, and most columns from even fewer."""

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

# So many rows of a file, or so many bytes, are read together, or more where a row group has more.
AT_ONCE: Final = 1 << 20
BYTES_AT_ONCE: Final = 1 << 28
ChooseRows = Callable[[pa.Table], Values]


def _always(_: object) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class RowSelection:
    """What is read of each file: the columns `asked`, of the rows that are `chosen` by the columns `of`.

    `may_have` tells by the statistics of a row group whether it may have such rows; `parted` are the ids of
    the fields that partitions are of.
    """

    fields: Sequence[Field]
    partition_ids: Collection[int]
    filter_fields: Sequence[Field] = ()
    choose: ChooseRows | None = None
    may_have: MayHave = _always

    def parts(
        self,
        file: pq.ParquetFile,
        standing: Callable[[], pa.Array | None],
        hold: Callable[[int], None],
    ) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """The rows of a file and their positions, some row groups at a time.

        `standing` tells which rows of the whole file are not hidden, None where all are; `hold` is told how
        many bytes a part takes, first at least, then in truth; it may refuse.
        """
        for groups in combine_groups(
            file.metadata, matching_groups(file, self.filter_fields, self.may_have), AT_ONCE
        ):
            if (found := self._rows(file, groups, standing, hold)) is not None:
                yield found

    def _rows(
        self,
        file: pq.ParquetFile,
        groups: Sequence[int],
        standing: Callable[[], pa.Array | None],
        hold: Callable[[int], None],
    ) -> tuple[pa.Table, np.ndarray] | None:
        first, alive = pa.table({}), None
        if self.choose is not None:
            first = read_fields(file, self.filter_fields, self.partition_ids, hold, groups)
            alive = truths_of(self.choose(first))
        if (there := standing()) is not None:
            visible = truths_of(there.take(integers(positions_in(file.metadata, groups))))
            alive = visible if alive is None else alive & visible
        if alive is None:
            rows = read_fields(file, self.fields, self.partition_ids, hold, groups)
            return rows, positions_in(file.metadata, groups)
        if not alive.any():
            return None
        groups, kept = groups_with(file.metadata, groups, alive)
        # What rows were chosen by, other than parts of structs, is not read once more.
        known = {
            name: first[name].filter(booleans(alive))
            for name in (each["name"] for each in self.fields if each in self.filter_fields)
            if name in first.column_names
        }
        del first
        size = sum(values.nbytes for values in known.values())
        rest = [each for each in self.fields if each["name"] not in known]
        some = None if kept.true_count == len(kept) else kept
        rows = read_fields(file, rest, self.partition_ids, lambda more: hold(size + more), groups, some)
        columns = known | dict(zip(rows.column_names, rows.columns, strict=True))
        places = positions_in(file.metadata, groups)[truths_of(kept)]
        return pa.table({each["name"]: columns[each["name"]] for each in self.fields}), places


@dataclass(slots=True)
class HeldParts:
    """Parts of a file's rows that are kept, and what the lease holds for them."""

    lease: MemoryLease
    name: str
    parts: list[pa.Table] = field(default_factory=list)
    kept: int = 0

    def hold(self, size: int) -> None:
        """The part that is read takes so many bytes; raises TooLarge for more than the lease can hold."""
        self.lease.hold(self.name, self.kept + size)

    def keep(self, rows: pa.Table) -> None:
        """Keep what is left of the part."""
        self.parts.append(rows)
        self.kept += rows.nbytes

    def whole(self) -> list[pa.Table]:
        """All parts; from now on the lease holds these alone."""
        self.hold(0)
        return self.parts


def combine_groups(metadata: pq.FileMetaData, groups: Sequence[int], at_once: int) -> Iterator[list[int]]:
    """Row groups of a file that are read together: what is not chosen of them is let go before the next."""
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
