"""AlterTable and Truncate: change a table to a definition (2.6), or remove rows by sync time (2.7)."""

from dataclasses import replace
from datetime import datetime, timedelta

from backstory.doors.fivetran import definitions
from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.engine.deliver import deliver_change
from backstory.errors import Refused
from backstory.model.change import Change
from backstory.model.instant import EPOCH
from backstory.model.layout import HISTORY_COLUMNS, Layout
from backstory.model.table import Shape, TableName
from backstory.model.types import Kind, are_related
from backstory.stores.port import Store, StoredTable, stored_names
from backstory.strategies.shape_changes import DeleteBefore, EndBefore, FlagBefore, Reshape, change_of


def alter(store: Store, table: TableName, definition: common.Table, *, drop_columns: bool) -> bool:
    """Add, retype and, with `drop_columns`, drop columns, and change the key, in one commit.

    Returns whether anything changed.
    """

    def plan() -> tuple[StoredTable, Change | None]:
        stored = definitions.existing_own(store, table)
        definitions.refuse_foreign(stored.shape)
        into = _desired_shape(store, stored.shape, definition, drop_columns=drop_columns)
        if (into.columns, {*into.key}) == (stored.shape.columns, {*stored.shape.key}):
            return stored, None
        _refuse_alteration(stored.shape, into)
        return stored, change_of(store, stored, Reshape(stored.shape, into))

    commit_note = definitions.note(
        "alter", table, definition.SerializeToString(deterministic=True).hex(), drop_columns
    )
    return deliver_change(store, [table], commit_note, plan) is not None


def _desired_shape(store: Store, shape: Shape, definition: common.Table, *, drop_columns: bool) -> Shape:
    """The shape that the definition describes. A decimal without parameters keeps its stored parameters."""
    key = definitions.required_key(shape.table, definition)
    columns = definitions.columns_from(definition.columns)
    names = stored_names(store.reserves, [column.name for column in columns], shape.columns)
    desired = {names[column.name]: definitions.stored_as(column, names) for column in columns}
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

    The time is cut to microseconds (F6). Returns the id of the new snapshot, or None if the table or the rows
    do not exist. Raises Refused if the request has no synced column or no valid time.
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
        stored = definitions.load_own(store, table)
        if stored is None:
            return None, None
        definitions.refuse_foreign(stored.shape)
        before = EPOCH + timedelta(microseconds=micros)
        return stored, change_of(store, stored, _truncation(stored, request.synced_column, before, deleted))

    commit_note = definitions.note("truncate", table, request.synced_column, micros, deleted)
    receipt = deliver_change(store, [table], commit_note, plan)
    return None if receipt is None else receipt.snapshot_id


def _truncation(
    table: StoredTable, synced_column: str, before: datetime, deleted: str | None
) -> DeleteBefore | FlagBefore | EndBefore:
    """The operation on the stored table. Raises Refused for a column that cannot be the flag or the time."""
    shape = table.shape
    flag = None if deleted is None else shape.column_of_source(deleted)
    ends = deleted is not None and flag is None and shape.layout is Layout.FIVETRAN_HISTORY
    if deleted is not None and not ends and (flag is None or not definitions.can_flag(shape, flag)):
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
