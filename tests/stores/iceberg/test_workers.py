"""The work of a Python worker apart from its rows."""

import subprocess
import sys

import pytest

from backstory.errors import Failed, Refused, TryAgain, UsageError, Violated
from backstory.formats.memory import TooLarge
from backstory.sources.source import Unreachable
from backstory.stores.iceberg.workers import error_of_worker, error_text

WORKER = """
import gc
from backstory.stores.iceberg import workers
before = gc.get_freeze_count()
for _ in range(2):
    assert [*workers._run_on_batches(list, [], [])] == []
    print(gc.get_freeze_count() - before > 1_000)
    before = gc.get_freeze_count()
"""


def test_a_worker_excludes_its_imports_from_garbage_collection():
    """Imports are excluded from garbage collection once. Later garbage is still collected."""
    done = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"], done.stderr


@pytest.mark.parametrize("kind", [Failed, UsageError, Refused, Violated, TryAgain])
def test_an_error_of_a_worker_keeps_its_kind(kind):
    """The driver raises the worker's error, or a special error's general kind."""
    special = [Unreachable("a", "b.", "c.")] if kind is TryAgain else [TooLarge()] if kind is Failed else []
    for error in (kind("a", "b.", "c.", ["d"]), *special):
        restored = error_of_worker(f"Job aborted: {error_text(error)}\n at Java")
        assert (type(restored), restored.to_dict()) == (kind, error.to_dict())
