"""Ctrl-C while Spark works: the work is broken off, and Spark can still be asked to tidy up."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread, Timer, current_thread, main_thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

    from pyspark import SparkContext


# What fails so soon after an interrupt fails because of it.
AFTER = 30.0
LATER = 0.05  # seconds
_came = [float("-inf")]


def broken_off() -> bool:
    """Whether an interrupt came a moment ago: a call that it met may fail as if Java had gone."""
    return time.monotonic() - _came[0] < AFTER


@contextmanager
def raise_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt for any error that an interrupt caused, whatever cleanup turned it into."""
    try:
        yield
    except Exception as fault:
        if not broken_off():
            raise
        raise KeyboardInterrupt from fault


def interruptible() -> None:
    """Let an interrupt cancel Spark's jobs and raise KeyboardInterrupt, from any call of Java by this thread.

    pyspark's own handler asks Spark in the middle of a call, on its connection: both calls then fail.
    """
    if current_thread() is not main_thread():
        return
    from pyspark import SparkContext

    client: Any = SparkContext._gateway._gateway_client  # type: ignore[union-attr]  # noqa: SLF001

    def interrupted(_: int, frame: "FrameType | None") -> None:
        if _collects(frame):
            Timer(LATER, os.kill, (os.getpid(), signal.SIGINT)).start()
            return
        _came[0] = time.monotonic()
        # The answer of the call that is broken off must not be read by the next one.
        client.thread_connection.connection = None
        # Before Spark runs something else waits in its context's place.
        if isinstance(context := SparkContext._active_spark_context, SparkContext):  # noqa: SLF001
            Thread(target=_cancel, args=(context,), daemon=True).start()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
    for name in (None, "py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).addFilter(_worth_telling)  # one that is there already is not added again


def _collects(frame: "FrameType | None") -> bool:
    """Whether py4j lets an object of Java's go: Python swallows what is raised in such a callback."""
    while frame is not None:
        if frame.f_code.co_name == "_garbage_collect_object":
            return True
        frame = frame.f_back
    return False


def _cancel(context: "SparkContext") -> None:
    """End all jobs, on a connection of this thread's own; a context that stops meanwhile ends them itself."""
    with suppress(Exception):
        context.cancelAllJobs()


def _worth_telling(record: logging.LogRecord) -> bool:
    """py4j shows the trace of a call that was broken off, and of what it closes then."""
    of_java = record.name.startswith("py4j") or "while sending command" in record.getMessage()
    return not (of_java and (broken_off() or "KeyboardInterrupt" in record.getMessage()))
