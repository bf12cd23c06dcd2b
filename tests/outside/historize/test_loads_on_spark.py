"""`backstory historize` on Spark in processes: one is killed, and two load concurrently."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import java
import pytest
from depth import DEPTH
from pyiceberg.catalog.sql import SqlCatalog
from serving import SECONDS, within
from small_model import FIRST, MODEL, SECOND

pytestmark = pytest.mark.process

BACKSTORY = str(Path(sys.executable).parent / "backstory")
# A load is killed when it has written the first file of this name.
MOMENTS = ("rc_c/data/**/*.parquet", "rc_c_hist/data/**/*.parquet", "rc_c_hist/metadata/snap-*")
MOMENTS = MOMENTS if DEPTH == "laws" else MOMENTS[1:2]
# The rows after a second load, if nothing disturbs the first one.
UNDISTURBED = [
    (1, "Bern", "2026-01-01", "2026-01-02", "changed", "r2"),
    (1, "Oslo", "2026-01-02", "None", "changed", "r2"),
    (2, "Rome", "2026-01-01", "2026-01-02", "deleted", "r2"),
    (3, "Graz", "2026-01-02", "None", "new", "r2"),
]
CONFIGURATION = f"""
[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "700m"
"spark.sql.shuffle.partitions" = "2"
{java.in_toml(java.PLANS)}"""
# A process that loads more than once, each time with the command words that it reads.
LOADER = """
import sys
from backstory.cli.app import run
for words in sys.stdin:
    print("exit code", run(words.split()), flush=True)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model and its stage."""
    monkeypatch.setenv("BACKSTORY_PEPPER", "a secret")
    (tmp_path / "model.yaml").write_text(MODEL)
    (tmp_path / "stage.csv").write_text(FIRST)
    (tmp_path / "backstory.toml").write_text(CONFIGURATION)
    return tmp_path


def words(run, at=None):
    """The words of the load command."""
    when = ["--load-timestamp", at] if at else []
    return ["historize", "model.yaml", "--output", "json", "--run-id", run, *when]


def process(folder, *command):
    """A process that runs."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, cwd=folder, text=True, **pipes)


def started(folder, run, at=None):
    """A load on Spark that runs."""
    return process(folder, BACKSTORY, *words(run, at))


def tell(loader, *arguments):
    """Tell a loader process to load."""
    loader.stdin.write(" ".join(words(*arguments)) + "\n")
    loader.stdin.flush()


def first_loaded(folder):
    """A loader process after the first load."""
    loader = process(folder, sys.executable, "-c", LOADER)
    tell(loader, "r1", "2026-01-01")
    lines = []
    while not (lines and lines[-1].startswith("exit code")):
        lines.append(loader.stdout.readline())
        assert lines[-1], loader.communicate()
    assert lines[-1].split()[-1] == "0", lines
    return loader


def rows(folder):
    """Every version, read by pyiceberg, and the number of commits."""
    with SqlCatalog("backstory", uri=f"sqlite:///{folder / 'warehouse' / 'catalog.db'}") as catalog:
        table = catalog.load_table("rawcore.rc_c_hist")
        names = ("id", "city", "version_started_at", "version_ended_at", "version_state", "load_run_id")
        read = table.scan(selected_fields=names).to_arrow().select(names).to_pylist()
        return [tuple(row.values()) for row in read], len(table.snapshots())


def ends(running):
    """The output of a load, and its exit code."""
    output = running.communicate(timeout=SECONDS)
    return running.returncode, output


def test_a_killed_load_is_completed_despite_a_concurrent_load(folder):
    """R18, R19, R31: After SIGKILL at several moments, the same run id completes the load. A concurrent load
    is asked to try again later, or finds nothing to do."""
    running = first_loaded(folder)
    (folder / "stage.csv").write_text(SECOND)
    tables = folder / "warehouse" / "rawcore"
    for moment in MOMENTS:
        before = set(tables.glob(moment))
        if running is None:
            running = started(folder, "r2", "2026-01-02")
        else:
            tell(running, "r2", "2026-01-02")
        assert within(SECONDS, lambda: set(tables.glob(moment)) - before, pause=0.001), running.communicate()
        assert running.poll() is None, running.communicate()
        running.kill()
        running.communicate()
        running = None
    both = [started(folder, "r2", "2026-01-02"), started(folder, "r3")]
    (code, output), (other, more) = map(ends, both)
    assert (code, other in {0, 75}) == (0, True), (output, more)
    # The count is 0 if the commit preceded the kill, because nothing was left to do.
    assert json.loads(output[0])[0]["counts"]["changed"] in {0, 1}
    versions, commits = rows(folder)
    history = [
        (id_, city, str(start)[:10], str(end)[:10], *more) for id_, city, start, end, *more in versions
    ]
    # The first load to arrive takes over from the killed load. It is mostly r2, which is started first.
    (winner,) = {row[-1] for row in history}
    day = "2026-01-02" if winner == "r2" else str(datetime.now(UTC).date())
    expected = [
        tuple({"2026-01-02": day, "r2": winner}.get(each, each) for each in row) for row in UNDISTURBED
    ]
    assert (sorted(history), commits) == (sorted(expected), 2)
    if DEPTH == "laws":
        _race(folder)


def _race(folder):
    """R31: Either of two loads may be first. Each succeeds or is asked to try again later."""
    (folder / "stage.csv").write_text(FIRST)
    both = [started(folder, name) for name in ("r4", "r5")]
    assert {code for code, _ in map(ends, both)} <= {0, 75}
    versions, _ = rows(folder)
    assert sorted(city for _, city, _, end, *_ in versions if end is None) == ["Bern", "Rome"]
    assert len(versions) == len(UNDISTURBED) + 2
