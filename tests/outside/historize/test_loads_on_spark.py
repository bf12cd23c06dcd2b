"""`backstory historize` on Spark, in processes: killed, and two at once."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

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
# What a second load makes of the first that nobody disturbs.
UNDISTURBED = [
    (1, "Bern", "2026-01-01", "2026-01-02", "changed", "r2"),
    (1, "Oslo", "2026-01-02", "None", "changed", "r2"),
    (2, "Rome", "2026-01-01", "2026-01-02", "deleted", "r2"),
    (3, "Graz", "2026-01-02", "None", "new", "r2"),
]
CONFIGURATION = """
[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "700m"
"spark.sql.shuffle.partitions" = "2"
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A folder with a model and its stage, loaded once."""
    folder = tmp_path_factory.mktemp("loaded") / "first"
    folder.mkdir()
    (folder / "model.yaml").write_text(MODEL)
    (folder / "stage.csv").write_text(FIRST)
    (folder / "backstory.toml").write_text(CONFIGURATION)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BACKSTORY_PEPPER", "a secret")
        assert started(folder, "r1", "2026-01-01").wait(SECONDS) == 0
    return folder


@pytest.fixture
def folder(loaded, tmp_path, monkeypatch):
    """The same with a catalog of its own; the files of its tables stand where those of the first do."""
    monkeypatch.setenv("BACKSTORY_PEPPER", "a secret")
    return shutil.copytree(loaded, tmp_path / "copy")


def started(folder, run, at=None):
    """A load on Spark that runs."""
    when = ["--load-timestamp", at] if at else []
    return subprocess.Popen(
        [BACKSTORY, "historize", "model.yaml", "--output", "json", "--run-id", run, *when],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rows(folder):
    """Every version, read by pyiceberg, and how many commits made them."""
    with SqlCatalog("backstory", uri=f"sqlite:///{folder / 'warehouse' / 'catalog.db'}") as catalog:
        table = catalog.load_table("rawcore.rc_c_hist")
        names = ("id", "city", "version_started_at", "version_ended_at", "version_state", "load_run_id")
        read = table.scan(selected_fields=names).to_arrow().select(names).to_pylist()
        return [tuple(row.values()) for row in read], len(table.snapshots())


def test_a_load_that_is_killed_goes_on_under_its_run_id(loaded, folder):
    """R18, R19: SIGKILL at several moments, the same run id again: as if nothing had happened."""
    (folder / "stage.csv").write_text(SECOND)
    tables = loaded / "warehouse" / "rawcore"
    for moment in MOMENTS:
        before = set(tables.glob(moment))
        running = started(folder, "r2", "2026-01-02")
        assert within(SECONDS, lambda: set(tables.glob(moment)) - before, pause=0.001), running.communicate()
        assert running.poll() is None, running.communicate()
        running.kill()
        running.communicate()
    last = started(folder, "r2", "2026-01-02")
    said = last.communicate(timeout=SECONDS)
    assert last.returncode == 0, said
    assert json.loads(said[0])[0]["counts"]["changed"] == 1
    found, commits = rows(folder)
    told = [(id_, city, str(start)[:10], str(end)[:10], *more) for id_, city, start, end, *more in found]
    assert (sorted(told), commits) == (UNDISTURBED, 2)


def test_two_loads_at_once_lose_nothing(folder):
    """R31: two processes load one dataset at the same time; each is done or told to come again."""
    (folder / "stage.csv").write_text(SECOND)
    both = [started(folder, name) for name in ("r2", "r3")]
    codes = [(each.communicate(timeout=SECONDS), each.returncode) for each in both]
    assert {code for _, code in codes} <= {0, 75}, codes
    found, _ = rows(folder)
    assert sum(end is None for _, _, _, end, *_ in found) == 2
    assert len(found) == 4
