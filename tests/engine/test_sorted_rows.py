"""Sorted rows, together or in ranges: the same rows, with equal ones in their former order."""

from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstory.engine import row_buffers as module
from backstory.engine.row_buffers import RowBuffer, sort_rows
from backstory.formats.memory import CLEAR_TEXT_SHARE, Memory
from backstory.model.change import RowBatches


def order(rows):
    return np.argsort(np.asarray(rows["k"]), kind="stable")


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=20), min_size=1, max_size=8))
@pytest.mark.parametrize("most", [1 << 20, 1], ids=["held", "spilled"])
def test_any_number_of_rows_is_sorted(most, tables):
    keys = [key for table in tables for key in table]
    pairs = sorted(enumerate(keys), key=lambda pair: pair[1])
    with (
        ExitStack() as stack,
        Memory(CLEAR_TEXT_SHARE * most).lease() as lease,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(module, "ROWS_IN_RANGE", 7)
        held, first = RowBuffer("rows", lease, stack), 0
        for table in tables:
            held.add(pa.table({"k": table, "n": range(first, first + len(table))}))
            first += len(table)
        sorted_rows = sort_rows(held.rows(), order, stack)
        assert isinstance(sorted_rows, RowBatches) == held.is_spilled == (most == 1 and len(tables) > 1)
        for _ in range(2):  # a commit may be tried again
            pieces = list(sorted_rows.tables()) if isinstance(sorted_rows, RowBatches) else [sorted_rows]
            assert pa.concat_tables(pieces).to_pylist() == [{"k": key, "n": number} for number, key in pairs]


def test_sorted_ranges_have_similar_sizes():
    """Spilled rows are never sorted as a whole."""
    with (
        ExitStack() as stack,
        Memory(CLEAR_TEXT_SHARE).lease() as lease,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(module, "ROWS_IN_RANGE", 100)
        held = RowBuffer("rows", lease, stack)
        for first in range(10):
            held.add(pa.table({"k": range(first, 1_000, 10)}))
        sizes = [len(each) for each in sort_rows(held.rows(), order, stack).tables()]
    assert sum(sizes) == 1_000
    assert max(sizes) <= 200
