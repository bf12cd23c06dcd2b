"""`backstory historize`: load the base tables and histories of a model."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from backstory.cli.answers import open_warehouse
from backstory.cli.options import DEFAULTS, Flag, Options
from backstory.cli.output import print_changes, print_error, show
from backstory.errors import UsageError
from backstory.model.receipt import exit_code

if TYPE_CHECKING:
    from backstory.engine.run_context import Rehearsals

COLUMNS = ("dataset", "run_id", "load_timestamp", "status", "counts", "schema_changes")


def historize(
    model: Path | None = None,
    *,
    dataset: str | None = None,
    run_id: str | None = None,
    load_timestamp: str | None = None,
    skip_base: Flag = False,
    dialect: str | None = None,
    url: str | None = None,
    allow_empty: Flag = False,
    max_delete_ratio: float | None = None,
    hash_change: Literal["version", "rehash"] | None = None,
    relabel: Flag = False,
    dry_run: Flag = False,
    sql: Flag = False,
    resolved: Flag = False,
    schema: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """Load base tables from their stage, and then their histories.

    A second run with the same --run-id changes nothing; if the first one was interrupted, the second one
    continues it.

    Args:
        model: The model, a YAML file of the format historize/1.
        dataset: Load only this dataset.
        run_id: Name of the run. Default: a new one.
        load_timestamp: The time of the run, ISO 8601. Default: now.
        skip_base: Keep the base tables as they are, and load only their histories.
        dialect: spark, duckdb, postgres, sqlserver (with --sql only), or a registered one.
        url: Address of the database: duckdb:///path/file.duckdb, postgresql://user@host:port/database.
        allow_empty: Accept an empty stage or base, which closes every version.
        max_delete_ratio: Largest share of the open versions that this load may close as deleted, 0 to 1.
        hash_change: After a change of the hash profile, write a new version of every record (version), or
            only new hashes (rehash).
        relabel: Change the stored state labels to the labels of the model.
        dry_run: Print counts and keys, and change nothing.
        sql: Print the statements, with placeholders, and change nothing.
        resolved: Print the model with every default and generated column, and change nothing.
        schema: Print the JSON Schema of models, for editors.
        options: Common options.
    """
    from backstory.doors.historize import door
    from backstory.doors.historize.door import early_refusals
    from backstory.doors.historize.hist_state import as_yaml
    from backstory.doors.historize.model import Model
    from backstory.doors.historize.model_load import open_model
    from backstory.doors.historize.receipts import LoadRequest
    from backstory.engine.run_context import collect_rehearsals
    from backstory.observe.logs import log_for_people

    if schema:
        sys.stdout.write(json.dumps(Model.model_json_schema(), indent=2) + "\n")
        return 0
    if model is None:
        raise UsageError("no-model", "No model is given.", "Use `backstory historize MODEL.yaml`.")
    log_for_people(quiet=options.quiet)
    if resolved:
        sys.stdout.write(as_yaml(open_model(model)[0]))
        return 0
    chosen = door.choose(model, dialect)
    if sql:
        sys.stdout.write(door.sql_of(chosen, dataset))
        return 0
    request = LoadRequest(
        dataset=dataset,
        run_id=run_id,
        load_timestamp=load_timestamp,
        skip_base=skip_base,
        dry_run=dry_run,
        allow_empty=allow_empty,
        max_delete_ratio=max_delete_ratio,
        hash_change=hash_change,
        relabel=relabel,
    )
    if chosen.on_spark and url is not None:
        raise UsageError(
            "wrong-url",
            "`--url` was given, but the model's dialect is Spark, whose tables are in the warehouse.",
            "Use `--dialect duckdb` or `--dialect postgres` with `--url`, or leave out `--url`.",
        )
    changes: Rehearsals = []
    if not chosen.on_spark:
        receipts = door.historize_on_database(chosen, url, request)
    elif not (receipts := early_refusals(chosen, request)):
        with open_warehouse(options) as warehouse, collect_rehearsals() as changes:
            receipts = door.historize_on_spark(chosen, warehouse.store, request)
    _show_receipts([receipt.to_dict() for receipt in receipts], options, changes, dry_run=dry_run)
    return exit_code(receipts)


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
    """A receipt as a row, with nested values as text."""
    row = {name: receipt.get(name) for name in columns}
    changes = row["schema_changes"]
    row["schema_changes"] = ", ".join(changes) if isinstance(changes, list) and changes else None
    keys = row.get("keys")
    if isinstance(keys, dict):
        lists = (f"{outcome}: {', '.join(sample)}" for outcome, sample in keys.items() if sample)
        row["keys"] = "; ".join(lists) or None
    return row
