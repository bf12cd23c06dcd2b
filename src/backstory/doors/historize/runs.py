"""The registry of runs and the logs of loads: their tables and rows (section 6)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from backstory.doors.historize.model import ModelColumn, ModelDataset
from backstory.doors.historize.receipts import LoadOutcome
from backstory.stores.sql.columns import Datatype
from backstory.strategies.scd2.transitions import BEGINNINGS, CLOSINGS, UNCHANGED

META = "meta"
LOADS, RUNS, STEPS = "load_run_log", "hist_run", "hist_step_log"
LEASE_MINUTES = 10
LONGEST_ERROR = 1_500

_TYPES = {
    "string": Datatype.STRING,
    "bool": Datatype.BOOLEAN,
    "int": Datatype.BIGINT,
    "timestamp": Datatype.TIMESTAMP,
}


def _columns(text: str) -> list[ModelColumn]:
    """Columns as `name:type`; text by default, and an exclamation mark for one that is never NULL."""
    found = []
    for word in text.split():
        name, _, kind = word.rstrip("!").partition(":")
        found.append(
            ModelColumn(
                target_column_name=name, datatype=_TYPES[kind or "string"], nullable=not word.endswith("!")
            )
        )
    return found


TABLES: Mapping[str, list[ModelColumn]] = {
    LOADS: _columns(
        "batch_run_id! load_run_id! target_schema! target_dataset! target_system! profile! run_kind! "
        "source_system source_dataset source_object ingest_mode delta_cutoff:timestamp rows_extracted:int "
        "chunk_size:int mode! handle_deletes:bool! historize:bool! started_at:timestamp! "
        "finished_at:timestamp render_ms:int execution_ms:int sql_length:int rows_affected:int status! "
        "error_message attempt_no:int! status_reason blocked_by"
    ),
    RUNS: _columns(
        "dataset_key! load_run_id! load_timestamp:timestamp! base_version base_row_count:int engine! status! "
        "attempt_no:int! lease_until:timestamp closed_changed:int closed_deleted:int inserted_changed:int "
        "inserted_new:int unchanged:int error_code error_message started_at:timestamp! finished_at:timestamp "
        "receipt"
    ),
    STEPS: _columns(
        "dataset_key! load_run_id! attempt_no:int! step_no:int! step! rows_affected:int duration_ms:int "
        "status! error_code"
    ),
}


@dataclass(frozen=True, slots=True)
class LoadTold:
    """What is logged of a load: its row, its steps, and what the registry says of its run.

    The latter two are empty of a load that was not begun.
    """

    row: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]] = ()
    run: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RegisteredRun:
    """What the registry says of a run: its instant, and the receipt of a run that ended well."""

    load_timestamp: datetime
    attempt: int
    receipt: Mapping[str, Any] | None = None


def dataset_key(schema: str, dataset: ModelDataset) -> str:
    """The name of a dataset in the registry of its warehouse or database; it stays when it is renamed.

    A run is known by its warehouse or database, schema, dataset and run id (decision H6).
    """
    return f"{schema}.{earlier_key(dataset)}"


def earlier_key(dataset: ModelDataset) -> str:
    """The name that rows of earlier versions have: they do not tell the schema."""
    return dataset.lineage_key or f"{dataset.target_schema}:{dataset.name}"


def names_of(dataset: ModelDataset) -> list[str]:
    """The names that the base may have: that of now, and former ones, the latest first."""
    return [dataset.name, *reversed(dataset.former_names)]


def hist_names(dataset: ModelDataset) -> list[str]:
    """The names that the history may have."""
    return [f"{name}_hist" for name in names_of(dataset)]


def wrote(receipt: Mapping[str, Any]) -> bool:
    """Whether a run began or ended versions."""
    return any(count for name, count in receipt["counts"].items() if name != UNCHANGED)


def error_text(message: str) -> str:
    """An error for a log: on one line, and not too long."""
    return re.sub(r"\s+", " ", message).strip()[:LONGEST_ERROR]


# The registry's columns are named after what the statements did.
_REGISTERED = {
    name: name.replace("close_", "closed_").replace("insert_", "inserted_")
    for name in (*CLOSINGS, *BEGINNINGS)
}


def counted(outcome: LoadOutcome) -> dict[str, Any]:
    """The counts of a load as the registry has them."""
    rows = {step.name: step.rows for step in outcome.steps}
    return {
        "base_row_count": outcome.base,
        **{column: rows.get(name, 0) for name, column in _REGISTERED.items()},
        UNCHANGED: outcome.counts[UNCHANGED],
    }
