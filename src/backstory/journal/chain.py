"""The chain of a dataset, one block for each commit, and its log, one row for each block (section 6.5, O10).

Blocks are stored in the properties of the dataset's snapshots. A block has the hash of the previous block, so
a change of a block changes its hash and invalidates every later block. The log is a table that is derived
from the commits. It preserves the chain when the snapshots of the dataset expire. The log's newest snapshot
also contains the newest block, so that the state of a dataset is found without a Spark job.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha3_256
from types import NoneType
from typing import Any, Final

from backstory.engine.deliver import Plan, deliver
from backstory.errors import UsageError, Violated
from backstory.formats.delivered import rows_as
from backstory.model.change import Change, Note
from backstory.model.instant import iso, parse_instant
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.schema import spark_name
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, load
from backstory.stores.metadata.table_metadata import Catalog, TableMetadata
from backstory.stores.metadata.table_rows import TableReader, rows_in_order
from backstory.stores.metadata.values import rows_of
from backstory.stores.port import require_layout

ADD_DATA: Final = "AddData"
OFFSETS_IN: Final = ("start", "end", "prev_offset")  # the JSON keys for offsets in an event

PREFIX: Final = "backstory.odf."
SEQUENCE: Final = PREFIX + "sequence"
PREVIOUS: Final = PREFIX + "previous-block"
BLOCK: Final = PREFIX + "block"
SYSTEM_TIME: Final = PREFIX + "system-time"
KIND: Final = PREFIX + "event-kind"
EVENT: Final = PREFIX + "event"
# Parts of the event, repeated for programs that read a table's commits.
OFFSETS: Final = PREFIX + "offsets"
WATERMARK: Final = PREFIX + "watermark"
SOURCE_STATE: Final = PREFIX + "source-state"
RUN_ID: Final = PREFIX + "run-id"
PROPERTIES: Final = (
    *(SEQUENCE, PREVIOUS, BLOCK, SYSTEM_TIME, KIND, EVENT),
    *(OFFSETS, WATERMARK, SOURCE_STATE, RUN_ID),
)


@dataclass(frozen=True, slots=True)
class Block:
    """The record of one commit. `previous` is the hash of the previous block, or None for the first block."""

    sequence: int
    previous: str | None
    system_time: datetime
    kind: str
    event: Mapping[str, Any]

    @property
    def hash(self) -> str:
        """The SHA3-256 of the block's canonical JSON, in hexadecimal digits."""
        content = {
            "sequence_number": self.sequence,
            "prev_block_hash": self.previous,
            "system_time": iso(self.system_time),
            "event_kind": self.kind,
            "event": self.event,
        }
        return sha3(canonical(content))

    @property
    def offsets(self) -> tuple[int, int] | None:
        """The first and the last offset of the commit's rows, or None if it has no rows."""
        start, end = self.event.get("start"), self.event.get("end")
        return None if start is None or end is None else (start, end)

    def properties(self) -> dict[str, str]:
        """The properties of the commit's snapshot (R83)."""
        state = self.event.get("source_state")
        values = (
            *(str(self.sequence), self.previous, self.hash, iso(self.system_time), self.kind),
            canonical(self.event),
            ",".join(map(str, self.offsets or ())),
            self.event.get("watermark"),
            None if state is None else canonical(state),
            self.event.get("run_id"),
        )
        return {name: value or "" for name, value in zip(PROPERTIES, values, strict=True)}


def from_properties(summary: Mapping[str, str]) -> Block | None:
    """The block in a snapshot's properties, or None if the snapshot is not a commit of a dataset.

    Raises Violated if the properties are not a valid block.
    """
    sequence = summary.get(SEQUENCE)
    if sequence is None:
        return None
    try:
        return Block(
            int(sequence),
            summary.get(PREVIOUS) or None,
            parse_instant(summary.get(SYSTEM_TIME, "")),
            summary.get(KIND, ADD_DATA),
            event_of(summary.get(EVENT, "")),
        )
    except (ValueError, UsageError):
        raise Violated(
            "broken-block",
            f"The properties of the commit with block number {sequence} cannot be read.",
            "Somebody changed the table's metadata; restore it from a backup.",
        ) from None


def event_of(text: str) -> dict[str, Any]:
    """Parse an event from JSON. Raises ValueError if the string is not an event."""
    event = json.loads(text)
    if not isinstance(event, dict) or any(
        type(event.get(name)) not in {int, NoneType} for name in OFFSETS_IN
    ):
        raise ValueError(text)
    return event


def snapshots(table: TableMetadata) -> Iterator[dict[str, str]]:
    """The properties of the table's commits that have blocks, newest first.

    Other snapshots, such as compactions, are skipped. The result ends at the first expired snapshot.
    """
    for commit in table.lineage:
        if SEQUENCE in commit.properties:
            yield {name: commit.properties[name] for name in PROPERTIES if name in commit.properties}


def walk(table: TableMetadata) -> Iterator[Block]:
    """The blocks of the table's snapshots, newest first, each parsed when it is needed."""
    return (block for properties in snapshots(table) if (block := from_properties(properties)) is not None)


def column_types(fields: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The columns in their order, each with its type in the form of Spark's `simpleString`."""
    return [(field["name"], spark_name(field["type"])) for field in fields]


def schema_hash(columns: Sequence[tuple[str, str]]) -> str:
    """The hash of columns in any order, each a name and a type in the form of Spark's `simpleString`."""
    return sha3(canonical(dict(columns)))


def canonical(value: Any) -> str:
    """A value as JSON with sorted keys, no spaces and the fewest escapes.

    An unpaired surrogate, which a file name can contain, is escaped, because it has no UTF-8 form.
    """
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_json_value
    )
    return text.encode("utf-8", "backslashreplace").decode()


def sha3(text: str) -> str:
    """The SHA3-256 of a string, in hexadecimal digits."""
    return sha3_256(text.encode()).hexdigest()


def _json_value(value: object) -> object:
    """Convert instants to strings, and mappings to dictionaries, for `json`."""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(type(value).__name__)


DOOR: Final = "odf"
SUFFIX: Final = "__log"
# The property with the newest sequence number in the log.
LOGGED: Final = PREFIX + "logged"

NUMBER, PREV_HASH, TIME, EVENT_KIND = "sequence_number", "prev_block_hash", "system_time", "event_kind"
EVENT_JSON, HASH = "event_json", "block_hash"
COLUMNS: Final = (
    Column(NUMBER, ColumnType(Kind.LONG)),
    Column(PREV_HASH, ColumnType(Kind.STRING)),
    Column(TIME, ColumnType(Kind.UTC_DATETIME)),
    Column(EVENT_KIND, ColumnType(Kind.STRING)),
    Column(EVENT_JSON, ColumnType(Kind.STRING)),
    Column(HASH, ColumnType(Kind.STRING)),
)


def log_of(dataset: TableName) -> TableName:
    """The name of a dataset's log table."""
    return TableName(dataset.schema, dataset.name + SUFFIX)


def plan_log(store: IcebergStore, dataset: IcebergTable) -> Plan[None]:
    """The plan that appends missing blocks to a dataset's log, and creates the log if it does not exist."""
    shape = Shape(log_of(dataset.shape.table), COLUMNS, (NUMBER,), Layout.ODF_LOG)
    log = load(store, shape.table)
    if log is not None:
        require_layout(log, shape.layout)
    missing = _missing_blocks(store, dataset, log)
    if not missing:
        return Plan(log, None, Note(DOOR, ""), lambda _: None)
    newest, counts = missing[-1], {"inserted": len(missing)}
    rows = rows_as(shape.columns, list(map(row_of, missing)))
    note = Note(DOOR, newest.hash, {**newest.properties(), LOGGED: str(newest.sequence)})
    return Plan(log, Change(counts, added=rows, into=None if log else shape), note, lambda _: None)


def bring_up_to_date(store: IcebergStore, table: IcebergTable) -> None:
    """Append the dataset's missing blocks to its log, in at most one commit.

    The function locks the log, and starts again if another process committed first.
    """
    if next(snapshots(table), None) is not None:
        deliver(store, [log_of(table.shape.table)], lambda _: nullcontext(plan_log(store, table)))


@dataclass(frozen=True, slots=True)
class Journal:
    """The blocks of a dataset, in the snapshots of its table and, for expired ones, in its log.

    `log` returns the log's table, or None if there is no log or another table has its name. `rows` returns
    the log's rows, sorted by sequence number, or only the last one if `newest` is true.
    """

    table: TableMetadata
    log: Callable[[], TableMetadata | None]
    rows: Callable[..., list[dict[str, Any]]]

    def newest(self) -> Block | None:
        """The block of the newest commit, or None. It is read from the log if all snapshots have expired."""
        newest = next(walk(self.table), None)
        if newest is not None or self.table.newest is None:
            return newest  # a table without a snapshot has no commits, so its log belongs to a former table
        return self.newest_logged()

    def newest_logged(self) -> Block | None:
        """The log's newest block. The rows are read only if all snapshots with blocks have expired."""
        log = self.log()
        newest = None if log is None else next(walk(log), None)
        return newest if newest or log is None else next(map(block_of, self.rows(newest=True)), None)

    def all_blocks(self) -> list[Block]:
        """All blocks, oldest first, without blocks of commits that were rolled back.

        Raises Violated if a block cannot be read.
        """
        chain = list(walk(self.table))
        if chain and chain[-1].previous is None:
            return chain[::-1]
        last = None if chain else self.newest()
        chain += [last] if last else []
        if chain:
            by_hash = {block.hash: block for block in map(block_of, self.rows())}
            while (before := by_hash.get(chain[-1].previous or "")) is not None:
                chain.append(before)
        return chain[::-1]

    def log_is_complete(self) -> bool:
        """Whether the log is certain to have every block of the dataset's snapshots."""
        newest = next(walk(self.table), None)
        log = None if newest is None else self.log()
        return newest is None if log is None else newest == next(walk(log), None)


def stored_journal(store: IcebergStore, table: IcebergTable) -> Journal:
    """The journal of a table that a store loaded."""
    name = table.shape.table
    return Journal(table, partial(_log_table, store, name), partial(log_rows, store, name))


def journal_in_files(files: TableReader) -> Journal:
    """The journal in a table's files. Raises Unreadable if only Spark can read it."""
    log = partial(_log_table, files.catalog, files.table.shape.table)
    return Journal(files.table, log, partial(log_rows_in_files, files))


def log_rows(store: IcebergStore, dataset: TableName, *, newest: bool = False) -> list[dict[str, Any]]:
    """The rows of a dataset's log, sorted by sequence number, or only the last one if `newest` is true.

    The list is empty if there is no log.
    """
    name, log = log_of(dataset), _log_table(store, dataset)
    if log is None or not log.rows:
        return []
    with translate_faults(name):
        rows = store.spark.table(store.sql_name(name))
        rows = rows.orderBy(NUMBER, ascending=False).limit(1) if newest else rows.orderBy(NUMBER)
        return arrow_of(rows).to_pylist()


def _log_table(catalog: Catalog, dataset: TableName) -> TableMetadata | None:
    """The dataset's log, or None if there is no log or another table has its name."""
    log = catalog.describe(log_of(dataset))
    return log if log and log.shape.layout is Layout.ODF_LOG else None


def row_of(block: Block) -> dict[str, Any]:
    """A block as a row of the log."""
    return {
        NUMBER: block.sequence,
        PREV_HASH: block.previous,
        TIME: block.system_time,
        EVENT_KIND: block.kind,
        EVENT_JSON: canonical(block.event),
        HASH: block.hash,
    }


def block_of(row: Mapping[str, Any]) -> Block:
    """The block in a row of the log. Raises Violated if the row is not a valid block."""
    try:
        time = row[TIME].astimezone(UTC)
        return Block(int(row[NUMBER]), row[PREV_HASH], time, str(row[EVENT_KIND]), event_of(row[EVENT_JSON]))
    except (AttributeError, TypeError, ValueError):  # values may be NULL
        raise Violated(
            "broken-block",
            f"Row {row[NUMBER]} of the log is not a block.",
            "Somebody changed the log; drop it, and it is rewritten from the dataset's commits.",
        ) from None


def _missing_blocks(store: IcebergStore, table: IcebergTable, log: IcebergTable | None) -> list[Block]:
    """The blocks of the snapshots that are missing from the log, oldest first."""
    rows = partial(log_rows, store, table.shape.table)
    head = Journal(table, lambda: log, rows).newest_logged()
    newer: list[Block] = []
    for block in walk(table):
        if head is not None and block.sequence <= head.sequence:
            if block.hash != head.hash:
                # The table was rolled back or created again, or is an old copy. The log keeps its rows.
                hashes = {row[HASH] for row in rows()}
                newer = [each for each in walk(table) if each.hash not in hashes]
            break
        newer.append(block)
    return newer[::-1]


def log_rows_in_files(files: TableReader, *, newest: bool = False) -> list[dict[str, Any]]:
    """The result of `log_rows`, read without Spark."""
    log = _log_table(files.catalog, files.table.shape.table)
    if log is None or not log.rows:
        return []
    rows = rows_of(rows_in_order(replace(files, table=log), log.shape.names, [NUMBER]))
    return rows[-1:] if newest else rows
