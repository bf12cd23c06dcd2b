"""Load the histories of a model: in a warehouse, in a database, or as an SQL script.

Every key is computed with the pepper, a secret that is never stored, printed or included in a plan (section
1.1).
"""

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from backstory.doors.historize.hist_state import find_state, sync_hist
from backstory.doors.historize.load import Load, prepare_load, refuse_swaps
from backstory.doors.historize.model import Model, ModelDataset, user_columns
from backstory.doors.historize.model_load import datasets_to_load, open_model, run_model
from backstory.doors.historize.receipts import HistoryReceipt, LoadRequest, refusal
from backstory.doors.historize.resolve import namespace_of
from backstory.doors.historize.sql_load import base_steps
from backstory.doors.historize.sql_target import SqlTarget
from backstory.doors.historize.stage import read_stage, stage_of
from backstory.errors import Refused, UsageError
from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.dialects import get_dialect
from backstory.strategies.scd2.statements import hist_steps

if TYPE_CHECKING:
    from backstory.stores.iceberg.store import IcebergStore


def find_pepper(environment: str) -> str:
    """The pepper from the environment variables.

    The first of these variables that is set is used: BACKSTORY_PEPPER, ELEVATA_PEPPER,
    SEC_<ENVIRONMENT>_PEPPER. Raises UsageError if none is set.
    """
    names = ["BACKSTORY_PEPPER", "ELEVATA_PEPPER", f"SEC_{environment.upper()}_PEPPER"]
    for name in names:
        if os.environ.get(name):
            return os.environ[name]
    raise UsageError(
        "no-pepper",
        "No pepper is set, and every key needs one.",
        f"Set {names[0]} (or {', '.join(names[1:])}).",
    )


SPARK = "spark_iceberg"


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model, the folder that its files are relative to, and the dialect for its loads."""

    model: Model
    folder: Path
    dialect: Dialect

    @property
    def on_spark(self) -> bool:
        """Whether the loads run on Spark."""
        return self.dialect.DIALECT_NAME == SPARK


def choose(path: str | Path, dialect: str | None) -> ChosenModel:
    """Read a model, with its own dialect or the given one.

    Raises UsageError for a wrong model or an unknown dialect.
    """
    model, folder = open_model(path)
    return ChosenModel(model, folder, get_dialect(dialect or model.dialect))


def script(chosen: ChosenModel, only: str | None = None) -> str:
    """The SQL for each dataset, with placeholders: CREATE TABLE, the base load, and the history's four steps.

    A history is always loaded in four steps, even on Spark.
    """
    parts = [
        part for dataset in datasets_to_load(chosen.model, only) for part in _dataset_script(chosen, dataset)
    ]
    return "\n\n".join(parts) + "\n"


def _dataset_script(chosen: ChosenModel, dataset: ModelDataset) -> Iterator[str]:
    model, folder, dialect = chosen.model, chosen.folder, chosen.dialect
    refuse_swaps(dataset)
    hist = sync_hist(dataset, find_state(dataset, folder, namespace_of(model, dataset)), datetime.now(UTC))
    assert hist is not None
    load = prepare_load(model, dataset, hist, dialect)
    live = [column for column in hist.target_columns if column.active]
    yield f"-- Tables of {dataset.name}"
    yield _terminate(dialect.render_create_schema_if_not_exists(load.schema))
    make = dialect.render_create_table_if_not_exists_from_columns
    yield _terminate(make(load.base_table, load.base_columns))
    yield _terminate(make(load.hist_table, live))
    yield from _base_script(load, dataset, folder, dialect)
    yield f"-- History load for {dataset.name}"
    for statement in hist_steps(load.pair):
        yield f"-- {statement.step}\n{_terminate(statement.sql)}"


def _base_script(load: Load, dataset: ModelDataset, folder: Path, dialect: Dialect) -> Iterator[str]:
    stage = stage_of(dataset, folder)
    if stage is None:
        yield f"-- {dataset.name} has no stage input: its base is used as it is"
        return
    relation = dialect.render_table_identifier(*stage.table)
    comment = f"-- Base load of {dataset.name}"
    if stage.path:
        relation = dialect.render_identifier(f"backstory_stage_{dataset.name}")
        comment += f" from {stage.name}, loaded into {relation}"
    yield comment
    if not load.deletes_base:
        yield "-- No delete detection: the source has no filter that says what the stage should hold"
    for statement in base_steps(replace(load, stage=relation)):
        yield f"-- {statement.step}\n{_terminate(statement.sql)}"


def _terminate(sql: str) -> str:
    return f"{sql};"


def historize_on_spark(
    chosen: ChosenModel, store: "IcebergStore", request: LoadRequest
) -> list[HistoryReceipt]:
    """Load a model's datasets into a warehouse. Returns one receipt for each."""
    from backstory.doors.historize.spark_target import SparkTarget

    pepper = find_pepper(chosen.model.environment)
    return run_model(chosen.model, chosen.folder, SparkTarget(store, pepper), request)


def historize_on_database(chosen: ChosenModel, url: str | None, request: LoadRequest) -> list[HistoryReceipt]:
    """Load a model's datasets into a database, and close the connection at the end."""
    dialect = chosen.dialect
    if url is None:
        raise UsageError(
            "no-url",
            f"The dialect {dialect.DIALECT_NAME} needs the address of its database.",
            "Use `url=ADDRESS`, such as duckdb:///path/file.duckdb or postgresql://user@host:port/database.",
        )
    pepper = find_pepper(chosen.model.environment)
    with dialect.get_execution_engine(url) as engine:
        return run_model(chosen.model, chosen.folder, SqlTarget(dialect, engine, pepper), request)


# Files of at most this many bytes are read early. Larger files are left to the load.
SMALL: Final = 4 << 20


def early_refusals(chosen: ChosenModel, request: LoadRequest) -> list[HistoryReceipt]:
    """The receipts of all loads if every load's file is refused, or else an empty list.

    This check runs before Java and Spark start. A run that ends here writes nothing, not even a row of the
    run log. Raises UsageError if there is no pepper.
    """
    find_pepper(chosen.model.environment)
    if request.skip_base:
        return []
    run_id = request.run_id or str(uuid.uuid4())
    receipts = []
    for dataset in datasets_to_load(chosen.model, request.dataset):
        stop = _file_refusal(chosen, dataset)
        if stop is None:
            return []
        receipts.append(refusal(dataset.name, run_id, None, stop))
    return receipts


def _file_refusal(chosen: ChosenModel, dataset: ModelDataset) -> Refused | None:
    """The error in a dataset's file, or None. Tables and large files are not read."""
    stage = stage_of(dataset, chosen.folder)
    if stage is None or stage.path is None or (stage.path.is_file() and stage.path.stat().st_size > SMALL):
        return None
    try:
        read_stage(stage, user_columns(dataset))
    except Refused as stop:
        return stop
    return None
