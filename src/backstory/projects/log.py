"""The log of runs, `meta.runs`: for each declaration of a run a row before it begins, and one of its end.

Each of the two is one commit a run. A row `begun` without an end is of a run that goes on, or was broken off.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa

from backstory.engine.deliver import TableChange, deliver
from backstory.engine.runs import FILES
from backstory.errors import Refused
from backstory.formats.delivered import rows_as
from backstory.formats.memory import Memory, TooLarge
from backstory.model.change import Change, Note
from backstory.model.layout import Layout
from backstory.model.schema import Column, Shape
from backstory.model.table import TableName, table_name
from backstory.model.types import ColumnType, Kind
from backstory.projects.declarations import Declaration, Project
from backstory.projects.receipts import RunReceipt
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.create import is_view
from backstory.stores.iceberg.local_rows import LocalRows
from backstory.stores.iceberg.snapshots import all_snapshots
from backstory.stores.iceberg.store import Store, StoredTable, load
from backstory.stores.metadata.described import Opening
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.rows import Files

LOG: Final = TableName("meta", "runs")
# Where the log lies; in the second place where a table that is no such log has the first one's name.
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
    "error_code": Kind.STRING,
    "error_message": Kind.STRING,
}
COLUMNS: Final = tuple(_KINDS)
_SHAPE: Final = Shape(
    LOG, tuple(Column(name, ColumnType(kind)) for name, kind in _KINDS.items()), (), Layout.RUN_LOG
)


class Shaped(Protocol):
    """A table that has a shape, whoever reads it."""

    @property
    def shape(self) -> Shape:
        """Its columns, key and layout."""


Found = TypeVar("Found", bound=Shaped)


def log_among(table: Callable[[TableName], Found | None]) -> Found | None:
    """The log of runs, of what `table` gives by a name; None where there is none yet."""
    return next((each for each in map(table, PLACES) if each is not None and _is_log(each.shape)), None)


def _is_log(shape: Shape) -> bool:
    names = {each.name for each in shape.columns}
    return shape.layout is Layout.RUN_LOG and names.issuperset(COLUMNS)


def append_beginning(
    store: Store, project: Project, run_id: str, began: datetime, declared: Iterable[Declaration]
) -> None:
    """Log what a run is about to do; raises as `append_run`."""
    receipts = (RunReceipt(each.name, each.kind, BEGUN, run_id, started_at=began) for each in declared)
    _append(store, project, [_row(project, each, (), None) for each in receipts])


def append_run(
    store: Store, project: Project, receipts: Iterable[RunReceipt], marks: Mapping[str, Sequence[str]]
) -> None:
    """Log how a run ended; `marks` are those of the files that it took, by declaration.

    A table that is dropped and made anew has taken nothing: the log tells tables apart.

    Raises Refused where other tables have the log's names.
    """
    rows = [
        _row(project, each, mine, uuid_of(load(store, table_name(each.name))) if mine else None)
        for each in receipts
        for mine in [marks.get(each.name, ())]
    ]
    _append(store, project, rows)


def _append(store: Store, project: Project, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows in one commit, in the first place that is the log's, or free and no project's table."""
    declared = frozenset[str]().union(*(each.writes for each in project.declarations))

    def is_free(place: TableName) -> bool:
        return str(place) not in declared and not is_view(store, place)

    def plan() -> tuple[Any, Change]:
        tables = {place: load(store, place) for place in PLACES}
        log = log_among(tables.get)
        missing = [place for place, table in tables.items() if log is None and table is None]
        free = next(filter(is_free, missing), None)
        if log is None and free is None:
            raise Refused(
                "other-layout",
                f"The log of runs has no place: {' and '.join(map(str, PLACES))} have another use.",
                "Rename one of them.",
            )
        into = None if log is not None or free is None else replace(_SHAPE, table=free)
        return log, Change({"inserted": len(rows)}, come=rows_as(_SHAPE.columns, rows), into=into)

    deliver(store, TableChange(PLACES, Note(DOOR, ""), plan))


def _row(project: Project, receipt: RunReceipt, marks: Sequence[str], uuid: str | None) -> Mapping[str, Any]:
    error = receipt.error
    return {
        "run_id": receipt.run_id,
        "project": str(project.path),
        "name": receipt.name,
        "kind": receipt.kind,
        "status": receipt.status,
        "started_at": receipt.started_at,
        "seconds": receipt.seconds,
        "attempts": receipt.attempts,
        "counts": json.dumps(dict(receipt.counts)) if receipt.counts else None,
        "files": json.dumps([json.loads(each) for each in marks]) if marks else None,
        "table_uuid": uuid,
        "way": receipt.way,
        "blocked_by": receipt.blocked_by,
        "error_code": error and error.code,
        "error_message": error and error.message,
    }


def rows_of_log(store: Store) -> list[dict[str, Any]]:
    """The rows of the log, oldest run first; none where nothing has run yet."""
    log = log_among(partial(load, store))
    if log is None:
        return []
    try:
        with store.memory.lease() as lease:
            rows = LocalRows(store, log, lease).read(COLUMNS)
    except (Unreadable, TooLarge):
        rows = arrow_of(store.spark.table(store.sql_name(log.shape.table)))
    return _in_order(rows)


def rows_without_spark(catalog: Opening, memory: int) -> list[dict[str, Any]]:
    """The same, read from a catalog within so many bytes; raises Unreadable."""
    log = log_among(catalog.describe)
    if log is None:
        return []
    with Memory(memory).lease() as lease:
        return _in_order(Files(log, catalog, lease).rows(log.snapshot, log.fields, COLUMNS))


def _in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.sort_by("started_at").to_pylist()


def ends(rows: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """The runs and declarations whose end is on record."""
    return {(row["run_id"], row["name"]) for row in rows if row["status"] != BEGUN}


def newest_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows without the beginnings of what has ended."""
    ended = ends(rows)
    return [row for row in rows if row["status"] != BEGUN or (row["run_id"], row["name"]) not in ended]


def uuid_of(stored: StoredTable | None) -> str | None:
    """What Iceberg calls a table for all time; None where there is none."""
    return None if stored is None else str(stored.iceberg.uuid())


def marks_of_log(rows: Iterable[Mapping[str, Any]], name: str, stored: StoredTable | None) -> set[str]:
    """The marks of files that a declaration has taken into its table, by the log."""
    uuid = uuid_of(stored)
    return {
        json.dumps(mark)
        for row in rows
        if row["name"] == name and row["files"] and row["table_uuid"] == uuid
        for mark in json.loads(row["files"])
    }


def marks_of_commits(stored: StoredTable | None) -> set[str]:
    """The same by the table's own commits: a run that was killed has logged nothing."""
    texts = (each.get_property(FILES) for each in all_snapshots(stored)) if stored else ()
    return {json.dumps(mark) for text in texts if text for mark in json.loads(text)}
