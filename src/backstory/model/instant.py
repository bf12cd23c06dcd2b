"""Instants: those that the contract names, and how people write them."""

from datetime import UTC, datetime
from typing import Final

from backstory.errors import UsageError

# The least instant and the end of a version that is still true (F10), and a millisecond in microseconds (F5).
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TMAX: Final = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
MILLISECOND: Final = 1_000


def parse_instant(text: str) -> datetime:
    """The instant of an ISO 8601 text, in UTC; without an offset it is UTC, a date is its first instant.

    Raises UsageError for any other text.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            "unreadable-time", f"{text!r} is not a time.", "Write it as 2026-01-31T12:00:00Z."
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def instant_of(time: str | datetime) -> datetime:
    """The instant that a caller means, in UTC; UsageError for an unreadable text or a naive datetime."""
    if isinstance(time, str):
        return parse_instant(time)
    if time.tzinfo is None:
        raise UsageError("naive-time", "The time has no zone.", "Give it one: datetime(…, tzinfo=UTC).")
    return time.astimezone(UTC)


def iso(instant: datetime) -> str:
    """`2026-01-31T12:00:00.000000Z`."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
