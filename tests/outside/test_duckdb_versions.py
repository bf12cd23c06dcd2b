"""Fingerprints with the oldest supported DuckDB, and with one between it and the newest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

FOLDERS = {"duckdb-oldest": "1.4.0", "duckdb-iceberg": "1.5.5"}
TESTS = Path(__file__).parents[1] / "strategies" / "test_fingerprints.py"
WITHOUT_SPARK = "exactly or depend or 130 or driver"


@pytest.mark.parametrize("folder", FOLDERS)
def test_fingerprint_tests_pass_with_every_duckdb_version(folder):
    there = Path(sys.prefix) / folder
    assert there.is_dir(), "scripts/setup.sh --tests puts it there."
    environ = {**os.environ, "PYTHONPATH": str(there)}
    version_command = [sys.executable, "-c", "import duckdb; print(duckdb.__version__)"]
    version = subprocess.run(version_command, env=environ, capture_output=True, text=True, check=True).stdout
    assert version.strip() == FOLDERS[folder]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS, "-k", WITHOUT_SPARK]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    assert "4 passed" in done.stdout, done.stdout + done.stderr
