"""Ctrl-C while Spark works: the work is broken off, and Spark can still be asked to tidy up.

A process that forked off: Java answers the one that opened it, and no child of its may break that.

A child has its parent's connections. What it said there would be answered to the parent, and py4j shuts down
those that it lets go, for both.

Commands do without pandas, which pyarrow loads, in half a second, to see whether a value is one of its.

Spark asks for it: once a session starts, pandas can be imported as ever.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import Thread, Timer, current_thread, main_thread
from types import ModuleType
from typing import TYPE_CHECKING, Any

from backstory.errors import UsageError

if TYPE_CHECKING:
    from types import FrameType

    from pyspark import SparkContext


# What fails so soon after an interrupt fails because of it.
AFTER = 30.0
LATER = 0.05  # seconds
_came = [float("-inf")]


def was_interrupted() -> bool:
    """Whether an interrupt came a moment ago: a call that it met may fail as if Java had gone."""
    return time.monotonic() - _came[0] < AFTER


@contextmanager
def raise_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt for any error that an interrupt caused, whatever cleanup turned it into."""
    try:
        yield
    except Exception as fault:
        if not was_interrupted():
            raise
        raise KeyboardInterrupt from fault


def allow_interrupts() -> None:
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
    return not (of_java and (was_interrupted() or "KeyboardInterrupt" in record.getMessage()))


def hold_to_this_process(jvm: Any) -> None:
    """From now on Java answers this process alone; calls of one that forks off raise `forked`."""
    _refuse_forks()
    jvm._gateway_client.__dict__.setdefault("of_process", os.getpid())  # noqa: SLF001


def is_forked(jvm: Any) -> bool:
    """Whether this process forked off from the one that Java answers."""
    return _of_another(jvm._gateway_client)  # noqa: SLF001


def _of_another(client: Any) -> bool:
    return bool(getattr(client, "of_process", here := os.getpid()) != here)


@cache
def _refuse_forks() -> None:
    """Ask whose Java it is at the two places through which py4j speaks with it and lets it go."""
    from py4j.clientserver import ClientServerConnection
    from py4j.java_gateway import GatewayClient, quiet_close

    send, close = GatewayClient.send_command, ClientServerConnection.close

    def send_if_ours(client: Any, *told: Any, **more: Any) -> Any:
        if _of_another(client):
            raise _forked_error()
        return send(client, *told, **more)

    def close_if_ours(connection: Any, reset: bool = False) -> None:  # noqa: FBT001, FBT002 - as py4j has it
        if not _of_another(connection.java_client):
            close(connection, reset)
            return
        quiet_close(connection.stream)  # this process's end of it alone
        quiet_close(connection.socket)
        connection.stream = connection.socket = None

    GatewayClient.send_command, ClientServerConnection.close = send_if_ours, close_if_ours


def _forked_error() -> UsageError:
    return UsageError(
        "forked",
        "This process was forked after the warehouse was opened, and its Spark answers the parent alone.",
        "Open a warehouse in each process, which must not be forked from one with Spark in it: "
        "multiprocessing.get_context('spawn').",
    )


def leave_pandas_out() -> None:
    """From now on pandas cannot be imported; for a process to which nobody gives values of pandas."""
    sys.meta_path.insert(0, _WithoutPandas())


def let_pandas_in() -> None:
    """From now on pandas can be imported."""
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, _WithoutPandas)]


class _WithoutPandas(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name == "pandas":
            raise ImportError(name)
        return None
