"""The reading commands: `tables`, `current`, `as-of`, `timeline`, `log`."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from backstory import warehouse
from backstory.cli.options import Limit, Options
from backstory.cli.outcomes import short
from backstory.cli.output import console, errors, show
from backstory.cli.starting import starting
from backstory.errors import UsageError
from backstory.model.instant import parse_instant
from backstory.observe.logs import log_for_people

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEFAULTS = Options()
# Java compiles no code twice that runs but once.
FOR_A_MOMENT = "-XX:TieredStopAtLevel=1"
LOG = ["committed_at", "snapshot_id", "operation", "door", "token", "counts"]
LOG_OF_DATASET = ["sequence", "system_time", "offsets", "watermark", "counts", "block"]


def tables(*, options: Options = DEFAULTS) -> None:
    """Show what the warehouse holds: layout, rows, open versions, last commit."""
    columns = ["table", "layout", "rows", "open_versions", "last_commit"]
    with opened(options, brief=True) as store:
        found = store.tables()
    if options.answer == "table":
        found = [{**row, "last_commit": _second(row["last_commit"])} for row in found]
    show(found, options.answer, columns)


def current(
    table: str, *, known_at: str | None = None, limit: Limit = None, options: Options = DEFAULTS
) -> None:
    """Show the rows that are true now.

    Example: backstory current crm.customer --known-at 2026-01-31

    Args:
        table: The table, as schema.table.
        known_at: Answer with what the table held at this time.
        limit: At most so many rows.
        options: Common options.
    """
    known = _time(known_at)
    with opened(options) as store:
        show_frame(store.table(table).current(known_at=known), limit, options)


def as_of(
    table: str, time: str, *, known_at: str | None = None, limit: Limit = None, options: Options = DEFAULTS
) -> None:
    """Show the rows that were true at a time.

    Example: backstory as-of crm.customer 2026-01-31 --known-at 2026-02-15

    Args:
        table: The table, as schema.table.
        time: ISO 8601; UTC without an offset, a date is its first instant.
        known_at: Answer with what the table held at this time.
        limit: At most so many rows.
        options: Common options.
    """
    when, known = parse_instant(time), _time(known_at)
    with opened(options) as store:
        show_frame(store.table(table).as_of(when, known_at=known), limit, options)


def timeline(table: str, *key: str, options: Options = DEFAULTS) -> None:
    """Draw one record's life.

    Args:
        table: The table, as schema.table.
        key: The key's value, or name=value for each column of a key of several.
        options: Common options.
    """
    with opened(options, brief=True) as store:
        life = store.table(table).timeline(_key(key))
        if options.answer == "table":
            console.print(life.drawn(console.width if console.is_terminal else None), markup=False)
        else:
            show(life.versions, options.answer)
            if not life.versions and not options.quiet:
                errors.print(str(life), markup=False)


def log(table: str, *, limit: Limit = None, options: Options = DEFAULTS) -> None:
    """Show a table's commits, newest first; of a dataset with blocks, offsets and watermarks.

    Args:
        table: The table, as schema.table, or a dataset's name.
        limit: At most so many commits.
        options: Common options.
    """
    with opened(options, brief=True) as store:
        commits = store.table(table).log()[:limit]
        of_dataset = bool(commits) and "block" in commits[0]
        if of_dataset and options.answer == "table":
            commits = [_block(commit) for commit in commits]
        if options.answer == "table":
            commits = [{**commit, "committed_at": _second(commit["committed_at"])} for commit in commits]
        show(commits, options.answer, LOG_OF_DATASET if of_dataset else LOG)


@contextmanager
def opened(options: Options, *, brief: bool = False) -> Iterator[warehouse.Warehouse]:
    """The warehouse of the options, while Spark runs; with `brief` it starts faster and computes slower."""
    log_for_people(quiet=options.quiet, verbose=options.verbose)
    if brief:
        os.environ.setdefault("SPARK_SUBMIT_OPTS", FOR_A_MOMENT)
    with starting(options):
        started = warehouse.open(options.warehouse, config=options.config, verbose=options.verbose)
    with started as found:
        yield found
        sys.stdout.flush()


def show_frame(frame: "DataFrame", limit: int | None, options: Options) -> None:
    """Print the rows of a frame; Refused or Failed if they cannot be computed."""
    from backstory.reading.queries import answering

    with answering():
        rows = (frame if limit is None else frame.limit(limit)).toArrow().to_pylist()
    show(rows, options.answer, frame.columns)


def _time(given: str | None) -> datetime | None:
    return None if given is None else parse_instant(given)


def _second(instant: datetime | None) -> str | None:
    return None if instant is None else short(instant)


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
