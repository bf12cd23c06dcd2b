"""When a change was, and where it is in its connector's log (native.md, V62, V131, V137)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS, Refused
from backstory.formats.envelopes.log_source import LogSource
from backstory.formats.envelopes.unwrapped import INSTANT
from backstory.formats.produced import malformed_row
from backstory.formats.values.cells import DAY, require_years

REMEDY: Final = "Nothing was written; fix the message, or order events by other columns with `sequence_by`."
CHANGE: Final = "is_change"  # at one position reads of a snapshot come before changes
# What a source calls its table, and the server whose log it is.
_TABLE: Final = ("db", "schema", "table", "collection")
_SERVER: Final = ("name", "server_id")
_FILE = r"\.(?P<number>[0-9]{1,18})$"
_LSN = r"^(?P<log>[0-9a-f]{1,8}):(?P<block>[0-9a-f]{1,8}):(?P<slot>[0-9a-f]{1,4})$"
_LSN_WIDTHS = (8, 8, 4)
_SEQUENCE = r'^\[(?:null|"(?P<commit>[0-9]{1,18})"),'
Columns = Mapping[str, pa.Array]
Place = Callable[[int], str]


class Unplaced(ValueError):
    """A value is not of its kind; `row` counts from 0."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


@dataclass(frozen=True, slots=True)
class Connector:
    """How a connector's log positions are read, in the order in which they sort.

    `arranged` makes places of what `positions` reads, and of which messages are reads. `logs_whole_rows` says
    that the before image of a delete is the whole row: PostgreSQL logs the key of it alone, unless its table
    has `REPLICA IDENTITY FULL`, and Debezium fills the rest with NULL and defaults.
    """

    positions: Mapping[str, Callable[[pa.Array], pa.Array]]
    logs_whole_rows: bool = True
    arranged: Callable[[Columns, pa.Array], Columns] = lambda columns, _: columns


def _integers(values: pa.Array) -> pa.Array:
    if pa.types.is_null(values.type) or pa.types.is_integer(values.type):
        return values.cast(pa.int64())
    raise Unplaced(pc.index(values.is_valid(), True).as_py())


def _file_numbers(names: pa.Array) -> pa.Array:
    """The numbers of MySQL's log files, `mysql-bin.000003`: their digits grow, so text does not sort."""
    numbers = pc.struct_field(_match_numbers(names, _FILE), "number")
    return numbers.cast(pa.int64())


def _lsns(texts: pa.Array) -> pa.Array:
    """SQL Server's positions, three hexadecimal numbers, with as many digits each as sort as numbers do."""
    parts = _match_numbers(pc.utf8_lower(texts.cast(pa.string())), _LSN).flatten()
    padded = [pc.utf8_lpad(part, width, "0") for part, width in zip(parts, _LSN_WIDTHS, strict=True)]
    return pc.binary_join_element_wise(*padded, ":")


def _match_numbers(texts: pa.Array, pattern: str) -> pa.Array:
    if not pa.types.is_string(texts.type) and not pa.types.is_null(texts.type):
        raise Unplaced(pc.index(texts.is_valid(), True).as_py())
    texts = pc.if_else(pc.equal(texts.cast(pa.string()), ""), None, texts.cast(pa.string()))
    found = pc.extract_regex(texts, pattern)
    odd = pc.and_(texts.is_valid(), found.is_null())
    if odd.true_count:
        raise Unplaced(pc.index(odd, True).as_py())
    return found


def _commits(sequences: pa.Array) -> pa.Array:
    """The places of the last commits before messages: `["24023119","24023128"]`, or `[null,"24023128"]`."""
    commits = pc.struct_field(_match_numbers(sequences, _SEQUENCE), "commit")
    return pc.if_else(pc.equal(commits, ""), None, commits).cast(pa.int64())


def _in_order_of_commits(columns: Columns, reads: pa.Array) -> Columns:
    """PostgreSQL's positions: Debezium sends a transaction whole when it ends, and so behind earlier commits.

    A transaction that is open while a snapshot is read ends after it, and may have lower positions. A read is
    behind all that had ended, and before what ends later. Without a commit before it a change counts itself.
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


def connector_of(names: pa.Array, name: str, place: Place) -> str:
    """The one connector that the messages are of, empty where they do not say it; Refused for several."""
    if not pa.types.is_string(names.type):
        if names.null_count < len(names):
            row = pc.index(names.is_valid(), True).as_py()
            raise malformed_row(name, place(row), "`source.connector` is not a text", REMEDY)
        return ""
    several = {str(each) for each in pc.unique(names).to_pylist() if each is not None}
    refuse_several(LogSource(frozenset(several)), name)
    return several.pop() if several else ""


def refuse_several(source: LogSource, name: str) -> None:
    """Raise Refused for messages of several tables or connectors, whose changes have no order together."""
    for said, of in ((source.connectors, "connector"), (source.tables, "table")):
        if len(said) > 1:
            raise Refused(
                "several-sources",
                f"{name} has messages of several {of}s: {', '.join(sorted(said)[:MAX_KEYS])}.",
                f"Nothing was written; apply the messages of each {of} separately, to a table of its own.",
            )


def log_source(connector: str, source: Columns, count: int) -> LogSource:
    """Whose log messages are of; reads of a snapshot, which say 0, do not name their server."""
    servers = {each for each in _distinct(source, _SERVER, count) if each}
    named = {each.split("/")[0] for each in servers if "/" in each}
    return LogSource(
        frozenset({connector} - {""}),
        frozenset(each for each in servers if "/" in each or each not in named),
        frozenset(_distinct(source, _TABLE, count) - {""}),
    )


def _distinct(source: Columns, names: Sequence[str], count: int) -> set[str]:
    """The differing values of these fields, which are there, together."""
    parts = [source[each] for each in names if each in source and source[each].null_count < count]
    if not parts or any(pa.types.is_nested(each.type) for each in parts):
        return set()
    texts = [pc.fill_null(each.cast(pa.string()), "") for each in parts]
    joined = pc.unique(pc.binary_join_element_wise(*texts, "/")).to_pylist()
    return {"/".join(part for part in each.split("/") if part not in {"", "0"}) for each in joined}


def logs_whole_rows(connector: str) -> bool:
    """Whether the before image of a delete is known to be the whole row."""
    return connector in CONNECTORS and CONNECTORS[connector].logs_whole_rows


def log_positions(connector: str, source: Columns, reads: pa.Array, name: str, place: Place) -> pa.Table:
    """The places of messages in the log, first those parts that lead; none for connectors that are not known.

    A read without a position has no place. Refused for a position that cannot be read.
    """
    if connector not in CONNECTORS:
        return pa.table({})
    read: dict[str, pa.Array] = {}
    for field, reading in CONNECTORS[connector].positions.items():
        try:
            read[field] = reading(source.get(field, pa.nulls(len(reads))))
        except Unplaced as stop:
            why = f"`source.{field}` is not a log position of {connector}"
            raise malformed_row(name, place(stop.row), why, REMEDY) from None
    parts = CONNECTORS[connector].arranged(read, reads)
    placeless = pc.and_(reads, next(iter(parts.values())).is_null())
    columns: dict[str, pa.Array] = {}
    for part, values in parts.items():
        first = pa.scalar("" if pa.types.is_string(values.type) else 0, values.type)
        columns[part] = pc.if_else(pc.and_(reads, values.is_null()), first, values)
    columns[CHANGE] = pc.invert(reads)
    return pa.table({each: pc.if_else(placeless, None, part) for each, part in columns.items()})


def instants(source: Columns, sent: pa.Array, reads: pa.Array, name: str, place: Place) -> pa.Array:
    """`source.ts_us`, else `source.ts_ms`; of a read without one, or with 0, the time it was `sent` at.

    NULL where there is none. Refused for what is not a time.
    """
    micros = _as_micros(source.get("ts_us", pa.nulls(len(reads))), 1, "source.ts_us", name, place)
    millis = _as_micros(source.get("ts_ms", pa.nulls(len(reads))), 1_000, "source.ts_ms", name, place)
    known = pc.coalesce(micros, millis)
    # Debezium's older readers of snapshots had no time, and wrote 0.
    lacks = pc.and_(reads, pc.equal(pc.fill_null(known, 0), 0))
    if lacks.true_count:
        known = pc.if_else(lacks, _as_micros(sent, 1_000, "ts_ms", name, place), known)
    return known.cast(pa.timestamp("us")).cast(INSTANT)


def _as_micros(counts: pa.Array, micros: int, field: str, name: str, place: Place) -> pa.Array:
    """Counts of so many microseconds as microseconds, within the years 1 to 9999."""
    try:
        built = pc.multiply_checked(_integers(counts), micros)
        require_years(built, DAY)
    except Unplaced as stop:
        raise malformed_row(name, place(stop.row), f"`{field}` is not a number", REMEDY) from None
    except pa.ArrowInvalid:
        values = counts.fill_null(0).to_numpy(zero_copy_only=False)
        row = int(np.argmax(np.abs(values.astype(float))))
        raise malformed_row(
            name, place(row), f"`{field}` is outside of the years 1 to 9999", REMEDY
        ) from None
    return built
