"""Which rows of which files went and came, commit by commit: positions in files, before a row is read.

A row stands at a position of a file while the file is one of the table's and nothing hides that position.
Files that are rewritten without a change of rows (Iceberg's `replace`) move no row.

Which positions of which files a delete file hides.
"""

import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import pyarrow.parquet as pq
from pyroaring import BitMap64

from backstory.errors import Refused
from backstory.model.layout import FILE, POSITION
from backstory.stores.deletion_vectors import vector_positions
from backstory.stores.iceberg.data_files import FILE_PATH, POSITION_IN_FILE, download, positions_by_file
from backstory.stores.iceberg.scripts import FileLine
from backstory.stores.iceberg.store import StoredTable

ROWS: Final = "DATA"
BY_VALUE: Final = "EQUALITY_DELETES"
VECTOR: Final = "PUFFIN"

# For a delete file the positions that it hides, file by file.
HiddenPositions = Callable[[FileLine], Mapping[str, BitMap64]]


@dataclass(frozen=True, slots=True)
class FilesOfCommit:
    """The files of one commit; a quiet one moves no rows. `number` is its place in the range."""

    number: int
    quiet: bool
    lines: Sequence[FileLine]


@dataclass(frozen=True, slots=True)
class Move:
    """The positions of a file whose rows a commit let go (sign -1) or come (sign 1)."""

    number: int
    sign: int
    positions: BitMap64


@dataclass(slots=True)
class _FileState:
    """A file at some commit: whether it is one of the table's, and what hides rows of it."""

    count: int
    there: bool
    deletes: dict[tuple[str, int], FileLine] = field(default_factory=dict)


def touched_files(commits: Iterable[FilesOfCommit], hidden: HiddenPositions) -> set[str]:
    """The files of rows that other than quiet commits touch.

    Raises Refused for rows that went by their values: which these are, only the whole table would tell.
    """
    found: set[str] = set()
    for commit in commits:
        for line in commit.lines if not commit.quiet else ():
            found.update([line.location] if line.content == ROWS else hidden(_require_positional(line)))
    return found


def moves_by_file(
    standing: Sequence[FileLine],
    commits: Iterable[FilesOfCommit],
    wanted: Collection[str],
    hidden: HiddenPositions,
) -> dict[str, list[Move]]:
    """For each wanted file what moved in it; `standing` are those that stood before the first commit."""
    states = _states_before(standing)
    found: dict[str, list[Move]] = {}
    for commit in commits:
        changing = _lines_by_file(commit, wanted, hidden)
        before = {
            location: _visible_positions(states.get(location), hidden, location) for location in changing
        }
        for location, lines in changing.items():
            for line in lines:
                _apply(states, location, line)
        for location in changing if not commit.quiet else ():
            after = _visible_positions(states.get(location), hidden, location)
            for sign, positions in ((-1, before[location] - after), (1, after - before[location])):
                if positions:
                    positions.run_optimize()
                    found.setdefault(location, []).append(Move(commit.number, sign, positions))
    return found


def _states_before(standing: Sequence[FileLine]) -> dict[str, _FileState]:
    states: dict[str, _FileState] = {}
    for line in standing:
        if line.content == ROWS:
            states[line.location] = _FileState(line.count, there=True)
            latest = states[line.location]
        else:
            latest.deletes[line.location, line.offset] = _require_positional(line)
    return states


def _lines_by_file(
    commit: FilesOfCommit, wanted: Collection[str], hidden: HiddenPositions
) -> dict[str, list[FileLine]]:
    """The lines of a commit by the wanted files that they are of."""
    found: dict[str, list[FileLine]] = {}
    for line in commit.lines:
        if line.content == BY_VALUE:
            continue  # a quiet commit's: it wrote the rows that are left anew
        for location in [line.location] if line.content == ROWS else hidden(line):
            if location in wanted:
                found.setdefault(location, []).append(line)
    return found


def _apply(states: dict[str, _FileState], location: str, line: FileLine) -> None:
    state = states.setdefault(location, _FileState(0, there=False))
    if line.content == ROWS:
        state.count, state.there = line.count, line.sign == "+"
    elif line.sign == "+":
        state.deletes[line.location, line.offset] = line
    else:
        state.deletes.pop((line.location, line.offset), None)


def _visible_positions(state: _FileState | None, hidden: HiddenPositions, location: str) -> BitMap64:
    """The positions whose rows are there; a deletion vector takes the place of older delete files."""
    if state is None or not state.there:
        return BitMap64()
    alive = BitMap64(range(state.count))
    vectors = [line for line in state.deletes.values() if line.format == VECTOR]
    for line in vectors or state.deletes.values():
        alive -= hidden(line).get(location, BitMap64())
    return alive


def _require_positional(line: FileLine) -> FileLine:
    if line.content != BY_VALUE:
        return line
    raise Refused(
        "equality-deletes",
        "Another writer deleted rows by their values, and only a scan of the whole table could find them.",
        "Compact the table with `backstory maintain`, and read the changes after that.",
    )


def hidden_positions(table: StoredTable) -> HiddenPositions:
    """What tells the positions that delete files of the table hide; each of them is read once."""

    @cache
    def read(location: str, format_: str, place: tuple[int, int], hidden: str) -> Mapping[str, BitMap64]:
        content = download(table, location, *place)
        if format_ == VECTOR:
            positions = vector_positions(content)
            if positions is None:
                raise _damaged_vector(location)
            return {hidden: positions}
        if format_ != "PARQUET":
            raise _unknown_format(format_)
        rows = pq.read_table(io.BytesIO(content), columns=[FILE_PATH, POSITION_IN_FILE])
        return positions_by_file(rows.select([FILE_PATH, POSITION_IN_FILE]).rename_columns([FILE, POSITION]))

    def hidden(line: FileLine) -> Mapping[str, BitMap64]:
        vector = line.format == VECTOR
        place = (line.offset, line.length) if vector else (0, line.size)
        return read(line.location, line.format, place, line.hidden)

    return hidden


def _unknown_format(format_: str) -> Refused:
    return Refused(
        "delete-format",
        f"Another writer hides rows by files of the format {format_}, which backstory does not read.",
        "Compact the table with `backstory maintain`, and read the changes after that.",
    )


def _damaged_vector(location: str) -> Refused:
    return Refused(
        "deletion-vector-spoilt",
        f"The deletion vector in {location} is damaged: its checksum is wrong.",
        "Restore the file from a copy, or take the table back to an earlier commit with `backstory rewind`.",
    )


def row_groups(table: StoredTable, location: str, size: int, positions: BitMap64) -> list[int] | None:
    """Where the row groups of a Parquet file begin that hold these positions; None for another format."""
    ending = _read_footer(table, location, size)
    if ending is None:
        return None
    found, first = [], 0
    for group, offset in enumerate(_split_offsets(ending)):
        count = ending.row_group(group).num_rows
        if positions.range_cardinality(first, first + count):
            found.append(offset)
        first += count
    return found


def _split_offsets(metadata: pq.FileMetaData) -> list[int]:
    """Where row groups begin: at the dictionary page of their first column, if it has one."""
    offsets = []
    for group in range(metadata.num_row_groups):
        column = metadata.row_group(group).column(0)
        dictionary = column.dictionary_page_offset
        offsets.append(int(column.data_page_offset if dictionary is None else dictionary))
    return offsets


def _read_footer(table: StoredTable, location: str, size: int) -> Any:
    """The metadata of a Parquet file, of which the last bytes are read alone."""
    tail = download(table, location, max(size - 8, 0), min(size, 8))
    if tail[-4:] != b"PAR1":
        return None
    length = int.from_bytes(tail[:4], "little") + 8
    return pq.read_metadata(io.BytesIO(download(table, location, size - length, length)))
