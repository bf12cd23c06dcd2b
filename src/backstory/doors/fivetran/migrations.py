"""Migrations: operations on columns, tables and sync modes, each atomic and safe to repeat (section 6)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import structlog

from backstory.doors.fivetran import definitions
from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.engine.deliver import deliver_change
from backstory.errors import Refused
from backstory.formats.values.cells import UnreadableCell, parse
from backstory.model.change import Change
from backstory.model.instant import MILLISECOND
from backstory.model.layout import ACTIVE, DELETED, HISTORY_COLUMNS, SYSTEM_COLUMNS, Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.port import DISORDER, Store, StoredTable, stored_names
from backstory.stores.tables import rows_of
from backstory.strategies import shape_changes as operations

NULL_TEXT = "NULL"
_TEXT = frozenset({Kind.STRING, Kind.JSON, Kind.XML})


@dataclass(frozen=True, slots=True)
class Subject:
    """The table to migrate, as it is stored."""

    store: Store
    table: StoredTable

    @property
    def shape(self) -> Shape:
        """The current shape of the table."""
        return self.table.shape

    def column(self, name: str) -> Column:
        """The column with this name in the source. Raises Refused if the column does not exist."""
        column = self.shape.column_of_source(name)
        if column is None:
            raise migration_error(f"{self.shape.table} has no column {name!r}.", "Name one of its columns.")
        return column

    def with_column(self, column: Column) -> Shape:
        """The table's shape with one more column."""
        return replace(self.shape, columns=(*self.shape.columns, column))

    def desired_column(self, name: str, type_: ColumnType) -> Column:
        """The column with this name in the source or, if it is missing, the column that would be added."""
        names = stored_names([name], self.shape.columns)
        return self.shape.column_of_source(name) or definitions.stored_as(Column(name, type_), names)

    def change(self, operation: operations.Operation) -> Change | None:
        """The change that carries out an operation.

        Raises Refused if an open version starts after the operation's time.
        """
        try:
            return operations.change_of(self.store, self.table, operation)
        except operations.TooEarly:
            raise migration_error(
                f"{self.shape.table} has open versions that start after the operation's time.",
                "Send a later time.",
            ) from None

    def require_history(self) -> None:
        """Raise Refused if the table has no history."""
        if self.shape.layout is not Layout.FIVETRAN_HISTORY:
            raise migration_error(
                f"{self.shape.table} keeps no history.",
                "Migrate it to history mode first, or use AlterTable.",
            )

    def require_values(self, column: Column) -> None:
        """Raise Refused if the column is a key or system column, whose values cannot be set."""
        if column.name in self.shape.key or column.name in SYSTEM_COLUMNS:
            raise migration_error(
                f"The values of {column.source} in {self.shape.table} cannot be set: "
                "it is a key or system column.",
                "Name another column.",
            )


def migration_error(why: str, remedy: str) -> Refused:
    """The error for a migration that the table does not allow."""
    return Refused("migration", why, f"Nothing was changed. {remedy}")


def require_user_column(name: str) -> str:
    """The name of a column to create. Raises Refused if it is empty or the name of a system column."""
    if not name or name in SYSTEM_COLUMNS:
        raise migration_error(f"A migration cannot create the column {name!r}.", "Choose another name.")
    return name


def parse_value(text: str, column: Column) -> operations.ConstantValue:
    """The value that a string in the request denotes.

    `NULL` is SQL NULL (F9). An empty string is also NULL, unless the column is text (section 6.1).
    """
    if text == NULL_TEXT or (not text and column.type.kind not in _TEXT):
        return operations.ConstantValue(None)
    return operations.ConstantValue(_parse_cell(text, column)[0].as_py())


def parse_time(text: str) -> datetime:
    """Parse the request's `operation_timestamp`."""
    column = Column("operation_timestamp", ColumnType(Kind.UTC_DATETIME))
    instant: datetime = _parse_cell(text, column)[0].as_py()
    return instant


def _parse_cell(text: str, column: Column) -> pa.Array:
    try:
        return parse(pa.array([text], pa.string()), column.type)
    except UnreadableCell:
        raise migration_error(
            f"The value for {column.source} is not of type {column.type}.", "Send a value of that type."
        ) from None


def add_with_default(subject: Subject, request: sdk.AddColumnWithDefaultValue) -> Change | None:
    """Add the column, and set the value in every row, even if the column exists (6.2)."""
    column = _new_column(subject, request)
    value = parse_value(request.default_value, column)
    if column in subject.shape.columns:
        return _set_values(subject, column, value)
    return subject.change(operations.Add(subject.with_column(column), column, value))


def _new_column(
    subject: Subject, request: sdk.AddColumnWithDefaultValue | sdk.AddColumnInHistoryMode
) -> Column:
    """The column to add, with its name in the table."""
    name = require_user_column(request.column)
    return subject.desired_column(
        name, definitions.type_from(common.Column(name=name, type=request.column_type))
    )


def _set_values(subject: Subject, column: Column, value: operations.Value) -> Change | None:
    subject.require_values(column)
    return subject.change(operations.SetValue(column, value))


def update_value(subject: Subject, request: sdk.UpdateColumnValueOperation) -> Change | None:
    """Set the value in every row, including all versions (6.5)."""
    column = subject.column(request.column)
    return _set_values(subject, column, parse_value(request.value, column))


def add_in_history(subject: Subject, request: sdk.AddColumnInHistoryMode) -> Change | None:
    """Add the column, and open a successor with the value for each open version (6.3)."""
    subject.require_history()
    column = _new_column(subject, request)
    is_new = column not in subject.shape.columns
    if not is_new:
        subject.require_values(column)
    value, instant = parse_value(request.default_value, column), parse_time(request.operation_timestamp)
    into = subject.with_column(column) if is_new else None
    return subject.change(operations.AddInHistory(column, value, instant, into))


def drop_in_history(subject: Subject, request: sdk.DropColumnInHistoryMode) -> Change | None:
    """For each open version with a value in the column, open a successor without that value.

    The column itself is not dropped (6.4).
    """
    subject.require_history()
    column = subject.shape.column_of_source(request.column)
    instant = parse_time(request.operation_timestamp)
    if column is None:
        return None
    subject.require_values(column)
    return subject.change(operations.DropInHistory(column, instant))


def rename_column(subject: Subject, request: sdk.RenameColumn) -> Change | None:
    """Rename the column. Its type, values and role in the key stay the same (6.6)."""
    shape = subject.shape
    old, new = request.from_column, require_user_column(request.to_column)
    if shape.column_of_source(old) is None and shape.column_of_source(new):
        return None
    column = subject.column(old)
    if shape.column_of_source(new):
        raise migration_error(f"{shape.table} already has a column {new!r}.", "Choose another name.")
    if old in SYSTEM_COLUMNS:
        raise migration_error(f"{old} is a system column: later requests name it.", "Name another column.")
    others = [other for other in shape.columns if other is not column]
    renamed = definitions.stored_as(Column(new, column.type), stored_names([new], others))
    columns = tuple(renamed if other is column else other for other in shape.columns)
    key = tuple(renamed.name if name == column.name else name for name in shape.key)
    into = replace(shape, columns=columns, key=key)
    return Change(into=into, renamed={column.name: renamed.name})


def copy_column(subject: Subject, request: sdk.CopyColumn) -> Change | None:
    """Copy the values of one column to another, which is added if it is missing (6.6)."""
    source = subject.column(request.from_column)
    target = subject.desired_column(require_user_column(request.to_column), source.type)
    if target not in subject.shape.columns:
        return subject.change(
            operations.Add(subject.with_column(target), target, operations.ValuesOf(source.name))
        )
    if target.type == source.type:
        return _set_values(subject, target, operations.ValuesOf(source.name))
    raise migration_error(
        f"{target.source} is {target.type}, {source.source} is {source.type}.", "Copy to another column."
    )


ModeRequest = sdk.TableSyncModeMigrationOperation
ModeChange = Callable[[Subject, ModeRequest], Change | None]
_BOOLEAN, _INSTANT = ColumnType(Kind.BOOLEAN), ColumnType(Kind.UTC_DATETIME)
_DELETED = Column(DELETED, _BOOLEAN)


def soft_delete_to_history(subject: Subject, request: ModeRequest) -> Change | None:
    """Turn rows into open versions that start with the newest sync, and flagged rows into closed versions."""
    if subject.shape.layout is Layout.FIVETRAN_HISTORY:
        return None
    return to_history(subject, request.soft_deleted_column or DELETED)


def to_history(subject: Subject, flag: str) -> Change | None:
    """Turn rows into versions. If the table lacks the flag, no row counts as deleted."""
    deleted = _flag_column(subject, flag)
    return subject.change(
        operations.ToHistory(_history_shape(subject.shape, without=DELETED), deleted.name, _now())
    )


def history_to_soft_delete(subject: Subject, request: ModeRequest) -> Change | None:
    """Keep the newest version of each key, flagged if it is closed."""
    flag = _flag_column(subject, request.soft_deleted_column or DELETED)
    shape = subject.shape
    if shape.layout is Layout.FIVETRAN_HISTORY:
        return subject.change(operations.ToSoftDelete(_live_shape(shape, flag, _DELETED), flag.name))
    return _add_flag(subject, flag) if shape.column(flag.name) is None else None


def soft_delete_to_live(subject: Subject, request: ModeRequest) -> Change | None:
    """Delete the flagged rows."""
    flag = _flag_column(subject, request.soft_deleted_column or DELETED).name
    if subject.shape.layout is Layout.FIVETRAN_HISTORY or subject.shape.column(flag) is None:
        return None
    columns = [c for c in subject.shape.columns if c.name != DELETED or flag != DELETED]
    return subject.change(operations.SoftDeleteToLive(replace(subject.shape, columns=tuple(columns)), flag))


def history_to_live(subject: Subject, request: ModeRequest) -> Change | None:
    """Keep the newest version of each key if it is open, or if deleted rows are kept."""
    shape = subject.shape
    if shape.layout is not Layout.FIVETRAN_HISTORY:
        return None
    return subject.change(operations.HistoryToLive(_live_shape(shape), request.keep_deleted_rows))


def live_to_soft_delete(subject: Subject, request: ModeRequest) -> Change | None:
    """Add the flag, or set it to FALSE where it is NULL."""
    flag = _flag_column(subject, request.soft_deleted_column or DELETED)
    if subject.shape.column(flag.name) is None:
        return _add_flag(subject, flag)
    return subject.change(operations.FillFlag(flag.name))


def live_to_history(subject: Subject, _request: ModeRequest) -> Change | None:
    """Turn every row into an open version that starts now."""
    if subject.shape.layout is Layout.FIVETRAN_HISTORY:
        return None
    return subject.change(operations.LiveToHistory(_history_shape(subject.shape), _now()))


def _add_flag(subject: Subject, flag: Column) -> Change | None:
    return subject.change(operations.Add(subject.with_column(flag), flag, operations.ConstantValue(False)))


def _history_shape(shape: Shape, without: str = "") -> Shape:
    _require_key(shape)
    columns = [c for c in shape.columns if c.name not in {without, *HISTORY_COLUMNS}]
    new = [Column(name, _BOOLEAN if name == ACTIVE else _INSTANT) for name in HISTORY_COLUMNS]
    return replace(shape, columns=(*columns, *new), layout=Layout.FIVETRAN_HISTORY)


def _live_shape(shape: Shape, *flags: Column) -> Shape:
    _require_key(shape)
    columns = [c for c in shape.columns if c.name not in HISTORY_COLUMNS]
    new = [flag for flag in dict.fromkeys(flags) if shape.column(flag.name) is None]
    return replace(shape, columns=(*columns, *new), layout=Layout.FIVETRAN_LIVE)


def _require_key(shape: Shape) -> None:
    if not shape.key:
        raise migration_error(f"{shape.table} has no key.", "Alter the table's key first.")


def _flag_column(subject: Subject, name: str) -> Column:
    """The flag column with this name in the source. Raises Refused if an existing column cannot be a flag."""
    flag = subject.desired_column(name, _BOOLEAN)
    if not definitions.can_flag(subject.shape, flag):
        raise migration_error(
            f"The column {name} of {subject.shape.table} cannot flag deleted rows: it is not BOOLEAN, or it "
            "belongs to the key or the history.",
            "Name another.",
        )
    return flag


def _now() -> datetime:
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // MILLISECOND * MILLISECOND)


Planned = tuple[StoredTable | None, Change | None]


def copy_table(
    store: Store, source: TableName, target: TableName, request: sdk.CopyTable | sdk.CopyTableToHistoryMode
) -> Planned:
    """Create or replace the target as a copy of the source, with its columns, types, key and rows.

    A copy to history mode has the source's rows as versions. The source is unchanged (6.7).
    """
    if source == target:
        raise migration_error(f"{source} cannot be copied onto itself.", "Name another target.")
    definitions.load_own(store, target)
    stored = definitions.existing_own(store, source)
    definitions.refuse_foreign(stored.shape)
    if isinstance(request, sdk.CopyTableToHistoryMode) and stored.shape.layout is Layout.FIVETRAN_LIVE:
        copy = to_history(Subject(store, stored), request.soft_deleted_column)
    else:
        marks = {DISORDER: "true"} if stored.disorderly else {}
        copy = Change(added=rows_of(store, stored), into=stored.shape, properties=marks)
    assert copy is not None
    assert copy.into is not None
    into = replace(copy.into, table=target)
    return None, replace(copy, into=into, whole=False, recreate=True, count_as="inserted")


def rename_table(store: Store, source: TableName, target: TableName, _request: sdk.RenameTable) -> Planned:
    """Rename the table. Nothing changes if an earlier request renamed it."""
    stored, renamed = definitions.load_own(store, source), definitions.load_own(store, target)
    if stored is None and renamed:
        return renamed, None
    if renamed:
        raise migration_error(f"The table {target} exists already.", "Choose another name.")
    stored = definitions.existing_own(store, source)
    return stored, Change(into=replace(stored.shape, table=target))


def drop_table(store: Store, table: TableName, confirmed: bool) -> Planned:  # noqa: FBT001 - the request
    """Delete the table and its data. Nothing changes if it does not exist."""
    if not confirmed:
        raise migration_error(
            "The request names a table to drop but does not set drop_table.", "Set drop_table."
        )
    stored = definitions.load_own(store, table)
    return stored, Change(dropped=True) if stored else None


log = structlog.get_logger()

# Changes of columns and rows, which get the table and the request.
_COLUMNS: Mapping[str, Callable[[Subject, Any], Change | None]] = {
    "add_column_with_default_value": add_with_default,
    "add_column_in_history_mode": add_in_history,
    "drop_column_in_history_mode": drop_in_history,
    "update_column_value": update_value,
    "rename_column": rename_column,
    "copy_column": copy_column,
}
# The migrations of sync modes that Fivetran offers, and those from and to live mode.
_TYPES = sdk.TableSyncModeMigrationType
_MODES: Mapping[int, ModeChange] = {
    _TYPES.SOFT_DELETE_TO_HISTORY: soft_delete_to_history,
    _TYPES.HISTORY_TO_SOFT_DELETE: history_to_soft_delete,
}
_LIVE_MODES: Mapping[int, ModeChange] = {
    **_MODES,
    _TYPES.SOFT_DELETE_TO_LIVE: soft_delete_to_live,
    _TYPES.HISTORY_TO_LIVE: history_to_live,
    _TYPES.LIVE_TO_SOFT_DELETE: live_to_soft_delete,
    _TYPES.LIVE_TO_HISTORY: live_to_history,
}
# Changes of whole tables, which get the store, the tables of the request, and the request.
_TABLES: Mapping[str, Callable[..., Planned]] = {
    "copy_table": copy_table,
    "copy_table_to_history_mode": copy_table,
    "rename_table": rename_table,
    "drop_table": drop_table,
}


def migrate(
    where: definitions.NamedStore, details: sdk.MigrationDetails, *, live_modes: bool = False
) -> bool:
    """Carry out the migration in at most one commit.

    Returns False if this server does not offer the migration. With `live_modes`, migrations from and to live
    mode are also offered (F8). A repeated request changes nothing.
    """
    entity, request = _operation_of(details)
    store, names = where.store, [details.table]
    if entity in {"copy_table", "copy_table_to_history_mode", "rename_table"}:
        names = [request.from_table, request.to_table]
    modes = _LIVE_MODES if live_modes else _MODES
    change = modes.get(request.type) if entity == "table_sync_mode_migration" else _COLUMNS.get(entity)
    if change is None and entity not in _TABLES:
        log.warning("this kind of migration is not supported", kind=entity or "unset")
        return False
    tables = [where.table(details.schema, name) for name in names]

    def plan() -> Planned:
        if change is None:
            return _TABLES[entity](store, *tables, request)
        stored = definitions.existing_own(store, tables[0])
        definitions.refuse_foreign(stored.shape)
        return stored, change(Subject(store, stored), request)

    text = details.SerializeToString(deterministic=True).hex()
    deliver_change(store, tables, definitions.note("migrate", tables[-1], text), plan)
    return True


def _operation_of(details: sdk.MigrationDetails) -> tuple[str, Any]:
    """The operation's innermost name and its message, or an empty name and None without an operation."""
    operation = details.WhichOneof("operation") or ""
    message: Any = getattr(details, operation) if operation else None
    if operation in {"drop", "copy", "rename", "add"}:
        operation = message.WhichOneof("entity") or ""
        message = getattr(message, operation) if operation else None
    return operation, message
