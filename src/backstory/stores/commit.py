"""The only way to change a table of any store. Only the engine may use it."""

from functools import singledispatch

from backstory.model.change import Change, Commit, Note
from backstory.stores.iceberg import commit as iceberg
from backstory.stores.iceberg.store import IcebergStore
from backstory.stores.port import Store, StoredTable


@singledispatch
def commit(store: Store, table: StoredTable | None, change: Change, note: Note) -> Commit:
    """Commit a change once. Without a table, the change creates it.

    Succeeds only if nothing was written to the table since it was loaded. Raises TryAgain if another writer
    committed first, or if the number of added rows differs from the expected one. Raises Refused for a name
    that no table can have. A failed commit leaves no files.
    """
    raise NotImplementedError(store)


commit.register(IcebergStore)(iceberg.commit)
