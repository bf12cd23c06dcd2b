"""A command loads no pandas, until Spark asks for it."""

import subprocess
import sys
from pathlib import Path

import java
import pytest

pytestmark = pytest.mark.process

BACKSTORY = Path(sys.executable).parent / "backstory"


@pytest.mark.parametrize(("memory", "loaded"), [("1g", False), ("0m", True)])
def test_pandas_is_loaded_for_spark_alone(tmp_path, memory, loaded):
    """What the driver plans needs none, and half a second less; what is left to Spark's tasks gets it."""
    settings = f'[delivery]\ndriver-memory = "{memory}"\n[spark]\n{java.in_toml(java.PLANS)}'
    (tmp_path / "backstory.toml").write_text(settings)
    (tmp_path / "copy.csv").write_text("id,name\n1,Ada\n2,\n")
    command = [
        sys.executable,
        "-X",
        "importtime",
        BACKSTORY,
        "snapshot",
        "copy.csv",
        "--into",
        "a.b",
        "--key",
        "id",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done
    assert '"new": 2' in done.stdout
    assert ("pandas.core" in done.stderr) is loaded
