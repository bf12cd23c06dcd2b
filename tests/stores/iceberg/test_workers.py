"""What a Python worker does beside the rows of its tasks."""

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
    """Once: what later tasks leave is still looked through for garbage."""
    told = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["True", "False"], told.stderr
