"""The one way to change a table of any store; only the engine may take it."""

from functools import singledispatch

from backstory.model.change import Change, Commit, Note
from backstory.stores.iceberg import commit as iceberg
from backstory.stores.iceberg.store import Store as IcebergStore
from backstory.stores.port import Store, StoredTable


@singledispatch
def commit(store: Store, table: StoredTable | None, change: Change, note: Note) -> Commit:
    """Make the one commit; without a table the change makes it.

    It holds only if nothing was written to the table since it was loaded. Raises TryAgain if another writer
    came first, or if other rows come than were counted, and Refused for a name that no table can have. What
    failed leaves nothing.
    """
    raise NotImplementedError(store)


commit.register(IcebergStore)(iceberg.commit)
