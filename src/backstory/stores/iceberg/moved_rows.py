"""The rows that went and came, commit by commit, read from the files that hold them and from no other.

A file is read once, whatever commits touched it; of a file with several row groups those that hold a row
that moved. Rows have the columns of the table as they are now: Iceberg knows them by their ids.
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

from backstory.model.layout import FILE, POSITION
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import rows_of_tasks
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.moves import (
    FilesOfCommit,
    Move,
    hidden_positions,
    moves_by_file,
    row_groups,
    touched_files,
)
from backstory.stores.iceberg.scripts import (
    FileLine,
    SnapshotLine,
    files_between,
    files_of_commit,
    files_of_scan,
    forget_tasks,
    stage_tasks,
    tasks_of,
)
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.iceberg.workers import map_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Columns beside the table's own; no column of a table is called so.
SIGN, NUMBER, VERSION, TIME = (f"moved: {name}" for name in ("sign", "number", "version", "time"))
MOVE_COLUMNS: Final = (NUMBER, VERSION, TIME, SIGN)
_MOVE_SCHEMA: Final = pa.schema(
    zip(MOVE_COLUMNS, (pa.int64(), pa.int64(), pa.timestamp("us", "UTC"), pa.int8()), strict=True)
)
QUIET: Final = "replace"
# Commits that have expired, together: they lie between the snapshot before and the first that is left.
GAP: Final = "gap"
# What Iceberg cuts files into that do not tell their row groups: nothing.
_WHOLE: Final = 1 << 62


# The values of `MOVE_COLUMNS`.
MoveCommit = tuple[int, int | None, int | None, int]


@dataclass(frozen=True, slots=True)
class MovedRows:
    """Where the rows are that moved: `moves` by file; `tables` read these files by the name of a group.

    `tasks` are Iceberg's, of these files or of some of their row groups.
    """

    table: StoredTable
    commits: Sequence[SnapshotLine]
    moves: Mapping[str, Sequence[Move]]
    group: str
    tables: tuple[Any, Any] | None
    tasks: Iterable[Any] = ()

    @property
    def bytes(self) -> int:
        """How many bytes of the files of rows are read (V112)."""
        pieces = (piece for task in self.tasks for piece in task.split(_WHOLE).iterator())
        return sum(int(piece.length()) for piece in pieces)

    @property
    def rows(self) -> int:
        """How many rows moved; one that moved twice counts twice."""
        return sum(len(move.positions) for each in self.moves.values() for move in each)

    @property
    def only_adds(self) -> bool:
        """Whether no commit let a row go."""
        return all(move.sign > 0 for each in self.moves.values() for move in each)

    def files(self, store: Store) -> "DataFrame":
        """The rows of the groups that are read, with the file and the position of each."""
        if self.tables is None:
            whole = store.spark.table(store.sql_name(self.table.shape.table))
            return whole.select("*", FILE, POSITION).limit(0)
        return rows_of_tasks(store, self.group, self.tables)

    def frame(self, store: Store) -> "DataFrame":
        """The rows: the table's columns, the commit's number, version and time, 1 or -1 for came or went."""
        from pyspark.sql.types import ByteType, LongType, StructField, StructType, TimestampType

        names = [*map(quote, self.table.shape.names), FILE, POSITION]
        with translate_faults(self.table.shape.table):
            rows = self.files(store).select(*names)
            types = (LongType(), LongType(), TimestampType(), ByteType())
            extra = [StructField(name, type_) for name, type_ in zip(MOVE_COLUMNS, types, strict=True)]
            kept = [field for field in rows.schema.fields if field.name not in {FILE, POSITION}]
            by_file = {
                location: [(self._commit_of(move), move.positions.serialize()) for move in each]
                for location, each in self.moves.items()
            }
            return map_batches(rows, partial(_rows_that_moved, by_file), StructType([*kept, *extra]))

    def _commit_of(self, move: Move) -> MoveCommit:
        """The commit's number, version and time in microseconds, and whether rows came (1) or went (-1)."""
        commit = self.commits[move.number]
        if commit.operation == GAP:
            return move.number, None, None, move.sign
        return move.number, commit.version, commit.millis * 1000, move.sign

    def release(self, store: Store) -> None:
        """Forget the name; frames of it that were not read yet cannot be any more."""
        if self.tables is not None:
            forget_tasks(store.jvm, self.table.iceberg, self.group)


def moved_rows(
    store: Store, table: StoredTable, since: int | None, commits: Sequence[SnapshotLine]
) -> MovedRows:
    """The rows that these commits moved, oldest first; `since` is the snapshot before them, None for none.

    Reads manifests and delete files, no file of rows. Raises Refused for what other writers hid by values.
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
        standing = [] if scan is None else files_of_scan(store.jvm, scan, files, wanted)
        found = moves_by_file(standing, changes, wanted, hidden)
        sizes = {line.location: line for each in changes for line in each.lines} | {
            line.location: line for line in standing
        }
        groups = {
            location: _groups(table, location, sizes[location].size, sizes[location].count, each)
            for location, each in found.items()
        }
        tasks = tasks_of(store.jvm, table.iceberg, files, groups)
        group = str(uuid4())
        staged = stage_tasks(store.jvm, table.iceberg, group, tasks) if found else None
        return MovedRows(table, commits, found, group, staged, tasks)


def _files_of_commit(
    store: Store, table: StoredTable, since: int | None, commit: SnapshotLine, files: Any
) -> list[FileLine]:
    if commit.operation == GAP and since is not None:
        return files_between(store.jvm, table.iceberg, since, commit.id, files)
    return files_of_commit(store.jvm, table.iceberg, commit.id, files)


def _groups(
    table: StoredTable, location: str, size: int, count: int, moved: Iterable[Move]
) -> list[int] | None:
    """The row groups to read; None for all of them, as where every row of the file moved."""
    positions = BitMap64()
    for move in moved:
        positions |= move.positions
    if len(positions) == count:
        return None
    return row_groups(table, location, size, positions)


def _rows_that_moved(
    by_file: Mapping[str, Sequence[tuple[MoveCommit, bytes]]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In a task: each row of a batch once for each commit that moved it."""
    opened: dict[str, list[tuple[MoveCommit, BitMap64]]] = {}
    for batch in batches:
        files = batch[FILE].dictionary_encode()
        positions = np.asarray(batch[POSITION])
        rows = batch.drop_columns([FILE, POSITION])
        for code, file in enumerate(files.dictionary.to_pylist()):
            if file not in opened:
                opened = {file: [(told, BitMap64.deserialize(each)) for told, each in by_file[file]]}
            places = np.flatnonzero(np.asarray(files.indices) == code)
            here = positions[places]
            least, most = int(here.min()), int(here.max())
            for told, bitmap in opened[file]:
                moved = np.asarray(bitmap & BitMap64(range(least, most + 1)), np.int64)
                if len(moved):
                    yield _with_commit(rows.take(pa.array(places[np.isin(here, moved)])), told)


def _with_commit(rows: pa.RecordBatch, told: MoveCommit) -> pa.RecordBatch:
    columns = [
        pc.cast(pa.repeat(pa.scalar(value, pa.int64()), rows.num_rows), field.type)
        for value, field in zip(told, _MOVE_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [*rows.columns, *columns], names=[*rows.schema.names, *_MOVE_SCHEMA.names]
    )
