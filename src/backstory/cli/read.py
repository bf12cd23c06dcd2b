"""The reading commands: `current`, `as-of`, `log`.

The command `timeline`: one record's life.

The command `export`: the whole history of a table as one file.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from backstory.cli.answers import answer, answer_from_files, open_warehouse, print_remark, show_state
from backstory.cli.options import (
    Flag,
    Key,
    Limit,
    Names,
    Options,
    SelectionFlags,
    describe_key,
    no_known_times,
    parse_key,
    parse_named_key,
    parse_names,
    require_key,
)
from backstory.cli.output import (
    console,
    drop_idle_columns,
    line_width,
    print_line,
    short_time,
    show,
    show_one,
)
from backstory.cli.progress import show_activity
from backstory.model.instant import optional_instant, parse_instant
from backstory.model.table import resolve_name, table_name
from backstory.model.values import key_of_words
from backstory.reading.timelines import Axis, Timeline, require_axis

if TYPE_CHECKING:
    from backstory.stores.metadata.table_metadata import Catalog

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
    known, chosen = optional_instant(known_at), SelectionFlags(key, columns)
    if url is not None:
        if not _show_from_database(url, table, (None, known), chosen, limit, options):
            print_remark(options, _no_rows_text((), key))
        return
    from backstory.reading.arrow import point_in_time

    show_state(
        options,
        table,
        limit,
        lambda files: point_in_time.current(files, known, chosen.selection(files.table.shape), limit),
        lambda stored: stored.current(known_at=known, **chosen.arguments(stored)),
        lambda names: _no_rows_text(names, key, known_at=known_at),
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
    when, known, chosen = parse_instant(time), optional_instant(known_at), SelectionFlags(key, columns)
    if url is not None:
        if not _show_from_database(url, table, (when, known), chosen, limit, options):
            print_remark(options, _no_rows_text((), key, time))
        return
    from backstory.reading.arrow import point_in_time

    show_state(
        options,
        table,
        limit,
        lambda files: point_in_time.as_of(files, when, known, chosen.selection(files.table.shape), limit),
        lambda stored: stored.as_of(when, known_at=known, **chosen.arguments(stored)),
        lambda names: _no_rows_text(names, key, time, known_at),
    )


def _no_rows_text(
    names: Sequence[str], key: tuple[str, ...], time: str | None = None, known_at: str | None = None
) -> str:
    """That there is no row, for the key and the times that were given."""
    record = f"record with key {describe_key(names, key)}" if key else "rows"
    at = f" at {time}" if time else ""
    return f"No {record}{at}{f', as known at {known_at}' if known_at else ''}."


def _show_from_database(
    url: str,
    table: str,
    times: tuple[datetime | None, datetime | None],
    chosen: SelectionFlags,
    limit: int | None,
    options: Options,
) -> bool:
    """Print the rows; whether there are any."""
    from backstory.reading.databases.database_history import read_rows
    from backstory.reading.selection import Selection

    time, known_at = times
    if known_at is not None:
        raise no_known_times()
    selection = Selection(parse_named_key(chosen.key) if chosen.key else None, chosen.names)
    columns, rows = read_rows(url, table_name(table), time, selection)
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

    found = answer(options, read_commits)[:limit]
    of_dataset, of_versions = (bool(found) and name in found[0] for name in ("block", "recorded_at"))
    columns = LOG_OF_DATASET if of_dataset else LOG_OF_VERSIONS if of_versions else LOG
    if options.answer == "table":
        found = [_block_row(commit) for commit in found] if of_dataset else found
        found = [{**commit, "committed_at": _short_or_none(commit["committed_at"])} for commit in found]
        for_programs = {"token", "operation", "committed_at" if of_versions else ""}
        columns = [name for name in columns if options.wide or name not in for_programs]
        columns = drop_idle_columns(columns, found, ("note", "author"))
    show(found, options.answer, columns, wide=options.wide)


def _short_or_none(instant: datetime | None) -> str | None:
    return None if instant is None else short_time(instant)


def _block_row(commit: dict[str, Any]) -> dict[str, Any]:
    """A dataset's commit as people read it in a row."""
    times = {name: commit[name] and short_time(commit[name]) for name in ("system_time", "watermark")}
    offsets, block = commit["offsets"], commit["block"]
    spoken = "{} to {}".format(*offsets) if offsets else None
    return {**commit, **times, "offsets": spoken, "block": block and block[:16]}


if TYPE_CHECKING:
    from backstory.stores.metadata.table_rows import TableReader


def timeline(
    table: str,
    *key: str,
    named: Annotated[Key, Parameter(name="--key")] = (),
    axis: Axis = "valid",
    known_at: str | None = None,
    columns: Names = (),
    svg: Path | None = None,
    url: str | None = None,
    limit: Limit = None,
    options: Options = DEFAULTS,
) -> None:
    """Draw one record's life: a bar for each version, and what changed in it.

    json and csv list the statements: values, valid_from and valid_to, the time the table held them
    (known_from, known_to), and the commit. --axis both also shows what was later corrected: a lane for each
    time at which the table learned something else.

    Example: `backstory timeline crm.customer 42 --axis both --svg life.svg`

    Args:
        table: The table, as schema.table.
        key: The key's value, or name=value for each column of a key of several.
        named: The same as an option, as other commands have it.
        axis: valid: when it was true. both: also when it was known.
        known_at: Show what the table held at this time.
        columns: Only these columns, a,b, beside the key and the times.
        svg: Also write the picture to this file.
        url: A model's history in a database, whose key is given as name=value.
        limit: The largest number of versions, oldest first; a drawing has all.
        options: Common options.
    """
    known, key = optional_instant(known_at), (*key, *named)
    require_key(key)
    require_axis(axis, known)
    names = parse_names(columns)
    if url is None:
        life = _read_life(options, table, key, axis, known, names)
    else:
        life = _read_life_in_database(url, table, key, names, plain=axis == "valid" and known is None)
    if svg is not None:
        life.save(svg)
    nothing = "" if life.versions else f"{life} ({life.title})"
    if options.answer == "table":
        console.print(nothing or life.draw(line_width(wide=options.wide)), markup=False)
    else:
        show(life.versions[:limit], options.answer)
        if nothing and not options.quiet:
            print_line(nothing)


def _read_life(
    options: Options,
    table: str,
    key: tuple[str, ...],
    axis: Axis,
    known_at: datetime | None,
    columns: list[str],
) -> Timeline:
    from backstory.reading.arrow import life

    def of_files(files: "TableReader") -> Timeline:
        wanted = key_of_words(files.table.shape.source_key, key)
        return life.life(files, wanted, axis, known_at, columns)

    small = answer_from_files(options, table, of_files)
    if small is not None:
        return small
    with open_warehouse(options, table, brief=True) as store, show_activity(options, "Reading ..."):
        stored = store.table(table)
        return stored.timeline(parse_key(stored, key), axis=axis, known_at=known_at, columns=columns)


def _read_life_in_database(
    url: str, table: str, key: tuple[str, ...], columns: list[str], *, plain: bool
) -> Timeline:
    from backstory.reading.databases.database_history import read_life

    if not plain:
        raise no_known_times()
    return read_life(url, table_name(table), parse_named_key(key), columns)


def export(
    table: str,
    file: Path,
    *,
    axis: Axis = "valid",
    overwrite: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Write the whole history of a table into one file, CSV or Parquet by its ending.

    Every version with valid_from and valid_to, in the order of the key. --axis both adds every earlier
    statement, with known_from and known_to. A table without history is exported as its rows. The file appears
    only when complete; if the command is killed, an existing file stays unchanged.

    Example: `backstory export crm.customer customer.parquet --axis both`

    Args:
        table: The table, as schema.table.
        file: The file, which ends in .csv or .parquet.
        axis: valid: when it was true. both: also when it was known.
        overwrite: Replace an existing file.
        options: Common options.
    """
    from backstory.reading.exports import Destination
    from backstory.reading.exports import export_files as export_small

    place = Destination(file, axis, overwrite)
    done = answer_from_files(options, table, lambda files: export_small(files, place))
    if done is None:
        with open_warehouse(options, table) as store, show_activity(options, "Writing ..."):
            done = store.table(table).export(file, axis=axis, overwrite=overwrite)
    if options.answer == "table":
        console.print(f"{done.table}: {done.rows} rows in {done.file}", markup=False)
    else:
        show_one(done.to_dict(), options.answer, wide=options.wide)
