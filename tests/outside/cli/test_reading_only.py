"""Reading needs no permission to write."""

import json
import os
import subprocess
import sys
from pathlib import Path

import java
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

pytestmark = pytest.mark.process

BACKSTORY = str(Path(sys.executable).parent / "backstory")
# Root may write to any file, whatever its mode, unless it lacks this right.
WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []


@pytest.fixture
def read_only_warehouse(tmp_path):
    """A read-only warehouse of another program."""
    folder = tmp_path / "kept"
    folder.mkdir()
    with SqlCatalog("backstory", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file:{folder}") as catalog:
        catalog.create_namespace("crm")
        rows = pa.table({"id": [1]})
        catalog.create_table("crm.t", rows.schema).append(rows)
    everything = [folder, *folder.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield folder
    for path in everything:
        path.chmod(0o755)


def test_a_read_only_warehouse_is_readable(read_only_warehouse, tmp_path):
    (tmp_path / "backstory.toml").write_text(f"[spark]\n{java.in_toml(java.PLANS)}")
    words = ["sql", "SELECT id FROM crm.t", "--warehouse", read_only_warehouse, "--output", "json"]
    done = subprocess.run(
        [*WITHOUT_RIGHTS, BACKSTORY, *words], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done
    assert json.loads(done.stdout) == [{"id": 1}]
