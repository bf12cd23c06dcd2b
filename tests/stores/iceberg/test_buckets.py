"""The number of buckets in which Spark's tasks plan rows."""

import pytest

from backstory.stores.iceberg.frames import BYTES_IN_BUCKET, LEAST_ROWS, ROWS_IN_BUCKET, buckets_for


@pytest.mark.parametrize(
    ("rows", "size", "count"),
    [
        (0, 0, 1),
        (ROWS_IN_BUCKET - 1, 0, 1),
        (10 * ROWS_IN_BUCKET, 0, 11),
        (ROWS_IN_BUCKET, 10 * BYTES_IN_BUCKET, 11),
        (LEAST_ROWS - 1, 1 << 40, 1),
        (10 * LEAST_ROWS, 1 << 40, 11),
    ],
)
def test_the_number_of_buckets_depends_on_rows_and_their_size(rows, size, count):
    """A bucket has a limited number of rows, fewer if they are wide, and there are not more buckets than
    needed."""
    assert buckets_for(rows, size) == count
