"""The reading commands: `tables`, `current`, `as-of`, `timeline`, `log`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from backstory.cli.options import Options
from backstory.cli.output import console, show
from backstory.errors import UsageError
from backstory.model.instant import parse_instant
from backstory.model.table import TableName
from backstory.observe.logs import log_for_people

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backstory.tables.store import Store

DEFAULTS = Options()


def tables(*, options: Options = DEFAULTS) -> None:
    """Show what the warehouse holds: layout, rows, open versions, last commit."""
    from backstory.reading.commits import inventory

    columns = ["table", "layout", "rows", "open_versions", "last_commit"]
    with opened(options) as store:
        show(inventory(store), options.answer, columns)


def current(table: str, *, limit: int | None = None, options: Options = DEFAULTS) -> None:
    """Show the rows that are true now.

    Args:
        table: The table, as schema.table.
        limit: At most so many rows.
        options: Common options.
    """
    from backstory.reading import lives

    with opened(options) as store:
        _show(lives.current(store, named(table)), limit, options)


def as_of(table: str, time: str, *, limit: int | None = None, options: Options = DEFAULTS) -> None:
    """Show the rows that were true at a time.

    Args:
        table: The table, as schema.table.
        time: ISO 8601; UTC without an offset, a date is its first instant.
        limit: At most so many rows.
        options: Common options.
    """
    from backstory.reading import lives

    when = parse_instant(time)
    with opened(options) as store:
        _show(lives.as_of(store, named(table), when), limit, options)


def timeline(table: str, *key: str, options: Options = DEFAULTS) -> None:
    """Draw one record's life.

    Args:
        table: The table, as schema.table.
        key: The key's value, or name=value for each column of a key of several.
        options: Common options.
    """
    from backstory.reading import lives
    from backstory.reading.timeline import draw
    from backstory.tables.store import existing

    name = named(table)
    with opened(options) as store:
        shape = existing(store, name).shape
        at = _key(key, shape.key)
        versions = lives.life(store, name, at).toArrow().to_pylist()
        if options.answer != "table":
            show(versions, options.answer)
            return
        columns = [c for c in lives.user_columns(shape) if c not in shape.key]
        for line in draw(versions, columns, datetime.now(UTC)):
            console.print(line, markup=False)


def log(table: str, *, limit: int | None = None, options: Options = DEFAULTS) -> None:
    """Show a table's commits, newest first.

    Args:
        table: The table, as schema.table.
        limit: At most so many commits.
        options: Common options.
    """
    from backstory.reading.commits import commits

    columns = ["committed_at", "snapshot_id", "operation", "door", "token", "counts"]
    with opened(options) as store:
        show(commits(store, named(table))[:limit], options.answer, columns)


def named(table: str) -> TableName:
    """The table that `schema.table` names; the schema reaches up to the first dot."""
    schema, _, name = table.partition(".")
    if not schema or not name:
        raise UsageError(
            "no-table", f"{table!r} does not name a table.", "Write it as schema.table."
        )
    return TableName(schema, name)


@contextmanager
def opened(options: Options) -> "Iterator[Store]":
    """The store of the settings' first catalog, while Spark runs."""
    from backstory.spark.session import start
    from backstory.tables.store import Store

    log_for_people(quiet=options.quiet)
    settings = options.settings()
    spark = start(settings, verbose=options.verbose)
    try:
        yield Store(spark, next(iter(settings.catalogs)), settings.format_version)
    finally:
        sys.stdout.flush()
        spark.stop()


def _show(frame: "DataFrame", limit: int | None, options: Options) -> None:
    rows = frame if limit is None else frame.limit(limit)
    show(rows.toArrow().to_pylist(), options.answer, frame.columns)


def _key(given: tuple[str, ...], key: tuple[str, ...]) -> dict[str, str]:
    if len(key) == 1 and len(given) == 1 and not given[0].startswith(f"{key[0]}="):
        return {key[0]: given[0]}
    pairs = dict(part.partition("=")[::2] for part in given)
    if set(pairs) != set(key):
        told = " ".join(f"{name}=…" for name in key)
        raise UsageError("other-key", f"The key is ({', '.join(key)}).", f"Write {told}.")
    return pairs
