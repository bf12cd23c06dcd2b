"""Reading needs no permission to write."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

BACKSTORY = str(Path(sys.executable).parent / "backstory")
# The owner of files may write them whatever their mode says, where it is root: not with this right taken away.
WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
MAKING = """
import sys, backstory
with backstory.open(sys.argv[1]) as warehouse:
    warehouse.spark.sql("CREATE SCHEMA backstory.crm")
    warehouse.spark.sql("CREATE TABLE backstory.crm.t USING iceberg AS SELECT 1 AS id")
"""


@pytest.fixture
def kept(tmp_path):
    """A warehouse that nobody may write."""
    folder = tmp_path / "kept"
    subprocess.run([sys.executable, "-c", MAKING, folder], check=True, cwd=tmp_path)
    everything = [folder, *folder.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield folder
    for path in everything:
        path.chmod(0o755)


def test_a_warehouse_that_is_read_only_is_read(kept, tmp_path):
    words = ["sql", "SELECT id FROM crm.t", "--warehouse", kept, "--output", "json"]
    done = subprocess.run(
        [*WITHOUT_RIGHTS, BACKSTORY, *words], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done
    assert json.loads(done.stdout) == [{"id": 1}]
