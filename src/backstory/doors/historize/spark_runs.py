"""The registry of runs on Spark: commits of base and history, and a log with views (section 6)."""

import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import reduce
from operator import add
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, concat_ws, lit, unix_micros
from pyspark.sql.functions import max as greatest

from backstory.doors.historize import runs
from backstory.doors.historize.model import ColumnRole, ModelDataset
from backstory.doors.historize.spark_tables import BASE, DOOR, RECEIPT, TIMESTAMP, first_of, token_of
from backstory.doors.historize.stage import column_type
from backstory.engine.deliver import deliver_change
from backstory.formats.delivered import rows_as
from backstory.model.change import TOKEN, Change, Note
from backstory.model.instant import EPOCH, iso, parse_instant
from backstory.model.layout import Layout
from backstory.model.table import ARCHIVE_SUFFIX, Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.iceberg.create import create_view
from backstory.stores.iceberg.jvm import may_have_text
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, exists, load
from backstory.stores.metadata.searches import bounds_of
from backstory.stores.metadata.table_metadata import DATA, TableMetadata, commit_of, live_files
from backstory.stores.port import require_layout
from backstory.stores.sql.dialects import Spark
from backstory.upkeep.table_views import OF, make_views

LOG: Final = TableName(runs.META, runs.LOADS)
# JSON columns that the views read: the steps of a run, and its row of the registry with the receipt.
JSON_COLUMNS: Final = ("steps", "receipt")
_COLUMNS = (
    *(Column(each.name, column_type(each)) for each in runs.TABLES[runs.LOADS]),
    *(Column(name, ColumnType(Kind.STRING)) for name in JSON_COLUMNS),
)
_SHAPE: Final = Shape(LOG, _COLUMNS, (), Layout.RUN_LOG)
# SQL for the views' columns that the log itself contains.
_OF_LOADS = {
    **{name: name for name in ("load_run_id", "attempt_no", "error_message", "started_at", "finished_at")},
    "engine": "target_system",
    "status": "if(status = 'success', status, told.status)",
    "error_code": "status_reason",
    "receipt": "if(status = 'success', receipt, NULL)",
}
_OF_STEPS = {"dataset_key": "told.dataset_key", **{name: name for name in ("load_run_id", "attempt_no")}}


def log_row(load: runs.LoadEntry) -> Mapping[str, Any]:
    """The row of a load in the log."""
    texts = {"steps": load.steps, "receipt": load.run}
    return {**load.row, **{name: json.dumps(value) for name, value in texts.items() if value}}


def append_loads(store: IcebergStore, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to the log in one commit.

    If the log is new, its views are also created. If something else has the name of a view, Refused is raised
    after the rows are written.
    """
    is_new = False

    def plan() -> tuple[IcebergTable | None, Change]:
        nonlocal is_new
        log = load(store, LOG)
        is_new = log is None
        into = _SHAPE if log is None else require_layout(log, Layout.RUN_LOG).shape
        added = rows_as(into.columns, rows)
        return log, Change({"inserted": len(rows)}, added=added, into=into if is_new else None)

    deliver_change(store, [LOG], Note(DOOR, ""), plan)
    for name in (runs.RUNS, runs.STEPS) if is_new else ():
        columns = [Column(each.name, column_type(each)) for each in runs.TABLES[name]]
        create_view(store, TableName(runs.META, name), columns, _query_of(store, name), {OF: str(LOG)})


def log_views(store: IcebergStore, *, dry_run: bool) -> list[dict[str, Any]]:
    """Create or replace the views of runs and of steps.

    Returns the result of `make_views`. Raises Refused if something else has the name of a view.
    """
    wanted = {TableName(runs.META, name): _query_of(store, name) for name in (runs.RUNS, runs.STEPS)}
    return make_views(store, LOG, wanted, dry_run=dry_run)


def _query_of(store: IcebergStore, name: str) -> str:
    """The query for runs or for steps on the log."""
    names = [each.name for each in runs.TABLES[name]]
    source = f"(SELECT *, from_json(receipt, '{_fields(runs.RUNS)}') AS told FROM {store.sql_name(LOG)})"
    if name == runs.RUNS:
        listed = (f"{_OF_LOADS.get(each, f'told.{each}')} AS {each}" for each in names)
        return f"SELECT {', '.join(listed)} FROM {source} WHERE told.load_timestamp IS NOT NULL"
    listed = (f"{_OF_STEPS.get(each, f'step.{each}')} AS {each}" for each in names)
    each_step = f"explode(from_json(steps, 'array<struct<{_fields(runs.STEPS)}>>')) AS step"
    return f"SELECT {', '.join(listed)} FROM {source} LATERAL VIEW {each_step}"


def _fields(name: str) -> str:
    """The columns of a view with their types, as a schema for `from_json`."""
    return ", ".join(f"{each.name} {spark_type(column_type(each))}" for each in runs.TABLES[name])


# A commit's property: the token of the run whose rows the commit removed.
UNDONE = "backstory.undone"
# A commit's property: the latest start or end in a history after its last load.
NEWEST = "backstory.newest"
_SPAN = (ColumnRole.STARTED, ColumnRole.ENDED)


def newest_of(store: IcebergStore, table: IcebergTable) -> datetime | None:
    """An upper bound of the history's starts and ends, or None if it has no versions.

    It is taken from the history's last load, or else from the bounds of its files, or else from its rows.
    """
    snapshot = table.snapshot
    if snapshot is None:
        return None
    if known := commit_of(snapshot).properties.get(NEWEST):
        return parse_instant(known)
    if store.has_java:
        with suppress(OSError, ValueError, zlib.error):  # Spark reports the fault
            fields = [each for each in table.fields if each["name"] in _SPAN]
            live = live_files(snapshot, table.manifests)
            files = [file for _, file in live if file.content.value == DATA]
            bounds = [bounds_of(file, field) for file in files for field in fields]
            if None not in bounds:
                return max((each.max for each in bounds if each and each.max is not None), default=None)
    # Iceberg has no bounds for the last columns of a wide table.
    rows = store.spark.table(store.sql_name(table.shape.table))
    ends = [greatest(unix_micros(column(role))) for role in _SPAN]
    micros = [each for each in rows.agg(*ends).collect()[0] if each is not None]
    return EPOCH + timedelta(microseconds=max(micros)) if micros else None


def find_run(
    store: IcebergStore, schema: str, dataset: ModelDataset, run_id: str
) -> runs.RegisteredRun | None:
    """The registered run, from commits and log, or None.

    A run whose rows are not in the tables is treated as not loaded. Only ancestors of the current snapshots
    are considered. For a run without a commit, the log is considered only while the history still has the
    versions from that time.
    """
    base = first_of(store, schema, dataset.names)
    hist = first_of(store, schema, dataset.hist_names)
    if base is None or hist is None:
        return None
    token = token_of(schema, dataset, run_id)
    unfinished = None
    for past in (hist, base):
        notes, was_undone = _notes_of_run(past, token)
        for note in notes:
            if note.get(RECEIPT):
                return _registered_run(note) if _base_remains(base, note) else None
            unfinished = unfinished or _registered_run(note)
        if was_undone and not notes:
            return None  # the commit was rolled back
    return _find_logged_run(store, schema, dataset, run_id, hist) or unfinished


def unlogged_tokens(store: IcebergStore, table: IcebergTable) -> frozenset[str]:
    """The tokens of runs that only the table's own commits record. These commits must not expire."""
    tokens = {own for commit in table.commits if (own := commit.properties.get(TOKEN))}
    if not tokens or not exists(store, LOG):
        return frozenset(tokens)
    token = concat_ws(" ", "dataset_key", "load_run_id")
    rows = _successful_runs(store).where(token.isin(*tokens)).select(token).collect()
    return frozenset(tokens - {row[0] for row in rows})


def _successful_runs(store: IcebergStore) -> DataFrame:
    """The logged runs that succeeded."""
    logged = store.spark.sql(_query_of(store, runs.RUNS))
    return logged.where(column("status") == "success").where(column("receipt").isNotNull())


def _registered_run(note: Mapping[str, str]) -> runs.RegisteredRun:
    receipt = note.get(RECEIPT)
    return runs.RegisteredRun(parse_instant(note[TIMESTAMP]), 1, json.loads(receipt) if receipt else None)


def _notes_of_run(table: TableMetadata, token: str) -> tuple[list[Mapping[str, str]], bool]:
    """The notes of the run's commits that are part of the current state, and whether others were undone."""
    commits, past = table.commits, _past_of(table)
    own = [commit for commit in commits if commit.properties.get(TOKEN) == token]
    undoing = [
        commit.version for commit in commits if commit.properties.get(UNDONE) == token and commit.id in past
    ]
    since = max(undoing, default=-1)
    notes = [commit.properties for commit in own if commit.id in past and commit.version > since]
    return notes, len(notes) < len(own)


def _base_remains(base: TableMetadata, note: Mapping[str, str]) -> bool:
    """Whether the base still builds on the snapshot from which a history was made. True if it has expired."""
    made_from = note.get(BASE, "")
    known = {str(commit.id) for commit in base.commits}
    return made_from not in known or made_from in map(str, _past_of(base))


def _past_of(table: TableMetadata) -> set[int]:
    """The ids of the current snapshot and its ancestors."""
    return {snapshot["snapshot-id"] for snapshot in table.ancestry}


def _find_logged_run(
    store: IcebergStore, schema: str, dataset: ModelDataset, run_id: str, hist: IcebergTable
) -> runs.RegisteredRun | None:
    """The run in the log, or None. The log also has runs without a commit and runs whose commits expired."""
    log = load(store, LOG)
    if log is None or not may_have_text(store.jvm, log.iceberg, "load_run_id", run_id):
        return None  # most runs are new, and the bounds of files show this without a query
    success = _successful_runs(store).where(column("dataset_key") == runs.dataset_key(schema, dataset))
    rows = success.where(column("load_run_id") == run_id).select("finished_at", "receipt").collect()
    if not rows:
        return None
    receipt = json.loads(max(rows)["receipt"])
    known = runs.RegisteredRun(parse_instant(receipt["load_timestamp"]), 1, receipt)
    archive = first_of(store, schema, [f"{name}{ARCHIVE_SUFFIX}" for name in dataset.hist_names])
    tables = [store.sql_name(table.shape.table) for table in (hist, archive) if table]

    def has_version(condition: str) -> bool:
        return any(store.spark.table(table).where(condition).take(1) for table in tables)

    def last_that_wrote(until: datetime) -> datetime | None:
        written = reduce(add, (col(name) for name in runs.COUNTS)) > 0
        earlier = success.where(written & (column("load_timestamp") <= lit(iso(until)).cast("timestamp")))
        latest = earlier.orderBy(column("load_timestamp").desc()).select("receipt").take(1)
        return parse_instant(json.loads(latest[0]["receipt"])["load_timestamp"]) if latest else None

    return known if runs.versions_remain(known, last_that_wrote, has_version, Spark()) else None
