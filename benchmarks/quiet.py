"""A quiet machine before each act: nobody pays for what the one before left to be done."""

import time
from pathlib import Path
from typing import Final

STAT: Final = Path("/proc/stat")
GLANCE, PAUSE, PATIENCE = 0.3, 2.0, 3.0  # seconds
IDLE: Final = 0.75  # of all processors: nobody compiles or collects


def settled(patience: float = PATIENCE) -> None:
    """Wait until the processors are idle; where nothing tells, or others work on, for a while."""
    if not STAT.exists():
        time.sleep(PAUSE)
        return
    until = time.monotonic() + patience
    while idle(GLANCE) < IDLE and time.monotonic() < until:
        pass


def idle(seconds: float) -> float:
    """Which share of the processors did nothing in the seconds from now on."""
    before = _ticks()
    time.sleep(seconds)
    passed = [now - then for now, then in zip(_ticks(), before, strict=True)]
    return (passed[3] + passed[4]) / max(1, sum(passed))


def _ticks() -> list[int]:
    """What all processors together did since they started; the fourth and the fifth are for idling."""
    return [int(each) for each in STAT.read_text().splitlines()[0].split()[1:9]]
