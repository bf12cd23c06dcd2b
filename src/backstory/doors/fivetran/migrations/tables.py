"""Migrations of whole tables: copy, rename, drop (sections 6.6 and 6.7)."""

from dataclasses import dataclass, replace

from backstory.doors.fivetran.definitions import refuse_foreign
from backstory.doors.fivetran.migrations.modes import as_history
from backstory.doors.fivetran.migrations.subject import Subject, refused
from backstory.doors.fivetran.own_tables import existing, load
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.stores.iceberg import create
from backstory.stores.iceberg.commit import Note
from backstory.stores.iceberg.rebuild import create_filled, rows_of
from backstory.stores.iceberg.store import Store, StoredTable


@dataclass(frozen=True, slots=True)
class Pair:
    """A source, a target, and the note for the commit that makes the target."""

    store: Store
    source: TableName
    target: TableName
    note: Note

    def stored(self) -> StoredTable:
        """The source as it stands; Refused if it is the target too, or the target is another door's."""
        if self.source == self.target:
            raise refused(f"{self.source} cannot be copied onto itself.", "Name another target.")
        load(self.store, self.target)
        found = existing(self.store, self.source)
        refuse_foreign(found.shape)
        return found


def copy(pair: Pair, _asked: sdk.CopyTable) -> None:
    """Make the target a copy of the source: columns, types, key and rows; replace one that is there."""
    stored = pair.stored()
    shape = replace(stored.shape, table=pair.target)
    create_filled(pair.store, shape, rows_of(pair.store, stored), pair.note, disorderly=stored.disorderly)


def copy_to_history(pair: Pair, asked: sdk.CopyTableToHistoryMode) -> None:
    """Make the target a history table of the source's rows; the source stays as it is (6.7)."""
    stored = pair.stored()
    if stored.shape.layout is Layout.FIVETRAN_HISTORY:
        copy(pair, sdk.CopyTable())
        return
    shape, rows = as_history(Subject(pair.store, stored, pair.note), asked.soft_deleted_column)
    create_filled(pair.store, replace(shape, table=pair.target), rows, pair.note)


def rename(pair: Pair, _asked: sdk.RenameTable) -> None:
    """Give the table another name; done before is done."""
    source, target = load(pair.store, pair.source), load(pair.store, pair.target)
    if source is None and target:
        return
    if target:
        raise refused(f"There is a table {pair.target} already.", "Choose another name.")
    existing(pair.store, pair.source)
    create.rename(pair.store, pair.source, pair.target)


def drop(store: Store, table: TableName, *, asked: bool) -> None:
    """Remove the table and its data; one that is not there is dropped already."""
    if not asked:
        raise refused("The request names a table to drop and says not to.", "Set drop_table.")
    if load(store, table):
        create.drop(store, table)
