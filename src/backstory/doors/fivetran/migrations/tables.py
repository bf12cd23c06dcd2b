"""Migrations of whole tables: copy, rename, drop (sections 6.6 and 6.7)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from backstory.doors.fivetran.definitions import refuse_foreign
from backstory.doors.fivetran.migrations.modes import as_history
from backstory.doors.fivetran.migrations.subject import Subject, refused
from backstory.doors.fivetran.own_tables import existing, load
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.model.change import NOTHING, Change
from backstory.model.layout import Layout
from backstory.model.schema import Shape
from backstory.model.table import TableName
from backstory.stores.port import DISORDER, Store, StoredTable
from backstory.stores.tables import rows_of


@dataclass(frozen=True, slots=True)
class TablePair:
    """A source and a target."""

    store: Store
    source: TableName
    target: TableName

    def stored(self) -> StoredTable:
        """The source as it stands; Refused if it is the target too, or the target is another door's."""
        if self.source == self.target:
            raise refused(f"{self.source} cannot be copied onto itself.", "Name another target.")
        load(self.store, self.target)
        found = existing(self.store, self.source)
        refuse_foreign(found.shape)
        return found


def copy(pair: TablePair, _asked: sdk.CopyTable) -> Change:
    """Make the target a copy of the source: columns, types, key and rows; replace one that is there."""
    stored = pair.stored()
    marks = {DISORDER: "true"} if stored.disorderly else {}
    return _filled(replace(stored.shape, table=pair.target), rows_of(pair.store, stored), marks)


def copy_to_history(pair: TablePair, asked: sdk.CopyTableToHistoryMode) -> Change:
    """Make the target a history table of the source's rows; the source stays as it is (6.7)."""
    stored = pair.stored()
    if stored.shape.layout is Layout.FIVETRAN_HISTORY:
        return copy(pair, sdk.CopyTable())
    change = as_history(Subject(pair.store, stored), asked.soft_deleted_column)
    assert change is not None
    assert change.into is not None
    return _filled(replace(change.into, table=pair.target), change.come)


def _filled(shape: Shape, rows: Any, marks: Mapping[str, str] = NOTHING) -> Change:
    return Change(come=rows, into=shape, anew=True, counted="inserted", properties=marks)


def rename(pair: TablePair) -> tuple[StoredTable | None, Change | None]:
    """Give the table another name; done before is done."""
    source, target = load(pair.store, pair.source), load(pair.store, pair.target)
    if source is None and target:
        return target, None
    if target:
        raise refused(f"The table {pair.target} exists already.", "Choose another name.")
    source = existing(pair.store, pair.source)
    return source, Change(into=replace(source.shape, table=pair.target))


def drop(store: Store, table: TableName, *, asked: bool) -> tuple[StoredTable | None, Change | None]:
    """Remove the table and its data; one that is not there is dropped already."""
    if not asked:
        raise refused("The request names a table to drop but does not set drop_table.", "Set drop_table.")
    found = load(store, table)
    return found, Change(dropped=True) if found else None
