"""The reading commands: `tables`, `current`, `as-of`, `timeline`, `log`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from backstory import warehouse
from backstory.cli.options import Options
from backstory.cli.outcomes import short
from backstory.cli.output import console, errors, show
from backstory.errors import UsageError
from backstory.model.instant import parse_instant
from backstory.observe.logs import log_for_people

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEFAULTS = Options()
LOG = ["committed_at", "snapshot_id", "operation", "door", "token", "counts"]
LOG_OF_DATASET = ["sequence", "system_time", "offsets", "watermark", "counts", "block"]


def tables(*, options: Options = DEFAULTS) -> None:
    """Show what the warehouse holds: layout, rows, open versions, last commit."""
    columns = ["table", "layout", "rows", "open_versions", "last_commit"]
    with opened(options) as store:
        show(store.tables(), options.answer, columns)


def current(table: str, *, limit: int | None = None, options: Options = DEFAULTS) -> None:
    """Show the rows that are true now.

    Args:
        table: The table, as schema.table.
        limit: At most so many rows.
        options: Common options.
    """
    with opened(options) as store:
        _show(store.table(table).current(), limit, options)


def as_of(table: str, time: str, *, limit: int | None = None, options: Options = DEFAULTS) -> None:
    """Show the rows that were true at a time.

    Args:
        table: The table, as schema.table.
        time: ISO 8601; UTC without an offset, a date is its first instant.
        limit: At most so many rows.
        options: Common options.
    """
    when = parse_instant(time)
    with opened(options) as store:
        _show(store.table(table).as_of(when), limit, options)


def timeline(table: str, *key: str, options: Options = DEFAULTS) -> None:
    """Draw one record's life.

    Args:
        table: The table, as schema.table.
        key: The key's value, or name=value for each column of a key of several.
        options: Common options.
    """
    with opened(options) as store:
        life = store.table(table).timeline(_key(key))
        if options.answer == "table":
            console.print(str(life), markup=False)
        else:
            show(life.versions, options.answer)


def log(table: str, *, limit: int | None = None, options: Options = DEFAULTS) -> None:
    """Show a table's commits, newest first; of a dataset with blocks, offsets and watermarks.

    Args:
        table: The table, as schema.table, or a dataset's name.
        limit: At most so many commits.
        options: Common options.
    """
    with opened(options) as store:
        commits = store.table(table).log()[:limit]
        of_dataset = bool(commits) and "block" in commits[0]
        if of_dataset and options.answer == "table":
            commits = [_block(commit) for commit in commits]
        show(commits, options.answer, LOG_OF_DATASET if of_dataset else LOG)


@contextmanager
def opened(options: Options) -> Iterator[warehouse.Warehouse]:
    """The warehouse of the options, while Spark runs."""
    log_for_people(quiet=options.quiet, verbose=options.verbose)
    if not options.quiet and sys.stderr.isatty():
        errors.print("Starting Spark ... (the first start fetches its connectors)", style="dim")
    with warehouse.open(options.warehouse, config=options.config, verbose=options.verbose) as found:
        yield found
        sys.stdout.flush()


def _show(frame: "DataFrame", limit: int | None, options: Options) -> None:
    rows = frame if limit is None else frame.limit(limit)
    show(rows.toArrow().to_pylist(), options.answer, frame.columns)


def _block(commit: dict[str, Any]) -> dict[str, Any]:
    """A dataset's commit as people read it in a row."""
    times = {name: commit[name] and short(commit[name]) for name in ("system_time", "watermark")}
    offsets, block = commit["offsets"], commit["block"]
    spoken = "{} to {}".format(*offsets) if offsets else None
    return {**commit, **times, "offsets": spoken, "block": block and block[:16]}


def _key(given: tuple[str, ...]) -> str | dict[str, str]:
    if not given:
        raise UsageError("no-key", "No key is given.", "Write its value, or a=1 b=2.")
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    return dict(part.partition("=")[::2] for part in given)
