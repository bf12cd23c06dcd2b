"""The options of a workload: its size, its number of rounds, the latest time at which a round may start, and
its folder for results."""

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Asked:
    """The options of a run; no round begins after `until`, in seconds of the epoch."""

    scale: float = 1.0
    rounds: int = 3
    full: bool = False
    until: float = float("inf")
    results: Path = RESULTS

    @property
    def left(self) -> float:
        """Seconds until the time after which no round begins."""
        return self.until - time.time()

    def words(self) -> list[str]:
        """The options as arguments of a command."""
        told = ["--scale", str(self.scale), "--rounds", str(self.rounds), "--results", str(self.results)]
        return [*told, "--until", str(self.until), *(["--full"] if self.full else [])]


def parser(description: str | None) -> argparse.ArgumentParser:
    """The parser of the arguments that every workload takes."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--scale", type=float, default=1.0, help="1 is the size that is published")
    made.add_argument("--rounds", type=int, default=3, help="rounds that count; the median is told")
    made.add_argument("--full", action="store_true", help="the sizes that take hours")
    made.add_argument("--until", type=float, default=float("inf"), help="no round begins after this time")
    made.add_argument("--results", type=Path, default=RESULTS, help="the folder of what is found")
    return made


def asked_of(found: argparse.Namespace) -> Asked:
    """The options in parsed arguments."""
    return Asked(found.scale, found.rounds, found.full, found.until, found.results.resolve())


def asked(description: str | None) -> Asked:
    """The options in this command's arguments."""
    return asked_of(parser(description).parse_args())


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A folder for one run, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=f"backstory-{name}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
