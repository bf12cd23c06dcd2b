"""`backstory snapshot`: a full copy of a source becomes history.

How the receipts of native tables are printed.
"""

from typing import Any

from backstory.cli.answers import open_warehouse
from backstory.cli.options import (
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
from backstory.doors.native.options import TABLE, Deletes, OnSchemaChange, parse_options
from backstory.formats.source_files import FileFormat
from backstory.model.table import table_name
from backstory.sources.databases.address import is_database, parse_address


def show_receipt(receipt: dict[str, Any], options: Options, *, dry_run: bool) -> None:
    """Print a receipt, or the plan of a dry run; options in it are flags."""
    receipt = {
        **receipt,
        "schema_changes": [in_flags(each).replace("`", "") for each in receipt["schema_changes"]],
    }
    if options.answer == "table":
        receipt |= {name: _nonempty_lines(receipt[name]) for name in ("keys", "columns") if name in receipt}
    show_one(receipt, options.answer, wide=options.wide)
    if dry_run and options.answer == "table":
        console.print(NOTHING_WRITTEN)


def _nonempty_lines(by_name: dict[str, Any]) -> list[str]:
    """A line for each outcome or column that has something."""
    return [
        f"{name}: {', '.join(map(str, each)) if isinstance(each, list) else each}"
        for name, each in by_name.items()
        if each
    ]


DEFAULTS = Options()
AS_EXPECTED = FileFlags()


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
    """Keep the history of a source: compare a full copy with the table, and store what changed.

    The first copy creates the table, which keeps the key and the tracked columns: they need not be repeated.
    A record that is missing from the copy is closed. A copy that changes nothing makes no commit.

    Example: `backstory snapshot customers.csv --into crm.customer --key customer_id`

    Args:
        source: A file, a folder, a glob in quotes (CSV, Parquet or JSON lines), table:schema.table, or the
            address of a database: postgresql://user@host/db?table=schema.table.
        into: The table, as schema.table.
        key: Key columns, separated by commas.
        at: The time the copy was taken, ISO 8601. Default: now. A copy that changes nothing leaves no trace
            of its time unless the table (see option --remember) remembers its copies.
        deletes: What happens to records that are missing from the copy.
        max_delete_ratio: The largest share of the records that one copy may close.
        max_null_ratio: The largest share of a column's values that one copy may replace by NULL; a loss of
            fewer than 20 is always allowed.
        allow_empty: Accept an empty source.
        track: Columns whose changes make versions. Default: all.
        ignore: Columns whose changes make no versions.
        overwrite: Columns overwritten in place, with no history kept.
        on_schema_change: Refuse a copy that lacks a column of the last one, or in which a new column has the
            values of a missing one; the table keeps `refuse`, and `accept` is for this copy alone.
        rename: New names of columns: old=new.
        retype: New types of columns: amount=DOUBLE. Refused where a stored value would change.
        scope: The part of the source that the copy is of: region=EU. Records outside it stay as they are.
        backfill: Accept a copy older than everything stored; from then on the table remembers its copies.
        remember: From now on store the time of every copy, also of those that change nothing, so that a late
            copy holds only until the next one. Needed once: the table keeps it.
        backfill_added: Write the values of a new column into the open versions instead of opening new ones.
        restate: Replace the stored copy for the same time.
        format: Format of the files, whatever their endings: csv, parquet, jsonl or json.
        files: How the files are written.
        query: The rows of a database, as a SELECT statement, in place of those of a table.
        dry_run: Print counts, sample keys and the columns that drive the changes; write nothing.
        remark: The note and the author of the commit.
        options: Common options.
    """
    from backstory.formats.source_files import source_files

    table = table_name(into)
    given = parse_options(
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
    if is_database(source):
        parse_address(source, query)
    elif source.startswith(TABLE):
        table_name(source.removeprefix(TABLE))
    else:
        from backstory.doors.native.refusals import refuse_files

        refuse_files(source_files(source, format), given)
    with open_warehouse(options) as warehouse:
        from backstory.doors.native import door

        with show_activity(options, "Comparing with what is stored ..."):
            answer = door.snapshot(warehouse.store, source, table, given)
    show_receipt(answer.to_dict(), options, dry_run=dry_run)
