"""Durations in words."""

import pytest

from backstory.errors import UsageError
from backstory.model.instant import milliseconds_of


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("1 minute", 60_000), ("365000 days", 31_536_000_000_000)]
)
def test_a_length_of_time_is_a_number_and_a_unit(text, milliseconds):
    assert milliseconds_of(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["365001 days", "9" * 18 + " hours", "9" * 5000 + " days", "soon", "-1 days"]
)
def test_invalid_and_too_long_durations_are_refused(text):
    with pytest.raises(UsageError) as refused:
        milliseconds_of(text)
    assert refused.value.code == "unreadable-time"
