"""Python workers of Spark: functions over Arrow batches, and errors that keep their type."""

import gc
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from backstory.errors import BackstoryError, Failed, Refused, TryAgain, UsageError, Violated
from backstory.spark.versions import with_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MARK = "backstory-error "
_KINDS = {kind.__name__: kind for kind in (Failed, UsageError, Refused, Violated, TryAgain)}

Batches = Iterator[Any]


def map_batches(rows: "DataFrame", act: Callable[[Batches], Batches], schema: Any) -> "DataFrame":
    """The rows that `act`, running in a Python worker, returns for the Arrow batches of each partition.

    Columns may have any name, whereas Spark's own `mapInArrow` parses dots and backticks in names as syntax.
    """
    plain = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
    return plain.mapInArrow(partial(_run_on_batches, act, rows.columns), schema)


def _run_on_batches(act: Callable[[Batches], Batches], names: Sequence[str], batches: Batches) -> Batches:
    freeze_imports()
    return act(with_offsets(batch.rename_columns(names)) for batch in batches)


@cache
def freeze_imports() -> None:
    """Exclude imported modules from garbage collection, which Spark runs after each task."""
    gc.freeze()


@contextmanager
def carry_errors() -> Iterator[None]:
    """In a worker, turn backstory's errors, which never contain row values, into strings for the driver."""
    try:
        yield
    except BackstoryError as error:
        raise RuntimeError(error_text(error)) from None


def error_text(error: BackstoryError) -> str:
    """The string from which `error_of_worker` restores the error. A special kind becomes its general kind."""
    kind = next(name for name, kind in _KINDS.items() if isinstance(error, kind))
    return MARK + json.dumps([kind, error.to_dict()])


def error_of_worker(fault: str) -> BackstoryError | None:
    """The error in Spark's message for a failed job: one worker's error, or the reason why none started.

    Called on the driver. Returns None for any other message.
    """
    _, mark, rest = fault.partition(MARK)
    if not mark:
        return _worker_start_error(fault)
    (kind, fields), _ = json.JSONDecoder().raw_decode(rest)
    return _KINDS[kind](fields["code"], fields["message"], fields["remedy"], fields["keys"])


def _worker_start_error(fault: str) -> UsageError | None:
    """The error for workers whose Python is missing, has another version, or lacks a module."""
    from pyspark import SparkContext

    program = re.search(r'Cannot run program "([^"]*py[^"/]*)"', fault)
    module = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", fault)
    if "PYTHON_VERSION_MISMATCH" in fault:
        lack = f"are not of the driver's version, {sys.version_info.major}.{sys.version_info.minor}"
    elif program:
        lack = "cannot be started"
    elif module:
        lack = f"do not find the module {module[1]}"
    else:
        return None
    context = SparkContext._active_spark_context  # noqa: SLF001 - pyspark has no name for it
    python = program[1] if program else getattr(context, "pythonExec", "python3")
    return UsageError(
        "python-workers",
        f"Spark's Python workers ({python}) {lack}.",
        f"Nothing was written; set PYSPARK_PYTHON={sys.executable} before the session starts. On a cluster, "
        "every worker needs a Python environment in which backstory is installed.",
    )
