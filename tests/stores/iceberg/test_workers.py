"""The work of a Python worker apart from its rows."""

import subprocess
import sys

WORKER = """
import gc
from backstory.stores.iceberg import workers
before = gc.get_freeze_count()
for _ in range(2):
    assert [*workers._run_on_batches(list, [], [])] == []
    print(gc.get_freeze_count() - before > 1_000)
    before = gc.get_freeze_count()
"""


def test_a_worker_passes_over_its_imports_from_the_first_task_on():
    """Imports are excluded from garbage collection once. Later garbage is still collected."""
    told = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["True", "False"], told.stderr
