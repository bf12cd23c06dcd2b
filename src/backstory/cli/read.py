"""The rows, records and commits of one table: `current`, `as-of`, `timeline`, `log`, `export`."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from backstory.cli.answers import answer, answer_from_files, open_warehouse, print_remark, show_state
from backstory.cli.options import (
    DEFAULTS,
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
from backstory.cli.output import console, drop_idle_columns, line_width, short_time, show, show_one
from backstory.cli.progress import show_activity
from backstory.model.instant import optional_instant, parse_instant
from backstory.model.table import resolve_name, table_name
from backstory.model.values import key_of_words
from backstory.reading.selection import Selection
from backstory.reading.timelines import Axis, Timeline, require_axis

if TYPE_CHECKING:
    from backstory.stores.metadata.table_metadata import Catalog
    from backstory.stores.metadata.table_rows import TableReader

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
        key: Show only the record with this key: its value, or name=value for each column of a composite key.
        columns: Show only these columns, a,b, with the key and the times.
        known_at: Answer with the data that the table held at this time.
        url: Database with the history of a model: duckdb:///path or postgresql://host/name.
        limit: Largest number of rows to show.
        options: Common options.
    """
    known, selected = optional_instant(known_at), SelectionFlags(key, columns)
    if url is not None:
        if not _show_from_database(url, table, (None, known), selected, limit, options):
            print_remark(options, _no_rows_text((), key))
        return
    from backstory.reading.arrow import point_in_time

    show_state(
        options,
        table,
        limit,
        lambda files: point_in_time.current(files, known, selected.selection(files.table.shape), limit),
        lambda stored: stored.current(known_at=known, **selected.arguments(stored)),
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
        time: A time in ISO 8601; without an offset it is UTC, and a date is its first instant.
        key: Show only the record with this key: its value, or name=value for each column of a composite key.
        columns: Show only these columns, a,b, with the key and the times.
        known_at: Answer with the data that the table held at this time.
        url: Database with the history of a model: duckdb:///path or postgresql://host/name.
        limit: Largest number of rows to show.
        options: Common options.
    """
    instant, known = parse_instant(time), optional_instant(known_at)
    selected = SelectionFlags(key, columns)
    if url is not None:
        if not _show_from_database(url, table, (instant, known), selected, limit, options):
            print_remark(options, _no_rows_text((), key, time))
        return
    from backstory.reading.arrow import point_in_time

    show_state(
        options,
        table,
        limit,
        lambda files: point_in_time.as_of(
            files, instant, known, selected.selection(files.table.shape), limit
        ),
        lambda stored: stored.as_of(instant, known_at=known, **selected.arguments(stored)),
        lambda names: _no_rows_text(names, key, time, known_at),
    )


def _no_rows_text(
    names: Sequence[str], key: tuple[str, ...], time: str | None = None, known_at: str | None = None
) -> str:
    """The remark that no rows match this key and these times."""
    record = f"record with key {describe_key(names, key)}" if key else "rows"
    at = f" at {time}" if time else ""
    return f"No {record}{at}{f', as known at {known_at}' if known_at else ''}."


def _show_from_database(
    url: str,
    table: str,
    times: tuple[datetime | None, datetime | None],
    selected: SelectionFlags,
    limit: int | None,
    options: Options,
) -> bool:
    """Print the rows of a history in a database, and return whether there are any.

    `times` are the valid time, None for now, and the known time, for which a UsageError is raised.
    """
    from backstory.reading.databases.database_history import read_rows

    time, known_at = times
    if known_at is not None:
        raise no_known_times()
    selection = Selection(parse_named_key(selected.key) if selected.key else None, selected.names)
    columns, rows = read_rows(url, table_name(table), time, selection)
    show(rows[:limit], options.output_format, columns, wide=options.wide)
    return bool(rows)


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
    """Draw the life of one record: a bar for each version, and the values that changed.

    json and csv list the statements: values, valid_from and valid_to, the time the table held them
    (known_from, known_to), and the commit. --axis both also shows statements that were corrected later: a
    lane for each time at which the table received other values.

    Example: `backstory timeline crm.customer 42 --axis both --svg life.svg`

    Args:
        table: The table, as schema.table.
        key: The key's value, or name=value for each column of a composite key.
        named: The key as an option, as in other commands.
        axis: Show when the record was true (valid), or also when that was known (both).
        known_at: Show the data that the table held at this time.
        columns: Show only these columns, a,b, with the key and the times.
        svg: Also write the drawing to this file.
        url: Database with the history of a model; the key is then given as name=value.
        limit: Largest number of versions to list, oldest first; a drawing has all versions.
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
    empty = "" if life.versions else f"{life} ({life.title})"
    if options.output_format == "table":
        console.print(empty or life.draw(line_width(wide=options.wide)), markup=False)
    else:
        show(life.versions[:limit], options.output_format)
        if empty:
            print_remark(options, empty)


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
        values = key_of_words(files.table.shape.source_key, key)
        return life.life(files, values, axis, known_at, columns)

    small = answer_from_files(options, table, of_files)
    if small is not None:
        return small
    with open_warehouse(options, table, brief=True) as warehouse, show_activity(options, "Reading ..."):
        stored = warehouse.table(table)
        return stored.timeline(parse_key(stored, key), axis=axis, known_at=known_at, columns=columns)


def _read_life_in_database(
    url: str, table: str, key: tuple[str, ...], columns: list[str], *, plain: bool
) -> Timeline:
    from backstory.reading.databases.database_history import read_life

    if not plain:
        raise no_known_times()
    return read_life(url, table_name(table), parse_named_key(key), columns)


def log(table: str, *, limit: Limit = None, options: Options = DEFAULTS) -> None:
    """List a table's commits, newest first: time, door, token, counts, note, author.

    For a dataset the list has blocks, offsets and watermarks; for a native table, the recorded time. Spark
    starts only if pyiceberg cannot open the catalog.

    Args:
        table: The table, as schema.table, or a dataset's name.
        limit: Largest number of commits to list.
        options: Common options.
    """
    from backstory.reading.commits import commits

    def read_commits(catalog: "Catalog") -> list[dict[str, Any]]:
        name = resolve_name(table, lambda name: catalog.describe(name) is not None)
        return commits(catalog, name or table_name(table))

    rows = answer(options, read_commits)[:limit]
    of_dataset, of_versions = (bool(rows) and name in rows[0] for name in ("block", "recorded_at"))
    columns = LOG_OF_DATASET if of_dataset else LOG_OF_VERSIONS if of_versions else LOG
    if options.output_format == "table":
        rows = [_block_row(commit) for commit in rows] if of_dataset else rows
        rows = [{**commit, "committed_at": _short_or_none(commit["committed_at"])} for commit in rows]
        for_programs = {"token", "operation", "committed_at" if of_versions else ""}
        columns = [name for name in columns if options.wide or name not in for_programs]
        columns = drop_idle_columns(columns, rows, ("note", "author"))
    show(rows, options.output_format, columns, wide=options.wide)


def _short_or_none(instant: datetime | None) -> str | None:
    return None if instant is None else short_time(instant)


def _block_row(commit: dict[str, Any]) -> dict[str, Any]:
    """A dataset's commit with short times, offsets as text, and the beginning of the block's hash."""
    times = {name: commit[name] and short_time(commit[name]) for name in ("system_time", "watermark")}
    offsets, block = commit["offsets"], commit["block"]
    text = "{} to {}".format(*offsets) if offsets else None
    return {**commit, **times, "offsets": text, "block": block and block[:16]}


def export(
    table: str,
    file: Path,
    *,
    axis: Axis = "valid",
    overwrite: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Write the whole history of a table into one CSV or Parquet file.

    The file has every version with valid_from and valid_to, in the order of the key. --axis both adds every
    earlier statement, with known_from and known_to. A table without history is exported as its rows. The file
    appears only when it is complete; if the command is killed, an existing file stays unchanged.

    Example: `backstory export crm.customer customer.parquet --axis both`

    Args:
        table: The table, as schema.table.
        file: The file, which ends in .csv or .parquet.
        axis: Write when rows were true (valid), or also when that was known (both).
        overwrite: Replace an existing file.
        options: Common options.
    """
    from backstory.reading.exports import ExportFile
    from backstory.reading.exports import export_files as export_small

    place = ExportFile(file, axis, overwrite)
    done = answer_from_files(options, table, lambda files: export_small(files, place))
    if done is None:
        with open_warehouse(options, table) as warehouse, show_activity(options, "Writing ..."):
            done = warehouse.table(table).export(file, axis=axis, overwrite=overwrite)
    if options.output_format == "table":
        console.print(f"{done.table}: {done.rows} rows in {done.file}", markup=False)
    else:
        show_one(done.to_dict(), options.output_format, wide=options.wide)
