"""The contestants: how each is started, its load as a whole process, and the place of its rows."""

import json
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.ground import environ
from benchmarks.venvs import environment

WORKERS = Path(__file__).parent / "workers"
PATIENCE = 300  # seconds that one load may take


class Failed(Exception):
    """A contestant did not complete its load."""


@dataclass
class Contestant:
    """A tool. `once` is a load as users run it, with NUMBER for the table's number, by default the worker.

    `warm` and `whole` are the modes that it takes part in. `schema` contains its tables, and `of` is their
    name. `still_open` is the condition for its open versions, or None if it keeps no history. Without `conf`
    the whole process has Spark's settings from its own file.
    """

    name: str
    worker: str
    schema: str
    still_open: str | None
    python: Path = Path(sys.executable)
    once: list[str] = field(default_factory=list)
    of: str = "customer_NUMBER"
    failed: str | None = None
    warm: bool = True
    whole: bool = True
    conf: bool = True
    more: dict[str, str] = field(default_factory=dict)
    process: Any = None
    answers: Any = None

    def command(self, number: int) -> list[str]:
        """The command of one load of that table as a whole process."""
        told = self.once or [str(self.python), str(WORKERS / self.worker), "NUMBER"]
        return [word.replace("NUMBER", str(number)) for word in told]

    def environ(self, folder: Path) -> dict[str, str]:
        """The environment of a whole process, with Spark's folder of settings if `conf` is set."""
        found = environ(folder)
        return (
            found if self.conf else {name: each for name, each in found.items() if name != "SPARK_CONF_DIR"}
        )

    def start(self, folder: Path) -> None:
        """Start the worker, and wait until it listens."""
        with (folder / f"{self.schema}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.python), str(WORKERS / self.worker)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder / "cwd" / self.schema,
                env=environ(folder) | self.more,
                text=True,
            )
        self.answers = queue.Queue()
        threading.Thread(target=_listen, args=(self.process.stdout, self.answers), daemon=True).start()
        self._answer()

    def load(self, number: int) -> float:
        """Run one load in the worker; return the seconds."""
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        told = self._answer()
        if "error" in told:
            raise Failed(told["error"])
        return float(told["seconds"])

    def _answer(self) -> dict[str, Any]:
        try:
            told = self.answers.get(timeout=PATIENCE)
        except queue.Empty:
            raise Failed(f"no answer in {PATIENCE} s") from None
        if told is None:
            raise Failed(f"ended with {self.process.wait()}")
        return json.loads(told)

    def stop(self) -> None:
        """End the worker."""
        if self.process is not None:
            self.process.stdin.close()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
            self.process = None


def _listen(stream: Any, answers: Any) -> None:
    for line in stream:
        if line.startswith("@@"):
            answers.put(line[2:])
    answers.put(None)


def contestants(folder: Path) -> list[Contestant]:
    """All contestants, including those that cannot be installed, with the reason."""
    backstory = str(Path(sys.executable).with_name("backstory"))
    place = ["--warehouse", str(folder / "warehouse"), "--config", str(folder / "backstory.toml"), "--quiet"]
    snapshot = ["snapshot", "table:src.current", "--into", "native.customer_NUMBER", "--key", "id"]
    historize = ["historize", str(folder / "model_NUMBER.yaml")]
    dbt, mesh = environment("dbt"), environment("sqlmesh")
    dbt_places = ["--project-dir", str(folder / "dbt"), "--profiles-dir", str(folder / "dbt")]
    run_dbt = [dbt.program("dbt"), "--quiet", "snapshot", "--select", "customer_NUMBER", *dbt_places]
    everybody = [
        Contestant("backstory snapshot", "native.py", "native", "valid_to IS NULL", once=[backstory, *snapshot, *place], conf=False),
        Contestant(
            "backstory historize", "model.py", "rawcore", "version_ended_at IS NULL",
            once=[backstory, *historize, *place], conf=False, of="customer_NUMBER_hist",
        ),
        Contestant(
            _named("dbt snapshot", dbt.versions), "by_dbt.py", "dbt", "dbt_valid_to IS NULL",
            dbt.python, run_dbt, failed=dbt.failed,
        ),
        Contestant(
            _named("SQLMesh SCD_TYPE_2_BY_COLUMN", mesh.versions), "by_sqlmesh.py", "mesh", "valid_to IS NULL",
            mesh.python, failed=mesh.failed,
        ),
        Contestant("MERGE by hand", "by_hand.py", "hand", "is_current"),
        Contestant("floor: join and append", "floor.py", "floor", None, whole=False),
        Contestant("a bare session that counts one row", "bare.py", "bare", None, warm=False),
    ]  # fmt: skip
    for each in everybody:
        (folder / "cwd" / each.schema).mkdir(parents=True, exist_ok=True)
    return everybody


def _named(name: str, versions: dict[str, str]) -> str:
    return " ".join(
        [name, *([f"({', '.join(f'{k} {v}' for k, v in versions.items())})"] if versions else [])]
    )
