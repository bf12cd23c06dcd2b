"""Instants: those that the contract names, and how people write them."""

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from backstory.errors import UsageError

# The least instant and the end of a version that is still true (F10), and a millisecond in microseconds (F5).
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TMAX: Final = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
MILLISECOND: Final = 1_000
# The longest time that anything waits or stays for: before a time of today it begins in a year that there is.
LONGEST: Final = timedelta(days=365_000)


def parse_instant(text: str) -> datetime:
    """The instant of an ISO 8601 text, in UTC; without an offset it is UTC, a date is its first instant.

    Raises UsageError for any other text.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise _unreadable(text) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else _in_utc(found)


def instant_of(given: str | date) -> datetime:
    """The instant that a caller means, in UTC; a date is its first one.

    Raises UsageError for an unreadable text, a naive datetime, and what is no time at all.
    """
    if isinstance(given, str):
        return parse_instant(given)
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise UsageError("naive-time", "The time has no zone.", "Give it one: datetime(…, tzinfo=UTC).")
        return _in_utc(given)
    if isinstance(given, date):
        return datetime.combine(given, time(), UTC)
    raise _unreadable(given)


def optional_instant(given: str | date | None) -> datetime | None:
    """The instant of an option, None where it is left out; raises what `instant_of` raises."""
    return None if given is None else instant_of(given)


def _in_utc(aware: datetime) -> datetime:
    try:
        return aware.astimezone(UTC)
    except OverflowError:
        raise UsageError(
            "unreadable-time",
            f"{aware.isoformat()} is outside of the years 1 to 9999 in UTC.",
            "Give a time within these years.",
        ) from None


def _unreadable(given: object) -> UsageError:
    return UsageError("unreadable-time", f"{given!r} is not a time.", "Write it as 2026-01-31T12:00:00Z.")


def milliseconds_of(text: str) -> int:
    """The milliseconds of a length of time such as `30 days` or `12 hours`; UsageError for any other text."""
    found = re.fullmatch(r"(\d{1,18}) *(day|hour|minute)s?", text.strip())
    if found is None:
        raise UsageError("unreadable-time", f"{text!r} is not a duration.", "Write it as 30 days.")
    length = int(found[1]) * timedelta(**{f"{found[2]}s": 1}).total_seconds()
    if length > LONGEST.total_seconds():
        raise UsageError("unreadable-time", f"{text!r} is too long.", f"Use at most {LONGEST.days} days.")
    return int(length) * 1_000


def iso(instant: datetime) -> str:
    """`2026-01-31T12:00:00.000000Z`."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
