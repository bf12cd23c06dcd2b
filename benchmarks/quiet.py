"""Wait for a quiet machine before each act, so that none pays for work that the one before left behind."""

import time
from pathlib import Path
from typing import Final

STAT: Final = Path("/proc/stat")
GLANCE, PAUSE, PATIENCE = 0.3, 2.0, 3.0  # seconds
IDLE: Final = 0.75  # of all processors: no other process compiles, no garbage is collected


def settled(patience: float = PATIENCE) -> None:
    """Wait until the processors are idle, but not long; without /proc/stat, wait a fixed time."""
    if not STAT.exists():
        time.sleep(PAUSE)
        return
    until = time.monotonic() + patience
    while idle(GLANCE) < IDLE and time.monotonic() < until:
        pass


def idle(seconds: float) -> float:
    """The share of the processors that is idle during the next seconds."""
    before = _ticks()
    time.sleep(seconds)
    passed = [now - then for now, then in zip(_ticks(), before, strict=True)]
    return (passed[3] + passed[4]) / max(1, sum(passed))


def _ticks() -> list[int]:
    """The ticks of all processors since the start of the machine; the fourth and fifth are idle time."""
    return [int(each) for each in STAT.read_text().splitlines()[0].split()[1:9]]
