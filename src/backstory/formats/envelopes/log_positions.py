"""Times of changes, and their positions in a connector's log (native.md, V62, V131, V137)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS, Refused
from backstory.formats.envelopes.unwrapped import FEED, INSTANT, LogSource
from backstory.formats.produced import malformed_row
from backstory.formats.values.cells import DAY, require_years

REMEDY: Final = "Nothing was written; fix the message, or order events by other columns with `sequence_by`."
CHANGE: Final = "is_change"  # at equal positions, snapshot reads sort before changes
# The fields of `source` that name the table, and the server of the log.
_TABLE: Final = ("db", "schema", "table", "collection")
_SERVER: Final = ("name", "server_id")
_FILE = r"\.(?P<number>[0-9]{1,18})$"
_LSN = r"^(?P<log>[0-9a-f]{1,8}):(?P<block>[0-9a-f]{1,8}):(?P<slot>[0-9a-f]{1,4})$"
_LSN_WIDTHS = (8, 8, 4)
_SEQUENCE = r'^\[(?:null|"(?P<commit>[0-9]{1,18})"),'
Columns = Mapping[str, pa.Array]
Place = Callable[[int], str]


class Unplaced(ValueError):
    """A value that is not a valid position or time. `row` counts from 0."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


@dataclass(frozen=True, slots=True)
class Connector:
    """The rules for a connector's log positions, in sort order.

    `positions` parses each field of a position. `arranged` makes the sort columns from the fields and from a
    flag for snapshot reads. `logs_whole_rows` is true if the before image of a delete is the whole row.
    PostgreSQL logs only the key unless the table has `REPLICA IDENTITY FULL`; Debezium fills the other
    columns with NULL and defaults.
    """

    positions: Mapping[str, Callable[[pa.Array], pa.Array]]
    logs_whole_rows: bool = True
    arranged: Callable[[Columns, pa.Array], Columns] = lambda columns, _: columns


def _integers(values: pa.Array) -> pa.Array:
    if pa.types.is_null(values.type) or pa.types.is_integer(values.type):
        return values.cast(pa.int64())
    raise Unplaced(pc.index(values.is_valid(), True).as_py())


def _file_numbers(names: pa.Array) -> pa.Array:
    """The numbers of MySQL's log files, such as `mysql-bin.000003`, whose length varies."""
    numbers = pc.struct_field(_match_numbers(names, _FILE), "number")
    return numbers.cast(pa.int64())


def _lsns(texts: pa.Array) -> pa.Array:
    """SQL Server's positions of three hexadecimal numbers, padded so that they sort correctly as strings."""
    parts = _match_numbers(pc.utf8_lower(texts.cast(pa.string())), _LSN).flatten()
    padded = [pc.utf8_lpad(part, width, "0") for part, width in zip(parts, _LSN_WIDTHS, strict=True)]
    return pc.binary_join_element_wise(*padded, ":")


def _match_numbers(texts: pa.Array, pattern: str) -> pa.Array:
    if not pa.types.is_string(texts.type) and not pa.types.is_null(texts.type):
        raise Unplaced(pc.index(texts.is_valid(), True).as_py())
    texts = pc.if_else(pc.equal(texts.cast(pa.string()), ""), None, texts.cast(pa.string()))
    parts = pc.extract_regex(texts, pattern)
    odd = pc.and_(texts.is_valid(), parts.is_null())
    if odd.true_count:
        raise Unplaced(pc.index(odd, True).as_py())
    return parts


def _commits(sequences: pa.Array) -> pa.Array:
    """The position of the last commit before each message, or NULL.

    It is the first string in a list like `["24023119","24023128"]`.
    """
    commits = pc.struct_field(_match_numbers(sequences, _SEQUENCE), "commit")
    return pc.if_else(pc.equal(commits, ""), None, commits).cast(pa.int64())


def _in_order_of_commits(columns: Columns, reads: pa.Array) -> Columns:
    """PostgreSQL's positions in the order of commits, because Debezium sends a transaction when it ends.

    A transaction that is open during a snapshot ends after it, but may have lower positions. A read therefore
    sorts after all transactions that had ended, and before later ones. A change without an earlier commit
    uses its own position.
    """
    lsn, commit = columns["lsn"], columns["sequence"]
    leads = pc.if_else(reads, pc.max_element_wise(commit, lsn), pc.coalesce(commit, lsn))
    return {
        "last_commit": pc.if_else(lsn.is_valid(), leads, None),
        "lsn": pc.if_else(pc.and_(reads, lsn.is_valid()), 0, lsn),
    }


_MYSQL = Connector({"file": _file_numbers, "pos": _integers, "row": _integers})
CONNECTORS: Final[Mapping[str, Connector]] = {
    "postgresql": Connector(
        {"lsn": _integers, "sequence": _commits}, logs_whole_rows=False, arranged=_in_order_of_commits
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "sqlserver": Connector({"commit_lsn": _lsns, "change_lsn": _lsns, "event_serial_no": _integers}),
}


def connector_of(names: pa.Array, place: Place) -> str:
    """The only connector of the messages, or an empty string if they name none.

    Raises Refused if there are several.
    """
    if not pa.types.is_string(names.type):
        if names.null_count < len(names):
            row = pc.index(names.is_valid(), True).as_py()
            raise malformed_row(FEED, place(row), "`source.connector` is not a text", REMEDY)
        return ""
    several = {str(connector) for connector in pc.unique(names).to_pylist() if connector is not None}
    refuse_several(LogSource(frozenset(several)))
    return several.pop() if several else ""


def refuse_several(source: LogSource) -> None:
    """Raise Refused for messages of several tables or connectors, because they have no common order."""
    for names, kind in ((source.connectors, "connector"), (source.tables, "table")):
        if len(names) > 1:
            raise Refused(
                "several-sources",
                f"{FEED} has messages of several {kind}s: {', '.join(sorted(names)[:MAX_KEYS])}.",
                f"Nothing was written; apply the messages of each {kind} separately, to a table of its own.",
            )


def log_source(connector: str, source: Columns, count: int) -> LogSource:
    """The origin of the messages. Snapshot reads have the server id 0, and may lack the server."""
    servers = {server for server in _distinct(source, _SERVER, count) if server}
    named = {server.split("/")[0] for server in servers if "/" in server}
    return LogSource(
        frozenset({connector} - {""}),
        frozenset(server for server in servers if "/" in server or server not in named),
        frozenset(_distinct(source, _TABLE, count) - {""}),
    )


def _distinct(source: Columns, names: Sequence[str], count: int) -> set[str]:
    """The distinct combinations of values of the fields that are present."""
    parts = [source[field] for field in names if field in source and source[field].null_count < count]
    if not parts or any(pa.types.is_nested(part.type) for part in parts):
        return set()
    texts = [pc.fill_null(part.cast(pa.string()), "") for part in parts]
    joined = pc.unique(pc.binary_join_element_wise(*texts, "/")).to_pylist()
    return {"/".join(part for part in value.split("/") if part not in {"", "0"}) for value in joined}


def logs_whole_rows(connector: str) -> bool:
    """Whether the connector's before image of a delete is certainly the whole row."""
    return connector in CONNECTORS and CONNECTORS[connector].logs_whole_rows


def log_positions(connector: str, source: Columns, reads: pa.Array, place: Place) -> pa.Table:
    """The log positions of messages, as columns in sort order.

    There are no columns for an unknown connector. All columns are NULL for a read without a position. Raises
    Refused if a position is unreadable.
    """
    if connector not in CONNECTORS:
        return pa.table({})
    read: dict[str, pa.Array] = {}
    for field, reading in CONNECTORS[connector].positions.items():
        try:
            read[field] = reading(source.get(field, pa.nulls(len(reads))))
        except Unplaced as stop:
            why = f"`source.{field}` is not a log position of {connector}"
            raise malformed_row(FEED, place(stop.row), why, REMEDY) from None
    parts = CONNECTORS[connector].arranged(read, reads)
    placeless = pc.and_(reads, next(iter(parts.values())).is_null())
    columns: dict[str, pa.Array] = {}
    for part, values in parts.items():
        first = pa.scalar("" if pa.types.is_string(values.type) else 0, values.type)
        columns[part] = pc.if_else(pc.and_(reads, values.is_null()), first, values)
    columns[CHANGE] = pc.invert(reads)
    return pa.table({column: pc.if_else(placeless, None, part) for column, part in columns.items()})


def instants(source: Columns, sent: pa.Array, reads: pa.Array, place: Place) -> pa.Array:
    """The times of events: `source.ts_us`, else `source.ts_ms`.

    A read without a time, or with the time 0, has the time when it was `sent`. An event without a time is
    NULL. Raises Refused if a value is not a time.
    """
    micros = _as_micros(source.get("ts_us", pa.nulls(len(reads))), 1, "source.ts_us", place)
    millis = _as_micros(source.get("ts_ms", pa.nulls(len(reads))), 1_000, "source.ts_ms", place)
    known = pc.coalesce(micros, millis)
    # Older snapshot readers of Debezium have no time and write 0.
    lacks = pc.and_(reads, pc.equal(pc.fill_null(known, 0), 0))
    if lacks.true_count:
        known = pc.if_else(lacks, _as_micros(sent, 1_000, "ts_ms", place), known)
    return known.cast(pa.timestamp("us")).cast(INSTANT)


def _as_micros(counts: pa.Array, micros: int, field: str, place: Place) -> pa.Array:
    """Convert counts of units of `micros` microseconds to microseconds.

    Raises Refused outside the years 1 to 9999.
    """
    try:
        built = pc.multiply_checked(_integers(counts), micros)
        require_years(built, DAY)
    except Unplaced as stop:
        raise malformed_row(FEED, place(stop.row), f"`{field}` is not a number", REMEDY) from None
    except pa.ArrowInvalid:
        values = counts.fill_null(0).to_numpy(zero_copy_only=False)
        row = int(np.argmax(np.abs(values.astype(float))))
        raise malformed_row(
            FEED, place(row), f"`{field}` is outside of the years 1 to 9999", REMEDY
        ) from None
    return built
