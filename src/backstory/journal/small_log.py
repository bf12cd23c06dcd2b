"""A dataset's commits and its log, read without Spark: the same blocks, or Unreadable."""

from collections.abc import Iterator
from typing import Any

from backstory.journal.chain import Block, block_properties, read_blocks
from backstory.journal.log_table import NUMBER, all_blocks, block_of, log_of
from backstory.model.layout import Layout
from backstory.stores.metadata.described import Described
from backstory.stores.metadata.ordered import rows_in_order
from backstory.stores.metadata.rows import Files
from backstory.stores.metadata.values import rows_of


def snapshots_here(table: Described) -> Iterator[dict[str, str]]:
    """The properties of the commits that have blocks, newest first, as far as they have not expired."""
    return block_properties(table.commit_properties)


def newest_block_here(files: Files) -> Block | None:
    """The block of the dataset's newest commit, from the log when the snapshots of commits have expired."""
    newest = next(read_blocks(snapshots_here(files.table)), None)
    if newest is not None or files.table.snapshot is None:
        return newest  # a table without a snapshot has no commits: what a log says is of one before it
    log = _log_table(files)
    newest = None if log is None else next(read_blocks(snapshots_here(log.table)), None)
    return newest or next(map(block_of, log_rows_here(files)[-1:]), None)


def logged_here(files: Files) -> list[Block]:
    """All blocks of the dataset, oldest first: those of its snapshots, older ones from the log."""
    committed = read_blocks(snapshots_here(files.table))
    return all_blocks(committed, lambda: newest_block_here(files), lambda: log_rows_here(files))


def log_is_complete(files: Files) -> bool:
    """Whether the log surely has every block of the dataset's snapshots."""
    newest = next(read_blocks(snapshots_here(files.table)), None)
    log = None if newest is None else _log_table(files)
    if newest is None or log is None:
        return newest is None
    return newest == next(read_blocks(snapshots_here(log.table)), None)


def log_rows_here(files: Files) -> list[dict[str, Any]]:
    """The rows of the dataset's log, by their sequence numbers; none if it has no log."""
    log = _log_table(files)
    if log is None or not log.table.rows:
        return []
    return rows_of(rows_in_order(log, log.table.shape.names, [NUMBER]))


def _log_table(files: Files) -> Files | None:
    """The dataset's log; None if it has none, or if another table has the name."""
    found = files.beside(log_of(files.table.shape.table))
    return found if found and found.table.shape.layout is Layout.ODF_LOG else None
