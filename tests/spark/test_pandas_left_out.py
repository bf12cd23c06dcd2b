"""A command does not load pandas until Spark needs it."""

import subprocess
import sys
from pathlib import Path

import java
import pytest

pytestmark = pytest.mark.process

BACKSTORY = Path(sys.executable).parent / "backstory"


def test_pandas_is_not_loaded_for_plans_on_the_driver(python, warehouse, tmp_path):
    """Such plans do not need it, which saves half a second."""
    settings = f'[delivery]\ndriver-memory = "1g"\n[spark]\n{java.in_toml(java.PLANS)}'
    (tmp_path / "backstory.toml").write_text(settings)
    copy, into = tmp_path / "copy.csv", "pandas.left_out"
    copy.write_text("id,name\n1,Ada\n2,\n")
    python.snapshot(copy, into=into, key="id")
    copy.write_text("id,name\n1,Eva\n2,\n")
    words = ["snapshot", copy, "--into", into, "--warehouse", warehouse]
    command = [sys.executable, "-X", "importtime", BACKSTORY, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done
    assert '"changed": 1' in done.stdout
    assert "pandas.core" not in done.stderr
