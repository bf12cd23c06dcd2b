"""The reading commands: `current`, `as-of`, `log`."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from backstory.cli.asking import ask, show_state, tell_nothing
from backstory.cli.keys import Chosen, key_in_words, named_key, no_known_times
from backstory.cli.options import Key, Limit, Names, Options
from backstory.cli.outcomes import short
from backstory.cli.output import show, without_idle
from backstory.model.instant import optional_instant, parse_instant
from backstory.model.table import resolve_name, table_name

if TYPE_CHECKING:
    from backstory.stores.metadata.described import Catalog

DEFAULTS = Options()
LOG = ["committed_at", "snapshot_id", "operation", "door", "token", "counts", "note", "author"]
LOG_OF_VERSIONS = ["committed_at", "recorded_at", *LOG[1:]]
LOG_OF_DATASET = ["sequence", "system_time", "offsets", "watermark", "counts", "block"]


def current(
    table: str,
    *,
    key: Key = (),
    columns: Names = (),
    known_at: str | None = None,
    url: str | None = None,
    limit: Limit = None,
    options: Options = DEFAULTS,
) -> None:
    """Show the rows that are true now, in the order of their key.

    Example: `backstory current crm.customer --known-at 2026-01-31`

    Args:
        table: The table, as schema.table.
        key: Only the record with this key: its value, or name=value for each column of a key of several.
        columns: Only these columns, a,b, beside the key and the times.
        known_at: Answer with what the table held at this time.
        url: A model's history in a database: duckdb:///path or postgresql://host/name.
        limit: The largest number of rows.
        options: Common options.
    """
    known, chosen = optional_instant(known_at), Chosen(key, columns)
    if url is not None:
        if not _show_from_database(url, table, (None, known), chosen, limit, options):
            tell_nothing(options, _nothing((), key))
        return
    from backstory.reading.arrow import point_in_time

    show_state(
        options,
        table,
        limit,
        lambda files: point_in_time.current(files, known, chosen.of(files.table.shape), limit),
        lambda stored: stored.current(known_at=known, **chosen.arguments(stored)),
        lambda names: _nothing(names, key, known_at=known_at),
    )


def as_of(
    table: str,
    time: str,
    *,
    key: Key = (),
    columns: Names = (),
    known_at: str | None = None,
    url: str | None = None,
    limit: Limit = None,
    options: Options = DEFAULTS,
) -> None:
    """Show the rows that were true at a time, in the order of their key.

    Example: `backstory as-of crm.customer 2026-01-31 --key 42 --known-at 2026-02-15`

    Args:
        table: The table, as schema.table.
        time: ISO 8601; UTC without an offset, a date is its first instant.
        key: Only the record with this key: its value, or name=value for each column of a key of several.
        columns: Only these columns, a,b, beside the key and the times.
        known_at: Answer with what the table held at this time.
        url: A model's history in a database: duckdb:///path or postgresql://host/name.
        limit: The largest number of rows.
        options: Common options.
    """
    when, known, chosen = parse_instant(time), optional_instant(known_at), Chosen(key, columns)
    if url is not None:
        if not _show_from_database(url, table, (when, known), chosen, limit, options):
            tell_nothing(options, _nothing((), key, time))
        return
    from backstory.reading.arrow import point_in_time

    show_state(
        options,
        table,
        limit,
        lambda files: point_in_time.as_of(files, when, known, chosen.of(files.table.shape), limit),
        lambda stored: stored.as_of(when, known_at=known, **chosen.arguments(stored)),
        lambda names: _nothing(names, key, time, known_at),
    )


def _nothing(
    names: Sequence[str], key: tuple[str, ...], time: str | None = None, known_at: str | None = None
) -> str:
    """That there is no row, for the key and the times that were given."""
    record = f"record with key {key_in_words(names, key)}" if key else "rows"
    at = f" at {time}" if time else ""
    return f"No {record}{at}{f', as known at {known_at}' if known_at else ''}."


def _show_from_database(
    url: str,
    table: str,
    times: tuple[datetime | None, datetime | None],
    chosen: Chosen,
    limit: int | None,
    options: Options,
) -> bool:
    """Print the rows; whether there are any."""
    from backstory.reading.selection import Selection
    from backstory.reading.statements.database_history import rows_of

    time, known_at = times
    if known_at is not None:
        raise no_known_times()
    selection = Selection(named_key(chosen.key) if chosen.key else None, chosen.names)
    columns, rows = rows_of(url, table_name(table), time, selection)
    show(rows[:limit], options.answer, columns, wide=options.wide)
    return bool(rows)


def log(table: str, *, limit: Limit = None, options: Options = DEFAULTS) -> None:
    """List a table's commits, newest first: time, door, token, counts, note, author.

    Those of a dataset show its blocks, offsets and watermarks, those of a native table when it was recorded.
    Spark starts only for a catalog that pyiceberg cannot open.

    Args:
        table: The table, as schema.table, or a dataset's name.
        limit: The largest number of commits.
        options: Common options.
    """
    from backstory.reading.commits import commits

    def read_commits(catalog: "Catalog") -> list[dict[str, Any]]:
        found = resolve_name(table, lambda each: catalog.describe(each) is not None)
        return commits(catalog, found or table_name(table))

    found = ask(options, read_commits)[:limit]
    of_dataset, of_versions = (bool(found) and name in found[0] for name in ("block", "recorded_at"))
    columns = LOG_OF_DATASET if of_dataset else LOG_OF_VERSIONS if of_versions else LOG
    if options.answer == "table":
        found = [_block(commit) for commit in found] if of_dataset else found
        found = [{**commit, "committed_at": _second(commit["committed_at"])} for commit in found]
        for_programs = {"token", "operation", "committed_at" if of_versions else ""}
        columns = [name for name in columns if options.wide or name not in for_programs]
        columns = without_idle(columns, found, ("note", "author"))
    show(found, options.answer, columns, wide=options.wide)


def _second(instant: datetime | None) -> str | None:
    return None if instant is None else short(instant)


def _block(commit: dict[str, Any]) -> dict[str, Any]:
    """A dataset's commit as people read it in a row."""
    times = {name: commit[name] and short(commit[name]) for name in ("system_time", "watermark")}
    offsets, block = commit["offsets"], commit["block"]
    spoken = "{} to {}".format(*offsets) if offsets else None
    return {**commit, **times, "offsets": spoken, "block": block and block[:16]}
