"""Conversion of Debezium's envelopes to events (native.md, V61 to V64).

The conversion separates known values from unavailable values in the before and after images. An update that
changes a record's key becomes a delete and an upsert.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS, Refused
from backstory.formats.envelopes.events import (
    DELETE,
    FEED,
    INSTANT,
    TRUNCATE,
    UNAVAILABLE,
    UPSERT,
    LogSource,
    Unwrapped,
    all_null,
    fields_of,
    joint_column,
    struct_of,
    unavailable_cells,
    whole_columns,
)
from backstory.formats.envelopes.messages import (
    AFTER,
    BEFORE,
    KEY,
    NO_CHANGE,
    OP,
    PAYLOAD,
    REMEDY,
    SCHEMA,
    UNMODIFIED,
    message,
)
from backstory.formats.produced import excerpt, malformed_row, refuse_repeated, refuse_where
from backstory.formats.values.cells import DAY, UnreadableCell, require_years
from backstory.formats.values.exactly import as_type

_POSITION_REMEDY: Final = (
    "Nothing was written; fix the message, or order events by other columns with `sequence_by`."
)
CHANGE: Final = "is_change"  # at equal positions, snapshot reads sort before changes
# The fields of `source` that name the table, and the server of the log.
_TABLE: Final = ("db", "schema", "table", "collection")
_SERVER: Final = ("name", "server_id")
# The number in the name of a MySQL log file, such as `mysql-bin.000003`. Its length varies.
_FILE = r"\.(?P<number>[0-9]{1,18})$"
_LSN = r"^(?P<log>[0-9a-f]{1,8}):(?P<block>[0-9a-f]{1,8}):(?P<slot>[0-9a-f]{1,4})$"
_LSN_WIDTHS = (8, 8, 4)
# The first string in a list like `["24023119","24023128"]`: the last commit before the message.
_SEQUENCE = r'^\[(?:null|"(?P<commit>[0-9]{1,18})"),'
Columns = Mapping[str, pa.Array]
Place = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Connector:
    """The rules for converting a connector's log positions to sort columns.

    `positions` parses each field of a position, and raises UnreadableCell. `arranged` makes the sort columns
    from the fields and from a flag for snapshot reads. `logs_whole_rows` is true if the before image of a
    delete is the whole row. PostgreSQL logs only the key unless the table has `REPLICA IDENTITY FULL`;
    Debezium fills the other columns with NULL and defaults.
    """

    positions: Mapping[str, Callable[[pa.Array], pa.Array]]
    logs_whole_rows: bool = True
    arranged: Callable[[Columns, pa.Array], Columns] = lambda columns, _: columns


def _integers(values: pa.Array) -> pa.Array:
    if pa.types.is_null(values.type) or pa.types.is_integer(values.type):
        return values.cast(pa.int64())
    raise UnreadableCell(pc.index(values.is_valid(), True).as_py())


def _numbers_in(pattern: str, texts: pa.Array) -> pa.Array:
    """The numbers that the pattern's only group matches; an empty match is NULL."""
    (numbers,) = _match_numbers(texts, pattern).flatten()
    return pc.if_else(pc.equal(numbers, ""), None, numbers).cast(pa.int64())


def _lsns(texts: pa.Array) -> pa.Array:
    """SQL Server's positions (three hexadecimal numbers), padded so that they sort correctly as strings."""
    parts = _match_numbers(pc.utf8_lower(texts.cast(pa.string())), _LSN).flatten()
    padded = [pc.utf8_lpad(part, width, "0") for part, width in zip(parts, _LSN_WIDTHS, strict=True)]
    return pc.binary_join_element_wise(*padded, ":")


def _match_numbers(texts: pa.Array, pattern: str) -> pa.Array:
    if not pa.types.is_string(texts.type) and not pa.types.is_null(texts.type):
        raise UnreadableCell(pc.index(texts.is_valid(), True).as_py())
    texts = pc.if_else(pc.equal(texts.cast(pa.string()), ""), None, texts.cast(pa.string()))
    parts = pc.extract_regex(texts, pattern)
    odd = pc.and_(texts.is_valid(), parts.is_null())
    if odd.true_count:
        raise UnreadableCell(pc.index(odd, True).as_py())
    return parts


def _in_order_of_commits(columns: Columns, reads: pa.Array) -> Columns:
    """PostgreSQL's positions in the order of commits, because Debezium sends a transaction when it ends.

    A transaction that is open during a snapshot ends after the snapshot, but may have lower positions. A read
    therefore sorts after all transactions that had ended before it, and before all later transactions. A
    change without an earlier commit uses its own position.
    """
    lsn, commit = columns["lsn"], columns["sequence"]
    leads = pc.if_else(reads, pc.max_element_wise(commit, lsn), pc.coalesce(commit, lsn))
    return {
        "last_commit": pc.if_else(lsn.is_valid(), leads, None),
        "lsn": pc.if_else(pc.and_(reads, lsn.is_valid()), 0, lsn),
    }


_MYSQL = Connector({"file": partial(_numbers_in, _FILE), "pos": _integers, "row": _integers})
CONNECTORS: Final[Mapping[str, Connector]] = {
    "postgresql": Connector(
        {"lsn": _integers, "sequence": partial(_numbers_in, _SEQUENCE)},
        logs_whole_rows=False,
        arranged=_in_order_of_commits,
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "sqlserver": Connector({"commit_lsn": _lsns, "change_lsn": _lsns, "event_serial_no": _integers}),
}


def connectors_of(names: pa.Array, place: Place) -> frozenset[str]:
    """The connectors that the messages name. Raises Refused if a name is not a string."""
    if not pa.types.is_string(names.type):
        refuse_where(names.is_valid(), FEED, place, "`source.connector` is not a text", _POSITION_REMEDY)
    return frozenset(str(connector) for connector in pc.unique(names).to_pylist() if connector is not None)


def refuse_several(source: LogSource) -> None:
    """Raise Refused for messages of several tables or connectors, because they have no common order."""
    for names, kind in ((source.connectors, "connector"), (source.tables, "table")):
        if len(names) > 1:
            raise Refused(
                "several-sources",
                f"{FEED} has messages of several {kind}s: {', '.join(sorted(names)[:MAX_KEYS])}.",
                f"Nothing was written; apply the messages of each {kind} separately, to a table of its own.",
            )


def log_source(connectors: frozenset[str], source: Columns, count: int) -> LogSource:
    """The connectors, servers and tables that the messages name.

    Snapshot reads have the server id 0, and may lack the server.
    """
    servers = {server for server in _distinct(source, _SERVER, count) if server}
    named = {server.split("/")[0] for server in servers if "/" in server}
    return LogSource(
        connectors - {""},
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


def log_positions(connector: str, source: Columns, reads: pa.Array, place: Place) -> pa.Table:
    """The log positions of messages, as columns in sort order.

    The table has no columns for an unknown connector. All columns are NULL for a read without a position.
    Raises Refused if a position is unreadable.
    """
    if connector not in CONNECTORS:
        return pa.table({})
    read: dict[str, pa.Array] = {}
    for field, reading in CONNECTORS[connector].positions.items():
        try:
            read[field] = reading(source.get(field, pa.nulls(len(reads))))
        except UnreadableCell as stop:
            why = f"`source.{field}` is not a log position of {connector}"
            raise malformed_row(FEED, place(stop.row), why, _POSITION_REMEDY) from None
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

    A snapshot read without a time, or with the time 0, has the time in `sent`. The result is NULL for an
    event without a time. Raises Refused if a value is not a time.
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
    """Convert counts in units of `micros` microseconds to microseconds.

    Raises Refused for a value that is not an integer or is outside the years 1 to 9999.
    """
    try:
        built = pc.multiply_checked(_integers(counts), micros)
        require_years(built, DAY)
    except UnreadableCell as stop:
        raise malformed_row(FEED, place(stop.row), f"`{field}` is not a number", _POSITION_REMEDY) from None
    except pa.ArrowInvalid:
        values = counts.fill_null(0).to_numpy(zero_copy_only=False)
        row = int(np.argmax(np.abs(values.astype(float))))
        raise malformed_row(
            FEED, place(row), f"`{field}` is outside of the years 1 to 9999", _POSITION_REMEDY
        ) from None
    return built


@dataclass(frozen=True, slots=True)
class Images:
    """The before images, after images and keys of events, by column. `key` has the messages' own keys."""

    kinds: pa.Array
    before: Columns
    after: Columns
    key: Columns

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def is_upsert(self) -> pa.Array:
        """A mask of the upserts."""
        return pc.equal(self.kinds, UPSERT)

    @property
    def is_delete(self) -> pa.Array:
        """A mask of the deletes."""
        return pc.equal(self.kinds, DELETE)


def record_rows(images: Images, key: Collection[str]) -> pa.Table:
    """The rows of the events: values for upserts, keys for deletes.

    Raises Refused if a column has conflicting types.
    """
    names = [*images.after, *images.before, *images.key]
    rows, lacking = {}, pa.nulls(len(images))
    for column in dict.fromkeys(names):
        cells = [image.get(column, lacking) for image in (images.after, images.before, images.key)]
        type_ = joint_column(column, [part.type for part in cells], FEED)
        after, before, own = (as_type(part, type_) for part in cells)
        nothing = pa.scalar(None, type_)
        deleted = pc.coalesce(own, before) if column in key else nothing
        upserted = after if column in images.after else own
        rows[column] = pc.if_else(images.is_upsert, upserted, pc.if_else(images.is_delete, deleted, nothing))
    return pa.table(rows)


def unmodified_cells(
    images: Images, stated: Columns, key: Collection[str], columns: Sequence[str], unavailable: str
) -> pa.Table:
    """For each column that some event leaves unchanged, flags of these events.

    `stated` contains the flags in the messages themselves. Key columns have no flags.
    """
    nobody = pa.repeat(pa.scalar(False), len(images))
    flags = {}
    for column in columns:
        if column in key:
            continue
        cells = images.after.get(column)
        lacking = images.is_upsert if cells is None else unavailable_cells(cells, unavailable)
        flag = pc.and_(images.is_upsert, pc.or_(lacking, pc.fill_null(stated.get(column, nobody), False)))
        if flag.true_count:
            flags[column] = flag
    return pa.table(flags)


def _before_images(
    images: Images, operations: pa.Array, connector: str, schema: pa.Schema, unavailable: str
) -> tuple[pa.Table | None, pa.Array]:
    """The before images that are whole rows with all values, and whether each event has one."""
    whole = pc.equal(operations, "u")
    if connector in CONNECTORS and CONNECTORS[connector].logs_whole_rows:
        whole = pc.or_(whole, images.is_delete)
    whole = pc.and_(whole, pc.invert(all_null(images.before, len(images))))
    for cells in images.before.values():
        whole = pc.and_(whole, pc.invert(unavailable_cells(cells, unavailable)))
    if not whole.true_count:
        return None, whole
    typed = {column: as_type(cells, schema.field(column).type) for column, cells in images.before.items()}
    return pa.table({column: pc.if_else(whole, cells, None) for column, cells in typed.items()}), whole


def end_changed_keys(
    columns: dict[str, pa.Array], places: np.ndarray, key: Sequence[str]
) -> tuple[dict[str, pa.Array], np.ndarray]:
    """The events, with a delete of the old key before each update that changes the `key`.

    Debezium itself adds this delete only for its own key, which may differ from the table's key. The before
    image moves to the delete. `places` are the message numbers of the events.
    """
    before, after = (fields_of(columns.get(image, pa.nulls(len(places)))) for image in (BEFORE, AFTER))
    if not key or any(column not in before or column not in after for column in key):
        return columns, places
    known, same = pc.equal(columns[OP], "u"), pa.repeat(pa.scalar(True), len(places))
    for column in key:
        type_ = joint_column(column, [before[column].type, after[column].type], FEED)
        old, new = as_type(before[column], type_), as_type(after[column], type_)
        known = pc.and_(known, old.is_valid())
        same = pc.and_(same, pc.fill_null(_equal(old, new), False))
    changed = pc.and_(known, pc.invert(same)).to_numpy(zero_copy_only=False)
    if not changed.any():
        return columns, places
    rows = np.repeat(np.arange(len(places)), 1 + changed)
    ends = np.append(rows[1:] == rows[:-1], False)
    begins = pa.array(np.append(False, ends[:-1]))
    events = {column: values.take(pa.array(rows)) for column, values in columns.items()}
    events[OP] = pc.if_else(pa.array(ends), "d", events[OP])
    events[BEFORE] = _null_where(events[BEFORE], begins)
    if KEY in events:
        events[KEY] = _null_where(events[KEY], pa.array(ends))
    return events, places[rows]


def _equal(old: pa.Array, new: pa.Array) -> pa.Array:
    if pa.types.is_nested(old.type) or pa.types.is_null(old.type):  # Arrow cannot compare these
        pairs = zip(old.to_pylist(), new.to_pylist(), strict=True)
        return pa.array([one == other for one, other in pairs], pa.bool_())
    return pc.equal(old, new)


def _null_where(structs: pa.Array, mask: pa.Array) -> pa.Array:
    """The structs, with NULL where the mask is true."""
    return pc.if_else(mask, pa.scalar(None, structs.type), structs)


_KINDS: Final = {"c": UPSERT, "u": UPSERT, "r": UPSERT, "d": DELETE, "t": TRUNCATE}
_OPERATIONS: Final = [*_KINDS, "m"]  # m: a message in the log without a row


def unwrap_debezium(rows: pa.Table, key: Sequence[str] = (), *, unavailable: str = UNAVAILABLE) -> Unwrapped:
    """The events of messages with columns `op`, `before`, `after`, `source`, `ts_ms`, or their `payload`.

    The key of a delete is taken from the struct `key` of the message, or else from `before`. The parameter
    `key` names the key's columns. By default, they are the columns of the message's key, or else of `before`.
    Messages without a value or without a row are left out. Cells equal to `unavailable` are unmodified, as
    are cells that `debezium_messages` flags.

    A before image is used only if it is a whole row: all its values must be available. For a delete, the
    connector must also be one that logs whole rows. An update whose before image has another `key` becomes
    two events; the first one is a delete of the old key.

    Raises Refused (`malformed-row`), with the message's number, for an unknown `op`, an upsert without
    `after`, and a delete without a key. Also raises Refused for unreadable log positions and times, and for
    messages with schemas, because only `debezium_messages` reads schemas.
    """
    columns, places = end_changed_keys(*_events(_envelopes(rows), rows.num_rows), key)

    def place(row: int) -> str:
        return message(int(places[row]))

    operations = columns[OP]
    kinds = pa.array([_KINDS[operation] for operation in operations.to_pylist()], pa.string())
    images = Images(kinds, *(_fields(columns, image, place) for image in (BEFORE, AFTER, KEY)))
    key = tuple(key) or tuple(images.key) or tuple(images.before)
    _refuse_missing(images, key, place)
    records = record_rows(images, key)
    stated = fields_of(columns.get(UNMODIFIED, pa.nulls(len(kinds))))
    unmodified = unmodified_cells(images, stated, key, records.column_names, unavailable)
    log, sequence, times = _read_log(columns, place)
    connector = next(iter(log.connectors), "")
    before, has_before = _before_images(images, operations, connector, records.schema, unavailable)
    return Unwrapped(
        rows=_null_unmodified(records, unmodified),
        kinds=kinds,
        instants=times,
        sequence=sequence,
        unmodified=unmodified,
        before=before,
        has_before=has_before,
        places=pa.array(places),
        source=log,
        unordered="" if sequence.column_names or not len(kinds) else connector or "unknown",
    )


def _read_log(columns: Columns, place: Place) -> tuple[LogSource, pa.Table, pa.Array]:
    """The origin of the messages, which must be one log, and the positions and times of the events."""
    operations = columns[OP]
    nothing = pa.nulls(len(operations))
    source = _fields(columns, "source", place)
    connectors = connectors_of(source.get("connector", nothing), place)
    refuse_several(LogSource(connectors))
    log = log_source(connectors, source, len(operations))
    refuse_several(log)
    reads = pc.equal(operations, "r")
    positions = log_positions(next(iter(log.connectors), ""), source, reads, place)
    return log, positions, instants(source, columns.get("ts_ms", nothing), reads, place)


def _envelopes(rows: pa.Table) -> dict[str, pa.Array]:
    """The columns of the envelopes, read from `payload` if the messages have that column."""
    columns = whole_columns(rows, FEED)
    key = columns.pop(KEY, None)
    if OP not in columns and PAYLOAD in columns:
        columns = _payload(columns)
    if key is not None and pa.types.is_struct(key.type):
        inner = fields_of(key)
        if inner.keys() == {SCHEMA, PAYLOAD}:
            inner = _payload(inner)
        if inner:
            columns[KEY] = struct_of(inner, all_null(inner, len(key)))
    return columns


def _payload(columns: Columns) -> dict[str, pa.Array]:
    schema = columns.get(SCHEMA)
    if schema is not None and schema.null_count < len(schema):
        raise Refused(
            "malformed-row",
            f"{FEED} has messages with schemas, which are exact only in the original text.",
            "Nothing was written; give the messages as text.",
        )
    return fields_of(columns[PAYLOAD])


def _events(columns: Columns, count: int) -> tuple[dict[str, pa.Array], np.ndarray]:
    """The columns and numbers of the messages that are events. Raises Refused for an unknown operation."""
    operations = columns.get(OP, pa.nulls(count))
    if not pa.types.is_string(operations.type):
        if operations.null_count < count:
            raise malformed_row(FEED, message(0), f"`{OP}` is not a text", REMEDY)
        operations = pa.nulls(count, pa.string())
    values = {column: part for column, part in columns.items() if column not in {OP, KEY, UNMODIFIED}}
    lacking = pc.and_(operations.is_null(), pc.invert(all_null(values, count)))
    refuse_where(lacking, FEED, message, NO_CHANGE, REMEDY)
    known = pc.or_(operations.is_null(), pc.is_in(operations, pa.array(_OPERATIONS)))
    if known.false_count:
        row = pc.index(known, False).as_py()
        why = f"`{OP}` is `{excerpt(operations[row])}`, which is not one of {', '.join(_OPERATIONS)}"
        raise malformed_row(FEED, message(row), why, REMEDY)
    places = np.flatnonzero(pc.is_in(operations, pa.array(list(_KINDS))).to_numpy(zero_copy_only=False))
    every = {**columns, OP: operations}
    return {column: part.take(pa.array(places)) for column, part in every.items()}, places


def _fields(columns: Columns, column: str, place: Place) -> dict[str, pa.Array]:
    """The fields of a column of structs. Raises Refused if the column has another type."""
    values = columns.get(column, pa.array([], pa.null()))
    if values.null_count == len(values):
        return fields_of(values)
    if not pa.types.is_struct(values.type):
        refuse_where(values.is_valid(), FEED, place, f"`{column}` is not an object", REMEDY)
    refuse_repeated(f"{FEED}: `{column}`", values.type.names)
    return fields_of(values)


def _refuse_missing(images: Images, key: Sequence[str], place: Place) -> None:
    """Raise Refused for an upsert without values, and for a delete without a key."""
    lacking = pc.and_(images.is_upsert, all_null(images.after, len(images)))
    refuse_where(lacking, FEED, place, f"it has no `{AFTER}`", REMEDY)
    own = {f"{KEY}.{column}": images.key[column] for column in key if column in images.key}
    old = {f"{BEFORE}.{column}": images.before[column] for column in key if column in images.before}
    lacking = pc.and_(images.is_delete, all_null(own | old, len(images)))
    why = f"it is a delete, and neither its key nor `{BEFORE}` has {', '.join(key) or 'a column'}"
    refuse_where(lacking, FEED, place, why, REMEDY)


def _null_unmodified(rows: pa.Table, unmodified: pa.Table) -> pa.Table:
    """The rows with NULL in unmodified cells."""
    for column in unmodified.column_names:
        place = rows.column_names.index(column)
        rows = rows.set_column(place, column, pc.if_else(unmodified[column], None, rows[column]))
    return rows
