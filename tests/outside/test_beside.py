"""A separate program: its copy is overtaken, and it forks a process."""

import json
import subprocess
import sys

import java
import pyarrow as pa
import pytest
from serving import SECONDS, within

from backstory.stores.iceberg.store import IcebergStore
from backstory.warehouse import Warehouse

NAME = "outside_beside.customer"
# Its rows are read once the other copy exists.
SLOW = "SELECT k, 'old' AS v FROM VALUES 'k0', 'k1' AS rows(k) WHERE waits(k)"
PROGRAM = f"""
import json, os, sys, time
from pathlib import Path
import backstory

def waits(_):
    # True once there is a file `go`; until then there is one `reading`.
    while not Path("go").exists():
        Path("reading").touch()
        time.sleep(0.02)
    return True

def tell(record):
    print(json.dumps(record), flush=True)

def code(call):
    try:
        call()
    except backstory.BackstoryError as error:
        return error.code

with backstory.open(sys.argv[1]) as warehouse:
    warehouse.spark.udf.register("waits", waits, "boolean")
    Path("go").touch()
    slow = warehouse.spark.sql(\"\"\"{SLOW}\"\"\")
    warehouse.snapshot(slow, into="{NAME}", dry_run=True)  # what it needs is loaded by now
    Path("go").unlink()
    tell("begins")
    tell(code(lambda: warehouse.snapshot(slow, into="{NAME}")))
    table = warehouse.table("{NAME}")
    child = os.fork()
    if not child:
        tell([code(table.current), code(warehouse.tables)])
        sys.exit(0)  # with all that Python does at its end
    assert os.waitpid(child, 0)[1] == 0
    tell(sorted(row.v for row in table.current().collect()))
"""


def rows(value, count):
    return pa.table({"k": [f"k{number}" for number in range(count)], "v": [value] * count})


@pytest.mark.process
def test_an_overtaken_copy_and_a_forked_process_are_refused(spark, tmp_path):
    """The older copy gets no new time. The child is refused, and its end does not affect its parent."""
    warehouse = Warehouse(IcebergStore(spark), embedded=False)
    warehouse.snapshot(rows("first", 2), into=NAME, key="k")
    settings = {"spark.master": "local[1]", "spark.driver.memory": "700m"} | java.PLANS
    (tmp_path / "backstory.toml").write_text(f"[spark]\n{java.in_toml(settings)}")
    words = [sys.executable, "-c", PROGRAM, str(IcebergStore(spark).folder)]
    running = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert json.loads(running.stdout.readline()) == "begins", running.communicate()
    assert within(SECONDS, (tmp_path / "reading").exists)
    warehouse.snapshot(rows("new", 3), into=NAME)
    (tmp_path / "go").touch()

    output, warned = running.communicate(timeout=SECONDS)

    assert running.returncode == 0, (output, warned)
    answers = [
        json.loads(line) for line in output.splitlines() if line[0] in '"['
    ]  # the others are the log's
    assert "trying again" in output
    assert answers == ["time-backwards", ["forked", "forked"], ["new", "new", "new"]], warned
