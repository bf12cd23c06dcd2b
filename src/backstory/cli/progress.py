"""What people see while Spark starts, and what the first start fetches.

What people see of a run while it goes on: how many declarations have ended, and which ones run.
"""

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final

from backstory.cli.options import Options
from backstory.cli.output import errors

if TYPE_CHECKING:
    from rich.console import Console

STARTING = "Starting Spark ..."
MEGABYTE = 1_000_000


@contextmanager
def show_start(options: Options) -> Iterator[None]:
    """Tell of it on standard error; a line that moves is for terminals alone."""
    from rich.console import Console

    from backstory.spark.jars import CONNECTOR_BYTES, must_fetch

    given = options.settings().spark
    fetching = must_fetch(given)
    if fetching and not options.quiet:
        size = f"{CONNECTOR_BYTES // MEGABYTE} MB"
        told = f"Fetching Spark's connectors (Iceberg, SQLite), only this once: {size} from Maven Central ..."
        errors.print(told, style="dim")
    if options.quiet or options.verbose or not sys.stderr.isatty():
        yield
        return
    # Meanwhile standard error is Spark's, and that is a file.
    terminal = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8")
    with terminal, _status_line(Console(file=terminal), given, fetching=fetching):
        yield


@contextmanager
def show_activity(options: Options, words: str) -> Iterator[None]:
    """Tell on a terminal what goes on meanwhile; the line goes when it is done.

    Standard output stays what it is: it may lead into another program.
    """
    if options.quiet or options.verbose or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner

    console = Console(stderr=True)
    with Live(Spinner("dots", words), console=console, transient=True, redirect_stdout=False):
        yield


@contextmanager
def _status_line(terminal: "Console", given: Mapping[str, str], *, fetching: bool) -> Iterator[None]:
    from backstory.spark.jars import CONNECTOR_BYTES, fetched_bytes

    ended = threading.Event()
    with terminal.status(STARTING) as line:

        def tell() -> None:
            while (so_far := fetched_bytes(given)) < CONNECTOR_BYTES and not ended.wait(0.5):
                line.update(f"Fetching: {so_far // MEGABYTE} of {CONNECTOR_BYTES // MEGABYTE} MB")
            line.update(STARTING)

        watching = threading.Thread(target=tell if fetching else ended.wait, daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            watching.join()


if TYPE_CHECKING:
    from backstory.projects.declarations import Declaration
    from backstory.projects.log import RunReceipt
    from backstory.projects.running import RunWatcher

NAMES_SHOWN: Final = 4  # names that run at the moment


@contextmanager
def watch_run(options: Options) -> Iterator["RunWatcher"]:
    """A watcher that draws a line on a terminal while it lasts; one that does nothing elsewhere."""
    from backstory.projects.running import RunWatcher

    if options.quiet or options.verbose or not errors.is_terminal:
        yield RunWatcher()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    words = TextColumn("{task.fields[rows]:,} rows changed  {task.fields[names]}")
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), words)
    with Progress(*columns, console=errors, transient=True, redirect_stdout=False) as drawn:
        task, running, lock, rows = drawn.add_task("", total=None, rows=0, names=""), list[str](), Lock(), [0]

        def draw(advance: int = 0) -> None:
            names = ", ".join(running[:NAMES_SHOWN]) + (" ..." if len(running) > NAMES_SHOWN else "")
            drawn.update(task, advance=advance, rows=rows[0], names=names)

        def selected(declarations: "Sequence[Declaration]") -> None:
            drawn.update(task, total=len(declarations))

        def begun(name: str) -> None:
            with lock:
                running.append(name)
                draw()

        def ended(receipt: "RunReceipt") -> None:
            with lock:
                running[:] = [each for each in running if each != receipt.name]
                rows[0] += sum(count for name, count in receipt.counts.items() if name != "unchanged")
                draw(advance=1)

        yield RunWatcher(selected, begun, ended)
