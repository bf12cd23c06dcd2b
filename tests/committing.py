"""Changes that tests make of tables without a door."""

from backstory.engine.deliver import TableChange, deliver_once
from backstory.formats.delivered import rows_as
from backstory.model.change import Change, Note
from backstory.stores.iceberg.data_files import write_rows
from backstory.stores.iceberg.store import existing

BY_TEST = Note("test", "")


def commit(store, table, change, note=BY_TEST):
    return deliver_once(store, TableChange([], note, lambda: (table, change)))


def make(store, shape):
    """An empty table."""
    commit(store, None, Change(into=shape))


def append_past(store, target, rows):
    """Rows, dicts or tuples in the columns' order, written by a program that knows nothing of backstory."""
    table = existing(store, target)
    names = table.shape.names
    told = [row if isinstance(row, dict) else dict(zip(names, row, strict=True)) for row in rows]
    adding = table.iceberg.newAppend()
    for file in write_rows(store, table, rows_as(table.shape.columns, told)):
        adding.appendFile(file)
    adding.commit()
