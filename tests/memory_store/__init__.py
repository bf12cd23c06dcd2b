"""A store whose tables are plain values in this process: slow and obvious; held to Iceberg's by `contracts`."""

from backstory.stores import commit, tables
from memory_store import commit as _commit
from memory_store import shape_changes as _shape_changes  # noqa: F401 - it registers what an operation is
from memory_store import store as _store
from memory_store.store import MemoryStore

commit.commit.register(MemoryStore)(_commit.commit)
tables.load.register(MemoryStore)(_store.load)
tables.tables.register(MemoryStore)(_store.tables)
tables.read_slice.register(MemoryStore)(_store.read_slice)
tables.rows_of.register(MemoryStore)(_store.rows_of)
