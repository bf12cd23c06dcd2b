"""The positions of rows that commits moved, from the files that each commit added and removed.

A row is at a position in a file as long as the table has the file and no delete file hides the position. A
rewrite of files that does not change rows (Iceberg's `replace`) moves no row.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap64

from backstory.errors import Refused
from backstory.stores.metadata.table_metadata import (
    POSITIONS,
    VECTOR,
    Unreadable,
    add_positions,
    file_fields,
    read_position_deletes,
    vector_positions,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

# The operation of all expired commits together, between an earlier snapshot and the first remaining one.
GAP: Final = "gap"

# The content of a data file, and the content of deletes by value.
ROWS: Final = "DATA"
BY_VALUE: Final = "EQUALITY_DELETES"


@dataclass(frozen=True, slots=True)
class FileLine:
    """A data file or delete file, and its `sign`: `+` for added, `-` for removed, `=` for unchanged.

    `content` is Iceberg's: data, or the kind of deletes. `hidden` is the only data file that a delete file
    applies to, or empty. `offset` and `length` locate a vector in its file.
    """

    sign: str
    content: str
    format: str
    count: int
    size: int
    offset: int
    length: int
    hidden: str
    location: str


# A data file, and its delete files.
ScannedFile = tuple[FileLine, list[FileLine]]

# Returns a part of a file, from an offset, with a length.
ReadFile = Callable[[str, int, int], bytes]
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


def moves_by_file(
    files_before: Iterable[ScannedFile], commits: Iterable[FilesOfCommit], hidden: HiddenPositions
) -> dict[str, list[Move]]:
    """The moves in each data file that commits touch. `files_before` are the files before the first commit.

    Raises Refused for deletes by equality, because only a scan of the whole table could find their rows.
    """
    states = {
        line.location: _FileState(line.count, True, {(each.location, each.offset): each for each in deletes})
        for line, deletes in files_before
    }
    moves: dict[str, list[Move]] = {}
    for commit in commits:
        changes = lines_by_file(commit, hidden)
        before: dict[str, BitMap64] = {}
        for location, lines in changes.items():
            if not commit.quiet:
                before[location] = _visible_positions(states.get(location), hidden, location)
            for line in lines:
                _apply(states, location, line)
        for location, was in before.items():
            now = _visible_positions(states.get(location), hidden, location)
            for sign, positions in ((-1, was - now), (1, now - was)):
                if positions:
                    positions.run_optimize()
                    moves.setdefault(location, []).append(Move(commit.number, sign, positions))
    return moves


def lines_by_file(commit: FilesOfCommit, hidden: HiddenPositions) -> dict[str, list[FileLine]]:
    """For each data file, the lines of a commit for the file itself and for its delete files."""
    lines: dict[str, list[FileLine]] = {}
    for line in commit.lines:
        if line.content == BY_VALUE and commit.quiet:
            continue  # the commit wrote the remaining rows again
        for location in [line.location] if line.content == ROWS else hidden(_require_positional(line)):
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
    """The positions of rows that no delete file hides. A deletion vector replaces older position deletes."""
    if state is None or not state.there:
        return BitMap64()
    visible = BitMap64(range(state.count))
    lines = state.deletes.values()
    newest = [line for line in lines if line.format == VECTOR or line.content == BY_VALUE]
    for line in newest or lines:
        visible -= hidden(_require_positional(line)).get(location, BitMap64())
    return visible


def _require_positional(line: FileLine) -> FileLine:
    if line.content != BY_VALUE:
        return line
    raise Refused(
        "equality-deletes",
        "Another writer deleted rows by their values, and only a scan of the whole table could find them.",
        "Compact the table with `backstory maintain`, and read the changes after that.",
    )


def with_deletes(lines: Iterable[FileLine]) -> list[ScannedFile]:
    """The data files in these lines, each with the delete files that follow it."""
    scanned: list[ScannedFile] = []
    for line in lines:
        if line.content == ROWS:
            scanned.append((line, []))
        else:
            scanned[-1][1].append(line)
    return scanned


def hidden_positions(read_file: ReadFile) -> HiddenPositions:
    """A function that returns the positions that a delete file hides, and reads each file once."""

    @cache
    def read(location: str, format_: str, place: tuple[int, int], hidden: str) -> Mapping[str, BitMap64]:
        content = read_file(location, *place)
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


def deleted_positions(deletes: "Iterable[DataFile]", read_file: ReadFile) -> dict[str, BitMap64]:
    """The deleted positions by data file. Raises Unreadable for equality deletes and unknown kinds.

    A vector contains all deletions of its data file, including the ones in older position delete files.
    """
    vectors, older = dict[str, BitMap64](), dict[str, BitMap64]()
    hidden = hidden_positions(read_file)
    for file in deletes:
        if file.content.value != POSITIONS or file.key_metadata is not None:
            raise Unreadable("deletions by equality, or encrypted ones")
        line = file_line("=", file)
        try:
            add_positions(vectors if line.format == VECTOR else older, hidden(line))
        except Refused as stop:
            raise Unreadable(stop.message) from stop
    return older | vectors


def file_line(sign: str, file: "DataFile") -> FileLine:
    """The line of a file in a manifest."""
    fields = file_fields(file)
    return FileLine(
        sign,
        file.content.name,
        file.file_format.value,
        file.record_count,
        file.file_size_in_bytes,
        fields["content_offset"] or 0,
        fields["content_size_in_bytes"] or 0,
        fields["referenced_data_file"] or "",
        file.file_path,
    )
