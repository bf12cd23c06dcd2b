"""The moved rows by file, derived from file lists, compared with a table of files in Python."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from backstory.errors import Refused
from backstory.stores.metadata.moves import (
    BY_VALUE,
    ROWS,
    FileLine,
    FilesOfCommit,
    moves_by_file,
    with_deletes,
)

VECTOR, DELETES = "PUFFIN", "PARQUET"


def rows(sign, name, count=4):
    return FileLine(sign, ROWS, "PARQUET", count, 0, 0, 0, "", name)


def hides(sign, name, of="", format_=VECTOR, content="POSITION_DELETES"):
    return FileLine(sign, content, format_, 0, 0, 0, 0, of, name)


def moves_of(standing, commits, positions):
    """`file number sign positions` for commits as lists of lines. A list that begins with None is quiet."""
    made = [
        FilesOfCommit(number, lines[:1] == [None], [each for each in lines if each])
        for number, lines in enumerate(commits)
    ]

    def hidden(line):
        return {file: BitMap64(places) for file, places in positions[line.location].items()}

    moves = moves_by_file(with_deletes(standing), made, hidden)
    return sorted(
        f"{file} {move.number} {'+' if move.sign > 0 else '-'} {' '.join(map(str, move.positions))}"
        for file, each in moves.items()
        for move in each
    )


POSITIONS = {
    "one": {"f": [0]},
    "two": {"f": [0, 2]},
    "both": {"f": [1], "g": [3]},
    "more": {"f": [1, 2]},
}


def test_a_vector_replaces_the_previous_vector():
    """Only newly hidden rows of the file are removed."""
    commits = [[hides("+", "two", "f"), hides("-", "one", "f")]]
    assert moves_of([rows("=", "f"), hides("=", "one", "f")], commits, POSITIONS) == ["f 0 - 2"]


def test_position_deletes_of_several_files_accumulate():
    """Format 2: No file replaces another, and a row is removed only once."""
    commits = [[hides("+", "both", format_=DELETES)], [hides("+", "more", format_=DELETES)]]
    assert moves_of([rows("=", "f"), rows("=", "g")], commits, POSITIONS) == ["f 0 - 1", "f 1 - 2", "g 0 - 3"]


def test_a_vector_replaces_position_deletes():
    """After an upgrade of the format, the vector contains all position deletes."""
    standing = [rows("=", "f"), hides("=", "one", format_=DELETES)]
    assert moves_of(standing, [[hides("+", "two", "f")]], POSITIONS) == ["f 0 - 2"]


def test_a_removed_file_removes_only_its_visible_rows():
    assert moves_of([rows("=", "f"), hides("=", "one", "f")], [[rows("-", "f")]], POSITIONS) == [
        "f 0 - 1 2 3"
    ]


def test_removing_a_vector_restores_its_rows():
    commits = [[hides("-", "one", "f")]]
    assert moves_of([rows("=", "f"), hides("=", "one", "f")], commits, POSITIONS) == ["f 0 + 0"]


def test_compaction_moves_no_rows_and_later_deletes_are_found():
    """A file that was added and rewritten in the range moves nothing, but newly hidden rows do."""
    commits = [
        [rows("+", "g")],
        [None, rows("-", "f"), rows("-", "g"), rows("+", "h", 8)],
        [hides("+", "late", "h")],
    ]
    moves = moves_of([rows("=", "f")], commits, POSITIONS | {"late": {"h": [7]}})
    assert moves == ["g 0 + 0 1 2 3", "h 2 - 7"]


def test_position_deletes_of_missing_files_are_ignored():
    """A position delete file of format 2 may name files that no longer exist."""
    assert moves_of([rows("=", "f")], [[hides("+", "both", format_=DELETES)]], POSITIONS) == ["f 0 - 1"]


def test_a_file_written_and_partly_hidden_in_one_commit_adds_its_rest():
    commits = [[rows("+", "f"), hides("+", "one", format_=DELETES)]]
    assert moves_of([], commits, POSITIONS) == ["f 0 + 1 2 3"]


def test_equality_deletes_by_other_writers_are_refused():
    """Equality deletes in the range, or on its files, are refused by name, unless the table was compacted."""
    by_value = hides("+", "value", format_=DELETES, content=BY_VALUE)
    with pytest.raises(Refused, match="deleted rows by their values") as refused:
        moves_of([], [[by_value]], POSITIONS)
    assert refused.value.code == "equality-deletes"
    with pytest.raises(Refused, match="deleted rows by their values"):
        moves_of([rows("=", "f"), by_value], [[rows("-", "f")]], POSITIONS)
    assert moves_of([], [[None, hides("-", "value", content=BY_VALUE)], [rows("+", "f")]], POSITIONS) == [
        "f 1 + 0 1 2 3"
    ]


FILES = ("f", "g", "h")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "hide", "quiet"]),
        st.sampled_from(FILES),
        st.sets(st.integers(0, 3)),
    ),
    max_size=8,
)


@given(STEPS, st.integers(0, 4))
def test_moves_are_the_difference_of_the_visible_rows(steps, since):
    """Files are added, removed and hidden in any order, and read from any commit on."""
    names, positions = itertools.count(), {}
    alive, vectors, commits, states = {}, {}, [], [{}]
    for kind, letter, chosen in steps:
        lines = []
        if kind == "add":
            file = f"{letter}{next(names)}"
            alive[file], lines = {0, 1, 2, 3}, [rows("+", file)]
        else:
            file = next((name for name in alive if name.startswith(letter)), None)
            if file is not None and kind == "remove":
                del alive[file]
                lines = [rows("-", file)]
                lines += [hides("-", vectors.pop(file), file)] if file in vectors else []
            elif file is not None and kind == "hide":
                alive[file] = alive[file] - chosen
                vector = f"v{next(names)}"
                positions[vector] = {file: sorted({0, 1, 2, 3} - alive[file])}
                lines = [hides("+", vector, file)]
                lines += [hides("-", vectors[file], file)] if file in vectors else []
                vectors[file] = vector
        commits.append(lines)
        states.append({name: set(left) for name, left in alive.items()} | {"vectors": dict(vectors)})
    since = min(since, len(commits))
    before = dict(states[since])
    hiding = before.pop("vectors", {})
    standing = []
    for file in before:
        standing += [rows("=", file), *([hides("=", hiding[file], file)] if file in hiding else [])]
    expected = []
    for number, (old, new) in enumerate(itertools.pairwise(states[since:])):
        for file in (old.keys() | new.keys()) - {"vectors"}:
            was, is_ = old.get(file, set()), new.get(file, set())
            for sign, places in (("-", was - is_), ("+", is_ - was)):
                expected += [f"{file} {number} {sign} {' '.join(map(str, sorted(places)))}"] if places else []
    assert moves_of(standing, commits[since:], positions) == sorted(expected)
