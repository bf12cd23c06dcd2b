"""`backstory apply`: changes of a source, in any order, become history."""

from backstory.cli.answers import open_warehouse
from backstory.cli.options import (
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
from backstory.cli.snapshot import show_receipt
from backstory.doors.native.options import (
    TABLE,
    EnvelopeName,
    Late,
    OnSchemaChange,
    SnapshotRequest,
    parse_feed_options,
)
from backstory.formats.source_files import FileFormat
from backstory.model.table import table_name
from backstory.sources.databases.address import is_database, parse_address

DEFAULTS = Options()
AS_EXPECTED = FileFlags()


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

    The table is the same in any order, except for changes of a settled time. The first delivery creates it;
    it keeps the key, the order, the tracked columns and what rows mean (deletes, unmodified cells, dropped
    columns), which need not be repeated. Columns that a change does not have stay as they were.

    Example: `backstory apply changes.jsonl --into crm.customer --key id --sequence-by changed_at,lsn`

    Args:
        source: A file, a folder, a glob in quotes (CSV, Parquet or JSON lines), table:schema.table, or the
            address of a database: postgresql://user@host/db?table=schema.table.
        into: The table, as schema.table.
        key: Key columns, separated by commas.
        sequence_by: Columns or SQL expressions that order the changes: first the time of the change, then
            what orders changes of one time, such as a log position.
        apply_as_deletes: SQL condition for rows that delete their record, such as "op = 'D'".
        apply_as_truncates: SQL condition for rows that delete every record.
        ignore_null_updates: NULL leaves a column as it was: these columns, or all without names.
        columns_to_update: The column whose array names the columns that a row sets.
        unmodified: A cell with this text leaves its column as it was: in CSV any column, else one of texts.
        envelope: The form of the messages: debezium or changes.
        drop: Columns that are not stored.
        track: Columns whose changes make versions. Default: all.
        ignore: Columns whose changes make no versions.
        overwrite: Columns overwritten in place, with no history kept.
        on_schema_change: Refuse a delivery that lacks a column of the last one; the table keeps `refuse`, and
            `accept` is for this delivery alone.
        late: What happens to changes of a settled time.
        restate_from: Replace what is stored from this time on, of the delivered keys.
        restate_until: The end of what is replaced. Default: just after the last delivered time.
        all_keys: Replace what is stored of all keys.
        allow_empty: Accept an empty source, with option --all-keys.
        new_log: Accept messages of a log that starts again; everything before it is then settled.
        allow_future: Accept messages that say that they are of a time more than a day from now.
        format: Format of the files, whatever their endings: csv, parquet, jsonl or json.
        files: How the files are written.
        query: The rows of a database, as a SELECT statement, in place of those of a table.
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
    if is_database(source):
        parse_address(source, query)
    elif source.startswith(TABLE):
        table_name(source.removeprefix(TABLE))
    elif envelope is None:
        from backstory.doors.native.refusals import refuse_files
        from backstory.formats.source_files import source_files

        readable = SnapshotRequest(allow_empty=True, format=format, files=request.files)
        refuse_files(source_files(source, format), readable)
    with open_warehouse(options) as warehouse:
        from backstory.doors.native import door

        with show_activity(options, "Folding the changes into what is stored ..."):
            answer = door.apply(warehouse.store, source, table, request)
    show_receipt(answer.to_dict(), options, dry_run=dry_run)
