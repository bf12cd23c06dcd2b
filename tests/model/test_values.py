"""The equality of two values (native.md V16)."""

import pytest

from backstory.model.values import comparison_key

NAN = float("nan")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (NAN, float("nan"), True),
        (0.0, -0.0, True),
        ([{"a": NAN}, 0.0], [{"a": NAN}, -0.0], True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        (None, NAN, False),
        (NAN, "nan", False),
        ([1, 2], [2, 1], False),
        ({"a": None}, {}, False),
    ],
)
def test_values_are_one_or_not(one, other, same):
    """NaN equals NaN, both zeros are equal, maps have no order, and NULL equals only NULL."""
    assert (comparison_key(one) == comparison_key(other)) is same
