"""`backstory apply`: keep the history of a source from a feed of its changes."""

from backstory.cli.answers import open_warehouse
from backstory.cli.options import (
    AS_EXPECTED,
    DEFAULTS,
    NO_REMARK,
    FileFlags,
    Flag,
    Names,
    NamesOrAll,
    Options,
    RemarkFlags,
    names_or_none,
    parse_names,
    parse_parts,
)
from backstory.cli.progress import show_activity
from backstory.cli.snapshot import check_source, show_receipt
from backstory.doors.native.options import (
    EnvelopeName,
    Late,
    OnSchemaChange,
    SnapshotRequest,
    parse_feed_options,
)
from backstory.formats.source_files import FileFormat
from backstory.model.table import table_name


def apply(
    source: str,
    /,
    *,
    into: str,
    key: Names = (),
    sequence_by: Names = (),
    apply_as_deletes: str | None = None,
    apply_as_truncates: str | None = None,
    ignore_null_updates: NamesOrAll = None,
    columns_to_update: str | None = None,
    unmodified: str | None = None,
    envelope: EnvelopeName | None = None,
    drop: Names = (),
    track: Names = (),
    ignore: Names = (),
    overwrite: Names = (),
    on_schema_change: OnSchemaChange | None = None,
    late: Late = "refuse",
    restate_from: str | None = None,
    restate_until: str | None = None,
    all_keys: Flag = False,
    allow_empty: Flag = False,
    new_log: Flag = False,
    allow_future: Flag = False,
    format: FileFormat | None = None,  # noqa: A002 - the option's name
    files: FileFlags = AS_EXPECTED,
    query: str | None = None,
    dry_run: Flag = False,
    remark: RemarkFlags = NO_REMARK,
    options: Options = DEFAULTS,
) -> None:
    """Keep the history of a feed of changes, which may arrive late, twice and in any order.

    The table is the same in any order, except for changes of a settled time. The first delivery creates the
    table, which keeps the key, the order, the tracked columns and the meaning of rows (deletes, unmodified
    cells, dropped columns). Later calls need not repeat them. A column that is missing from a change stays as
    it was.

    Example: `backstory apply changes.jsonl --into crm.customer --key id --sequence-by changed_at,lsn`

    Args:
        source: A file, a folder, a glob in quotes (CSV, Parquet or JSON lines), table:schema.table, or the
            address of a database: postgresql://user@host/db?table=schema.table.
        into: The table, as schema.table.
        key: Key columns, separated by commas.
        sequence_by: Columns or SQL expressions that order the changes. The first is the time of the change;
            the others, such as a log position, order changes of the same time.
        apply_as_deletes: SQL condition for rows that delete their record, such as "op = 'D'".
        apply_as_truncates: SQL condition for rows that delete every record.
        ignore_null_updates: Columns that NULL leaves as they were; without names, all columns.
        columns_to_update: Column whose array names the columns that a row sets.
        unmodified: Text of a cell that leaves its column as it was: any column of a CSV file, else a column
            of texts.
        envelope: Envelope of the messages: debezium or changes.
        drop: Columns that are not stored.
        track: Columns whose changes make versions. Default: all.
        ignore: Columns whose changes make no versions.
        overwrite: Columns overwritten in place, with no history kept.
        on_schema_change: Accept or refuse a delivery that lacks a column of the previous one. The table keeps
            `refuse`; `accept` is for this delivery.
        late: Refuse or drop changes of a settled time.
        restate_from: Replace the stored history from this time on, for the delivered keys.
        restate_until: End of the replaced time. Default: just after the last delivered time.
        all_keys: Replace the stored history of all keys.
        allow_empty: Accept an empty source, with option --all-keys.
        new_log: Accept messages of a log that starts again; everything before it is then settled.
        allow_future: Accept messages with a time more than a day from now.
        format: Format of the files: csv, parquet, jsonl or json. Default: by their endings.
        files: The form of the files.
        query: A SELECT statement for the rows of a database, instead of a table.
        dry_run: Print counts, sample keys and the columns that drive the changes; write nothing.
        remark: The note and the author of the commit.
        options: Common options.
    """
    table = table_name(into)
    request = parse_feed_options(
        key=names_or_none(key),
        sequence_by=parse_parts(sequence_by) or None,
        apply_as_deletes=apply_as_deletes,
        apply_as_truncates=apply_as_truncates,
        ignore_null_updates=None if ignore_null_updates is None else parse_names(ignore_null_updates) or True,
        columns_to_update=columns_to_update,
        unmodified=unmodified,
        envelope=envelope,
        drop=names_or_none(drop),
        track=names_or_none(track),
        ignore=names_or_none(ignore),
        overwrite=names_or_none(overwrite),
        on_schema_change=on_schema_change,
        late=late,
        restate_from=restate_from,
        restate_until=restate_until,
        all_keys=all_keys,
        allow_empty=allow_empty,
        new_log=new_log,
        allow_future=allow_future,
        format=format,
        query=query,
        dry_run=dry_run,
        **files.arguments(),
        **remark.arguments(),
    )
    readable = SnapshotRequest(allow_empty=True, format=format, files=request.files)
    check_source(source, query, readable if envelope is None else None)
    with open_warehouse(options) as warehouse:
        from backstory.doors.native import door

        with show_activity(options, "Applying the changes to the table ..."):
            receipt = door.apply(warehouse.store, source, table, request)
    show_receipt(receipt.to_dict(), options, dry_run=dry_run)
