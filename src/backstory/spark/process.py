"""This process and its Java: interrupts, forks, and commands without pandas.

Ctrl-C cancels Spark's jobs and leaves Spark usable. A forked child shares its parent's connections, so Java
must not answer it. Commands block the import of pandas by pyarrow, which takes half a second. A session
allows the import again. A command that makes one delivery returns its memory early.
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

# In seconds: an error within this time after an interrupt is attributed to the interrupt.
AFTER = 30.0
LATER = 0.05  # seconds
_came = [float("-inf")]


def was_interrupted() -> bool:
    """Whether an interrupt occurred a moment ago.

    A call that was running at that time may fail as if Java had ended.
    """
    return time.monotonic() - _came[0] < AFTER


@contextmanager
def raise_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt for any error that an interrupt caused, even if cleanup changed the error."""
    try:
        yield
    except Exception as fault:
        if not was_interrupted():
            raise
        raise KeyboardInterrupt from fault


def allow_interrupts() -> None:
    """Make Ctrl-C cancel Spark's jobs and raise KeyboardInterrupt from any Java call of this thread.

    pyspark's own handler calls Spark during another call, on the same connection, and both calls then fail.
    """
    if current_thread() is not main_thread():
        return
    from pyspark import SparkContext

    client: Any = SparkContext._gateway._gateway_client  # type: ignore[union-attr]  # noqa: SLF001

    def handle_interrupt(_: int, frame: "FrameType | None") -> None:
        if _collects(frame):
            Timer(LATER, os.kill, (os.getpid(), signal.SIGINT)).start()
            return
        _came[0] = time.monotonic()
        # The next call must not read the answer of the interrupted one.
        client.thread_connection.connection = None
        # Before Spark runs, a `LazyContext` is set as its context.
        if isinstance(context := SparkContext._active_spark_context, SparkContext):  # noqa: SLF001
            Thread(target=_cancel, args=(context,), daemon=True).start()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle_interrupt)
    for name in (None, "py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).addFilter(_worth_telling)  # a filter is added only once


def _collects(frame: "FrameType | None") -> bool:
    """Whether py4j is releasing a Java object. Python swallows exceptions in that callback."""
    while frame is not None:
        if frame.f_code.co_name == "_garbage_collect_object":
            return True
        frame = frame.f_back
    return False


def _cancel(context: "SparkContext") -> None:
    """Cancel all jobs, on this thread's own connection. A context that is stopping ends its jobs itself."""
    with suppress(Exception):
        context.cancelAllJobs()


def _worth_telling(record: logging.LogRecord) -> bool:
    """Whether to log a record: False for py4j's traces of an interrupted call or its cleanup."""
    of_java = record.name.startswith("py4j") or "while sending command" in record.getMessage()
    return not (of_java and (was_interrupted() or "KeyboardInterrupt" in record.getMessage()))


def hold_to_this_process(jvm: Any) -> None:
    """Make Java answer only this process. Calls from a fork raise `forked`."""
    _refuse_forks()
    jvm._gateway_client.__dict__.setdefault("of_process", os.getpid())  # noqa: SLF001


def is_forked(jvm: Any) -> bool:
    """Whether this process is a fork of the process that Java answers."""
    return _of_another(jvm._gateway_client)  # noqa: SLF001


def _of_another(client: Any) -> bool:
    return bool(getattr(client, "of_process", here := os.getpid()) != here)


@cache
def _refuse_forks() -> None:
    """Make py4j check the process before it sends a command to Java or closes a connection."""
    from py4j.clientserver import ClientServerConnection
    from py4j.java_gateway import GatewayClient, quiet_close

    send, close = GatewayClient.send_command, ClientServerConnection.close

    def send_if_ours(client: Any, *arguments: Any, **more: Any) -> Any:
        if _of_another(client):
            raise _forked_error()
        return send(client, *arguments, **more)

    def close_if_ours(connection: Any, reset: bool = False) -> None:  # noqa: FBT001, FBT002 - as py4j has it
        if not _of_another(connection.java_client):
            close(connection, reset)
            return
        quiet_close(connection.stream)  # only this process's end of it
        quiet_close(connection.socket)
        connection.stream = connection.socket = None

    GatewayClient.send_command, ClientServerConnection.close = send_if_ours, close_if_ours


def _forked_error() -> UsageError:
    return UsageError(
        "forked",
        "This process was forked after the warehouse was opened, and its Spark answers only the parent.",
        "Open a warehouse in each process, which must not be forked from one with Spark in it: "
        "multiprocessing.get_context('spawn').",
    )


def leave_pandas_out() -> None:
    """Forbid the import of pandas, in a process that receives no pandas values."""
    sys.meta_path.insert(0, _WithoutPandas())


def let_pandas_in() -> None:
    """Allow the import of pandas again."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _WithoutPandas)]


def return_freed_memory() -> None:
    """Make Arrow return freed memory to the system, unless the user chose an allocator.

    It has no effect after the import of pyarrow (decision 0013).
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


class _WithoutPandas(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name == "pandas":
            raise ImportError(name)
        return None
