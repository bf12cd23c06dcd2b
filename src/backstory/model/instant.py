"""Instants: the constants of the contract, and conversions from and to strings."""

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from backstory.errors import UsageError

# The earliest instant, and the end of a version that is still true (F10).
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TMAX: Final = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
# In microseconds (F5).
MILLISECOND: Final = 1_000
# The longest duration of an option: subtracted from today, it gives a year that Python supports.
LONGEST: Final = timedelta(days=365_000)


def parse_instant(text: str) -> datetime:
    """The instant of an ISO 8601 string, in UTC. A date means its first instant.

    A string without an offset is in UTC. Raises UsageError for any other string.
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise _unreadable(text) from None
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else _in_utc(parsed)


def instant_of(value: str | date) -> datetime:
    """The instant that an argument specifies, in UTC. A date means its first instant.

    Raises UsageError for an unreadable string, a naive datetime, or another type.
    """
    if isinstance(value, str):
        return parse_instant(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise UsageError("naive-time", "The time has no zone.", "Give it one: datetime(…, tzinfo=UTC).")
        return _in_utc(value)
    if isinstance(value, date):
        return datetime.combine(value, time(), UTC)
    raise _unreadable(value)


def optional_instant(value: str | date | None) -> datetime | None:
    """The instant of an option, or None if it is omitted. Raises the errors of `instant_of`."""
    return None if value is None else instant_of(value)


def _in_utc(aware: datetime) -> datetime:
    try:
        return aware.astimezone(UTC)
    except OverflowError:
        raise UsageError(
            "unreadable-time",
            f"{aware.isoformat()} is outside of the years 1 to 9999 in UTC.",
            "Give a time within these years.",
        ) from None


def _unreadable(value: object) -> UsageError:
    return UsageError("unreadable-time", f"{value!r} is not a time.", "Write it as 2026-01-31T12:00:00Z.")


def milliseconds_of(text: str) -> int:
    """The milliseconds of a duration such as `30 days`. Raises UsageError for any other string."""
    matched = re.fullmatch(r"(\d{1,18}) *(day|hour|minute)s?", text.strip())
    if matched is None:
        raise UsageError("unreadable-time", f"{text!r} is not a duration.", "Write it as 30 days.")
    length = int(matched[1]) * timedelta(**{f"{matched[2]}s": 1}).total_seconds()
    if length > LONGEST.total_seconds():
        raise UsageError("unreadable-time", f"{text!r} is too long.", f"Use at most {LONGEST.days} days.")
    return int(length) * 1_000


def iso(instant: datetime) -> str:
    """The instant as a string like `2026-01-31T12:00:00.000000Z`."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
