"""Migrate: which operation a request asks for, and on which tables (section 6)."""

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from backstory.doors.fivetran.definitions import refuse_foreign
from backstory.doors.fivetran.migrations import columns, modes, tables
from backstory.doors.fivetran.migrations.subject import Subject
from backstory.doors.fivetran.notes import note
from backstory.doors.fivetran.own_tables import existing
from backstory.doors.fivetran.targets import NamedStore
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.engine.deliver import TableChange, deliver
from backstory.model.change import Change, Note
from backstory.model.table import TableName
from backstory.stores.port import StoredTable

log = structlog.get_logger()

ColumnChange = Callable[[Subject, Any], Change | None]
PairPlan = Callable[[tables.TablePair], tuple[StoredTable | None, Change | None]]
TableMade = Callable[[tables.TablePair, Any], Change]

_COLUMNS: Mapping[str, ColumnChange] = {
    "add_column_with_default_value": columns.add_with_default,
    "add_column_in_history_mode": columns.add_in_history,
    "drop_column_in_history_mode": columns.drop_in_history,
    "update_column_value": columns.update_value,
    "rename_column": columns.rename,
    "copy_column": columns.copy,
}
_COPIES: Mapping[str, TableMade] = {
    "copy_table": tables.copy,
    "copy_table_to_history_mode": tables.copy_to_history,
}


def migrate(where: NamedStore, details: sdk.MigrationDetails, *, live_modes: bool = False) -> bool:
    """Do the migration, in one commit or none; False if this server offers none of the kind.

    `live_modes` offers the sync modes LIVE too (F8). The same request again changes nothing.
    """
    entity, asked = _operation_of(details)
    if entity in _COLUMNS:
        _on_table(where, details, lambda subject: _COLUMNS[entity](subject, asked))
    elif entity in _COPIES:
        _on_pair(where, details, asked, lambda pair: (None, _COPIES[entity](pair, asked)))
    elif entity == "rename_table":
        _on_pair(where, details, asked, tables.rename)
    elif entity == "drop_table":
        table = where.table(details.schema, details.table)
        drop = TableChange(
            [table], _note(table, details), lambda: tables.drop(where.store, table, asked=asked)
        )
        deliver(where.store, drop)
    elif entity == "table_sync_mode_migration" and (change := modes.change(asked, live_modes=live_modes)):
        _on_table(where, details, lambda subject: change(subject, asked))
    else:
        log.warning("this kind of migration is not supported", kind=entity or "unset")
        return False
    return True


def _operation_of(details: sdk.MigrationDetails) -> tuple[str, Any]:
    """The operation's innermost name, empty if there is none, and its message."""
    operation = details.WhichOneof("operation") or ""
    message: Any = getattr(details, operation) if operation else None
    if operation in {"drop", "copy", "rename", "add"}:
        operation = message.WhichOneof("entity") or ""
        message = getattr(message, operation) if operation else None
    return operation, message


def _on_table(
    where: NamedStore, details: sdk.MigrationDetails, change: Callable[[Subject], Change | None]
) -> None:
    table = where.table(details.schema, details.table)

    def plan() -> tuple[StoredTable, Change | None]:
        stored = existing(where.store, table)
        refuse_foreign(stored.shape)
        return stored, change(Subject(where.store, stored))

    deliver(where.store, TableChange([table], _note(table, details), plan))


def _on_pair(where: NamedStore, details: sdk.MigrationDetails, asked: Any, plan: PairPlan) -> None:
    source = where.table(details.schema, asked.from_table)
    target = where.table(details.schema, asked.to_table)
    pair = tables.TablePair(where.store, source, target)
    deliver(where.store, TableChange([source, target], _note(target, details), lambda: plan(pair)))


def _note(table: TableName, details: sdk.MigrationDetails) -> Note:
    return note("migrate", table, details.SerializeToString(deterministic=True).hex())
