"""Changes that tests make of tables without a door."""

from backstory.engine.deliver import TableChange, deliver_once
from backstory.model.change import Change, Note

BY_TEST = Note("test", "")


def commit(store, table, change, note=BY_TEST):
    return deliver_once(store, TableChange([], note, lambda: (table, change)))


def make(store, shape):
    """An empty table."""
    commit(store, None, Change(into=shape))
