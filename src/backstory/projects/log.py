"""Receipts of runs, their log `meta.runs`, and past runs and freshness, computed from the log and commits.

A run commits to the log twice. The run adds a row for each declaration at the run's beginning, and another at
its end. A row `begun` without an end belongs to a run that is running or was interrupted.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from backstory.engine.deliver import deliver_change
from backstory.engine.run_context import FILES, RUN
from backstory.errors import BackstoryError, Refused, TryAgain, UsageError
from backstory.formats.delivered import rows_as
from backstory.formats.memory import Memory, TooLarge
from backstory.model.change import Change, Note
from backstory.model.layout import Layout
from backstory.model.receipt import Receipt
from backstory.model.table import Column, Shape, TableName, table_name
from backstory.model.types import ColumnType, Kind
from backstory.projects.declarations import Declaration, Project, declare_tables, select, upstream_of
from backstory.projects.files import Mark
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.create import is_view
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, load
from backstory.stores.metadata.table_metadata import Catalog, TableMetadata, Unreadable
from backstory.stores.metadata.table_rows import TableReader

Status = Literal["begun", "changed", "unchanged", "refused", "failed", "blocked", "stopped"]
# The statuses that the next run with `--failed` repeats.
UNDONE: Final = ("refused", "failed", "blocked", "stopped")
WELL: Final = ("changed", "unchanged")


@dataclass(frozen=True, slots=True, repr=False)
class RunReceipt(Receipt):
    """The receipt of one declaration in a run.

    `counts` are rows by outcome, and `files` are the delivered files. `seconds` is the duration, and `stages`
    has the seconds for reading, planning and committing. `way` is the place of planning, `driver` or `tasks`.
    The status is `blocked` if the declaration did not begin because `blocked_by` failed or, in a dry run,
    because `blocked_by` has not created its source yet. It is `stopped` if the run ended first. A `begun`
    declaration has no recorded end. `parts` are the receipts of a model's or a manifest's datasets.
    `archives` are the names under which former histories were archived, if the history restarted.
    """

    name: str
    kind: str
    status: Status
    run_id: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    schema_changes: Sequence[str] = ()
    files: Sequence[str] = ()
    started_at: datetime | None = None
    seconds: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)
    way: str | None = None
    attempts: int = 1
    blocked_by: str | None = None
    error: BackstoryError | None = None
    parts: Sequence[Mapping[str, Any]] = ()
    archives: Sequence[str] = ()

    @property
    def exit_code(self) -> int:
        """The exit code of the error, or the code of `TryAgain` if the run was stopped first."""
        return TryAgain.exit_code if self.status == "stopped" else super(RunReceipt, self).exit_code


def status_of(error: BackstoryError) -> Status:
    """The status after an error: `refused` if a person must act, `failed` if a later try may succeed."""
    return "refused" if isinstance(error, Refused | UsageError) else "failed"


LOG: Final = TableName("meta", "runs")
# The names of the log: the second one is used if another table has the first one.
PLACES: Final = (LOG, TableName("meta", "backstory_runs"))
BEGUN: Final = "begun"
DOOR: Final = "native"
_KINDS: Final = {
    "run_id": Kind.STRING,
    "project": Kind.STRING,
    "name": Kind.STRING,
    "kind": Kind.STRING,
    "status": Kind.STRING,
    "started_at": Kind.UTC_DATETIME,
    "seconds": Kind.DOUBLE,
    "attempts": Kind.INT,
    "counts": Kind.STRING,
    "files": Kind.STRING,
    "table_uuid": Kind.STRING,
    "way": Kind.STRING,
    "blocked_by": Kind.STRING,
    "archives": Kind.STRING,
    "error_code": Kind.STRING,
    "error_message": Kind.STRING,
}
COLUMNS: Final = tuple(_KINDS)
_SHAPE: Final = Shape(
    LOG, tuple(Column(name, ColumnType(kind)) for name, kind in _KINDS.items()), (), Layout.RUN_LOG
)


def find_log(table: Callable[[TableName], TableMetadata | None]) -> TableMetadata | None:
    """The log of runs, looked up with `table`, or None if it does not exist yet."""
    for stored in filter(None, map(table, PLACES)):
        names = {column.name for column in stored.shape.columns}
        if stored.shape.layout is Layout.RUN_LOG and names.issuperset(COLUMNS):
            return stored
    return None


def append_beginning(
    store: IcebergStore, project: Project, run_id: str, began: datetime, declared: Iterable[Declaration]
) -> None:
    """Log the beginning of a run. Raises the errors of `append_run`."""
    receipts = (RunReceipt(each.name, each.kind, BEGUN, run_id, started_at=began) for each in declared)
    append_run(store, project, receipts, {})


def append_run(
    store: IcebergStore, project: Project, receipts: Iterable[RunReceipt], marks: Mapping[str, Sequence[Mark]]
) -> None:
    """Log the end of a run. `marks` has the marks of the run's delivered files, by declaration.

    The log has the UUID of each table, because a table that was dropped and created again has no delivered
    files. Raises Refused if other tables have the log's names.
    """
    rows = [
        _row(project, receipt, mine, uuid_of(load(store, table_name(receipt.name))) if mine else None)
        for receipt in receipts
        for mine in [marks.get(receipt.name, ())]
    ]
    _append(store, project, rows)


def _append(store: IcebergStore, project: Project, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows in one commit, to the log or to a new log under its first free name."""
    declared = frozenset[str]().union(*(declaration.writes for declaration in project.declarations))

    def is_free(place: TableName) -> bool:
        return str(place) not in declared and not is_view(store, place)

    def plan() -> tuple[Any, Change]:
        tables = {place: load(store, place) for place in PLACES}
        log = find_log(tables.get)
        missing = [place for place, table in tables.items() if log is None and table is None]
        free = next(filter(is_free, missing), None)
        if log is None and free is None:
            raise Refused(
                "other-layout",
                f"The log of runs has no free name: {' and '.join(map(str, PLACES))} have another use.",
                "Rename one of them.",
            )
        into = None if log is not None or free is None else replace(_SHAPE, table=free)
        return log, Change({"inserted": len(rows)}, added=rows_as(_SHAPE.columns, rows), into=into)

    deliver_change(store, PLACES, Note(DOOR, ""), plan)


def _row(project: Project, receipt: RunReceipt, marks: Sequence[Mark], uuid: str | None) -> Mapping[str, Any]:
    error = receipt.error
    return {
        **{name: getattr(receipt, name, None) for name in COLUMNS},
        "project": str(project.path),
        "counts": json.dumps(dict(receipt.counts)) if receipt.counts else None,
        "files": json.dumps(list(marks)) if marks else None,
        "table_uuid": uuid,
        "archives": json.dumps(list(receipt.archives)) if receipt.archives else None,
        "error_code": error and error.code,
        "error_message": error and error.message,
    }


def rows_of_log(store: IcebergStore) -> list[dict[str, Any]]:
    """The rows of the log, oldest run first. The list is empty if nothing has run yet."""
    return rows_in_catalog(store, store.memory)


def rows_in_catalog(catalog: Catalog, memory: Memory) -> list[dict[str, Any]]:
    """The rows of the log. Its files are read here, or else by the session if the catalog has one.

    Otherwise, raises Unreadable or TooLarge.
    """
    log = find_log(catalog.describe)
    if log is None:
        return []
    try:
        with memory.lease() as lease:
            rows = TableReader(log, catalog, lease).rows(log.snapshot, log.fields, COLUMNS)
    except (Unreadable, TooLarge):
        if not isinstance(catalog, IcebergStore):
            raise
        rows = arrow_of(catalog.spark.table(catalog.sql_name(log.shape.table)))
    return rows.sort_by("started_at").to_pylist()


def newest_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows, except the beginnings of declarations that ended."""
    ended = {(row["run_id"], row["name"]) for row in rows if row["status"] != BEGUN}
    return [row for row in rows if row["status"] != BEGUN or (row["run_id"], row["name"]) not in ended]


def uuid_of(stored: IcebergTable | None) -> str | None:
    """The UUID of a table, which never changes, or None if the table does not exist."""
    return None if stored is None else str(stored.metadata["table-uuid"])


def marks_of_log(rows: Iterable[Mapping[str, Any]], name: str, stored: IcebergTable | None) -> set[Mark]:
    """The marks of files that a declaration has delivered to its table, according to the log."""
    uuid = uuid_of(stored)
    return {
        tuple(mark)
        for row in rows
        if row["name"] == name and row["files"] and row["table_uuid"] == uuid
        for mark in json.loads(row["files"])
    }


def marks_of_commits(stored: IcebergTable | None) -> set[Mark]:
    """The marks of files in the table's own commits. Only commits record the files of a killed run."""
    commits = stored.commits if stored else ()
    texts = (commit.properties.get(FILES) for commit in commits)
    return {tuple(mark) for text in texts if text for mark in json.loads(text)}


Rows = Sequence[Mapping[str, Any]]
NOT_STARTED: Final = ("blocked", "stopped")
HOUR: Final = timedelta(hours=1)


def former_runs(catalog: Catalog, logged: Rows) -> list[dict[str, Any]]:
    """The runs, newest first: their times, seconds, and declarations by status.

    For a run without a recorded end, `ended` is false, and `changed` is the number of tables that it changed.
    """
    by_run: dict[str, list[Mapping[str, Any]]] = {}
    for row in newest_rows(logged):
        if row["status"] != BEGUN:
            by_run.setdefault(row["run_id"], []).append(row)
    runs = [_sum_up(run_id, rows) for run_id, rows in by_run.items()]
    begun = {row["run_id"] for row in logged}
    return sorted(
        [*runs, *_runs_without_end(catalog, by_run, begun)], key=lambda run: run["started_at"], reverse=True
    )


def _sum_up(run_id: str, rows: Rows) -> dict[str, Any]:
    status, began = Counter(row["status"] for row in rows), min(row["started_at"] for row in rows)
    ended = max(row["started_at"] + timedelta(seconds=row["seconds"]) for row in rows)
    return {
        "run_id": run_id,
        "started_at": began,
        "seconds": round((ended - began).total_seconds(), 1),
        **{name: status[name] for name in ("changed", "unchanged", "refused", "failed")},
        "not_begun": sum(status[name] for name in NOT_STARTED),
        "ended": True,
    }


def _runs_without_end(
    catalog: Catalog, by_run: Mapping[str, object], begun: AbstractSet[str]
) -> Iterable[dict[str, Any]]:
    """The runs without a recorded end: logged runs that have `begun`, and runs that only commits record."""
    tables: dict[str, list[datetime]] = {run_id: [] for run_id in begun if run_id not in by_run}
    for name in catalog.tables():
        described = catalog.describe(name)
        for run_id, time in _commits_of_runs(described).items():
            if run_id not in by_run:
                tables.setdefault(run_id, []).append(time)
    for run_id, times in tables.items():
        began = _time_of(run_id)
        yield {
            "run_id": run_id,
            "started_at": began,
            "seconds": round((max(times, default=began) - began).total_seconds(), 1),
            "changed": len(times),
            **dict.fromkeys(("unchanged", "refused", "failed", "not_begun"), None),
            "ended": False,
        }


def _commits_of_runs(table: TableMetadata | None) -> dict[str, datetime]:
    """The time of the newest commit of each run."""
    commits = table.commits if table is not None else []
    return {commit.properties[RUN]: commit.committed_at for commit in commits if RUN in commit.properties}


def _time_of(run_id: str) -> datetime:
    """The time when a run began, taken from its id."""
    return datetime.strptime(run_id[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)


def freshness(
    project: Project, catalog: Catalog, logged: Rows, now: datetime, words: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """For each selected declaration with `expect`: the last delivery, when the next is due, and `late`.

    A declaration that was never delivered is late, as is a pattern that no run has delivered. Times are UTC.
    Before the first delivery, `age_hours` is None. Raises UsageError for a word that selects nothing.
    """

    def exists(name: str) -> bool:
        return catalog.describe(table_name(name)) is not None

    project = declare_tables(project, logged, exists, None)
    last = {
        row["name"]: row["started_at"]
        for row in logged
        if row["project"] == str(project.path) and row["status"] in WELL
    }
    rows = []
    for declared in select(project, upstream_of(project), words):
        if declared.expect is None:
            continue
        described = (catalog.describe(table_name(table)) for table in declared.writes)
        commits = (time for table in described for time in _commits_of_runs(table).values())
        time = max(filter(None, (last.get(declared.name), *commits)), default=None)
        due = None if time is None else time + declared.expect
        rows.append(
            {
                "name": declared.name,
                "last_delivery": time,
                "age_hours": None if time is None else round((now - time) / HOUR, 1),
                "expected_every_hours": round(declared.expect / HOUR, 1),
                "due": due,
                "late": due is None or due < now,
            }
        )
    return rows
