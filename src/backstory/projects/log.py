"""The log of runs, `meta.runs`: a row for each declaration of each run, in one commit a run."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from backstory.engine.deliver import TableChange, deliver
from backstory.engine.runs import FILES
from backstory.formats.delivered import rows_as
from backstory.formats.memory import Memory, TooLarge
from backstory.model.change import Change, Note
from backstory.model.layout import Layout
from backstory.model.schema import Column, Shape
from backstory.model.table import TableName, table_name
from backstory.model.types import ColumnType, Kind
from backstory.projects.receipts import RunReceipt
from backstory.stores.iceberg.local_rows import LocalRows
from backstory.stores.iceberg.snapshots import all_snapshots
from backstory.stores.iceberg.store import Store, StoredTable, load
from backstory.stores.metadata.described import Opening
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.rows import Files
from backstory.stores.port import require_layout

LOG: Final = TableName("meta", "runs")
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


def append_run(
    store: Store, project: str, receipts: Iterable[RunReceipt], marks: Mapping[str, Sequence[str]]
) -> None:
    """Log a run; `marks` are those of the files that it took, by declaration.

    A table that is dropped and made anew has taken nothing: the log tells tables apart.

    Raises Refused where another table has the log's name.
    """
    rows = [
        _row(project, each, mine, uuid_of(load(store, table_name(each.name))) if mine else None)
        for each in receipts
        for mine in [marks.get(each.name, ())]
    ]

    def plan() -> tuple[Any, Change]:
        log = load(store, LOG)
        if log is not None:
            require_layout(log, Layout.RUN_LOG)
        come = rows_as(_SHAPE.columns, rows)
        return log, Change({"inserted": len(rows)}, come=come, into=None if log else _SHAPE)

    deliver(store, TableChange([LOG], Note(DOOR, ""), plan))


def _row(project: str, receipt: RunReceipt, marks: Sequence[str], uuid: str | None) -> Mapping[str, Any]:
    error = receipt.error
    return {
        "run_id": receipt.run_id,
        "project": project,
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
    log = load(store, LOG)
    if log is None:
        return []
    try:
        with store.memory.lease() as lease:
            rows = LocalRows(store, log, lease).read(COLUMNS)
    except (Unreadable, TooLarge):
        rows = store.spark.table(store.sql_name(LOG)).toArrow()
    return _in_order(rows)


def rows_without_spark(catalog: Opening, memory: int) -> list[dict[str, Any]]:
    """The same, read from a catalog within so many bytes; raises Unreadable."""
    log = catalog.describe(LOG)
    if log is None:
        return []
    with Memory(memory).lease() as lease:
        return _in_order(Files(log, catalog, lease).rows(log.snapshot, log.fields, COLUMNS))


def _in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.sort_by("started_at").to_pylist()


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
