"""Progress on standard error: the start of Spark, a spinner, and the progress bar of a run.

Moving lines appear only on terminals. `--quiet` and `--verbose` turn them off.
"""

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final

from rich.console import Console

from backstory.cli.options import Options
from backstory.cli.output import errors
from backstory.projects.options import RunWatcher

if TYPE_CHECKING:
    from backstory.projects.declarations import Declaration
    from backstory.projects.log import RunReceipt

STARTING = "Starting Spark ..."
MEGABYTE = 1_000_000
NAMES_SHOWN: Final = 4  # running declarations after the bar


@contextmanager
def show_start(options: Options) -> Iterator[None]:
    """Show that Spark is starting, and the progress of fetching its connectors the first time."""
    from backstory.spark.jars import CONNECTOR_BYTES, must_fetch

    properties = options.settings().spark
    fetching = must_fetch(properties)
    if fetching and not options.quiet:
        size = f"{CONNECTOR_BYTES // MEGABYTE} MB"
        line = f"Fetching Spark's connectors (Iceberg, SQLite), only this once: {size} from Maven Central ..."
        errors.print(line, style="dim")
    if options.quiet or options.verbose or not sys.stderr.isatty():
        yield
        return
    # Spark's start redirects standard error to a file, so the terminal is kept.
    terminal = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8")
    with terminal, _status_line(Console(file=terminal), properties, fetching=fetching):
        yield


@contextmanager
def show_activity(options: Options, words: str) -> Iterator[None]:
    """Show a spinner with these words until the block ends.

    Standard output is not redirected, because another program may read it.
    """
    if options.quiet or options.verbose or not sys.stderr.isatty():
        yield
        return
    from rich.live import Live
    from rich.spinner import Spinner

    console = Console(stderr=True)
    with Live(Spinner("dots", words), console=console, transient=True, redirect_stdout=False):
        yield


@contextmanager
def _status_line(terminal: Console, properties: Mapping[str, str], *, fetching: bool) -> Iterator[None]:
    from backstory.spark.jars import CONNECTOR_BYTES, fetched_bytes

    ended = threading.Event()
    with terminal.status(STARTING) as line:

        def follow_download() -> None:
            while (so_far := fetched_bytes(properties)) < CONNECTOR_BYTES and not ended.wait(0.5):
                line.update(f"Fetching: {so_far // MEGABYTE} of {CONNECTOR_BYTES // MEGABYTE} MB")
            line.update(STARTING)

        follower = threading.Thread(target=follow_download if fetching else ended.wait, daemon=True)
        follower.start()
        try:
            yield
        finally:
            ended.set()
            follower.join()


@contextmanager
def watch_run(options: Options) -> Iterator[RunWatcher]:
    """A watcher of a run. On a terminal, it draws how many declarations have ended, and which run."""
    if options.quiet or options.verbose or not errors.is_terminal:
        yield RunWatcher()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    words = TextColumn("{task.fields[rows]:,} rows changed  {task.fields[names]}")
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), words)
    with Progress(*columns, console=errors, transient=True, redirect_stdout=False) as bar:
        task, running, lock, rows = bar.add_task("", total=None, rows=0, names=""), list[str](), Lock(), [0]

        def draw(advance: int = 0) -> None:
            names = ", ".join(running[:NAMES_SHOWN]) + (" ..." if len(running) > NAMES_SHOWN else "")
            bar.update(task, advance=advance, rows=rows[0], names=names)

        def on_selection(declarations: "Sequence[Declaration]") -> None:
            bar.update(task, total=len(declarations))

        def on_begin(name: str) -> None:
            with lock:
                running.append(name)
                draw()

        def on_end(receipt: "RunReceipt") -> None:
            with lock:
                running[:] = [name for name in running if name != receipt.name]
                rows[0] += sum(count for name, count in receipt.counts.items() if name != "unchanged")
                draw(advance=1)

        yield RunWatcher(on_selection, on_begin, on_end)
