"""Memory that one delivery released is reused by the next, without a request to the system (0013)."""

import os
import subprocess
import sys

import pytest

FAULTS_OF_THE_SECOND = """
import backstory, resource, time
import pyarrow as pa

def fill():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    parts = [memoryview(pa.allocate_buffer(1 << 20)).cast("B") for _ in range(64)]
    for part in parts:
        part[::4096] = bytes(256)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = fill()
time.sleep(1.2)
print(fill() / first)
"""


@pytest.mark.parametrize(("settings", "keeps"), [({}, True), ({"MIMALLOC_PURGE_DELAY": "0"}, False)])
def test_memory_stays_with_the_process_unless_configured_otherwise(settings, keeps):
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("MIMALLOC", "ARROW"))
    } | settings
    done = subprocess.run(
        [sys.executable, "-c", FAULTS_OF_THE_SECOND], env=env, capture_output=True, text=True, check=True
    )
    assert (float(done.stdout) < 0.5) is keeps


ALLOCATOR = """
from backstory.cli.app import run
run(["snapshot", "missing.csv", "--into", "crm.customer", "--key", "id", "--quiet"])
import pyarrow as pa
print(pa.default_memory_pool().backend_name)
"""


@pytest.mark.parametrize("chosen", ["system", "mimalloc"])
def test_snapshot_returns_its_memory_unless_an_allocator_is_chosen(chosen, tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("ARROW")}
    env |= {} if chosen == "system" else {"ARROW_DEFAULT_MEMORY_POOL": chosen}
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATOR], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == chosen
