"""The log of a dataset: a table with one row for each block, derived from the commits (decision O10).

The log preserves the chain when the snapshots of the dataset expire. Its newest snapshot also contains the
newest block, so that the state of a dataset is found without a Spark job.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from backstory.errors import Violated
from backstory.journal.chain import (
    PREFIX,
    Block,
    block_properties,
    blocks,
    canonical,
    event_of,
    read_blocks,
    snapshots,
    walk,
)
from backstory.model.change import Change, Note
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, load
from backstory.stores.metadata.table_metadata import TableMetadata
from backstory.stores.metadata.table_rows import TableReader, rows_in_order
from backstory.stores.metadata.values import rows_of
from backstory.stores.port import require_layout

if TYPE_CHECKING:
    from backstory.engine.deliver import Plan

DOOR: Final = "odf"
SUFFIX: Final = "__log"
# The property with the newest sequence number in the log.
LOGGED: Final = PREFIX + "logged"

NUMBER, PREVIOUS, TIME, KIND = "sequence_number", "prev_block_hash", "system_time", "event_kind"
EVENT, HASH = "event_json", "block_hash"
COLUMNS: Final = (
    Column(NUMBER, ColumnType(Kind.LONG)),
    Column(PREVIOUS, ColumnType(Kind.STRING)),
    Column(TIME, ColumnType(Kind.UTC_DATETIME)),
    Column(KIND, ColumnType(Kind.STRING)),
    Column(EVENT, ColumnType(Kind.STRING)),
    Column(HASH, ColumnType(Kind.STRING)),
)


def log_of(dataset: TableName) -> TableName:
    """The name of a dataset's log table."""
    return TableName(dataset.schema, dataset.name + SUFFIX)


@dataclass(frozen=True, slots=True)
class LogDelivery:
    """The blocks of a dataset that are missing from its log, as a delivery to the log."""

    dataset: IcebergTable

    @property
    def tables(self) -> list[TableName]:
        """The log's table name."""
        return [log_of(self.dataset.shape.table)]

    @contextmanager
    def open_plan(self, store: IcebergStore) -> "Iterator[Plan[None]]":
        """Append the blocks in one commit. Create the log if it is missing."""
        from backstory.engine.deliver import Plan
        from backstory.formats.delivered import rows_as

        shape = Shape(self.tables[0], COLUMNS, (NUMBER,), Layout.ODF_LOG)
        log = load(store, shape.table)
        if log is not None:
            require_layout(log, shape.layout)
        missing = _missing_blocks(store, self.dataset, log)
        if not missing:
            yield Plan(log, None, Note(DOOR, ""), lambda _: None)
            return
        newest, counts = missing[-1], {"inserted": len(missing)}
        rows = rows_as(shape.columns, list(map(row_of, missing)))
        note = Note(DOOR, newest.hash, {**newest.properties(), LOGGED: str(newest.sequence)})
        yield Plan(log, Change(counts, added=rows, into=None if log else shape), note, lambda _: None)


def bring_up_to_date(store: IcebergStore, table: IcebergTable) -> None:
    """Append the blocks of the dataset that its log lacks, in at most one commit.

    The function locks the log, and starts again if another process committed first.
    """
    from backstory.engine.deliver import deliver

    if next(snapshots(table), None) is not None:
        deliver(store, LogDelivery(table))


def newest_block(store: IcebergStore, table: IcebergTable) -> Block | None:
    """The block of the dataset's newest commit.

    It comes from the log if the commits' snapshots have expired.
    """
    newest = next(walk(table), None)
    if newest is not None or table.iceberg.currentSnapshot() is None:
        return newest  # a table without a snapshot has no commits, so its log belongs to a former table
    log = _log_table(store, table.shape.table)
    return None if log is None else _newest_logged(store, log)


def read_all_blocks(store: IcebergStore, table: IcebergTable) -> list[Block]:
    """All blocks of the dataset, oldest first, from its snapshots and, for expired ones, from the log.

    Blocks of commits that were rolled back are left out. Raises Violated if a block cannot be read.
    """
    return join_blocks(
        walk(table), lambda: newest_block(store, table), lambda: log_rows(store, table.shape.table)
    )


def join_blocks(
    committed: Iterable[Block], newest: Callable[[], Block | None], rows: Callable[[], list[dict[str, Any]]]
) -> list[Block]:
    """Join the blocks of snapshots, newest first, with older blocks from the log's rows.

    All blocks are returned, oldest first.
    """
    chain = list(committed)
    if chain and chain[-1].previous is None:
        return chain[::-1]
    last = None if chain else newest()
    chain += [last] if last else []
    if chain:
        by_hash = {block.hash: block for block in map(block_of, rows())}
        while (before := by_hash.get(chain[-1].previous or "")) is not None:
            chain.append(before)
    return chain[::-1]


def log_rows(store: IcebergStore, dataset: TableName) -> list[dict[str, Any]]:
    """The rows of a dataset's log, sorted by sequence number. The list is empty if there is no log."""
    name, log = log_of(dataset), _log_table(store, dataset)
    if log is None or not log.rows:
        return []
    with translate_faults(name):
        return arrow_of(store.spark.table(store.sql_name(name)).orderBy(NUMBER)).to_pylist()


def _log_table(store: IcebergStore, dataset: TableName) -> IcebergTable | None:
    """The dataset's log, or None if there is no log or another table has its name."""
    log = load(store, log_of(dataset))
    return log if log and log.shape.layout is Layout.ODF_LOG else None


def row_of(block: Block) -> dict[str, Any]:
    """A block as a row of the log."""
    return {
        NUMBER: block.sequence,
        PREVIOUS: block.previous,
        TIME: block.system_time,
        KIND: block.kind,
        EVENT: canonical(block.event),
        HASH: block.hash,
    }


def block_of(row: Mapping[str, Any]) -> Block:
    """The block in a row of the log. Raises Violated if the row is not a valid block."""
    try:
        time = row[TIME].astimezone(UTC)
        return Block(int(row[NUMBER]), row[PREVIOUS], time, str(row[KIND]), event_of(row[EVENT]))
    except (AttributeError, TypeError, ValueError):  # values may be NULL
        raise Violated(
            "broken-block",
            f"Row {row[NUMBER]} of the log is not a block.",
            "Somebody changed the log; drop it, and it is rewritten from the dataset's commits.",
        ) from None


def _missing_blocks(store: IcebergStore, table: IcebergTable, log: IcebergTable | None) -> list[Block]:
    """The blocks of the snapshots that are missing from the log, oldest first."""
    head = None if log is None else _newest_logged(store, log)
    newer: list[Block] = []
    for block in walk(table):
        if head is not None and block.sequence <= head.sequence:
            if block.hash != head.hash:
                # The table was rolled back or created again, or is an old copy. The log keeps its rows.
                hashes = {row[HASH] for row in log_rows(store, table.shape.table)}
                newer = [each for each in blocks(table) if each.hash not in hashes]
            break
        newer.append(block)
    return newer[::-1]


def _newest_logged(store: IcebergStore, log: IcebergTable) -> Block | None:
    """The log's newest block. The rows are read only if all snapshots with blocks have expired."""
    newest = next(walk(log), None)
    if newest is not None or not log.rows:
        return newest
    name = log.shape.table
    with translate_faults(name):
        rows = store.spark.table(store.sql_name(name)).orderBy(NUMBER, ascending=False).limit(1)
        last = arrow_of(rows).to_pylist()
    return block_of(last[0]) if last else None


def snapshots_in_files(table: TableMetadata) -> Iterator[dict[str, str]]:
    """The properties of the commits with blocks that have not expired, newest first."""
    return block_properties(table.commit_properties)


def newest_block_in_files(files: TableReader) -> Block | None:
    """The block of the dataset's newest commit.

    It comes from the log if the commits' snapshots have expired.
    """
    newest = next(read_blocks(snapshots_in_files(files.table)), None)
    if newest is not None or files.table.snapshot is None:
        return newest  # a table without a snapshot has no commits, so its log belongs to a former table
    log = _log_files(files)
    newest = None if log is None else next(read_blocks(snapshots_in_files(log.table)), None)
    return newest or next(map(block_of, log_rows_in_files(files)[-1:]), None)


def all_blocks_in_files(files: TableReader) -> list[Block]:
    """All blocks of the dataset, oldest first, read without Spark.

    Raises Unreadable if only Spark can read them.
    """
    committed = read_blocks(snapshots_in_files(files.table))
    return join_blocks(committed, lambda: newest_block_in_files(files), lambda: log_rows_in_files(files))


def log_is_complete(files: TableReader) -> bool:
    """Whether the log is certain to have every block of the dataset's snapshots."""
    newest = next(read_blocks(snapshots_in_files(files.table)), None)
    log = None if newest is None else _log_files(files)
    if newest is None or log is None:
        return newest is None
    return newest == next(read_blocks(snapshots_in_files(log.table)), None)


def log_rows_in_files(files: TableReader) -> list[dict[str, Any]]:
    """The rows of the dataset's log, sorted by sequence number, read without Spark.

    The list is empty if there is no log.
    """
    log = _log_files(files)
    if log is None or not log.table.rows:
        return []
    return rows_of(rows_in_order(log, log.table.shape.names, [NUMBER]))


def _log_files(files: TableReader) -> TableReader | None:
    """The files of the dataset's log, or None if there is no log or another table has its name."""
    log = files.other_table(log_of(files.table.shape.table))
    return log if log and log.table.shape.layout is Layout.ODF_LOG else None
