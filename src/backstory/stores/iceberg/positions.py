"""Positions in data files: of a frame's rows, of hidden rows, and of rows that commits moved.

A row is at a position in a file as long as the table has the file and no delete file hides the position. A
rewrite of files that does not change rows (Iceberg's `replace`) moves no row. Moved rows are read only from
the files that contain them, each file once for all commits. Moved rows have the table's current columns,
which Iceberg finds by their ids.
"""

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from backstory.errors import Refused
from backstory.model.change_feed import NUMBER, SIGN, TIME, VERSION
from backstory.model.layout import FILE, POSITION
from backstory.model.table import TableName
from backstory.spark.connect import arrow_parts, is_connect
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import metadata_rows, rows_of_tasks
from backstory.stores.iceberg.literals import column, quote
from backstory.stores.iceberg.scripts import (
    ROWS,
    FileLine,
    ScannedFile,
    files_between,
    files_of_commit,
    files_of_scan,
    forget_tasks,
    stage_tasks,
    tasks_of,
)
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.iceberg.workers import map_batches
from backstory.stores.metadata.table_metadata import (
    add_positions,
    positions_by_file,
    read_position_deletes,
    vector_positions,
)
from backstory.stores.refusals import conflict

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


def add_places(positions: dict[str, BitMap64], places: pa.Table) -> dict[str, BitMap64]:
    """The positions by path, extended by the places of a few more rows."""
    add_positions(positions, positions_by_file(places))
    return positions


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


BY_VALUE: Final = "EQUALITY_DELETES"
VECTOR: Final = "PUFFIN"

# Returns the positions that a delete file hides, by data file.
HiddenPositions = Callable[[FileLine], Mapping[str, BitMap64]]


@dataclass(frozen=True, slots=True)
class FilesOfCommit:
    """The files of one commit, and its number in a range of commits. A `quiet` commit moves no rows."""

    number: int
    quiet: bool
    lines: Sequence[FileLine]


@dataclass(frozen=True, slots=True)
class Move:
    """The positions of a file's rows that a commit removed (sign -1) or added (sign 1)."""

    number: int
    sign: int
    positions: BitMap64


@dataclass(slots=True)
class _FileState:
    """The state of a file at a commit: whether the table has it, and the delete files that hide its rows."""

    count: int
    there: bool
    deletes: dict[tuple[str, int], FileLine] = field(default_factory=dict)


def touched_files(commits: Iterable[FilesOfCommit], hidden: HiddenPositions) -> set[str]:
    """The data files that commits touch, except quiet commits.

    Raises Refused for deletes by equality, because only a scan of the whole table could find their rows.
    """
    files: set[str] = set()
    for commit in commits:
        for line in commit.lines if not commit.quiet else ():
            files.update([line.location] if line.content == ROWS else hidden(_require_positional(line)))
    return files


def moves_by_file(
    files_before: Sequence[ScannedFile],
    commits: Iterable[FilesOfCommit],
    wanted: Collection[str],
    hidden: HiddenPositions,
) -> dict[str, list[Move]]:
    """The moves in each wanted data file. `files_before` are the table's files before the first commit."""
    states = {
        line.location: _FileState(
            line.count, True, {(each.location, each.offset): _require_positional(each) for each in deletes}
        )
        for line, deletes in files_before
    }
    moves: dict[str, list[Move]] = {}
    for commit in commits:
        changes = _lines_by_file(commit, wanted, hidden)
        before = {
            location: _visible_positions(states.get(location), hidden, location) for location in changes
        }
        for location, lines in changes.items():
            for line in lines:
                _apply(states, location, line)
        for location in changes if not commit.quiet else ():
            after = _visible_positions(states.get(location), hidden, location)
            for sign, positions in ((-1, before[location] - after), (1, after - before[location])):
                if positions:
                    positions.run_optimize()
                    moves.setdefault(location, []).append(Move(commit.number, sign, positions))
    return moves


def _lines_by_file(
    commit: FilesOfCommit, wanted: Collection[str], hidden: HiddenPositions
) -> dict[str, list[FileLine]]:
    """For each wanted data file, the lines of a commit for the file itself and for its delete files."""
    lines: dict[str, list[FileLine]] = {}
    for line in commit.lines:
        if line.content == BY_VALUE:
            continue  # from a quiet commit, which wrote the remaining rows again
        for location in [line.location] if line.content == ROWS else hidden(line):
            if location in wanted:
                lines.setdefault(location, []).append(line)
    return lines


def _apply(states: dict[str, _FileState], location: str, line: FileLine) -> None:
    state = states.setdefault(location, _FileState(0, there=False))
    if line.content == ROWS:
        state.count, state.there = line.count, line.sign == "+"
    elif line.sign == "+":
        state.deletes[line.location, line.offset] = line
    else:
        state.deletes.pop((line.location, line.offset), None)


def _visible_positions(state: _FileState | None, hidden: HiddenPositions, location: str) -> BitMap64:
    """The positions of rows that no delete file hides. A deletion vector replaces older delete files."""
    if state is None or not state.there:
        return BitMap64()
    visible = BitMap64(range(state.count))
    vectors = [line for line in state.deletes.values() if line.format == VECTOR]
    for line in vectors or state.deletes.values():
        visible -= hidden(line).get(location, BitMap64())
    return visible


def _require_positional(line: FileLine) -> FileLine:
    if line.content != BY_VALUE:
        return line
    raise Refused(
        "equality-deletes",
        "Another writer deleted rows by their values, and only a scan of the whole table could find them.",
        "Compact the table with `backstory maintain`, and read the changes after that.",
    )


def hidden_positions(table: IcebergTable) -> HiddenPositions:
    """A function that reads the positions that a delete file of the table hides, each file once."""

    @cache
    def read(location: str, format_: str, place: tuple[int, int], hidden: str) -> Mapping[str, BitMap64]:
        content = table.read_file(location, *place)
        if format_ == VECTOR:
            positions = vector_positions(content)
            if positions is None:
                raise Refused(
                    "deletion-vector-spoilt",
                    f"The deletion vector in {location} is damaged: its checksum is wrong.",
                    "Restore the file from a copy, or return the table to an earlier commit with "
                    "`backstory rewind`.",
                )
            return {hidden: positions}
        if format_ != "PARQUET":
            raise Refused(
                "delete-format",
                f"Another writer hides rows by files of the format {format_}, which backstory does not read.",
                "Compact the table with `backstory maintain`, and read the changes after that.",
            )
        return read_position_deletes(io.BytesIO(content))

    def hidden(line: FileLine) -> Mapping[str, BitMap64]:
        vector = line.format == VECTOR
        place = (line.offset, line.length) if vector else (0, line.size)
        return read(line.location, line.format, place, line.hidden)

    return hidden


def row_groups(table: IcebergTable, location: str, size: int, positions: BitMap64) -> list[int] | None:
    """The offsets of a Parquet file's row groups that contain these positions, or None for another format."""
    footer = _read_footer(table, location, size)
    if footer is None:
        return None
    groups, first = [], 0
    for group, offset in enumerate(_split_offsets(footer)):
        count = footer.row_group(group).num_rows
        if positions.range_cardinality(first, first + count):
            groups.append(offset)
        first += count
    return groups


def _split_offsets(metadata: pq.FileMetaData) -> list[int]:
    """The offset of each row group: where its first column's dictionary page begins, or else its data."""
    offsets = []
    for group in range(metadata.num_row_groups):
        column = metadata.row_group(group).column(0)
        dictionary = column.dictionary_page_offset
        offsets.append(int(column.data_page_offset if dictionary is None else dictionary))
    return offsets


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
QUIET: Final = "replace"
# The operation of all expired commits together, between an earlier snapshot and the first remaining one.
GAP: Final = "gap"
# With this split size, Iceberg does not split a file that has no row group offsets.
_WHOLE: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class SnapshotLine:
    """A commit. `parent` is None for the first one, and `recorded` is its recorded time, or empty."""

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
    """The positions of moved rows, and the staged scan of their files.

    `moves` are by file. `tables` read the files under the name `group`. `tasks` are Iceberg's scan tasks for
    these files, or for some of their row groups.
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
        """The number of moves of rows. A row that moved twice counts twice."""
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
        return move.number, commit.version, commit.millis * 1000, move.sign

    def release(self, store: IcebergStore) -> None:
        """Unregister the staged tasks. Their frames can no longer be read."""
        if self.tables is not None:
            forget_tasks(store.jvm, self.table.iceberg, self.group)


def moved_rows(
    store: IcebergStore, table: IcebergTable, since: int | None, commits: Sequence[SnapshotLine]
) -> MovedRows:
    """The moves of these commits, oldest first. `since` is the snapshot before them, or None.

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
    store: IcebergStore, table: IcebergTable, since: int | None, commit: SnapshotLine, files: Any
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
