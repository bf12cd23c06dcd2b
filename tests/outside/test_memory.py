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


@pytest.mark.parametrize(("told", "keeps"), [({}, True), ({"MIMALLOC_PURGE_DELAY": "0"}, False)])
def test_memory_stays_with_the_process_unless_the_user_says_otherwise(told, keeps):
    env = {name: value for name, value in os.environ.items() if not name.startswith("MIMALLOC")} | told
    done = subprocess.run(
        [sys.executable, "-c", FAULTS_OF_THE_SECOND], env=env, capture_output=True, text=True, check=True
    )
    assert (float(done.stdout) < 0.5) is keeps
