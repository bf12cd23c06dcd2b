"""Which rows of which files went and came, commit by commit: positions in files, before a row is read.

A row stands at a position of a file while the file is one of the table's and nothing hides that position.
Files that are rewritten without a change of rows (Iceberg's `replace`) move no row.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyroaring import BitMap64

from backstory.errors import Refused
from backstory.stores.iceberg.scripts import FileLine

ROWS: Final = "DATA"
BY_VALUE: Final = "EQUALITY_DELETES"
VECTOR: Final = "PUFFIN"

# For a delete file the positions that it hides, file by file.
Hidden = Callable[[FileLine], Mapping[str, BitMap64]]


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
class _Standing:
    """A file at some commit: whether it is one of the table's, and what hides rows of it."""

    count: int
    there: bool
    deletes: dict[tuple[str, int], FileLine] = field(default_factory=dict)


def touched(commits: Iterable[FilesOfCommit], hidden: Hidden) -> set[str]:
    """The files of rows that other than quiet commits touch.

    Raises Refused for rows that went by their values: which these are, only the whole table would tell.
    """
    found: set[str] = set()
    for commit in commits:
        for line in commit.lines if not commit.quiet else ():
            found.update([line.location] if line.content == ROWS else hidden(_positional(line)))
    return found


def moves(
    standing: Sequence[FileLine], commits: Iterable[FilesOfCommit], wanted: Collection[str], hidden: Hidden
) -> dict[str, list[Move]]:
    """For each wanted file what moved in it; `standing` are those that stood before the first commit."""
    states = _before(standing)
    found: dict[str, list[Move]] = {}
    for commit in commits:
        changing = _changing(commit, wanted, hidden)
        before = {location: _alive(states.get(location), hidden, location) for location in changing}
        for location, lines in changing.items():
            for line in lines:
                _apply(states, location, line)
        for location in changing if not commit.quiet else ():
            after = _alive(states.get(location), hidden, location)
            for sign, positions in ((-1, before[location] - after), (1, after - before[location])):
                if positions:
                    positions.run_optimize()
                    found.setdefault(location, []).append(Move(commit.number, sign, positions))
    return found


def _before(standing: Sequence[FileLine]) -> dict[str, _Standing]:
    states: dict[str, _Standing] = {}
    for line in standing:
        if line.content == ROWS:
            states[line.location] = _Standing(line.count, there=True)
            latest = states[line.location]
        else:
            latest.deletes[line.location, line.offset] = _positional(line)
    return states


def _changing(commit: FilesOfCommit, wanted: Collection[str], hidden: Hidden) -> dict[str, list[FileLine]]:
    """The lines of a commit by the wanted files that they are of."""
    found: dict[str, list[FileLine]] = {}
    for line in commit.lines:
        if line.content == BY_VALUE:
            continue  # a quiet commit's: it wrote the rows that are left anew
        for location in [line.location] if line.content == ROWS else hidden(line):
            if location in wanted:
                found.setdefault(location, []).append(line)
    return found


def _apply(states: dict[str, _Standing], location: str, line: FileLine) -> None:
    state = states.setdefault(location, _Standing(0, there=False))
    if line.content == ROWS:
        state.count, state.there = line.count, line.sign == "+"
    elif line.sign == "+":
        state.deletes[line.location, line.offset] = line
    else:
        state.deletes.pop((line.location, line.offset), None)


def _alive(state: _Standing | None, hidden: Hidden, location: str) -> BitMap64:
    """The positions whose rows are there; a deletion vector takes the place of older delete files."""
    if state is None or not state.there:
        return BitMap64()
    alive = BitMap64(range(state.count))
    vectors = [line for line in state.deletes.values() if line.format == VECTOR]
    for line in vectors or state.deletes.values():
        alive -= hidden(line).get(location, BitMap64())
    return alive


def _positional(line: FileLine) -> FileLine:
    if line.content != BY_VALUE:
        return line
    raise Refused(
        "equality-deletes",
        "Another writer deleted rows by their values, and only a scan of the whole table could find them.",
        "Compact the table with `backstory maintain`, and read the changes after that.",
    )
