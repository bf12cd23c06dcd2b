"""`backstory historize`: load the base tables and histories of a model."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from backstory.cli.answers import log_for_options, open_warehouse
from backstory.cli.options import DEFAULTS, Flag, Options, with_flags
from backstory.cli.output import print_changes, print_error, show
from backstory.doors.historize.receipts import LoadOptions, LoadRequest
from backstory.engine.run_context import collect_rehearsals
from backstory.errors import UsageError
from backstory.model.receipt import exit_code

if TYPE_CHECKING:
    from backstory.doors.historize.receipts import HistoryReceipt
    from backstory.engine.run_context import Rehearsals

COLUMNS = ("dataset", "run_id", "load_timestamp", "status", "counts", "schema_changes")


@with_flags(LoadOptions)
def historize(
    model: Path | None = None,
    *,
    dialect: str | None = None,
    url: str | None = None,
    options: Options = DEFAULTS,
    sql: Flag = False,
    resolved: Flag = False,
    schema: Flag = False,
    **words: Unpack[LoadOptions],
) -> int:
    """Load base tables from their stage, and then their histories.

    A second run with the same --run-id changes nothing. If the first run was interrupted, the second one
    continues it.

    Args:
        model: The model, a YAML file of the format historize/1.
        dialect: spark, duckdb, postgres, sqlserver (with --sql only), or a registered one.
        url: Address of the database: duckdb:///path/file.duckdb, postgresql://user@host:port/database.
        sql: Print the statements, with placeholders, and change nothing.
        resolved: Print the model with every default and generated column, and change nothing.
        schema: Print the JSON Schema of models, for editors.
    """
    if schema or resolved or sql or model is None:
        sys.stdout.write(_model_text(model, dialect, words["dataset"], schema=schema, resolved=resolved))
        return 0
    log_for_options(options)
    receipts, changes = _load(model, dialect, url, options, LoadRequest(**words))
    _show_receipts([receipt.to_dict() for receipt in receipts], options, changes, dry_run=words["dry_run"])
    return exit_code(receipts)


def _model_text(
    model: Path | None, dialect: str | None, dataset: str | None, *, schema: bool, resolved: bool
) -> str:
    """The JSON Schema of models, or the model with every default, or the statements that load it."""
    from backstory.doors.historize import door
    from backstory.doors.historize.hist_state import as_yaml
    from backstory.doors.historize.model import Model
    from backstory.doors.historize.model_load import open_model

    if schema:
        return json.dumps(Model.model_json_schema(), indent=2) + "\n"
    if model is None:
        raise UsageError("no-model", "No model is given.", "Use `backstory historize MODEL.yaml`.")
    return as_yaml(open_model(model)[0]) if resolved else door.script(door.choose(model, dialect), dataset)


def _load(
    model: Path, dialect: str | None, url: str | None, options: Options, request: LoadRequest
) -> "tuple[list[HistoryReceipt], Rehearsals]":
    """Load a model into a database or the warehouse. Returns the receipts, and the changes of a dry run."""
    from backstory.doors.historize import door

    chosen = door.choose(model, dialect)
    if not chosen.on_spark:
        return door.historize_on_database(chosen, url, request), []
    if url is not None:
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
