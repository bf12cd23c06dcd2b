"""Keys as numbers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from backstory.strategies.keys import places_among

# Some of them with the highest bit, which a signed number has not.
NUMBERS = st.lists(st.integers(0, 15).map(lambda number: number << 60), max_size=30)


@given(NUMBERS, NUMBERS)
def test_the_place_of_a_number_is_found_however_many_are_asked_for(numbers, wanted):
    numbers = sorted(set(numbers))
    found = places_among(np.array(numbers, np.uint64), np.array(wanted, np.uint64))
    assert found.tolist() == [numbers.index(each) if each in numbers else -1 for each in wanted]
