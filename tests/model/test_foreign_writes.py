"""Writes of other programs since the door's last write."""

import pytest

from backstory.model.change import foreign_writes
from backstory.model.layout import Layout

COLUMNS = {1: "id", 2: "name"}
OURS = (7, "overwrite", "native")


@pytest.mark.parametrize(
    ("commits", "words"),
    [
        ([], []),
        ([OURS], []),
        ([(8, "replace", None), OURS], []),
        ([(8, "delete", None), OURS], ["8 (delete)"]),
        ([(9, "replace", None), (8, "overwrite", None), OURS], ["8 (overwrite)"]),
        ([(9, "append", None), (8, "delete", None), OURS], ["2 commits: 9 (append), 8 (delete)"]),
        ([OURS, (6, "append", None)], []),
    ],
)
def test_foreign_commits_since_the_last_delivery_are_reported(commits, words):
    """Moves of rows between files do not count. Writes before the last delivery were reported then."""
    reports = foreign_writes(Layout.VERSIONS, commits, COLUMNS, COLUMNS)
    assert len(reports) == len(words)
    assert all(word in each for word, each in zip(words, reports, strict=True))


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (COLUMNS, ""),
        ({1: "id"}, "name was dropped"),
        ({1: "id", 2: "called"}, "name was renamed called"),
        ({1: "id", 2: "name", 3: "name_2"}, "name_2 was added"),
        ({1: "id", 3: "name"}, "name was dropped, name was added"),
    ],
)
def test_altered_columns_are_recognised_by_their_ids(now, words):
    reports = foreign_writes(Layout.HIST, [OURS], COLUMNS, now)
    assert [each.partition(": ")[2] for each in reports] == ([words] if words else [])


def test_changes_of_unrecorded_columns_are_not_reported():
    """The door did not record its columns."""
    assert foreign_writes(Layout.VERSIONS, [OURS], None, COLUMNS) == []


@pytest.mark.parametrize("layout", [Layout.BASE, Layout.FOREIGN, Layout.DBT])
def test_writes_to_a_table_open_to_others_are_not_reported(layout):
    assert foreign_writes(layout, [(8, "append", None)], COLUMNS, COLUMNS) == []
