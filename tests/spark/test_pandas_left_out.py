"""A command does not load pandas until Spark needs it."""

import subprocess
import sys
from pathlib import Path

import java
import pytest

pytestmark = pytest.mark.process

BACKSTORY = Path(sys.executable).parent / "backstory"


@pytest.mark.parametrize(("memory", "loaded"), [("1g", False), ("0m", True)])
def test_pandas_is_loaded_for_spark_alone(tmp_path, memory, loaded):
    """Plans on the driver do not need it, which saves half a second. Spark's tasks get it."""
    settings = f'[delivery]\ndriver-memory = "{memory}"\n[spark]\n{java.in_toml(java.PLANS)}'
    (tmp_path / "backstory.toml").write_text(settings)
    command = [sys.executable, "-X", "importtime", BACKSTORY, "snapshot", "copy.csv", "--into", "a.b"]
    for rows, counts, more in (
        ("1,Ada\n2,\n", '"new": 2', ["--key", "id"]),
        ("1,Eva\n2,\n", '"changed": 1', []),
    ):
        (tmp_path / "copy.csv").write_text(f"id,name\n{rows}")
        done = subprocess.run([*command, *more], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done
        assert counts in done.stdout
    assert ("pandas.core" in done.stderr) is loaded
