"""`backstory snapshot`: keep the history of a source from its full copies."""

from typing import Any

from backstory.cli.answers import open_warehouse
from backstory.cli.options import (
    AS_EXPECTED,
    DEFAULTS,
    NO_REMARK,
    FileFlags,
    Flag,
    Names,
    Options,
    RemarkFlags,
    names_or_none,
    parse_pairs,
)
from backstory.cli.output import NOTHING_WRITTEN, console, in_flags, show_one
from backstory.cli.progress import show_activity
from backstory.doors.native.options import TABLE, Deletes, OnSchemaChange, SnapshotRequest, parse_options
from backstory.formats.source_files import FileFormat, source_files
from backstory.model.table import table_name
from backstory.sources.databases.address import is_database, parse_address


def snapshot(
    source: str,
    /,
    *,
    into: str,
    key: Names = (),
    at: str | None = None,
    deletes: Deletes = "close",
    max_delete_ratio: float = 0.5,
    max_null_ratio: float = 0.5,
    allow_empty: Flag = False,
    track: Names = (),
    ignore: Names = (),
    overwrite: Names = (),
    on_schema_change: OnSchemaChange | None = None,
    rename: Names = (),
    retype: Names = (),
    scope: Names = (),
    backfill: Flag = False,
    remember: Flag = False,
    backfill_added: Flag = False,
    restate: Flag = False,
    format: FileFormat | None = None,  # noqa: A002 - the option's name
    files: FileFlags = AS_EXPECTED,
    query: str | None = None,
    dry_run: Flag = False,
    remark: RemarkFlags = NO_REMARK,
    options: Options = DEFAULTS,
) -> None:
    """Keep the history of a source: compare a full copy with the table, and store the differences.

    The first copy creates the table. The table keeps the key and the tracked columns, so later calls need not
    repeat them. A record that is missing from the copy is closed. A copy without changes makes no commit.

    Example: `backstory snapshot customers.csv --into crm.customer --key customer_id`

    Args:
        source: A file, a folder, a glob in quotes (CSV, Parquet or JSON lines), table:schema.table, or the
            address of a database: postgresql://user@host/db?table=schema.table.
        into: The table, as schema.table.
        key: Key columns, separated by commas. `row`, if the source has no such column: the whole row is the
            key, and equal rows are counted in a column `copies`.
        at: The time the copy was taken, ISO 8601. Default: now. For a copy without changes, the time is
            stored only if the table remembers its copies (see option --remember).
        deletes: Close records that are missing from the copy, or ignore that they are missing.
        max_delete_ratio: Largest share of the records that one copy may close, 0 to 1.
        max_null_ratio: Largest share of a column's values that one copy may replace with NULL, 0 to 1. A loss
            of fewer than 20 values is always allowed.
        allow_empty: Accept an empty source.
        track: Columns whose changes make versions. Default: all.
        ignore: Columns whose changes make no versions.
        overwrite: Columns overwritten in place, with no history kept.
        on_schema_change: Accept or refuse a copy that lacks a column of the previous copy, or whose new
            column has the values of a missing one. The table keeps `refuse`; `accept` is for this copy.
        rename: New names of columns, as old=new.
        retype: New types of columns, as amount=DOUBLE. Refused if a stored value would change.
        scope: The part of the source in the copy, as region=EU. Records outside it stay as they are.
        backfill: Accept a copy older than all stored data. The table remembers its copies from then on.
        remember: Store the time of every copy from now on, even of copies without changes, so that a late
            copy holds only until the next one. The table keeps this setting.
        backfill_added: Write the values of a new column into the open versions instead of opening new ones.
        restate: Replace the stored copy for the same time.
        format: Format of the files: csv, parquet, jsonl or json. Default: by their endings.
        files: The form of the files.
        query: A SELECT statement for the rows of a database, instead of a table.
        dry_run: Print counts, sample keys and the columns that drive the changes; write nothing.
        remark: The note and the author of the commit.
        options: Common options.
    """
    table = table_name(into)
    request = parse_options(
        key=names_or_none(key),
        at=at,
        deletes=deletes,
        max_delete_ratio=max_delete_ratio,
        max_null_ratio=max_null_ratio,
        allow_empty=allow_empty,
        track=names_or_none(track),
        ignore=names_or_none(ignore),
        overwrite=names_or_none(overwrite),
        on_schema_change=on_schema_change,
        rename=parse_pairs(rename, "--rename old=new"),
        retype=parse_pairs(retype, "--retype column=TYPE"),
        scope=parse_pairs(scope, "--scope column=value"),
        backfill=backfill,
        remember=remember,
        backfill_added=backfill_added,
        restate=restate,
        format=format,
        query=query,
        dry_run=dry_run,
        **files.arguments(),
        **remark.arguments(),
    )
    check_source(source, query, request)
    with open_warehouse(options) as warehouse:
        from backstory.doors.native import door

        with show_activity(options, "Comparing with the table ..."):
            receipt = door.snapshot(warehouse.store, source, table, request)
    show_receipt(receipt.to_dict(), options, dry_run=dry_run)


def check_source(source: str, query: str | None, request: SnapshotRequest | None) -> None:
    """Check a source before Spark starts: its name and, with a request, its files."""
    if is_database(source):
        parse_address(source, query)
    elif source.startswith(TABLE):
        table_name(source.removeprefix(TABLE))
    elif request is not None:
        from backstory.doors.native.file_checks import refuse_files

        refuse_files(source_files(source, request.format), request)


def show_receipt(receipt: dict[str, Any], options: Options, *, dry_run: bool) -> None:
    """Print the receipt of a native table, or the plan of a dry run."""
    receipt = {
        **receipt,
        "schema_changes": [in_flags(change).replace("`", "") for change in receipt["schema_changes"]],
    }
    if options.output_format == "table":
        receipt |= {name: _nonempty_lines(receipt[name]) for name in ("keys", "columns") if name in receipt}
    show_one(receipt, options.output_format, wide=options.wide)
    if dry_run and options.output_format == "table":
        console.print(NOTHING_WRITTEN)


def _nonempty_lines(values: dict[str, Any]) -> list[str]:
    """A line for each outcome or column that has a value."""
    return [
        f"{name}: {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in values.items()
        if value
    ]
