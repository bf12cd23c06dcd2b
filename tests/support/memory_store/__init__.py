"""A store whose tables are plain values in this process, slow and obvious. `contracts` compares it with
Iceberg's."""

from backstory.stores import tables
from backstory.stores.iceberg import commit as of_stores
from memory_store import commit as in_memory
from memory_store import (
    shape_changes,  # noqa: F401 - it registers what an operation is
    store,
)
from memory_store.store import MemoryStore

of_stores.commit.register(MemoryStore)(in_memory.commit)
tables.load.register(MemoryStore)(store.load)
tables.tables.register(MemoryStore)(store.tables)
tables.read_slice.register(MemoryStore)(store.read_slice)
tables.rows_of.register(MemoryStore)(store.rows_of)
