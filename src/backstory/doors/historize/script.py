"""The statements of a model as plain SQL, for people and for other tools; nothing is touched."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from backstory.doors.historize.load import Load
from backstory.doors.historize.lock import find_state
from backstory.doors.historize.model import Model, ModelDataset
from backstory.doors.historize.preparing import prepare_load, refuse_swaps
from backstory.doors.historize.resolve import namespace_of
from backstory.doors.historize.run import datasets_to_load
from backstory.doors.historize.stage import stage_of
from backstory.doors.historize.steps import base_steps
from backstory.doors.historize.sync import sync_hist
from backstory.stores.sql.dialects.dialect import Dialect
from backstory.strategies.scd2.statements.steps import hist_steps


def script(model: Model, folder: Path, dialect: Dialect, only: str | None = None) -> str:
    """Create, base load and the four steps of each dataset, with their placeholders."""
    parts = [
        part
        for dataset in datasets_to_load(model, only)
        for part in _dataset(model, dataset, folder, dialect)
    ]
    return "\n\n".join(parts) + "\n"


def _dataset(model: Model, dataset: ModelDataset, folder: Path, dialect: Dialect) -> Iterator[str]:
    refuse_swaps(dataset)
    hist = sync_hist(dataset, find_state(dataset, folder, namespace_of(model, dataset)), datetime.now(UTC))
    assert hist is not None
    load = prepare_load(model, dataset, hist, dialect)
    live = [column for column in hist.target_columns if column.active]
    yield f"-- Tables of {dataset.name}"
    yield _ended(dialect.render_create_schema_if_not_exists(load.schema))
    make = dialect.render_create_table_if_not_exists_from_columns
    yield _ended(make(load.base_table, load.base_columns))
    yield _ended(make(load.hist_table, live))
    yield from _base(load, dataset, folder, dialect)
    yield f"-- History load for {dataset.name}"
    for statement in hist_steps(load.pair):
        yield f"-- {statement.step}\n{_ended(statement.sql)}"


def _base(load: Load, dataset: ModelDataset, folder: Path, dialect: Dialect) -> Iterator[str]:
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
        yield f"-- {statement.step}\n{_ended(statement.sql)}"


def _ended(sql: str) -> str:
    return f"{sql};"
