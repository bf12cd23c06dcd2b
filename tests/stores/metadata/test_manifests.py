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
def test_deleted_rows_are_subtracted_only_if_their_kind_is_certain(rows, deleted, of, left):
    assert _Group(rows, deleted).left(of) == left


def test_a_file_without_statistics_makes_the_count_unknown():
    group = _Group()
    group.add(3, 3, 0)
    group.add(2, None, 0)
    group.add(1, 1, 0)
    assert (group.rows, group.open, group.memory) == (6, None, 0)
