"""How often a source that cannot be reached is asked again, and after what waits (section 5.2)."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from itertools import count
from typing import TypeVar

import structlog

from backstory.errors import TryAgain
from backstory.observe.metrics import RETRIES

# Waits that many clients draw together spread them, so that they do not all come back at once.
DICE = random.SystemRandom()

log = structlog.get_logger()

Result = TypeVar("Result")


class Growth(StrEnum):
    """How the waits grow from attempt to attempt."""

    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"
    EXPONENTIAL_WITH_JITTER = "exponential-with-jitter"


@dataclass(frozen=True, slots=True)
class Policy:
    """How often something is attempted, and how long is waited in between.

    Attributes:
        attempts: how many there are at most; 1 never waits.
        delay: the wait after the first attempt, in seconds.
        growth: how it grows.
        longest: the longest wait, in seconds; a server that asks for more is not waited for.
    """

    attempts: int = 4
    delay: float = 0.5
    growth: Growth = Growth.EXPONENTIAL_WITH_JITTER
    longest: float = 120.0

    def wait(self, failed: int) -> float:
        """The seconds to wait after so many failed attempts (1 and more)."""
        match self.growth:
            case Growth.FIXED:
                wait = self.delay
            case Growth.LINEAR:
                wait = self.delay * failed
            case Growth.EXPONENTIAL:
                wait = self.delay * 2.0 ** (failed - 1)
            case Growth.EXPONENTIAL_WITH_JITTER:
                wait = self.delay * 2.0 ** (failed - 1) * DICE.uniform(0.5, 1.0)
        return min(wait, self.longest)


class Unreachable(TryAgain):
    """A server that gives nothing now; `retry_after` seconds it asks to be left alone, if it says so."""

    def __init__(self, code: str, message: str, remedy: str = "", retry_after: float | None = None) -> None:
        super().__init__(code, message, remedy)
        self.retry_after = retry_after


def retry_requests(policy: Policy, act: Callable[[], Result]) -> Result:
    """What `act` gives; only TryAgain is attempted again, and raised at the end.

    Each attempt that failed is a line of the log; each that follows one is counted.
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
    """The seconds that a `Retry-After` asks for, be it a number or a date; None if it says nothing."""
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
    then = "giving up" if wait is None else f"trying again in {wait:.1f} s"
    log.warning(
        f"attempt {number} of {policy.attempts} failed, {then}: {error.message}",
        code=error.code,
        attempt=number,
    )


def _final_error(error: TryAgain, number: int, pause_seconds: float) -> TryAgain:
    """The error with how many attempts were made, and the pause in seconds that the server asks for."""
    attempts = "1 attempt" if number == 1 else f"{number} attempts"
    pause = f"; the server asks for a pause of {pause_seconds:.0f} s" if pause_seconds else ""
    return TryAgain(error.code, f"{error.message.removesuffix('.')} ({attempts}{pause}).", error.remedy)
