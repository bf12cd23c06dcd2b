"""The time in a path: formats of strftime and Java (D27)."""

from datetime import UTC, datetime

import pytest
from fetch_steps import from_path

from backstory.errors import Refused, UsageError
from backstory.sources.fetching import check_format, codes, path_time

WHOLE = datetime(2024, 3, 4, 5, 6, 7, tzinfo=UTC)
DAY = datetime(2024, 3, 4, tzinfo=UTC)


def source(timestamp_format="%Y-%m-%d", pattern="(.*)"):
    return from_path(pattern, timestamp_format)


@pytest.mark.parametrize(
    ("timestamp_format", "text", "expected"),
    [
        ("%Y-%m-%d", "2024-03-04", DAY),
        ("%F", "2024-03-04", DAY),
        ("%FT%T", "2024-03-04T05:06:07", WHOLE),
        ("%Y%m%d%H%M%S", "20240304050607", WHOLE),
        ("%Y-%m-%dT%H:%M:%S%z", "2024-03-04T07:06:07+0200", WHOLE),
        ("%%F %F", "%F 2024-03-04", DAY),
        ("yyyy-MM-dd", "2024-03-04", DAY),
        ("yyyyMMddHHmmss", "20240304050607", WHOLE),
        ("yyyy-MM-dd'T'HH:mm:ss", "2024-03-04T05:06:07", WHOLE),
        ("yyyy''MM''dd", "2024'03'04", DAY),
        ("yyyy", "2024", datetime(2024, 1, 1, tzinfo=UTC)),
    ],
)
def test_formats_of_strftime_and_java_are_read(timestamp_format, text, expected):
    check_format(timestamp_format)

    assert path_time(source(timestamp_format), "a.csv", [text]) == expected


@pytest.mark.parametrize(
    "timestamp_format", ["%Q", "%", "%Y %Y", "yyyy-MMM", "EEE", "yyyy-MM-ddThh", "yyyy 'T"]
)
def test_other_formats_are_usage_errors(timestamp_format):
    with pytest.raises(UsageError) as caught:
        check_format(timestamp_format)
    assert caught.value.code == "event-time"
    assert repr(timestamp_format) in caught.value.message


@pytest.mark.parametrize("text", ["2024-02-30", "2024-03", "today", ""])
def test_a_text_without_a_valid_time_is_refused(text):
    with pytest.raises(Refused) as caught:
        path_time(source(), "a.csv", [text])
    assert caught.value.code == "file-time"
    assert all(part in caught.value.message for part in ("a.csv", repr(text), "%Y-%m-%d"))


def test_an_unmatched_group_is_refused():
    with pytest.raises(Refused):
        path_time(source(pattern=r"(\d+)?x"), "a.csv", ["x"])


def test_a_time_before_the_first_year_is_refused():
    with pytest.raises(Refused):
        path_time(source("%Y-%m-%dT%H%z"), "a.csv", ["0001-01-01T00+0100"])


def test_strftime_formats_stay_unchanged():
    assert codes("%Y yyyy") == "%Y yyyy"
