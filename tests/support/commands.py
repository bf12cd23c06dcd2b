"""Commands as separate processes, which tests kill at a certain moment."""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import java
from serving import KEPT, SECONDS, family_by, within

BACKSTORY = str(Path(sys.executable).parent / "backstory")
SETTINGS = {"spark.master": "local[2]", "spark.driver.memory": "640m", "spark.sql.shuffle.partitions": "2"}


def configure(folder: Path) -> None:
    """The settings of commands that run in a folder."""
    (folder / "backstory.toml").write_text(f"[spark]\n{java.in_toml(SETTINGS | java.PLANS)}")


@dataclass(frozen=True)
class Command:
    """A running command, and the folder for temporary files that identifies its processes."""

    process: subprocess.Popen
    temp: Path

    def reach(self, moment: Callable[[], object], pause: float = 0.01) -> None:
        """Wait until a condition holds while the command runs.

        `pause` is short for conditions that hold briefly.
        """
        reached = within(SECONDS, lambda: moment() or self.process.poll() is not None, pause)
        assert reached, "the moment never came"
        assert self.process.poll() is None, self.process.communicate()

    def kill(self) -> None:
        """Kill the command, and its Java, which has its own session."""
        for each in [self.process.pid, *family_by(self.temp)]:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self.process.wait()

    def end(self) -> tuple[int, str, str]:
        """The exit code of the command once it ends, and its output on both streams."""
        output, warned = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, output, warned


@contextmanager
def command(
    folder: Path, *words: object, before: Sequence[object] = (), **environment: str
) -> Iterator[Command]:
    """A command that runs in a folder, after the words in `before`.

    None of its processes outlives the block.
    """
    with program(folder, *before, BACKSTORY, *words, "--output", "json", **environment) as running:
        yield running


@contextmanager
def program(folder: Path, *words: object, **environment: str) -> Iterator[Command]:
    """Any other program, run in the same way."""
    temp = Path(tempfile.mkdtemp(prefix="temp-", dir=folder))
    variables = {name: os.environ[name] for name in KEPT if name in os.environ}
    process = subprocess.Popen(
        [*map(str, words)],
        cwd=folder,
        env=variables | {"TMPDIR": str(temp), "SPARK_LOCAL_DIRS": str(temp)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    running = Command(process, temp)
    try:
        yield running
    finally:
        running.kill()
        process.communicate()


@contextmanager
def locked(catalog: Path) -> Iterator[None]:
    """The catalog's file while another program writes to it. Commits wait, but readers do not."""
    with closing(sqlite3.connect(catalog, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def metadata_of(catalog: Path, table: str) -> str | None:
    """The location of a table's metadata according to the catalog, or None if the table does not exist."""
    with closing(sqlite3.connect(f"file:{catalog}?mode=ro", uri=True)) as connection:
        query = "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?"
        row = connection.execute(query, [table]).fetchone()
    return row and row[0]
