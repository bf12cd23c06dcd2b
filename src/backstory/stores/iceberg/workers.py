"""Python workers: rows for them, and their errors, carried to the driver as themselves."""

import gc
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from backstory.errors import BackstoryError, Failed, Refused, TryAgain, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MARK = "backstory-error "
_KINDS = {kind.__name__: kind for kind in (Failed, UsageError, Refused, TryAgain)}

Batches = Iterator[Any]


def map_batches(rows: "DataFrame", act: Callable[[Batches], Batches], schema: Any) -> "DataFrame":
    """What `act` gives for the rows' Arrow batches, in a worker for each partition.

    Columns may have any name: Spark's own `mapInArrow` takes dots and backticks in them for its syntax.
    """
    plain = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
    return plain.mapInArrow(partial(_run_on_batches, act, rows.columns), schema)


def _run_on_batches(act: Callable[[Batches], Batches], names: Sequence[str], batches: Batches) -> Batches:
    freeze_imports()
    return act(batch.rename_columns(names) for batch in batches)


@cache
def freeze_imports() -> None:
    """In a worker, once: after each task Spark collects garbage, and need not look through imports."""
    gc.freeze()


@contextmanager
def carry_errors() -> Iterator[None]:
    """In a worker: our own errors become texts that `error_of_worker` reads; they never hold row values."""
    try:
        yield
    except BackstoryError as error:
        raise RuntimeError(error_text(error)) from None


def error_text(error: BackstoryError) -> str:
    """The text by which `error_of_worker` knows the error again."""
    return MARK + json.dumps([type(error).__name__, error.to_dict()])


def error_of_worker(fault: str) -> BackstoryError | None:
    """On the driver: the error of a worker, or of all workers, that Spark's text of a failed job holds."""
    _, mark, rest = fault.partition(MARK)
    if not mark:
        return _worker_start_error(fault)
    (kind, told), _ = json.JSONDecoder().raw_decode(rest)
    return _KINDS[kind](told["code"], told["message"], told["remedy"], told["keys"])


def _worker_start_error(fault: str) -> UsageError | None:
    """The error for workers whose Python is not there, is of another version, or lacks a module."""
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
        f"Nothing was written; set PYSPARK_PYTHON={sys.executable} before the session starts. On a cluster "
        "every worker needs a Python that has backstory.",
    )
