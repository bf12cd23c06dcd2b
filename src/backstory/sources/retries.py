"""Retries of requests to unreachable sources, and the waits between the retries (section 5.2)."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import count
from typing import TypeVar

import structlog

from backstory.errors import TryAgain
from backstory.observe.metrics import RETRIES

# Random waits spread clients that failed at the same time, so that they do not all retry at once.
DICE = random.SystemRandom()

log = structlog.get_logger()

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Policy:
    """The number of attempts, and the waits between attempts.

    Attributes:
        attempts: the maximum number of attempts; 1 never waits.
        delay: the longest wait after the first attempt, in seconds; it doubles with each further attempt.
        longest: the longest wait, in seconds; if a server requests more, retrying stops.
    """

    attempts: int = 4
    delay: float = 0.5
    longest: float = 120.0

    def wait(self, failed: int) -> float:
        """The seconds to wait after `failed` attempts (at least 1)."""
        return min(self.delay * 2.0 ** (failed - 1) * DICE.uniform(0.5, 1.0), self.longest)


class Unreachable(TryAgain):
    """The server returns no data now.

    `retry_after` is the pause in seconds that the server requests, if any.
    """

    def __init__(self, code: str, message: str, remedy: str = "", retry_after: float | None = None) -> None:
        super().__init__(code, message, remedy)
        self.retry_after = retry_after


def broken_transfer(name: str, size: int) -> Unreachable:
    """The error for a transfer that stopped after `size` bytes."""
    return Unreachable(
        "broken-transfer", f"The transfer of {name} broke off after {size:,} bytes.", "Try again later."
    )


def retry_requests(policy: Policy, act: Callable[[], Result]) -> Result:
    """Call `act` until it succeeds, and return its result.

    After the last attempt, raise its TryAgain. Other errors are not retried. Each failed attempt is logged,
    and each retry is counted as a metric.
    """
    for number in count(1):
        try:
            return act()
        except TryAgain as error:
            pause = getattr(error, "retry_after", None) or 0.0
            wait = max(policy.wait(number), pause)
            last = number >= policy.attempts or wait > policy.longest
            _tell(error, number, policy, None if last else wait)
            if last:
                raise _final_error(error, number, pause) from None
        RETRIES.inc()
        time.sleep(wait)
    raise AssertionError("unreachable")


def seconds_of(retry_after: str | None) -> float | None:
    """The seconds that a `Retry-After` header requests, as a number or a date.

    Returns None if the header is missing or invalid.
    """
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        then = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    then = then.replace(tzinfo=UTC) if then.tzinfo is None else then
    return max(0.0, (then - datetime.now(UTC)).total_seconds())


def _tell(error: TryAgain, number: int, policy: Policy, wait: float | None) -> None:
    next_step = "giving up" if wait is None else f"trying again in {wait:.1f} s"
    log.warning(
        f"attempt {number} of {policy.attempts} failed, {next_step}: {error.message}",
        code=error.code,
        attempt=number,
    )


def _final_error(error: TryAgain, number: int, pause_seconds: float) -> TryAgain:
    """The error with the number of attempts, and the pause in seconds that the server requests."""
    attempts = "1 attempt" if number == 1 else f"{number} attempts"
    pause = f"; the server asks for a pause of {pause_seconds:.0f} s" if pause_seconds else ""
    return TryAgain(error.code, f"{error.message.removesuffix('.')} ({attempts}{pause}).", error.remedy)
