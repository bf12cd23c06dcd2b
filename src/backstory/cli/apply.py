"""`backstory apply`: keep the history of a source from a feed of its changes."""

from typing import Unpack

from backstory.cli.answers import open_warehouse
from backstory.cli.flags import with_flags
from backstory.cli.options import DEFAULTS, Options
from backstory.cli.progress import show_activity
from backstory.cli.snapshot import check_source, show_receipt
from backstory.doors.native.options import (
    FEED,
    ApplyRequest,
    FeedOptions,
    SnapshotRequest,
    parse_feed_options,
)
from backstory.model.table import table_name


@with_flags(*FEED, request=ApplyRequest)
def apply(
    source: str,
    /,
    *,
    into: str,
    options: Options = DEFAULTS,
    **words: Unpack[FeedOptions],
) -> None:
    """Keep the history of a feed of changes, which may arrive late, twice and in any order.

    The table is the same in any order, except for changes of a settled time. The first delivery creates the
    table, which keeps the key, the order, the tracked columns and the meaning of rows (deletes, unmodified
    cells, dropped columns). Later calls need not repeat them. A column that is missing from a change keeps
    its value.

    Example: `backstory apply changes.jsonl --into crm.customer --key id --sequence-by changed_at,lsn`

    Args:
        source: A file, a folder, a glob in quotes (CSV, Parquet or JSON lines), table:schema.table, or the
            address of a database: postgresql://user@host/db?table=schema.table.
        into: The table, as schema.table.
        options: Common options.
    """
    table = table_name(into)
    request = parse_feed_options(**words)
    readable = SnapshotRequest(allow_empty=True, format=request.format, files=request.files)
    check_source(source, request.query, readable if request.envelope is None else None)
    with open_warehouse(options) as warehouse:
        from backstory.doors.native import door

        with show_activity(options, "Applying the changes to the table ..."):
            receipt = door.apply(warehouse.store, source, table, request)
    show_receipt(receipt.to_dict(), options, dry_run=request.dry_run)
