"""The tables of a warehouse, the rows, records and commits of one table, and their explorer in a browser."""

import gc
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from attrs import evolve
from cyclopts import Parameter

from backstory.cli.answers import (
    answer,
    answer_from_metadata,
    answer_from_table,
    answer_if_readable,
    collect_rows,
    log_for_options,
    open_warehouse,
    rows_of_frame,
)
from backstory.cli.options import (
    BRANCH_DEFAULTS,
    DEFAULTS,
    BranchOptions,
    Flag,
    HistoryUrl,
    Key,
    Limit,
    NamedTable,
    Options,
    RowLimit,
    describe_key,
    parse_named_key,
    refuse_for_database,
    require_key,
    with_flags,
)
from backstory.cli.output import (
    add_error_column,
    console,
    drop_idle_columns,
    in_flags,
    line_width,
    print_error,
    print_line,
    print_lines,
    with_short_times,
)
from backstory.errors import UsageError
from backstory.model.instant import optional_instant
from backstory.model.table import TableName, resolve_name, table_name
from backstory.model.values import key_of_words
from backstory.reading.options import ExportRequest, KnownRequest, ReadRequest, TimelineRequest
from backstory.reading.timelines import Timeline
from backstory.settings import CATALOG

if TYPE_CHECKING:
    import pyarrow as pa

    from backstory.model.table import Shape
    from backstory.reading.questions import KnownTable
    from backstory.stores.metadata.table_metadata import Catalog

TOKEN = "BACKSTORY_EXPLORE_TOKEN"  # noqa: S105 - the name of a variable
# The explorer makes many short-lived objects. With Python's default, collecting them takes 1/3 of the time.
COLLECT_AFTER = 200_000
LOG = ["committed_at", "snapshot_id", "operation", "door", "token", "counts", "note", "author"]
LOG_OF_VERSIONS = ["committed_at", "recorded_at", *LOG[1:]]
LOG_OF_DATASET = ["sequence", "system_time", "offsets", "watermark", "counts", "block"]


@with_flags(KnownRequest)
def current(
    table: NamedTable,
    *,
    key: Key = (),
    options: BranchOptions = BRANCH_DEFAULTS,
    url: HistoryUrl = None,
    limit: RowLimit = None,
    **words: Any,
) -> None:
    """Show the rows that are true now, in the order of their key.

    Example: `backstory current crm.customer --known-at 2026-01-31`

    Args:
        key: Show only the record with this key: its value, or name=value for each column of a composite key.
    """
    _show_rows(options, table, None, key, words, url=url, limit=limit)


@with_flags(KnownRequest)
def as_of(
    table: NamedTable,
    time: str,
    *,
    key: Key = (),
    options: BranchOptions = BRANCH_DEFAULTS,
    url: HistoryUrl = None,
    limit: RowLimit = None,
    **words: Any,
) -> None:
    """Show the rows that were true at a time, in the order of their key.

    Example: `backstory as-of crm.customer 2026-01-31 --key 42 --known-at 2026-02-15`

    Args:
        time: A time in ISO 8601. Without an offset it is UTC, and a date is its first instant.
        key: Show only the record with this key: its value, or name=value for each column of a composite key.
    """
    _show_rows(options, table, time, key, words, url=url, limit=limit)


def _show_rows(
    options: Options,
    table: str,
    time: str | None,
    key: tuple[str, ...],
    words: Mapping[str, Any],
    *,
    url: str | None,
    limit: int | None,
) -> None:
    """Print the rows that are true at a time (None for now), from a warehouse, or from a database."""
    instant, request = optional_instant(time), ReadRequest(**words)  # raise errors before Spark starts
    key_names: Sequence[str] = ()
    if url is None:
        key_names, names, rows = _read_rows(options, table, instant, key, request, limit)
    else:
        from backstory.reading.database_history import read_rows

        refuse_for_database(options, known_times=request.known_at is not None)
        request = evolve(request, key=parse_named_key(key) if key else None)
        names, rows = read_rows(url, table_name(table), instant, request)
    options.show(rows[:limit], names)
    if not rows:
        record = f"record with key {describe_key(key_names, key)}" if key else "rows"
        at, known_at = f" at {time}" if time else "", words["known_at"]
        options.remark(f"No {record}{at}{f', as known at {known_at}' if known_at else ''}.")


def _read_rows(
    options: Options,
    table: str,
    instant: datetime | None,
    key: tuple[str, ...],
    request: ReadRequest,
    limit: int | None,
) -> "tuple[Sequence[str], Sequence[str], list[dict[str, Any]]]":
    """The key's columns, all columns, and the first rows in key order."""
    from backstory.reading import files, frames, pages, questions
    from backstory.stores.metadata.values import rows_of

    def read(known: "KnownTable[Any, Any]") -> "tuple[Shape, pa.Table]":
        shape = known.shape
        asked = evolve(request, key=key_of_words(shape.source_key, key) if key else None)
        if isinstance(known, files.KnownFiles):
            return shape, pages.first_rows_at(known.files, instant, asked, limit)
        frame = known.at(asked.known_at).of(asked).rows_at(instant)
        if limit is not None:
            first = questions.order_columns(shape, frame.columns)
            frame = frame.orderBy(*frames.sortable_columns(frame, first))
        return shape, collect_rows(frame, limit, options, table)

    shape, unsorted = answer_from_table(options, table, read)
    first = questions.order_columns(shape, unsorted.column_names)
    rows = rows_of(files.sort_rows(unsorted, first).slice(0, limit))
    return shape.source_key, unsorted.column_names, rows


@with_flags(TimelineRequest)
def timeline(
    table: NamedTable,
    *key: str,
    named: Annotated[Key, Parameter(name="--key")] = (),
    options: BranchOptions = BRANCH_DEFAULTS,
    url: str | None = None,
    limit: Limit = None,
    **words: Any,
) -> None:
    """Draw the timeline of one record: a bar for each version, and the values that changed.

    json and csv list the statements: values, valid_from and valid_to, the time the table held them
    (known_from, known_to), and the commit. --axis both also shows statements that were corrected later, with
    a lane for each time at which the table received other values.

    Example: `backstory timeline crm.customer 42 --axis both --svg life.svg`

    Args:
        key: The key's value, or name=value for each column of a composite key.
        named: The key as an option, as in other commands.
        url: Database with the history of a model. The key is then given as name=value.
        limit: Largest number of versions to list, oldest first. A drawing has all versions.
    """
    key = (*key, *named)
    require_key(key)
    request = TimelineRequest(key, **words)
    if url is None:
        from backstory.reading import questions

        def read(known: "KnownTable[Any, Any]") -> Timeline:
            record = key_of_words(known.shape.source_key, key)
            return questions.life(known, evolve(request, key=record))

        life = answer_from_table(options, table, read, brief=True, activity="Reading ...")
    else:
        from backstory.reading.database_history import read_life

        refuse_for_database(options, known_times=request.axis != "valid" or request.known_at is not None)
        life = read_life(url, table_name(table), parse_named_key(key), request.columns)
    if request.svg is not None:
        life.save(request.svg)
    empty = "" if life.versions else f"{life} ({life.title})"
    if options.for_people:
        console.print(empty or life.draw(line_width(wide=options.wide)), markup=False)
    else:
        options.show(life.versions[:limit])
        if empty:
            options.remark(empty)


def log(table: str, *, limit: Limit = None, options: BranchOptions = BRANCH_DEFAULTS) -> None:
    """List a table's commits, newest first: time, door, token, counts, note, author.

    For a dataset, the list has blocks, offsets and watermarks. For a native table, the list has the recorded
    time. Spark starts only if pyiceberg cannot open the catalog.

    Args:
        table: The table, as schema.table, or a dataset's name.
        limit: Largest number of commits to list.
    """
    from backstory.reading.commits import commits

    def read_commits(catalog: "Catalog") -> list[dict[str, Any]]:
        name = resolve_name(table, lambda name: catalog.describe(name) is not None)
        return commits(catalog, name or table_name(table))

    rows = answer(options, read_commits)[:limit]
    of_dataset, of_versions = (bool(rows) and name in rows[0] for name in ("block", "recorded_at"))
    columns = LOG_OF_DATASET if of_dataset else LOG_OF_VERSIONS if of_versions else LOG
    if options.for_people:
        rows = [_block_row(commit) for commit in rows] if of_dataset else rows
        rows = [with_short_times(commit, "committed_at") for commit in rows]
        for_programs = {"token", "operation", "committed_at" if of_versions else ""}
        columns = [name for name in columns if options.wide or name not in for_programs]
        columns = drop_idle_columns(columns, rows, ("note", "author"))
    options.show(rows, columns)


def _block_row(commit: dict[str, Any]) -> dict[str, Any]:
    """A dataset's commit with short times, offsets as a string, and the beginning of the block's hash."""
    offsets, block = commit["offsets"], commit["block"]
    text = "{} to {}".format(*offsets) if offsets else None
    short = with_short_times(commit, "system_time", "watermark")
    return {**short, "offsets": text, "block": block and block[:16]}


@with_flags(ExportRequest)
def export(table: NamedTable, file: Path, *, options: Options = DEFAULTS, **words: Any) -> None:
    """Write the whole history of a table into one CSV or Parquet file.

    The file has every version with valid_from and valid_to, in the order of the key. --axis both adds every
    earlier statement, with known_from and known_to. A table without history is exported as its rows. The file
    appears only when it is complete. If the command is killed, an existing file is unchanged.

    Example: `backstory export crm.customer customer.parquet --axis both`

    Args:
        file: The file, which ends in .csv or .parquet.
    """
    from backstory.reading import exports

    write = partial(exports.export, request=ExportRequest(file, **words))
    done = answer_from_table(options, table, write, activity="Writing ...")
    options.report(done.to_dict(), [f"{done.table}: {done.rows} rows in {done.file}"])


TABLES = ["table", "layout", "rows", "open_versions", "last_commit"]
TABLES_OF_VERSIONS = [*TABLES[:-1], "memory_rows", "settled", TABLES[-1]]


def tables(*, limit: Limit = None, options: Options = DEFAULTS) -> int:
    """List the tables of the warehouse: layout, rows, open versions, last commit.

    For a native table, rows counts its versions, and memory_rows counts rows that are needed only for late
    copies. settled is the interval in which no late copy is accepted. If there are no tables, the output
    names the warehouse that was searched. Spark starts only if pyiceberg cannot open the catalog.

    Args:
        limit: Largest number of tables to list.
    """
    rows = _inventory(options)
    moved = [row["error"] for row in rows if "error" in row]
    if moved and len(moved) == len(rows):
        raise UsageError(**moved[0])
    if not rows:
        settings = options.settings()
        absent = not settings.catalogs[CATALOG] and not settings.warehouse.exists()
        why = ": it does not exist" if absent else ""
        options.remark(in_flags(f"There are no tables in {settings.location}{why}."))
    rows = rows[:limit]
    columns = TABLES_OF_VERSIONS if any("settled" in row for row in rows) else TABLES
    if options.for_people:
        rows = [with_short_times(row, "last_commit") for row in rows]
        columns = columns if options.wide else drop_idle_columns(columns, rows, ("memory_rows", "settled"))
        for error in moved:
            print_error(error)
    names = columns if options.for_people else add_error_column(columns, rows)
    options.show(rows, names)
    return UsageError.exit_code if moved else 0


def _inventory(options: Options) -> list[dict[str, Any]]:
    """A row for each table. Spark starts only if a table cannot be read without it."""
    from backstory.reading.commits import inventory

    def read(catalog: "Catalog") -> dict[TableName, list[dict[str, Any]] | None]:
        return {table: answer_if_readable(partial(inventory, catalog, [table])) for table in catalog.tables()}

    rows_of = answer_from_metadata(options, read)
    if rows_of is None or None in rows_of.values():
        with open_warehouse(options, brief=True) as warehouse:
            if rows_of is None:
                return inventory(warehouse.store)
            unread = [table for table, rows in rows_of.items() if rows is None]
            rows_of |= {table: inventory(warehouse.store, [table]) for table in unread}
    return [row for rows in rows_of.values() for row in rows or ()]


def views(table: NamedTable, *, dry_run: Flag = False, options: Options = DEFAULTS) -> None:
    """Create views of a history for Spark SQL: TABLE_current and TABLE_versions.

    The views are in the table's catalog and work in every session. Iceberg catalogs have no functions, so the
    command prints the query for the rows at a time, with the parameter :time. A view keeps the columns that
    it was created with, so run the command again after the table's columns change. For meta.load_run_log, the
    views are meta.hist_run and meta.hist_step_log: the runs of models and their steps.

    Example: `backstory views crm.customer`

    Args:
        dry_run: Print the SQL, and create nothing.
    """
    with open_warehouse(options, table) as warehouse:
        rows = warehouse.table(table).views(dry_run=dry_run)
    options.show(rows, ["view", "made", "sql"])
    if not dry_run and not any(row["made"] for row in rows):
        options.remark("No view was created: this catalog holds no views.")


def sql(query: str, *, limit: Limit = None, options: Options = DEFAULTS) -> None:
    """Run one read-only query of Spark SQL on the tables of the warehouse.

    A query computes rows with Spark's own functions, or lists and describes tables (SHOW TABLES, DESCRIBE).
    Name a table as schema.table, and put a name with dots or dashes in backticks: `` odf.`demo.city-2` ``.

    Args:
        query: The query.
        limit: Largest number of rows to print.
    """
    with open_warehouse(options) as warehouse:
        frame = warehouse.sql(query)
        rows = rows_of_frame(frame, limit, options, "a table of the query")
        options.show(rows, frame.columns)


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
    from backstory.explorer.access import open_explorer
    from backstory.explorer.catalog_reader import table_reader

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
        options.show_one({"link": running.link})
    else:
        location = in_flags(f"Exploring {settings.location}")
        print_lines([location, f"  {running.link}    (Ctrl-C ends)"])
    sys.stdout.flush()
    if not no_open and sys.stdout.isatty():
        threading.Thread(target=webbrowser.open, args=(running.link,), daemon=True).start()
    ended.wait()
    running.stop()
