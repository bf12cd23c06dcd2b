"""The rows of a table whose files lie on this machine, read here: as Spark's tasks read them, or not.

Reading them takes a fraction of the time that Spark takes to plan, to read and to hand them over.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from backstory.formats.memory import MemoryLease
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.stores.iceberg.hiding import hidden_by
from backstory.stores.iceberg.lineage import FIELD_IDS
from backstory.stores.iceberg.moves import BY_VALUE, ROWS
from backstory.stores.iceberg.partitions import parted_ids
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.scripts import FileLine, scan_where_null, standing_files
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.metadata.columns import Field, arrow_of, groups_within, positions_in, read_fields
from backstory.stores.metadata.embedded import local
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.rows import left

# Beyond so many files Spark's tasks read them faster.
MOST_FILES: Final = 1_000
# The places of rows read here; a file's name is kept once, not with each row.
PLACE_HERE: Final = pa.schema([(FILE, pa.dictionary(pa.int32(), pa.string())), (POSITION, pa.int64())])
# So many rows of a file are read together, or more where a row group has more.
AT_ONCE: Final = 1 << 20
NOWHERE: Final[Mapping[str, tuple[Any, Any]]] = MappingProxyType({})
Chosen = Callable[[pa.Table], pa.Array | pa.ChunkedArray]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is read of each file: columns, and which rows."""

    schema: pa.Schema
    asked: Sequence[Field]
    of: Sequence[Field]
    chosen: Chosen | None
    spans: Sequence[tuple[Field, Any, Any]]
    parted: Collection[int]

    def rows(
        self,
        file: pq.ParquetFile,
        line: FileLine,
        groups: Sequence[int],
        standing: pa.Array | None,
        held: Callable[[int], None],
    ) -> pa.Table | None:
        """The rows of some groups; None for none. `standing` tells of all rows of the file which are."""
        places = positions_in(file.metadata, groups)
        alive = None if standing is None else standing.take(pa.array(places))
        if self.chosen is not None:
            these = self.chosen(read_fields(file, self.of, self.parted, held, groups))
            alive = these if alive is None else pc.and_(these, alive)
            if not pc.any(alive).as_py():
                return None
        rows = read_fields(file, self.asked, self.parted, held, groups)
        rows = _placed(rows, line, places).select(self.schema.names).cast(self.schema)
        return rows if alive is None or pc.all(alive).as_py() else rows.filter(alive)


@dataclass(frozen=True, slots=True)
class LocalRows:
    """A table as it stands, whose files are read here as far as the lease can hold them."""

    store: Store
    table: StoredTable
    lease: MemoryLease

    def read(
        self,
        names: Sequence[str],
        of: Sequence[str] = (),
        chosen: Chosen | None = None,
        *,
        without: str | None = None,
        spans: Mapping[str, tuple[Any, Any]] = NOWHERE,
    ) -> pa.Table:
        """The chosen rows, or all, with these columns; `_file`, `_pos` and `_row_id` may be among them.

        `chosen` tells of the columns `of` a file's rows which are. Where all of them are `without` a value of
        a column, files that have none such are passed over; where all are within `spans`, from the least to
        the greatest value of a column, so are row groups. Raises Unreadable for what cannot be read exactly
        here, TooLarge for more than the lease can hold.
        """
        lineage = {"id": FIELD_IDS[ROW_ID], "name": ROW_ID, "type": "long"}
        told = fields_of(self.store.jvm, self.table.iceberg.schema())
        fields = {ROW_ID: lineage, **{each["name"]: each for each in told}}
        types = dict(zip(PLACE_HERE.names, PLACE_HERE.types, strict=True))
        schema = pa.schema([(name, types.get(name) or arrow_of(fields[name]["type"])) for name in names])
        wanted = _Wanted(
            schema,
            [fields[name] for name in names if name not in types],
            [fields[name] for name in of],
            chosen,
            [(fields[name], *span) for name, span in spans.items()],
            parted_ids(self.table.iceberg),
        )
        parts = []
        for line, hidden in self._files(without):
            name, kept = f"{line.location} without {without}", 0
            standing = None if hidden is None else left(hidden, line.count)
            with _opened(line) as file:
                for groups in _at_once(file.metadata, groups_within(file, wanted.spans)):
                    held = partial(self._hold, name, kept)
                    if (rows := wanted.rows(file, line, groups, standing, held)) is not None:
                        parts.append(rows)
                        kept += rows.nbytes
            self._hold(name, kept, 0)
        return pa.concat_tables(parts or [schema.empty_table()]).unify_dictionaries()

    def _hold(self, name: str, kept: int, size: int) -> None:
        self.lease.hold(name, kept + size)

    def _files(self, without: str | None) -> Iterator[tuple[FileLine, BitMap64 | None]]:
        """The files of rows, with the positions that are hidden in each."""
        jvm, iceberg = self.store.jvm, self.table.iceberg
        scan = iceberg.newScan() if without is None else scan_where_null(jvm, iceberg, without)
        lines = standing_files(jvm, scan, jvm.java.util.HashMap())
        files = [line for line in lines if line.content == ROWS]
        if len(files) > MOST_FILES:
            raise Unreadable(f"{len(files)} files")
        hidden: dict[str, BitMap64] = {}
        reading = hidden_by(self.table)
        for line in lines:
            if line.content == BY_VALUE:
                raise Unreadable("deletions by equality")
            if line.content != ROWS:
                for name, positions in reading(line).items():
                    hidden[name] = hidden[name] | positions if name in hidden else positions
        for line in files:
            if line.format != "PARQUET":
                raise Unreadable(f"{line.format} in {line.location}")
            yield line, hidden.get(line.location)


def _at_once(metadata: pq.FileMetaData, groups: Sequence[int]) -> Iterator[list[int]]:
    """Row groups of a file that are read together: what is not chosen of them is let go before the next."""
    together, rows = list[int](), 0
    for number in groups:
        together.append(number)
        rows += metadata.row_group(number).num_rows
        if rows >= AT_ONCE:
            yield together
            together, rows = [], 0
    if together:
        yield together


@contextmanager
def _opened(line: FileLine) -> Iterator[pq.ParquetFile]:
    """A file of rows; Unreadable where it lies elsewhere, is gone, or is no such file: Spark tells of it."""
    try:
        with pq.ParquetFile(local(line.location)) as file:
            yield file
    except (OSError, pa.ArrowInvalid) as stop:
        raise Unreadable(str(stop)) from stop


def _placed(rows: pa.Table, line: FileLine, positions: np.ndarray) -> pa.Table:
    """The rows of a file with their places, and the ids that they have from it or brought with them."""
    if ROW_ID in rows.column_names and line.first_row is not None:
        ids = pc.coalesce(rows[ROW_ID], pa.array(positions + line.first_row))
        rows = rows.set_column(rows.column_names.index(ROW_ID), ROW_ID, ids)
    file = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(positions), np.int32)), [line.location])
    return rows.append_column(FILE, file).append_column(POSITION, pa.array(positions))
