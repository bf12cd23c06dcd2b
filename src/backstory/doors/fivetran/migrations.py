"""The operations of Migrate, each atomic and safe to repeat (section 6).

The table that a migration is about, and what its request says in text.

Migrations of a column: add, drop, set, rename, copy (sections 6.2 to 6.6).

Migrations between sync modes: live, soft delete, history (sections 6.8 and 6.9).

Migrations of whole tables: copy, rename, drop (sections 6.6 and 6.7).

Migrate: which operation a request asks for, and on which tables (section 6).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import structlog

from backstory.doors.fivetran.definitions import can_flag, refuse_foreign, stored_as, type_from
from backstory.doors.fivetran.targets import NamedStore, existing_own, load_own, note
from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.engine.deliver import TableChange, deliver
from backstory.errors import Refused
from backstory.formats.values.cells import UnreadableCell, parse
from backstory.model.change import NOTHING, Change, Note
from backstory.model.instant import MILLISECOND
from backstory.model.layout import ACTIVE, DELETED, HISTORY_COLUMNS, SYSTEM_COLUMNS, Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.port import DISORDER, Store, StoredTable, stored_names
from backstory.stores.tables import rows_of
from backstory.strategies.shape_changes.operations import (
    Add,
    AddInHistory,
    ConstantValue,
    DropInHistory,
    FillFlag,
    HistoryToLive,
    LiveToHistory,
    Operation,
    SetValue,
    SoftDeleteToLive,
    ToHistory,
    TooEarly,
    ToSoftDelete,
    Value,
    ValuesOf,
)
from backstory.strategies.shape_changes.plan import change_of

NULL_TEXT = "NULL"
_TEXT = frozenset({Kind.STRING, Kind.JSON, Kind.XML})


@dataclass(frozen=True, slots=True)
class Subject:
    """A table as it stands."""

    store: Store
    table: StoredTable

    @property
    def shape(self) -> Shape:
        """The table's shape."""
        return self.table.shape

    def column(self, name: str) -> Column:
        """The column that the source calls so; Refused if there is none."""
        found = self.shape.column_of_source(name)
        if found is None:
            raise migration_error(f"{self.shape.table} has no column {name!r}.", "Name one of its columns.")
        return found

    def with_column(self, column: Column) -> Shape:
        """The table's shape with one more column."""
        return replace(self.shape, columns=(*self.shape.columns, column))

    def desired_column(self, name: str, type_: ColumnType) -> Column:
        """The column that the source calls so, or would call so if it were added."""
        names = stored_names(self.store.reserves, [name], self.shape.columns)
        return self.shape.column_of_source(name) or stored_as(Column(name, type_), names)

    def change(self, operation: Operation) -> Change | None:
        """The change that an operation is; Refused for one that an open version is younger than."""
        try:
            return change_of(self.store, self.table, operation)
        except TooEarly:
            raise migration_error(
                f"{self.shape.table} has open versions that start after the operation's time.",
                "Send a later time.",
            ) from None

    def require_history(self) -> None:
        """Raises Refused if the table keeps no history."""
        if self.shape.layout is not Layout.FIVETRAN_HISTORY:
            raise migration_error(
                f"{self.shape.table} keeps no history.",
                "Migrate it to history mode first, or use AlterTable.",
            )

    def require_values(self, column: Column) -> None:
        """Raises Refused if the column's values are not a user's to set: keys and system columns."""
        if column.name in self.shape.key or column.name in SYSTEM_COLUMNS:
            raise migration_error(
                f"The values of {column.source} in {self.shape.table} cannot be set: "
                "it is a key or system column.",
                "Name another column.",
            )


def migration_error(why: str, remedy: str) -> Refused:
    """The error of a migration that the table does not allow."""
    return Refused("migration", why, f"Nothing was changed. {remedy}")


def require_user_column(name: str) -> str:
    """The name, if a migration may make a column of it; Refused for none and for a system column."""
    if not name or name in SYSTEM_COLUMNS:
        raise migration_error(f"A migration cannot create the column {name!r}.", "Choose another name.")
    return name


def parse_value(text: str, column: Column) -> ConstantValue:
    """A value that the request gives as text.

    `NULL` is SQL NULL (F9), and so is an empty text for types that are not text (section 6.1).
    """
    if text == NULL_TEXT or (not text and column.type.kind not in _TEXT):
        return ConstantValue(None)
    return ConstantValue(_parse_cell(text, column)[0].as_py())


def parse_time(text: str) -> datetime:
    """The request's `operation_timestamp`."""
    instant = Column("operation_timestamp", ColumnType(Kind.UTC_DATETIME))
    found: datetime = _parse_cell(text, instant)[0].as_py()
    return found


def _parse_cell(text: str, column: Column) -> pa.Array:
    try:
        return parse(pa.array([text], pa.string()), column.type)
    except UnreadableCell:
        raise migration_error(
            f"The value for {column.source} is not of type {column.type}.", "Send a value of that type."
        ) from None


def add_with_default(subject: Subject, asked: sdk.AddColumnWithDefaultValue) -> Change | None:
    """Add the column, and give every row the value, also if the column was there (6.2)."""
    column = _new_column(subject, asked)
    given = parse_value(asked.default_value, column)
    if column in subject.shape.columns:
        return _set_values(subject, column, given)
    return subject.change(Add(subject.with_column(column), column, given))


def _new_column(
    subject: Subject, asked: sdk.AddColumnWithDefaultValue | sdk.AddColumnInHistoryMode
) -> Column:
    """The column to add, as the table would have it."""
    name = require_user_column(asked.column)
    return subject.desired_column(name, type_from(common.Column(name=name, type=asked.column_type)))


def _set_values(subject: Subject, column: Column, given: Value) -> Change | None:
    subject.require_values(column)
    return subject.change(SetValue(column, given))


def update_value(subject: Subject, asked: sdk.UpdateColumnValueOperation) -> Change | None:
    """Give every row the value, all versions included (6.5)."""
    column = subject.column(asked.column)
    return _set_values(subject, column, parse_value(asked.value, column))


def add_in_history(subject: Subject, asked: sdk.AddColumnInHistoryMode) -> Change | None:
    """Add the column, and give each open version a successor with the value (6.3)."""
    subject.require_history()
    column = _new_column(subject, asked)
    is_new = column not in subject.shape.columns
    if not is_new:
        subject.require_values(column)
    given, instant = parse_value(asked.default_value, column), parse_time(asked.operation_timestamp)
    into = subject.with_column(column) if is_new else None
    return subject.change(AddInHistory(column, given, instant, into))


def drop_in_history(subject: Subject, asked: sdk.DropColumnInHistoryMode) -> Change | None:
    """Give each open version that has a value a successor without; the column stays (6.4)."""
    subject.require_history()
    column = subject.shape.column_of_source(asked.column)
    instant = parse_time(asked.operation_timestamp)
    if column is None:
        return None
    subject.require_values(column)
    return subject.change(DropInHistory(column, instant))


def rename_column(subject: Subject, asked: sdk.RenameColumn) -> Change | None:
    """Give the column another name; type, values and key stay (6.6)."""
    shape = subject.shape
    old, new = asked.from_column, require_user_column(asked.to_column)
    if shape.column_of_source(old) is None and shape.column_of_source(new):
        return None
    column = subject.column(old)
    if shape.column_of_source(new):
        raise migration_error(f"{shape.table} already has a column {new!r}.", "Choose another name.")
    if old in SYSTEM_COLUMNS:
        raise migration_error(f"{old} is a system column: later requests name it.", "Name another column.")
    others = [each for each in shape.columns if each is not column]
    renamed = stored_as(Column(new, column.type), stored_names(subject.store.reserves, [new], others))
    columns = tuple(renamed if each is column else each for each in shape.columns)
    key = tuple(renamed.name if name == column.name else name for name in shape.key)
    into = replace(shape, columns=columns, key=key)
    return Change(into=into, renamed={column.name: renamed.name})


def copy_column(subject: Subject, asked: sdk.CopyColumn) -> Change | None:
    """Give the target the source's values; it is added if it is not there (6.6)."""
    source = subject.column(asked.from_column)
    target = subject.desired_column(require_user_column(asked.to_column), source.type)
    if target not in subject.shape.columns:
        return subject.change(Add(subject.with_column(target), target, ValuesOf(source.name)))
    if target.type == source.type:
        return _set_values(subject, target, ValuesOf(source.name))
    raise migration_error(
        f"{target.source} is {target.type}, {source.source} is {source.type}.", "Copy to another column."
    )


ModeRequest = sdk.TableSyncModeMigrationOperation
ModeChange = Callable[[Subject, ModeRequest], Change | None]
_BOOLEAN, _INSTANT = ColumnType(Kind.BOOLEAN), ColumnType(Kind.UTC_DATETIME)
_DELETED = Column(DELETED, _BOOLEAN)


def mode_change(asked: ModeRequest, *, live_modes: bool) -> ModeChange | None:
    """What the migration type means; None for one that is not offered."""
    types = sdk.TableSyncModeMigrationType
    offered: dict[int, ModeChange] = {
        types.SOFT_DELETE_TO_HISTORY: soft_delete_to_history,
        types.HISTORY_TO_SOFT_DELETE: history_to_soft_delete,
    }
    if live_modes:
        offered |= {
            types.SOFT_DELETE_TO_LIVE: soft_delete_to_live,
            types.HISTORY_TO_LIVE: history_to_live,
            types.LIVE_TO_SOFT_DELETE: live_to_soft_delete,
            types.LIVE_TO_HISTORY: live_to_history,
        }
    return offered.get(asked.type)


def soft_delete_to_history(subject: Subject, asked: ModeRequest) -> Change | None:
    """Rows become open versions that start with the newest sync, flagged ones closed versions."""
    if subject.shape.layout is Layout.FIVETRAN_HISTORY:
        return None
    return to_history(subject, asked.soft_deleted_column or DELETED)


def to_history(subject: Subject, flag: str) -> Change | None:
    """The table's rows as a history table's; no row is deleted if there is no such flag."""
    deleted = _flag_column(subject, flag)
    return subject.change(ToHistory(_history_shape(subject.shape, without=DELETED), deleted.name, _now()))


def history_to_soft_delete(subject: Subject, asked: ModeRequest) -> Change | None:
    """The newest version of each key stays, flagged if it is closed."""
    flag = _flag_column(subject, asked.soft_deleted_column or DELETED)
    shape = subject.shape
    if shape.layout is Layout.FIVETRAN_HISTORY:
        return subject.change(ToSoftDelete(_live_shape(shape, flag, _DELETED), flag.name))
    return _add_flag(subject, flag) if shape.column(flag.name) is None else None


def soft_delete_to_live(subject: Subject, asked: ModeRequest) -> Change | None:
    """Flagged rows go."""
    flag = _flag_column(subject, asked.soft_deleted_column or DELETED).name
    if subject.shape.layout is Layout.FIVETRAN_HISTORY or subject.shape.column(flag) is None:
        return None
    kept = [c for c in subject.shape.columns if c.name != DELETED or flag != DELETED]
    return subject.change(SoftDeleteToLive(replace(subject.shape, columns=tuple(kept)), flag))


def history_to_live(subject: Subject, asked: ModeRequest) -> Change | None:
    """The newest version of each key stays if it is open, or if deleted rows are kept."""
    shape = subject.shape
    if shape.layout is not Layout.FIVETRAN_HISTORY:
        return None
    return subject.change(HistoryToLive(_live_shape(shape), asked.keep_deleted_rows))


def live_to_soft_delete(subject: Subject, asked: ModeRequest) -> Change | None:
    """The flag is there, and FALSE where it was NULL."""
    flag = _flag_column(subject, asked.soft_deleted_column or DELETED)
    if subject.shape.column(flag.name) is None:
        return _add_flag(subject, flag)
    return subject.change(FillFlag(flag.name))


def live_to_history(subject: Subject, _asked: ModeRequest) -> Change | None:
    """Every row becomes an open version that starts now."""
    if subject.shape.layout is Layout.FIVETRAN_HISTORY:
        return None
    return subject.change(LiveToHistory(_history_shape(subject.shape), _now()))


def _add_flag(subject: Subject, flag: Column) -> Change | None:
    return subject.change(Add(subject.with_column(flag), flag, ConstantValue(False)))


def _history_shape(shape: Shape, without: str = "") -> Shape:
    _require_key(shape)
    kept = [c for c in shape.columns if c.name not in {without, *HISTORY_COLUMNS}]
    new = [Column(name, _BOOLEAN if name == ACTIVE else _INSTANT) for name in HISTORY_COLUMNS]
    return replace(shape, columns=(*kept, *new), layout=Layout.FIVETRAN_HISTORY)


def _live_shape(shape: Shape, *flags: Column) -> Shape:
    _require_key(shape)
    kept = [c for c in shape.columns if c.name not in HISTORY_COLUMNS]
    new = [flag for flag in dict.fromkeys(flags) if shape.column(flag.name) is None]
    return replace(shape, columns=(*kept, *new), layout=Layout.FIVETRAN_LIVE)


def _require_key(shape: Shape) -> None:
    if not shape.key:
        raise migration_error(f"{shape.table} has no key.", "Alter the table's key first.")


def _flag_column(subject: Subject, name: str) -> Column:
    """The column that the source calls so, there or not; Refused if it is there and cannot be a flag."""
    flag = subject.desired_column(name, _BOOLEAN)
    if not can_flag(subject.shape, flag):
        raise migration_error(
            f"The column {name} of {subject.shape.table} cannot flag deleted rows: it is not BOOLEAN, or it "
            "belongs to the key or the history.",
            "Name another.",
        )
    return flag


def _now() -> datetime:
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // MILLISECOND * MILLISECOND)


@dataclass(frozen=True, slots=True)
class TablePair:
    """A source and a target."""

    store: Store
    source: TableName
    target: TableName

    def source_table(self) -> StoredTable:
        """The source as it stands; Refused if it is the target too, or the target is another door's."""
        if self.source == self.target:
            raise migration_error(f"{self.source} cannot be copied onto itself.", "Name another target.")
        load_own(self.store, self.target)
        found = existing_own(self.store, self.source)
        refuse_foreign(found.shape)
        return found


def copy_table(pair: TablePair, _asked: sdk.CopyTable) -> Change:
    """Make the target a copy of the source: columns, types, key and rows; replace one that is there."""
    stored = pair.source_table()
    marks = {DISORDER: "true"} if stored.disorderly else {}
    return _new_table(replace(stored.shape, table=pair.target), rows_of(pair.store, stored), marks)


def copy_table_to_history(pair: TablePair, asked: sdk.CopyTableToHistoryMode) -> Change:
    """Make the target a history table of the source's rows; the source stays as it is (6.7)."""
    stored = pair.source_table()
    if stored.shape.layout is Layout.FIVETRAN_HISTORY:
        return copy_table(pair, sdk.CopyTable())
    change = to_history(Subject(pair.store, stored), asked.soft_deleted_column)
    assert change is not None
    assert change.into is not None
    return _new_table(replace(change.into, table=pair.target), change.added)


def _new_table(shape: Shape, rows: Any, marks: Mapping[str, str] = NOTHING) -> Change:
    return Change(added=rows, into=shape, recreate=True, count_as="inserted", properties=marks)


def rename_table(pair: TablePair) -> tuple[StoredTable | None, Change | None]:
    """Give the table another name; done before is done."""
    source, target = load_own(pair.store, pair.source), load_own(pair.store, pair.target)
    if source is None and target:
        return target, None
    if target:
        raise migration_error(f"The table {pair.target} exists already.", "Choose another name.")
    source = existing_own(pair.store, pair.source)
    return source, Change(into=replace(source.shape, table=pair.target))


def drop_table(store: Store, table: TableName, *, asked: bool) -> tuple[StoredTable | None, Change | None]:
    """Remove the table and its data; one that is not there is dropped already."""
    if not asked:
        raise migration_error(
            "The request names a table to drop but does not set drop_table.", "Set drop_table."
        )
    found = load_own(store, table)
    return found, Change(dropped=True) if found else None


log = structlog.get_logger()

ColumnChange = Callable[[Subject, Any], Change | None]
PairPlan = Callable[[TablePair], tuple[StoredTable | None, Change | None]]
TableCopy = Callable[[TablePair, Any], Change]

_COLUMNS: Mapping[str, ColumnChange] = {
    "add_column_with_default_value": add_with_default,
    "add_column_in_history_mode": add_in_history,
    "drop_column_in_history_mode": drop_in_history,
    "update_column_value": update_value,
    "rename_column": rename_column,
    "copy_column": copy_column,
}
_COPIES: Mapping[str, TableCopy] = {
    "copy_table": copy_table,
    "copy_table_to_history_mode": copy_table_to_history,
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
        _on_pair(where, details, asked, rename_table)
    elif entity == "drop_table":
        table = where.table(details.schema, details.table)
        drop = TableChange(
            [table], _note(table, details), lambda: drop_table(where.store, table, asked=asked)
        )
        deliver(where.store, drop)
    elif entity == "table_sync_mode_migration" and (change := mode_change(asked, live_modes=live_modes)):
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
        stored = existing_own(where.store, table)
        refuse_foreign(stored.shape)
        return stored, change(Subject(where.store, stored))

    deliver(where.store, TableChange([table], _note(table, details), plan))


def _on_pair(where: NamedStore, details: sdk.MigrationDetails, asked: Any, plan: PairPlan) -> None:
    source = where.table(details.schema, asked.from_table)
    target = where.table(details.schema, asked.to_table)
    pair = TablePair(where.store, source, target)
    deliver(where.store, TableChange([source, target], _note(target, details), lambda: plan(pair)))


def _note(table: TableName, details: sdk.MigrationDetails) -> Note:
    return note("migrate", table, details.SerializeToString(deterministic=True).hex())
