"""Tables of requests: names, layouts, notes, definitions as shapes, AlterTable (2.6) and Truncate (2.7)."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.engine.deliver import deliver_change
from backstory.errors import Refused, UsageError
from backstory.model.change import Change, Note
from backstory.model.instant import EPOCH
from backstory.model.layout import ACTIVE, HISTORY_COLUMNS, START, Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind, are_related
from backstory.stores import tables
from backstory.stores.port import Store, StoredTable, require_layout, stored_names
from backstory.strategies.shape_changes import DeleteBefore, EndBefore, FlagBefore, Reshape, change_of

DOOR = "fivetran"


def note(act: str, *about: object) -> Note:
    """The note for a commit. Its token is a hash of the act and its arguments."""
    text = " ".join(map(str, (act, *about)))
    return Note(DOOR, hashlib.sha256(text.encode()).hexdigest())


LAYOUTS = (Layout.FIVETRAN_LIVE, Layout.FIVETRAN_HISTORY)


def load_own(store: Store, table: TableName) -> StoredTable | None:
    """The stored table, or None if it does not exist. Raises Refused if another door writes it."""
    stored = tables.load(store, table)
    return stored and require_layout(stored, *LAYOUTS)


def existing_own(store: Store, table: TableName) -> StoredTable:
    """The stored table. Raises UsageError if it does not exist, and Refused if another door writes it."""
    return require_layout(tables.existing(store, table), *LAYOUTS)


NUL = "\0"
CATALOG_FIELD, PREFIX_FIELD = "catalog", "schema_prefix"


@dataclass(frozen=True, slots=True)
class NamedStore:
    """A store, and a prefix for the names of its schemas."""

    store: Store
    prefix: str

    def schema(self, name: str) -> str:
        """The schema's name in the store. Raises UsageError if the name is empty."""
        if not name or NUL in name:
            raise UsageError("no-schema", "The request names no valid schema.", "Name the schema.")
        return self.prefix + name

    def table(self, schema: str, name: str) -> TableName:
        """The table's name in the store. Raises UsageError if the name is empty."""
        if not name or NUL in name:
            raise UsageError("no-table-name", "The request names no valid table.", "Name the table.")
        return TableName(self.schema(schema), name)


def target(stores: Mapping[str, Store], configuration: Mapping[str, str]) -> NamedStore:
    """The store and prefix in a configuration.

    If the configuration is empty, the form's defaults apply (F20). Raises UsageError for a catalog that this
    server does not serve, and for a prefix with a NUL character.
    """
    name = configuration.get(CATALOG_FIELD) or next(iter(stores))
    if name not in stores:
        raise UsageError(
            "no-catalog",
            "The configuration names a catalog that this server was not started with.",
            f"Choose one of {', '.join(stores)}.",
        )
    prefix = configuration.get(PREFIX_FIELD, "")
    if NUL in prefix:
        raise UsageError(
            "no-schema",
            "The schema prefix of the configuration contains a NUL character.",
            "Remove it in the setup form.",
        )
    return NamedStore(stores[name], prefix)


def columns_from(columns: Iterable[common.Column]) -> tuple[Column, ...]:
    """The columns of a definition.

    Raises Refused for a repeated column, or for a column without a type (section 2.5).
    """
    parsed = tuple(Column(column.name, type_from(column)) for column in columns)
    twice = [name for name, times in Counter(column.name for column in parsed).items() if times > 1]
    if twice:
        raise Refused(
            "repeated-column", f"The definition names {twice[0]} more than once.", "Name each column once."
        )
    return parsed


def stored_as(column: Column, names: Mapping[str, str]) -> Column:
    """The column under its name in the table, which `stored_names` determines (F21)."""
    name = names[column.name]
    return replace(column, name=name, source_name="" if name == column.name else column.name)


def type_from(column: common.Column) -> ColumnType:
    """The type of a column. The byte length of a string is dropped, because tables cannot limit it."""
    known = column.type in common.DataType.values()
    name = common.DataType.Name(column.type) if known else "UNSPECIFIED"
    if name == "UNSPECIFIED":
        raise Refused(
            "unspecified-type",
            f"The column {column.name} has no type.",
            "Give the column one of the contract's types.",
        )
    if name == Kind.DECIMAL:
        params = column.params.decimal
        return ColumnType.decimal(params.precision, params.scale)
    return ColumnType(Kind(name))


def key_from(columns: Iterable[common.Column]) -> tuple[str, ...]:
    """The key columns of a definition. `_fivetran_start` is never a key column (F15)."""
    return tuple(c.name for c in columns if c.primary_key and c.name != START)


def required_key(table: TableName, definition: common.Table) -> tuple[str, ...]:
    """The key columns of a table's definition. Raises Refused for a definition without key columns."""
    key = key_from(definition.columns)
    if not key:
        raise Refused("no-key", f"The definition of {table} has no key column.", "Mark its key columns.")
    return key


def shape_from(table: TableName, definition: common.Table) -> Shape:
    """The shape of a table to create.

    It is a history table if it has the three history columns. Raises Refused for a definition without a key,
    or with a history column of a wrong type.
    """
    columns, key = columns_from(definition.columns), required_key(table, definition)
    history = {c.name for c in columns}.issuperset(HISTORY_COLUMNS)
    for column in columns:
        wanted = ColumnType(Kind.BOOLEAN if column.name == ACTIVE else Kind.UTC_DATETIME)
        if history and column.name in HISTORY_COLUMNS and column.type != wanted:
            raise Refused(
                "history-column",
                f"The column {column.name} of {table} is {column.type}, but history needs {wanted}.",
                "Give it that type.",
            )
    names = stored_names([column.name for column in columns])
    return Shape(
        table,
        tuple(stored_as(column, names) for column in columns),
        tuple(names[name] for name in key),
        Layout.FIVETRAN_HISTORY if history else Layout.FIVETRAN_LIVE,
    )


def refuse_foreign(shape: Shape) -> None:
    """Raise Refused if another tool added a column whose type matches no Fivetran type."""
    for column in shape.columns:
        if not column.type.flat:
            raise Refused(
                "foreign-column",
                f"The column {column.source} of {shape.table} is of type {column.type}, which matches "
                "no type of a source.",
                "Nothing was written; keep the column in a table of your own, and drop it here.",
            )


def can_flag(shape: Shape, column: Column) -> bool:
    """Whether a column can flag deleted rows. It must be BOOLEAN, and not a key or history column."""
    return column.type.kind is Kind.BOOLEAN and column.name not in {*shape.key, *HISTORY_COLUMNS}


def definition_of(shape: Shape, name: str) -> common.Table:
    """The definition of a shape for DescribeTable: columns, types, keys and decimal parameters.

    Columns that other tools added are omitted if their type is not in the contract. A history table's
    `_fivetran_start` is a key column, as in CreateTable (section 2.4).
    """
    key = {*shape.key, START} if shape.layout is Layout.FIVETRAN_HISTORY else set(shape.key)
    table = common.Table(name=name)
    for column in shape.columns:
        if not column.type.flat:
            continue
        defined = table.columns.add(name=column.source, primary_key=column.name in key)
        defined.type = common.DataType.Value(column.type.kind)  # type: ignore[assignment]
        if column.type.kind is Kind.DECIMAL:
            defined.params.decimal.precision = column.type.precision
            defined.params.decimal.scale = column.type.scale
    return table


def alter(store: Store, table: TableName, definition: common.Table, *, drop_columns: bool) -> bool:
    """Add and retype columns, drop columns if `drop_columns` is set, and change the key, in one commit.

    Returns whether anything changed.
    """

    def plan() -> tuple[StoredTable, Change | None]:
        stored = existing_own(store, table)
        refuse_foreign(stored.shape)
        into = _desired_shape(stored.shape, definition, drop_columns=drop_columns)
        if (into.columns, {*into.key}) == (stored.shape.columns, {*stored.shape.key}):
            return stored, None
        _refuse_alteration(stored.shape, into)
        return stored, change_of(store, stored, Reshape(stored.shape, into))

    commit_note = note("alter", table, definition.SerializeToString(deterministic=True).hex(), drop_columns)
    return deliver_change(store, [table], commit_note, plan) is not None


def _desired_shape(shape: Shape, definition: common.Table, *, drop_columns: bool) -> Shape:
    """The shape that the definition describes. A decimal without parameters keeps its stored parameters."""
    key = required_key(shape.table, definition)
    columns = columns_from(definition.columns)
    names = stored_names([column.name for column in columns], shape.columns)
    desired = {names[column.name]: stored_as(column, names) for column in columns}
    for column in definition.columns:
        stored = shape.column_of_source(column.name)
        bare = column.type == common.DataType.DECIMAL and not column.params.HasField("decimal")
        if bare and stored and stored.type.kind is Kind.DECIMAL:
            desired[stored.name] = stored
    old = [desired.get(c.name, c) for c in shape.columns if c.name in desired or not drop_columns]
    new = [column for name, column in desired.items() if shape.column(name) is None]
    return replace(shape, columns=(*old, *new), key=tuple(names[name] for name in key))


def _refuse_alteration(shape: Shape, into: Shape) -> None:
    for column in shape.columns:
        new = into.column(column.name)
        if new and not are_related(column.type, new.type):
            raise Refused(
                "type-change",
                f"The column {column.source} of {shape.table} cannot change "
                f"from {column.type} to {new.type}.",
                "The table is unchanged; add a column of the new type instead.",
            )
    history = HISTORY_COLUMNS if shape.layout is Layout.FIVETRAN_HISTORY else ()
    for name in history:
        if into.column(name) != shape.column(name):
            raise Refused(
                "needed-column",
                f"The column {name} of {shape.table} is part of its history.",
                "Migrate the table to another mode instead.",
            )


FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799


def truncate(store: Store, table: TableName, request: sdk.TruncateRequest) -> int | None:
    """Delete the rows whose synced column is before a time, or flag them in the request's column.

    The time is truncated to microseconds (F6). Returns the id of the new snapshot, or None if the table or
    the rows do not exist. Raises Refused if the request has no synced column or no valid time.
    """
    if not request.HasField("utc_delete_before") or not request.synced_column:
        raise Refused(
            "no-bound",
            f"The request to truncate {table} lacks the synced column or the time.",
            "Nothing was deleted; send both.",
        )
    bound = request.utc_delete_before
    if not FIRST_SECOND <= bound.seconds <= LAST_SECOND:
        raise Refused(
            "no-instant",
            f"The request to truncate {table} names a time outside the years 0001 to 9999.",
            "Nothing was deleted; send the time of the sync.",
        )
    micros = bound.seconds * 1_000_000 + bound.nanos // 1000
    deleted = request.soft.deleted_column if request.HasField("soft") else None

    def plan() -> tuple[StoredTable | None, Change | None]:
        stored = load_own(store, table)
        if stored is None:
            return None, None
        refuse_foreign(stored.shape)
        before = EPOCH + timedelta(microseconds=micros)
        return stored, change_of(store, stored, _truncation(stored, request.synced_column, before, deleted))

    commit_note = note("truncate", table, request.synced_column, micros, deleted)
    receipt = deliver_change(store, [table], commit_note, plan)
    return None if receipt is None else receipt.snapshot_id


def _truncation(
    table: StoredTable, synced_column: str, before: datetime, deleted: str | None
) -> DeleteBefore | FlagBefore | EndBefore:
    """The operation on the stored table. Raises Refused for a column that cannot be the flag or the time."""
    shape = table.shape
    flag = None if deleted is None else shape.column_of_source(deleted)
    ends = deleted is not None and flag is None and shape.layout is Layout.FIVETRAN_HISTORY
    if deleted is not None and not ends and (flag is None or not can_flag(shape, flag)):
        raise Refused(
            "no-deleted-column",
            f"{shape.table} has no BOOLEAN column {deleted} that can flag deleted rows.",
            "Nothing was flagged; add the column first.",
        )
    synced = shape.column_of_source(synced_column)
    if synced is None or synced.type.kind is not Kind.UTC_DATETIME:
        raise Refused(
            "no-synced-column",
            f"{shape.table} has no column {synced_column} of type TIMESTAMP.",
            "Nothing was deleted; name the column that holds the time of the sync.",
        )
    if ends:
        return EndBefore(synced.name, before)
    return DeleteBefore(synced.name, before) if flag is None else FlagBefore(synced.name, before, flag.name)
