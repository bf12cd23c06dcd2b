"""`backstory historize`: load the base tables and histories of a model."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstory.cli.answers import log_for_options, open_warehouse
from backstory.cli.options import DEFAULTS, Flag, Options, with_flags
from backstory.cli.output import print_changes, print_error, show
from backstory.doors.historize.receipts import HistorizeRequest
from backstory.engine.run_context import collect_rehearsals
from backstory.errors import UsageError
from backstory.model.receipt import exit_code

if TYPE_CHECKING:
    from backstory.doors.historize.receipts import HistoryReceipt
    from backstory.engine.run_context import Rehearsals

COLUMNS = ("dataset", "run_id", "load_timestamp", "status", "counts", "schema_changes")


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

    A second run with the same --run-id changes nothing. If the first run was interrupted, the second one
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
    from backstory.doors.historize import door, hist_state, model, model_load

    if schema:
        return json.dumps(model.Model.model_json_schema(), indent=2) + "\n"
    if not request.model:
        raise UsageError("no-model", "No model is given.", "Use `backstory historize MODEL.yaml`.")
    if resolved:
        return hist_state.as_yaml(model_load.open_model(request.model)[0])
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
        show(receipts, "json")
        return
    columns = (*COLUMNS, "keys") if dry_run else COLUMNS
    show([_receipt_row(receipt, columns) for receipt in receipts], options.output_format, columns)
    if options.output_format == "table":
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
