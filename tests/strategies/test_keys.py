"""Keys as numbers."""

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from backstory.strategies.keys import find_places, key_numbers

# Some of them have the highest bit, which a signed number lacks.
NUMBERS = st.lists(st.integers(0, 15).map(lambda number: number << 60), max_size=30)


@given(NUMBERS, NUMBERS)
def test_places_of_any_count_of_numbers_are_found(numbers, wanted):
    numbers = sorted(set(numbers))
    places = find_places(np.array(numbers, np.uint64), np.array(wanted, np.uint64))
    assert places.tolist() == [numbers.index(each) if each in numbers else -1 for each in wanted]


TEXTS = st.lists(st.none() | st.text("ab", max_size=20) | st.text("ab", min_size=60, max_size=70), max_size=8)


@given(TEXTS, st.integers(0, 3))
@example(["a" * 64, "b" * 64], 0)  # all of one length, like hashes
@example(["abc", "abd", "abe"], 1)
def test_the_number_of_a_text_does_not_depend_on_its_neighbours(texts, first):
    rows = pa.table({"k": pa.array(texts, pa.string())})
    alone = [key_numbers(pa.table({"k": pa.array([each], pa.string())}), ["k"])[0] for each in texts]
    assert key_numbers(rows.slice(first), ["k"]).tolist() == alone[first:]
    assert len(set(alone)) == len({each or "" for each in texts})
