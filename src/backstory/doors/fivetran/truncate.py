"""Truncate: delete or flag what was synced before an instant (section 2.7)."""

from dataclasses import dataclass
from datetime import timedelta

from backstory.doors.fivetran.definitions import can_flag, refuse_foreign
from backstory.doors.fivetran.notes import note
from backstory.doors.fivetran.own_tables import load
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.engine.deliver import TableChange, deliver
from backstory.errors import Refused
from backstory.model.change import Change
from backstory.model.instant import EPOCH
from backstory.model.layout import Layout
from backstory.model.schema import Column
from backstory.model.table import TableName
from backstory.model.types import Kind
from backstory.stores.port import Store, StoredTable
from backstory.strategies.shape_changes.operations import DeleteBefore, EndBefore, FlagBefore
from backstory.strategies.shape_changes.plan import change_of

FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799


@dataclass(frozen=True, slots=True)
class Truncation:
    """Rows whose `synced` is before `before`, in microseconds; they are deleted, or flagged in `deleted`."""

    table: TableName
    synced: str
    before: int
    deleted: str | None


def truncation(request: sdk.TruncateRequest, table: TableName) -> Truncation:
    """What the request asks for; Refused if it does not say before when.

    Digits of the bound below a microsecond are cut off (F6).
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
    before = bound.seconds * 1_000_000 + bound.nanos // 1000
    deleted = request.soft.deleted_column if request.HasField("soft") else None
    return Truncation(table, request.synced_column, before, deleted)


def truncate(store: Store, asked: Truncation) -> int | None:
    """Do it, and give the snapshot's id; None if the table is missing or nothing is that old."""

    def plan() -> tuple[StoredTable | None, Change | None]:
        table = load(store, asked.table)
        if table is None:
            return None, None
        refuse_foreign(table.shape)
        _refuse_flag(table, asked)
        return table, change_of(store, table, _operation(table, asked))

    told = note("truncate", asked.table, asked.synced, asked.before, asked.deleted)
    done = deliver(store, TableChange([asked.table], told, plan))
    return None if done is None else done.snapshot_id


def _operation(table: StoredTable, asked: Truncation) -> DeleteBefore | FlagBefore | EndBefore:
    synced = _synced(table, asked).name
    before = EPOCH + timedelta(microseconds=asked.before)
    if asked.deleted is None:
        return DeleteBefore(synced, before)
    flag = table.shape.called(asked.deleted)
    return FlagBefore(synced, before, flag.name) if flag else EndBefore(synced, before)


def _synced(table: StoredTable, asked: Truncation) -> Column:
    synced = table.shape.called(asked.synced)
    if synced is None or synced.type.kind is not Kind.UTC_DATETIME:
        raise Refused(
            "no-synced-column",
            f"{asked.table} has no column {asked.synced} of type UTC_DATETIME.",
            "Nothing was deleted; name the column that holds the time of the sync.",
        )
    return synced


def _refuse_flag(table: StoredTable, asked: Truncation) -> None:
    if asked.deleted is None:
        return
    flag = table.shape.called(asked.deleted)
    if flag is None and table.shape.layout is Layout.FIVETRAN_HISTORY:
        return
    if flag is None or not can_flag(table.shape, flag):
        raise Refused(
            "no-deleted-column",
            f"{asked.table} has no BOOLEAN column {asked.deleted} that can flag deleted rows.",
            "Nothing was flagged; add the column first.",
        )
