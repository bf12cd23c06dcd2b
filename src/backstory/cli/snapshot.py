"""`snapshot`, `apply` and `historize`: keep the history of a source, a feed of changes, or a model."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstory.cli.answers import log_for_options, open_warehouse
from backstory.cli.options import DEFAULTS, Flag, Options, with_flags
from backstory.cli.output import (
    NOTHING_WRITTEN,
    console,
    in_flags,
    print_changes,
    print_error,
    show,
)
from backstory.doors.historize.receipts import HistorizeRequest
from backstory.doors.native.options import ApplyRequest, SnapshotRequest, source_of
from backstory.engine.run_context import collect_rehearsals
from backstory.errors import UsageError
from backstory.formats.source_files import SourceFiles
from backstory.model.receipt import exit_code
from backstory.spark.process import return_freed_memory

if TYPE_CHECKING:
    from backstory.doors.historize.receipts import HistoryReceipt
    from backstory.engine.run_context import Rehearsals

COLUMNS = ("dataset", "run_id", "load_timestamp", "status", "counts", "schema_changes")


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
    return_freed_memory()
    _deliver(source, SnapshotRequest(**words), options)


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
    _deliver(source, ApplyRequest(**words), options)


def _deliver(source: str, request: SnapshotRequest | ApplyRequest, options: Options) -> None:
    """Deliver a source to a native table, and print the receipt, or the plan of a dry run."""
    delivered = source_of(source, request)
    in_envelope = isinstance(request, ApplyRequest) and request.envelope is not None
    if isinstance(delivered, SourceFiles) and not in_envelope:
        from backstory.doors.native.refusals import refuse_files

        refuse_files(delivered, request)
    is_feed = isinstance(request, ApplyRequest)
    activity = "Applying the changes to the table ..." if is_feed else "Comparing with the table ..."
    with open_warehouse(options, activity=activity) as warehouse:
        from backstory.doors.native import door

        if isinstance(request, ApplyRequest):
            receipt = door.apply(warehouse.store, delivered, request).to_dict()
        else:
            receipt = door.snapshot(warehouse.store, delivered, request).to_dict()
    changes = [in_flags(change).replace("`", "") for change in receipt["schema_changes"]]
    receipt = {**receipt, "schema_changes": changes}
    if options.for_people:
        receipt |= {name: _nonempty_lines(receipt[name]) for name in ("keys", "columns") if name in receipt}
    options.show_one(receipt)
    if request.dry_run and options.for_people:
        console.print(NOTHING_WRITTEN)


def _nonempty_lines(values: dict[str, Any]) -> list[str]:
    """A line for each outcome or column that has a value."""
    return [
        f"{name}: {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in values.items()
        if value
    ]


@with_flags(HistorizeRequest)
def historize(
    model: Path | None = None,
    *,
    options: Options = DEFAULTS,
    resolved: Flag = False,
    schema: Flag = False,
    **words: Any,
) -> int:
    """Load base tables from their stage, and then their histories.

    A second run with the same --run-id changes nothing. If the first run was interrupted, the second run
    continues it.

    Args:
        model: The model, a YAML file of the format historize/1.
        resolved: Print the model with every default and generated column, and change nothing.
        schema: Print the JSON Schema of models, for editors.
    """
    request = HistorizeRequest(model or "", **words)
    if schema or resolved or request.sql or model is None:
        sys.stdout.write(_model_text(request, schema=schema, resolved=resolved))
        return 0
    log_for_options(options)
    receipts, changes = _load(request, options)
    _show_receipts([receipt.to_dict() for receipt in receipts], options, changes, dry_run=request.dry_run)
    return exit_code(receipts)


def _model_text(request: HistorizeRequest, *, schema: bool, resolved: bool) -> str:
    """The JSON Schema of models, or the model with every default, or the statements that load it."""
    from backstory.doors.historize import door, hist_state, model

    if schema:
        return json.dumps(model.Model.model_json_schema(), indent=2) + "\n"
    if not request.model:
        raise UsageError("no-model", "No model is given.", "Use `backstory historize MODEL.yaml`.")
    if resolved:
        return hist_state.as_yaml(door.open_model(request.model)[0])
    return door.script(door.choose(request.model, request.dialect), request.dataset)


def _load(request: HistorizeRequest, options: Options) -> "tuple[list[HistoryReceipt], Rehearsals]":
    """Load a model into a database or the warehouse. Returns the receipts, and the changes of a dry run."""
    from backstory.doors.historize import door

    chosen = door.choose(request.model, request.dialect)
    if not chosen.on_spark:
        return door.historize_on_database(chosen, request.url, request), []
    if request.url is not None:
        raise UsageError(
            "wrong-url",
            "`--url` was given, but the model's dialect is Spark, whose tables are in the warehouse.",
            "Use `--dialect duckdb` or `--dialect postgres` with `--url`, or leave out `--url`.",
        )
    if refusals := door.early_refusals(chosen, request):
        return refusals, []
    with open_warehouse(options) as warehouse, collect_rehearsals() as changes:
        return door.historize_on_spark(chosen, warehouse.store, request), changes


def _show_receipts(
    receipts: "Sequence[dict[str, Any]]", options: Options, changes: "Rehearsals", *, dry_run: bool
) -> None:
    if options.output_format == "json":
        options.show(receipts)
        return
    columns = (*COLUMNS, "keys") if dry_run else COLUMNS
    show([_receipt_row(receipt, columns) for receipt in receipts], options.output_format, columns)
    if options.for_people:
        print_changes(changes)
    for receipt in receipts:
        if receipt["error"]:
            print_error(receipt["error"], f"{receipt['dataset']}: ")


def _receipt_row(receipt: dict[str, object], columns: tuple[str, ...]) -> dict[str, object]:
    """A receipt as a row, with nested values as strings."""
    row = {name: receipt.get(name) for name in columns}
    changes = row["schema_changes"]
    row["schema_changes"] = ", ".join(changes) if isinstance(changes, list) and changes else None
    keys = row.get("keys")
    if isinstance(keys, dict):
        lists = (f"{outcome}: {', '.join(sample)}" for outcome, sample in keys.items() if sample)
        row["keys"] = "; ".join(lists) or None
    return row
