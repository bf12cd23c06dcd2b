"""Commands as processes of their own, which are killed at a moment that a test waits for."""

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
    """A command that runs, and the folder for temporary files by which its family is known."""

    process: subprocess.Popen
    temp: Path

    def reach(self, moment: Callable[[], object], pause: float = 0.01) -> None:
        """Wait until something holds while the command runs; `pause` is short where that passes soon."""
        reached = within(SECONDS, lambda: moment() or self.process.poll() is not None, pause)
        assert reached, "the moment never came"
        assert self.process.poll() is None, self.process.communicate()

    def kill(self) -> None:
        """End it at once, and its Java, which is a session of its own."""
        for each in [self.process.pid, *family_by(self.temp)]:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self.process.wait()

    def end(self) -> tuple[int, str, str]:
        """Its exit code once it ends, and what it printed to both streams."""
        said, warned = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, said, warned


@contextmanager
def command(
    folder: Path, *words: object, before: Sequence[object] = (), **environment: str
) -> Iterator[Command]:
    """A command that runs in a folder, behind the words `before` it; nothing of it runs on after."""
    with program(folder, *before, BACKSTORY, *words, "--output", "json", **environment) as running:
        yield running


@contextmanager
def program(folder: Path, *words: object, **environment: str) -> Iterator[Command]:
    """Any other program, alike."""
    temp = Path(tempfile.mkdtemp(prefix="temp-", dir=folder))
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    process = subprocess.Popen(
        [*map(str, words)],
        cwd=folder,
        env=kept | {"TMPDIR": str(temp), "SPARK_LOCAL_DIRS": str(temp)} | environment,
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
    """The catalog's file while another program writes to it: commits wait, readers do not."""
    with closing(sqlite3.connect(catalog, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def metadata_of(catalog: Path, table: str) -> str | None:
    """Where the catalog says that a table's metadata is; None for a table that is not there."""
    with closing(sqlite3.connect(f"file:{catalog}?mode=ro", uri=True)) as connection:
        query = "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?"
        row = connection.execute(query, [table]).fetchone()
    return row and row[0]
