"""`backstory explore`: show the histories of a warehouse in a browser."""

import gc
import os
import signal
import sys
import threading
import webbrowser

from backstory.cli.answers import log_for_options
from backstory.cli.options import DEFAULTS, Flag, Options
from backstory.cli.output import console, in_flags, print_line, show_document
from backstory.settings import CATALOG

TOKEN = "BACKSTORY_EXPLORE_TOKEN"  # noqa: S105 - the name of a variable
# Answers make many short-lived objects: with Python's default, garbage collection takes a third of the time.
COLLECT_AFTER = 200_000


def explore(
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    token: str | None = None,
    no_open: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Show histories in a browser: tables, records, differences, and the commit of each value.

    The explorer is read-only, runs without Spark, and stops on Ctrl-C or SIGTERM. By default, it listens only
    on this machine. Other addresses need a token, which the printed link contains.

    Example: `backstory explore --port 8055`

    Args:
        port: Port to listen on, or 0 for a free one. Default: 8055, or a free one if it is taken.
        host: Address to listen on. An address that other machines can reach needs a token.
        token: Token that a browser must send. Default: BACKSTORY_EXPLORE_TOKEN, or none.
        no_open: Print the link, and open no browser.
    """
    from backstory.explorer.catalog_reader import table_reader
    from backstory.explorer.opening import open_explorer

    log_for_options(options)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    gc.set_threshold(COLLECT_AFTER)
    token = token if token is not None else os.environ.get(TOKEN, "")
    settings = options.settings()
    if not settings.catalogs[CATALOG] and not settings.warehouse.exists() and not options.quiet:
        print_line(in_flags(f"There is nothing yet in {settings.location}: it does not exist."))
    running = open_explorer(table_reader(settings), host, port, token)
    if options.output_format == "json":
        show_document({"link": running.link})
    else:
        console.print(in_flags(f"Exploring {settings.location}"), markup=False)
        console.print(f"  {running.link}    (Ctrl-C ends)", markup=False)
    sys.stdout.flush()
    if not no_open and sys.stdout.isatty():
        threading.Thread(target=webbrowser.open, args=(running.link,), daemon=True).start()
    ended.wait()
    running.stop()
