"""What people see while Spark starts, and what the first start fetches."""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from backstory.cli.options import Options
from backstory.cli.output import errors

if TYPE_CHECKING:
    from rich.console import Console

STARTING = "Starting Spark ..."
MEGABYTE = 1_000_000


@contextmanager
def starting(options: Options) -> Iterator[None]:
    """Tell of it on standard error; a line that moves is for terminals alone."""
    from rich.console import Console

    from backstory.spark.connectors import BYTES, missing

    given = options.settings().spark
    fetching = missing(given)
    if fetching and not options.quiet:
        size = f"{BYTES // MEGABYTE} MB"
        told = f"Fetching Spark's connectors (Iceberg, SQLite), only this once: {size} from Maven Central ..."
        errors.print(told, style="dim")
    if options.quiet or options.verbose or not sys.stderr.isatty():
        yield
        return
    # Meanwhile standard error is Spark's, and that is a file.
    terminal = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8")
    with terminal, _line(Console(file=terminal), given, fetching=fetching):
        yield


@contextmanager
def busy(options: Options, words: str) -> Iterator[None]:
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
def _line(terminal: "Console", given: Mapping[str, str], *, fetching: bool) -> Iterator[None]:
    from backstory.spark.connectors import BYTES
    from backstory.spark.jars import bytes_so_far

    ended = threading.Event()
    with terminal.status(STARTING) as line:

        def tell() -> None:
            while (so_far := bytes_so_far(given)) < BYTES and not ended.wait(0.5):
                line.update(f"Fetching: {so_far // MEGABYTE} of {BYTES // MEGABYTE} MB")
            line.update(STARTING)

        watching = threading.Thread(target=tell if fetching else ended.wait, daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            watching.join()
