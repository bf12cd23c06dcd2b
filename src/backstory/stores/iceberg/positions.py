"""Positions of a frame's rows in data files, and Spark's scan of the rows that commits moved.

Moved rows are read only from the files that contain them, each file once for all commits. Moved rows have the
table's current columns, which Iceberg finds by their ids.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from backstory.model.change import NUMBER, REPLACE, SIGN, TIME, VERSION
from backstory.model.layout import FILE, POSITION
from backstory.model.table import TableName
from backstory.spark.connect import arrow_parts, is_connect
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import metadata_rows, rows_of_tasks
from backstory.stores.iceberg.literals import column, micros_of, quote
from backstory.stores.iceberg.scripts import (
    files_between,
    files_of_commit,
    files_of_scan,
    forget_tasks,
    stage_tasks,
    tasks_of,
)
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.iceberg.workers import map_batches
from backstory.stores.metadata.moves import (
    GAP,
    FileLine,
    FilesOfCommit,
    Move,
    hidden_positions,
    moves_by_file,
)
from backstory.stores.metadata.parquet_files import groups_at
from backstory.stores.metadata.table_metadata import CommitMetadata, add_positions, positions_by_file
from backstory.stores.port import conflict

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# The driver collects the positions of up to this many rows. Spark's tasks pack the positions of more rows.
FEW = 100_000
PATH: Final = "file_path"


def file_code(salt: int, path: str = FILE) -> "Column":
    """A number for a file, which replaces its path in joins. A path may be the largest part of a row."""
    from pyspark.sql.functions import lit, xxhash64

    return xxhash64(lit(salt), column(path))


def positions_by_path(
    store: IcebergStore, table: TableName, coded: Mapping[int, BitMap64], salt: int
) -> dict[str, BitMap64]:
    """Positions by path, from positions by file code. Raises TryAgain unless each code means one file."""
    files = metadata_rows(store, table, "data_files")
    rows = files.select(PATH, file_code(salt, PATH)).collect()
    paths = {code: path for path, code in rows}
    if len(paths) < len(rows) or not coded.keys() <= paths.keys():
        raise conflict(table)
    return {paths[code]: positions for code, positions in coded.items()}


def positions_of(frame: "DataFrame", count: int | None = None) -> dict[Any, BitMap64]:
    """The positions of a frame's rows by `_file`.

    Spark's tasks pack them, unless `count`, the number of rows, is small. A Spark Connect server sends the
    places of all rows in parts.
    """
    places, positions = frame.select(FILE, POSITION), dict[Any, BitMap64]()
    if count is not None and count <= FEW:
        return positions_by_file(arrow_of(places)) if count else {}
    if is_connect(frame.sparkSession):
        for part in arrow_parts(places):
            add_positions(positions, positions_by_file(part))
        return positions
    file = places.schema[FILE].dataType.simpleString()
    packed = map_batches(places, _pack, f"file {file}, positions binary").collect()
    for row in packed:
        add_positions(positions, {row.file: BitMap64.deserialize(bytes(row.positions))})
    return positions


def _pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The positions of a partition by file. Runs in a task."""
    positions: dict[Any, BitMap64] = {}
    for batch in batches:
        add_positions(positions, positions_by_file(pa.Table.from_batches([batch])))
    if positions:
        packed = [bitmap.serialize() for bitmap in positions.values()]
        yield pa.record_batch({"file": pa.array(list(positions)), "positions": pa.array(packed, pa.binary())})


def row_groups(table: IcebergTable, location: str, size: int, positions: BitMap64) -> list[int] | None:
    """The offsets of a Parquet file's row groups that contain these positions, or None for another format."""
    footer = _read_footer(table, location, size)
    if footer is None:
        return None
    groups = groups_at(footer, np.asarray(positions.to_array()))
    columns = [footer.row_group(group).column(0) for group in groups]
    # A row group begins with its first column's dictionary page, or else with the column's data.
    pages = ((column.dictionary_page_offset, column.data_page_offset) for column in columns)
    return [int(data if dictionary is None else dictionary) for dictionary, data in pages]


def _read_footer(table: IcebergTable, location: str, size: int) -> Any:
    """The footer of a Parquet file, from its last bytes, or None for another format."""
    tail = table.read_file(location, max(size - 8, 0), min(size, 8))
    if tail[-4:] != b"PAR1":
        return None
    length = int.from_bytes(tail[:4], "little") + 8
    return pq.read_metadata(io.BytesIO(table.read_file(location, size - length, length)))


MOVE_COLUMNS: Final = (NUMBER, VERSION, TIME, SIGN)
_MOVE_SCHEMA: Final = pa.schema(
    zip(MOVE_COLUMNS, (pa.int64(), pa.int64(), pa.timestamp("us", "UTC"), pa.int8()), strict=True)
)
# With this split size, Iceberg does not split a file that has no row group offsets.
_WHOLE: Final = 1 << 62


# The values of `MOVE_COLUMNS`.
MoveCommit = tuple[int, int | None, int | None, int]


@dataclass(frozen=True, slots=True)
class MovedRows:
    """The positions of moved rows, and the staged scan of their files.

    `moves` are by file. `tasks` are Iceberg's scan tasks for the files, or for some of their row groups. The
    tasks are staged under the name `group`, and read by `tables`.
    """

    table: IcebergTable
    commits: Sequence[CommitMetadata]
    moves: Mapping[str, Sequence[Move]]
    group: str
    tables: tuple[Any, Any] | None
    tasks: Iterable[Any] = ()

    @property
    def bytes(self) -> int:
        """The number of bytes that are read from data files (V112)."""
        pieces = (piece for task in self.tasks for piece in task.split(_WHOLE).iterator())
        return sum(int(piece.length()) for piece in pieces)

    @property
    def rows(self) -> int:
        """The number of row moves. A row that moved twice counts twice."""
        return sum(len(move.positions) for moves in self.moves.values() for move in moves)

    @property
    def only_adds(self) -> bool:
        """Whether no commit removed a row."""
        return all(move.sign > 0 for moves in self.moves.values() for move in moves)

    def files(self, store: IcebergStore) -> "DataFrame":
        """The rows of the staged scan, each with its file and position."""
        if self.tables is None:
            whole = store.spark.table(store.sql_name(self.table.shape.table))
            return whole.select("*", FILE, POSITION).limit(0)
        return rows_of_tasks(store, self.group, self.tables)

    def frame(self, store: IcebergStore) -> "DataFrame":
        """The moved rows: the table's columns, and the commit's number, version, time and sign."""
        from pyspark.sql.types import ByteType, LongType, StructField, StructType, TimestampType

        names = [*map(quote, self.table.shape.names), FILE, POSITION]
        with translate_faults(self.table.shape.table):
            rows = self.files(store).select(*names)
            types = (LongType(), LongType(), TimestampType(), ByteType())
            extra = [StructField(name, type_) for name, type_ in zip(MOVE_COLUMNS, types, strict=True)]
            fields = [field for field in rows.schema.fields if field.name not in {FILE, POSITION}]
            by_file = {
                location: [(self._commit_of(move), move.positions.serialize()) for move in moves]
                for location, moves in self.moves.items()
            }
            return map_batches(rows, partial(_rows_that_moved, by_file), StructType([*fields, *extra]))

    def _commit_of(self, move: Move) -> MoveCommit:
        """The commit's number, version, time in microseconds, and sign (1 for added, -1 for removed rows)."""
        commit = self.commits[move.number]
        if commit.operation == GAP:
            return move.number, None, None, move.sign
        return move.number, commit.version, micros_of(commit.committed_at), move.sign

    def release(self, store: IcebergStore) -> None:
        """Unregister the staged tasks. Their frames can no longer be read."""
        if self.tables is not None:
            forget_tasks(store.jvm, self.table.iceberg, self.group)


def moved_rows(
    store: IcebergStore, table: IcebergTable, since: int | None, commits: Sequence[CommitMetadata]
) -> MovedRows:
    """The moves of these commits, oldest first. `since` is the snapshot before them, or None.

    Reads manifests and delete files, but no data file. Raises Refused for equality deletes of other writers.
    """
    with translate_faults(table.shape.table):
        files = store.jvm.java.util.HashMap()
        changes = [
            FilesOfCommit(
                number, commit.operation == REPLACE, _files_of_commit(store, table, since, commit, files)
            )
            for number, commit in enumerate(commits)
        ]
        scan = table.iceberg.newScan().useSnapshot(since) if since else None
        files_before = [] if scan is None else files_of_scan(store.jvm, scan, files)
        moves = moves_by_file(files_before, changes, hidden_positions(table.read_file))
        sizes = {line.location: line for change in changes for line in change.lines} | {
            line.location: line for line, _ in files_before
        }
        groups = {
            location: _groups(table, location, sizes[location].size, sizes[location].count, moved)
            for location, moved in moves.items()
        }
        tasks = tasks_of(store.jvm, table.iceberg, files, groups)
        group = str(uuid4())
        staged = stage_tasks(store.jvm, table.iceberg, group, tasks) if moves else None
        return MovedRows(table, commits, moves, group, staged, tasks)


def _files_of_commit(
    store: IcebergStore, table: IcebergTable, since: int | None, commit: CommitMetadata, files: Any
) -> list[FileLine]:
    if commit.operation == GAP and since is not None:
        return files_between(store.jvm, table.iceberg, since, commit.id, files)
    return files_of_commit(store.jvm, table.iceberg, commit.id, files)


def _groups(
    table: IcebergTable, location: str, size: int, count: int, moved: Iterable[Move]
) -> list[int] | None:
    """The offsets of row groups to read, or None to read all of them if every row of the file moved."""
    positions = BitMap64()
    for move in moved:
        positions |= move.positions
    if len(positions) == count:
        return None
    return row_groups(table, location, size, positions)


def _rows_that_moved(
    by_file: Mapping[str, Sequence[tuple[MoveCommit, bytes]]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Each row of a batch once for each commit that moved it. Runs in a task."""
    moves: dict[str, list[tuple[MoveCommit, BitMap64]]] = {}  # of the last file
    for batch in batches:
        files = batch[FILE].dictionary_encode()
        positions = np.asarray(batch[POSITION])
        rows = batch.drop_columns([FILE, POSITION])
        for code, file in enumerate(files.dictionary.to_pylist()):
            if file not in moves:
                moves = {file: [(commit, BitMap64.deserialize(packed)) for commit, packed in by_file[file]]}
            places = np.flatnonzero(np.asarray(files.indices) == code)
            in_file = positions[places]
            least, most = int(in_file.min()), int(in_file.max())
            for commit, bitmap in moves[file]:
                moved = np.asarray(bitmap & BitMap64(range(least, most + 1)), np.int64)
                if len(moved):
                    yield _with_commit(rows.take(pa.array(places[np.isin(in_file, moved)])), commit)


def _with_commit(rows: pa.RecordBatch, commit: MoveCommit) -> pa.RecordBatch:
    columns = [
        pc.cast(pa.repeat(pa.scalar(value, pa.int64()), rows.num_rows), field.type)
        for value, field in zip(commit, _MOVE_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [*rows.columns, *columns], names=[*rows.schema.names, *_MOVE_SCHEMA.names]
    )
