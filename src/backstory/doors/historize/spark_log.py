"""The log of loads on Spark: one table, and views of its runs and steps (section 6)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from backstory.doors.historize.runs import LOADS, META, RUNS, STEPS, TABLES, LoadTold
from backstory.doors.historize.spark_work import DOOR
from backstory.doors.historize.stage_rows import column_type
from backstory.engine.deliver import TableChange, deliver
from backstory.formats.delivered import rows_as
from backstory.model.change import Change, Note
from backstory.model.layout import Layout
from backstory.model.schema import Column, Shape
from backstory.model.table import TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.iceberg.create import create_view
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.store import Store, StoredTable, existing, exists, load
from backstory.stores.port import require_layout
from backstory.upkeep.table_views import OF, make_views

LOG: Final = TableName(META, LOADS)
# Earlier versions wrote tables of the views' names; whoever wants the views moves them to such a name.
EARLIER: Final = "_earlier"
# JSON that the views read: what the registry's row of a run says and its receipt, and the rows of its steps.
TOLD: Final = ("steps", "receipt")
_COLUMNS = (
    *(Column(each.name, column_type(each)) for each in TABLES[LOADS]),
    *(Column(name, ColumnType(Kind.STRING)) for name in TOLD),
)
_SHAPE: Final = Shape(LOG, _COLUMNS, (), Layout.RUN_LOG)
# Columns of the views that the log has itself.
_OF_LOADS = {
    **{name: name for name in ("load_run_id", "attempt_no", "error_message", "started_at", "finished_at")},
    "engine": "target_system",
    "status": "if(status = 'success', status, told.status)",
    "error_code": "status_reason",
    "receipt": "if(status = 'success', receipt, NULL)",
}
_OF_STEPS = {"dataset_key": "told.dataset_key", **{name: name for name in ("load_run_id", "attempt_no")}}


def log_row(load: LoadTold) -> Mapping[str, Any]:
    """A load's row of the log."""
    told = {"steps": load.steps, "receipt": load.run}
    return {**load.row, **{name: json.dumps(value) for name, value in told.items() if value}}


def append_loads(store: Store, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to the log in one commit; to one of an earlier version the columns that it lacks.

    A log that is new to its views gets them: raises Refused, with the rows written, where something else
    has the name of one.
    """
    new = False

    def plan() -> tuple[StoredTable | None, Change]:
        nonlocal new
        log, into = load(store, LOG), _SHAPE
        if log is not None:
            shape = require_layout(log, Layout.RUN_LOG).shape
            missing = (each for each in _COLUMNS if shape.column(each.name) is None)
            into = replace(shape, columns=(*shape.columns, *missing))
        new = log is None or into != log.shape
        come = rows_as(into.columns, rows)
        return log, Change({"inserted": len(rows)}, come=come, into=into if new else None)

    deliver(store, TableChange([LOG], Note(DOOR, ""), plan))
    for name in (RUNS, STEPS) if new else ():
        columns = [Column(each.name, column_type(each)) for each in TABLES[name]]
        create_view(store, TableName(META, name), columns, _query(store, name), {OF: str(LOG)})


def log_views(store: Store, *, dry_run: bool = False) -> list[dict[str, Any]]:
    """Make the views of runs and of steps, anew if they are there; what `make_views` gives.

    Raises Refused for a name that something else has.
    """
    queries = {TableName(META, name): _query(store, name) for name in (RUNS, STEPS)}
    wanted = {name: query for name, query in queries.items() if query}
    return make_views(store, LOG, wanted, dry_run=dry_run)


def _query(store: Store, name: str) -> str:
    return " UNION ALL ".join(query for _, query in sources(store, name))


def sources(store: Store, name: str) -> list[tuple[StoredTable, str]]:
    """The tables that tell of runs or of steps, the log and earlier ones, each with its query."""
    found, names = [], [each.name for each in TABLES[name]]
    log = load(store, LOG)
    if log is not None and log.shape.column("receipt"):
        found.append((log, _derived(store, name, names)))
    others = (TableName(META, each) for each in (name, f"{name}{EARLIER}"))
    for earlier in (existing(store, each) for each in others if exists(store, each)):
        there = (each if earlier.shape.column(each) else f"NULL AS {each}" for each in names)
        found.append((earlier, f"SELECT {', '.join(there)} FROM {store.sql_name(earlier.shape.table)}"))
    return found


def _derived(store: Store, name: str, names: Sequence[str]) -> str:
    """The query of runs or of steps on the log."""
    told = f"(SELECT *, from_json(receipt, '{_fields(RUNS)}') AS told FROM {store.sql_name(LOG)})"
    if name == RUNS:
        listed = (f"{_OF_LOADS.get(each, f'told.{each}')} AS {each}" for each in names)
        return f"SELECT {', '.join(listed)} FROM {told} WHERE told.load_timestamp IS NOT NULL"
    listed = (f"{_OF_STEPS.get(each, f'step.{each}')} AS {each}" for each in names)
    each_step = f"explode(from_json(steps, 'array<struct<{_fields(STEPS)}>>')) AS step"
    return f"SELECT {', '.join(listed)} FROM {told} LATERAL VIEW {each_step}"


def _fields(name: str) -> str:
    """What is read of JSON: the columns of a view, with their types."""
    return ", ".join(f"{each.name} {spark_type(column_type(each))}" for each in TABLES[name])
