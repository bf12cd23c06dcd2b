"""Times in the forms that people write."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from backstory.errors import UsageError
from backstory.model.instant import instant_of

GIVEN = {
    "2024-02-29": datetime(2024, 2, 29, tzinfo=UTC),
    "2024-02-29T01:00:00+02:00": datetime(2024, 2, 28, 23, tzinfo=UTC),
    date(2024, 2, 29): datetime(2024, 2, 29, tzinfo=UTC),
    datetime(2024, 2, 29, 1, tzinfo=timezone(timedelta(hours=2))): datetime(2024, 2, 28, 23, tzinfo=UTC),
}


@pytest.mark.parametrize("value", GIVEN, ids=str)
def test_a_date_is_read_as_its_first_instant(value):
    assert instant_of(value) == GIVEN[value]


NO_TIMES = [
    "soon",
    5,
    None,
    1.5,
    datetime(2024, 1, 1),
    "9999-12-31T23:59:59-01:00",
    "0001-01-01T00:00:00+01:00",
]


@pytest.mark.parametrize("value", NO_TIMES, ids=str)
def test_an_unreadable_or_naive_time_is_wrong_usage(value):
    with pytest.raises(UsageError) as refused:
        instant_of(value)
    assert refused.value.code in {"unreadable-time", "naive-time"}
