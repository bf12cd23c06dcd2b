"""Counts from manifests, or from the rows if the manifests do not suffice."""

import pytest

from backstory.stores.metadata.table_metadata import _Group


@pytest.mark.parametrize(
    ("rows", "deleted", "of", "left"),
    [
        (10, 0, 4, 4),  # nothing is gone
        (10, 3, 10, 7),  # all were open
        (10, 3, 0, 0),  # none was open
        (10, 3, 4, None),  # open or other rows may be gone
        (10, 0, None, None),  # no statistics
    ],
)
def test_deletions_are_taken_off_where_all_rows_of_a_partition_are_of_a_kind(rows, deleted, of, left):
    assert _Group(rows, deleted).left(of) == left


def test_a_file_without_statistics_leaves_its_partition_untold():
    group = _Group()
    group.add(3, 3, 0)
    group.add(2, None, 0)
    group.add(1, 1, 0)
    assert (group.rows, group.open, group.memory) == (6, None, 0)
