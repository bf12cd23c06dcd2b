"""A command does not load pandas until Spark needs it."""

import subprocess
import sys
from pathlib import Path

import java
import pytest

pytestmark = pytest.mark.process

BACKSTORY = Path(sys.executable).parent / "backstory"


TASKS = pytest.mark.laws("every other command with Spark's tasks would fail without pandas")


@pytest.mark.parametrize(
    ("memory", "loaded"), [("1g", False), pytest.param("0m", True, marks=TASKS)], ids=["1g", "0m"]
)
def test_pandas_is_loaded_only_for_spark(python, warehouse, tmp_path, memory, loaded):
    """Plans on the driver do not need it, which saves half a second. Spark's tasks get it."""
    settings = f'[delivery]\ndriver-memory = "{memory}"\n[spark]\n{java.in_toml(java.PLANS)}'
    (tmp_path / "backstory.toml").write_text(settings)
    copy, into = tmp_path / "copy.csv", f"pandas.with_{memory}"
    copy.write_text("id,name\n1,Ada\n2,\n")
    python.snapshot(copy, into=into, key="id")
    copy.write_text("id,name\n1,Eva\n2,\n")
    words = ["snapshot", copy, "--into", into, "--warehouse", warehouse]
    command = [sys.executable, "-X", "importtime", BACKSTORY, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done
    assert '"changed": 1' in done.stdout
    assert ("pandas.core" in done.stderr) is loaded
