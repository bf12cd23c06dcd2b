"""The rows that commits removed and added, read only from the files that contain them.

Each file is read once for all commits, and only in row groups with a moved row. Rows have the table's present
columns, which Iceberg finds by their ids.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from backstory.model.change_feed import NUMBER, SIGN, TIME, VERSION
from backstory.model.layout import FILE, POSITION
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import rows_of_tasks
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.positions import (
    FilesOfCommit,
    Move,
    hidden_positions,
    moves_by_file,
    row_groups,
    touched_files,
)
from backstory.stores.iceberg.scripts import (
    FileLine,
    files_between,
    files_of_commit,
    files_of_scan,
    forget_tasks,
    stage_tasks,
    tasks_of,
)
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.iceberg.workers import map_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOVE_COLUMNS: Final = (NUMBER, VERSION, TIME, SIGN)
_MOVE_SCHEMA: Final = pa.schema(
    zip(MOVE_COLUMNS, (pa.int64(), pa.int64(), pa.timestamp("us", "UTC"), pa.int8()), strict=True)
)
QUIET: Final = "replace"
# The operation of all expired commits together, between an earlier snapshot and the first remaining one.
GAP: Final = "gap"
# A split size for which Iceberg leaves a file whole that has no offsets of row groups.
_WHOLE: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class SnapshotLine:
    """A commit; `parent` is None for the first one, and `recorded` is its recorded time or empty."""

    id: int
    version: int
    millis: int
    operation: str
    parent: int | None
    recorded: str = ""


# The values of `MOVE_COLUMNS`.
MoveCommit = tuple[int, int | None, int | None, int]


@dataclass(frozen=True, slots=True)
class MovedRows:
    """The places of moved rows, and the staged scan of their files.

    `moves` are by file. `tables` read the files under the name `group`. `tasks` are Iceberg's scan tasks of
    these files, or of some of their row groups.
    """

    table: IcebergTable
    commits: Sequence[SnapshotLine]
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
        """The number of moves of rows; a row that moved twice counts twice."""
        return sum(len(move.positions) for moves in self.moves.values() for move in moves)

    @property
    def only_adds(self) -> bool:
        """Whether no commit removed a row."""
        return all(move.sign > 0 for moves in self.moves.values() for move in moves)

    def files(self, store: IcebergStore) -> "DataFrame":
        """The rows of the staged scan, with the file and the position of each."""
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
        """The commit's number, version, time in microseconds, and sign: 1 for added rows, -1 for removed."""
        commit = self.commits[move.number]
        if commit.operation == GAP:
            return move.number, None, None, move.sign
        return move.number, commit.version, commit.millis * 1000, move.sign

    def release(self, store: IcebergStore) -> None:
        """Unregister the staged tasks; frames of them can no longer be read."""
        if self.tables is not None:
            forget_tasks(store.jvm, self.table.iceberg, self.group)


def moved_rows(
    store: IcebergStore, table: IcebergTable, since: int | None, commits: Sequence[SnapshotLine]
) -> MovedRows:
    """The moves of these commits, oldest first; `since` is the snapshot before them, if there is one.

    Reads manifests and delete files, but no data file. Raises Refused for equality deletes of other writers.
    """
    with translate_faults(table.shape.table):
        files = store.jvm.java.util.HashMap()
        changes = [
            FilesOfCommit(
                number, commit.operation == QUIET, _files_of_commit(store, table, since, commit, files)
            )
            for number, commit in enumerate(commits)
        ]
        hidden = hidden_positions(table)
        wanted = touched_files(changes, hidden)
        scan = table.iceberg.newScan().useSnapshot(since) if since and wanted else None
        files_before = [] if scan is None else files_of_scan(store.jvm, scan, files, wanted)
        moves = moves_by_file(files_before, changes, wanted, hidden)
        sizes = {line.location: line for change in changes for line in change.lines} | {
            line.location: line for line in files_before
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
    store: IcebergStore, table: IcebergTable, since: int | None, commit: SnapshotLine, files: Any
) -> list[FileLine]:
    if commit.operation == GAP and since is not None:
        return files_between(store.jvm, table.iceberg, since, commit.id, files)
    return files_of_commit(store.jvm, table.iceberg, commit.id, files)


def _groups(
    table: IcebergTable, location: str, size: int, count: int, moved: Iterable[Move]
) -> list[int] | None:
    """The offsets of row groups to read; None for all, for example if every row of the file moved."""
    positions = BitMap64()
    for move in moved:
        positions |= move.positions
    if len(positions) == count:
        return None
    return row_groups(table, location, size, positions)


def _rows_that_moved(
    by_file: Mapping[str, Sequence[tuple[MoveCommit, bytes]]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In a task, each row of a batch once for each commit that moved it."""
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
