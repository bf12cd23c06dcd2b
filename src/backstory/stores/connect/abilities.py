"""Trials, on a scratch table, of the statements that commits over Spark Connect need."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyspark.errors import PySparkException

from backstory.errors import Failed
from backstory.model.layout import FILE, POSITION, ROW_ID
from backstory.model.table import TableName
from backstory.spark.versions import arrow_of
from backstory.stores.branches import MAIN, ancestors, head_of
from backstory.stores.connect.commit import MERGE_MODE
from backstory.stores.connect.store import NOTE, ConnectStore, fast_forward, in_commit
from backstory.stores.iceberg.create import PROPERTIES
from backstory.stores.iceberg.frames import LINEAGE_SINCE
from backstory.stores.iceberg.literals import property_list, quote

Try = Callable[[ConnectStore, TableName], None]
_BRANCH, _LATE, _PROPERTY, _VALUE = "tried", "late", "backstory.tried", "doctor"
_BEFORE, _AFTER = {1: "a", 2: "b"}, {1: "a", 2: "x"}


def _clone(store: ConnectStore, table: TableName) -> None:
    with in_commit(store, table, {_PROPERTY: _VALUE}) as own:
        if own.setting(NOTE + _PROPERTY) != _VALUE or store.setting(NOTE + _PROPERTY) is not None:
            raise _other_result("A copy of the session does not have settings of its own.")


def _create(store: ConnectStore, table: TableName) -> None:
    store.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {quote(store.catalog)}.{quote(table.schema)}")
    properties = {"format-version": str(LINEAGE_SINCE), MERGE_MODE: PROPERTIES[MERGE_MODE]}
    columns, pairs = "(id BIGINT, name STRING)", property_list(properties)
    store.spark.sql(f"CREATE TABLE {store.sql_name(table)} {columns} USING iceberg TBLPROPERTIES ({pairs})")
    store.spark.sql(f"INSERT INTO {store.sql_name(table)} VALUES (1, 'a'), (2, 'b')")  # noqa: S608 - a quoted name


def _read_metadata(store: ConnectStore, table: TableName) -> None:
    version = store.metadata(table)["format-version"]
    if version < LINEAGE_SINCE:
        raise _other_result(f"The catalog made a table of format version {version}.")


def _merge(store: ConnectStore, table: TableName) -> None:
    """Update a row on a branch by its file and position, as a commit does."""
    base = store.metadata(table)["current-snapshot-id"]
    for branch in (_BRANCH, _LATE):
        store.spark.sql(f"ALTER TABLE {store.sql_name(table)} CREATE BRANCH {branch} AS OF VERSION {base}")
    with in_commit(store, table, {_PROPERTY: _VALUE}) as own:
        for branch in (_BRANCH, _LATE):
            own.spark.sql(
                f"MERGE INTO {store.sql_name(table, f'branch_{branch}')} AS t USING "  # noqa: S608
                f"(SELECT {FILE} AS file, {POSITION} AS position "
                f"FROM {store.sql_name(table)} WHERE id = 2) AS s "
                f"ON t.{FILE} = s.file AND t.{POSITION} = s.position WHEN MATCHED THEN UPDATE SET name = 'x'"
            )
    if (_rows(store, table), _rows(store, table, _BRANCH)) != (_BEFORE, _AFTER):
        raise _other_result("A MERGE into a branch did not change exactly the rows of the branch.")


def _keep_ids(store: ConnectStore, table: TableName) -> None:
    if _rows(store, table, column=ROW_ID) != _rows(store, table, _BRANCH, column=ROW_ID):
        raise _other_result("A changed row has another row id.")


def _keep_notes(store: ConnectStore, table: TableName) -> None:
    metadata = store.metadata(table)
    newest = ancestors(metadata, head_of(metadata, _BRANCH))[0]
    if newest["summary"].get(_PROPERTY) != _VALUE:
        raise _other_result("A commit does not have the properties in the settings of its session.")


def _forward(store: ConnectStore, table: TableName) -> None:
    fast_forward(store, table, MAIN, _BRANCH)
    if _rows(store, table) != _AFTER:
        raise _other_result("The table did not move to its branch.")


def _refuse(store: ConnectStore, table: TableName) -> None:
    try:
        fast_forward(store, table, MAIN, _LATE)
    except PySparkException:
        return
    raise _other_result("The table moved to a branch that does not have its newest commit.")


def _rows(
    store: ConnectStore, table: TableName, branch: str = MAIN, *, column: str = "name"
) -> dict[int, Any]:
    store.refresh(table)  # copies of the session have their own caches
    query = f"SELECT id, {column} AS value FROM {store.sql_name(table)} VERSION AS OF '{branch}'"  # noqa: S608
    return {row["id"]: row["value"] for row in arrow_of(store.spark.sql(query)).to_pylist()}


def _other_result(message: str) -> Failed:
    return Failed(
        "other-result", message, "Use Spark 4.1 and Iceberg 1.11 or 1.12, with another catalog if they are."
    )


_CREATED, _MERGED = "create a table by SQL", "change rows of a branch"
# Each ability, with the abilities that it needs, in the order of the trials.
STATEMENTS: Final[Mapping[str, tuple[Sequence[str], Try]]] = {
    "copy the session with settings": ((), _clone),
    _CREATED: ((), _create),
    "read metadata files": ((_CREATED,), _read_metadata),
    _MERGED: (("copy the session with settings", "read metadata files"), _merge),
    "keep row ids": ((_MERGED,), _keep_ids),
    "note properties of commits": ((_MERGED,), _keep_notes),
    "move the table to its branch": ((_MERGED,), _forward),
    "refuse a branch without the newest commit": (("move the table to its branch",), _refuse),
}
