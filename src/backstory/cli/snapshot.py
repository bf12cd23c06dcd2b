"""`backstory snapshot` and `apply`: keep the history of a source, from full copies or a feed of changes."""

from typing import Any

from backstory.cli.answers import open_warehouse
from backstory.cli.options import DEFAULTS, Options, with_flags
from backstory.cli.output import NOTHING_WRITTEN, console, in_flags, show_one
from backstory.cli.progress import show_activity
from backstory.doors.native.options import ApplyRequest, SnapshotRequest, source_of
from backstory.formats.source_files import SourceFiles


@with_flags(SnapshotRequest)
def snapshot(source: str, /, *, options: Options = DEFAULTS, **words: Any) -> None:
    """Keep the history of a source: compare a full copy with the table, and store the differences.

    The first copy creates the table. The table keeps the key and the tracked columns, so later calls need not
    repeat them. A record that is missing from the copy is closed. A copy without changes makes no commit.

    Example: `backstory snapshot customers.csv --into crm.customer --key customer_id`

    Args:
        source: A file, a folder, a glob in quotes (CSV, Parquet or JSON lines), table:schema.table, or the
            address of a database: postgresql://user@host/db?table=schema.table.
    """
    request = SnapshotRequest(**words)
    delivered = source_of(source, request)
    if isinstance(delivered, SourceFiles):
        from backstory.doors.native.refusals import refuse_files

        refuse_files(delivered, request)
    with open_warehouse(options) as warehouse:
        from backstory.doors.native import door

        with show_activity(options, "Comparing with the table ..."):
            receipt = door.snapshot(warehouse.store, delivered, request)
    show_receipt(receipt.to_dict(), options, dry_run=request.dry_run)


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


@with_flags(ApplyRequest)
def apply(source: str, /, *, options: Options = DEFAULTS, **words: Any) -> None:
    """Keep the history of a feed of changes, which may arrive late, twice and in any order.

    The order of arrival makes no difference to the table, except for changes whose time is already settled.
    The first delivery creates the table, which keeps the key, the order, the tracked columns and the meaning
    of rows (deletes, unmodified cells, dropped columns). Later calls need not repeat them. A column that is
    missing from a change keeps its value.

    Example: `backstory apply changes.jsonl --into crm.customer --key id --sequence-by changed_at,lsn`

    Args:
        source: A file, a folder, a glob in quotes (CSV, Parquet or JSON lines), table:schema.table, or the
            address of a database: postgresql://user@host/db?table=schema.table.
    """
    request = ApplyRequest(**words)
    delivered = source_of(source, request)
    if isinstance(delivered, SourceFiles) and request.envelope is None:
        from backstory.doors.native.refusals import refuse_files

        refuse_files(delivered, request)
    with open_warehouse(options) as warehouse:
        from backstory.doors.native import door

        with show_activity(options, "Applying the changes to the table ..."):
            receipt = door.apply(warehouse.store, delivered, request)
    show_receipt(receipt.to_dict(), options, dry_run=request.dry_run)
