"""A replay of the official tester's input files as requests to a server (sections 7.10 to 7.12).

A file is played in the tester's fixed order: describe, create, alter, `ops`, `schema_migration`. The rows of an
op are not sent one by one. They are collected by table and kind, and sent in one batch.
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count

from destination import add_column

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.errors import Refused
from backstory.formats.batch_file import BatchFile
from backstory.model.instant import TMAX
from backstory.model.layout import ACTIVE, DELETED, END, FIVETRAN_ID, START, SYNCED, SYSTEM_COLUMNS
from backstory.model.values import UNMODIFIED
from backstory.testing.sender import Sender, write_batch_file

MILLISECOND = timedelta(milliseconds=1)
HISTORY_SYSTEM = {START: "UTC_DATETIME", END: "UTC_DATETIME", ACTIVE: "BOOLEAN"}
KINDS = ("earliest_start", "replace", "update", "delete")
TRUNCATES = {"truncate_before", "soft_truncate_before"}
ALTERS = {"add_column", "change_column_data_type", "drop_column"}

Definitions = dict[str, common.Table]


def ticking(start: datetime, step: timedelta = timedelta(seconds=1)) -> Iterator[datetime]:
    """A clock that advances with each reading: `start`, a step later, and so on."""
    return (start + number * step for number in count())


@dataclass(frozen=True)
class Replay:
    """The way in which files are played. The sender determines the format of batch files.

    The tester sends all rows of a table and then its truncates, each with the instant at which it read it. Only
    these instants show the order of the ops. In the `strict` order, a truncate follows the rows of the ops
    before it. The clock is read once for each op. Each request is sent this many `times` in a row.
    """

    sender: Sender
    clock: Iterator[datetime]
    schema: str = "tester"
    strict: bool = False
    times: int = 1


def play(replay: Replay, sample: Mapping[str, object]) -> list[str]:
    """Play an input file. Returns the names of the migrations that the server does not support.

    Raises Refused for a task, TryAgain for a status.
    """
    definitions: Definitions = {}
    for name in sample.get("describe_table", ()):
        table = replay.sender.describe(replay.schema, name)
        if table is not None:
            definitions[name] = table
    for name, entry in sample.get("create_table", {}).items():
        definitions[name] = definition(name, entry)
        _create(replay, definitions[name])
    for name, entry in sample.get("alter_table", {}).items():
        definitions[name] = definition(name, entry)
        _alter(replay, definitions[name])
    ops = list(zip(sample.get("ops", ()), replay.clock, strict=False))
    for part in _parts(ops) if replay.strict else [ops]:
        _play_ops(replay, definitions, part)
    return _play_migrations(replay, sample.get("schema_migration", ()))


def definition(name: str, entry: Mapping[str, object]) -> common.Table:
    """The definition that the tester sends: the user's columns, then the system columns of its mode."""
    table = common.Table(name=name)
    key = entry.get("primary_key") or ()
    for column, type_ in entry["columns"].items():
        add_column(table, column, _type(type_), key=column in key)
    add_column(table, SYNCED, "UTC_DATETIME")
    if not key:
        add_column(table, FIVETRAN_ID, "STRING", key=True)
    if entry.get("history_mode"):
        for column, type_ in HISTORY_SYSTEM.items():
            add_column(table, column, type_, key=column == START)
    else:
        add_column(table, DELETED, "BOOLEAN")
    return table


def _type(data_type: str | Mapping[str, object]) -> str:
    text = (
        data_type
        if isinstance(data_type, str)
        else f"{data_type['type']}({data_type['precision']},{data_type['scale']})"
    )
    return text.upper()


def _create(replay: Replay, table: common.Table) -> None:
    replay.sender.create(replay.schema, table)
    for _ in range(1, replay.times):
        try:
            replay.sender.create(replay.schema, table)
        except Refused:
            continue
        raise AssertionError(f"{table.name} was created twice.")


def _alter(replay: Replay, table: common.Table, *, drop_columns: bool = False) -> None:
    for _ in range(replay.times):
        replay.sender.alter(replay.schema, table, drop_columns=drop_columns)


@dataclass(frozen=True)
class Change:
    """A row of an op, and the time at which the op was read."""

    kind: str
    read: datetime
    row: Mapping[str, object]

    @property
    def time(self) -> datetime:
        """The time of the change at the source of a history table."""
        return datetime.fromisoformat(self.row["op_time"])


Ops = Sequence[tuple[Mapping[str, object], datetime]]


def _parts(ops: Ops) -> Iterable[Ops]:
    """The ops, split after each truncate."""
    part = []
    for op, read in ops:
        part.append((op, read))
        if op.keys() & TRUNCATES:
            yield part
            part = []
    yield part


def _play_ops(replay: Replay, definitions: Definitions, ops: Ops) -> None:
    """Send the ops of each table: one batch of all rows, then its truncates, each with its last instant."""
    changes: dict[str, list[Change]] = defaultdict(list)
    truncates: dict[str, dict[str, datetime]] = defaultdict(dict)
    for op, read in ops:
        [(kind, tables)] = op.items()
        for name in tables:
            if kind in TRUNCATES:
                truncates[name][kind] = read
            else:
                changes[name] += [Change(kind, read, row) for row in tables[name]]
    if unknown := changes.keys() - definitions.keys():
        raise ValueError(f"The file has rows for {unknown}, but no definition of it.")
    for name in dict.fromkeys([*definitions, *truncates]):
        if name in changes:
            _write(replay, definitions[name], changes[name])
        for kind, read in truncates[name].items():
            _truncate(replay, name, read, soft=kind == "soft_truncate_before")


def _write(replay: Replay, table: common.Table, changes: Sequence[Change]) -> None:
    columns = [column.name for column in table.columns]
    lists = _history_lists(changes, table) if ACTIVE in columns else _live_lists(changes, table)
    sender = replay.sender
    files: dict[str, list[BatchFile]] = {}
    for kind in KINDS:
        if rows := lists[kind]:
            shuffled = [*rows[0]]
            random.Random(f"{table.name} {kind}").shuffle(shuffled)
            files[f"{kind}_files"] = [write_batch_file(sender.folder, rows, shuffled, sender.encoding)]
    for _ in range(replay.times):
        sender.send_files(replay.schema, table, files)


Lists = Mapping[str, list[dict[str, object]]]


def _live_lists(changes: Sequence[Change], table: common.Table) -> Lists:
    lists: Lists = defaultdict(list)
    for change in changes:
        gone = None if change.kind == "delete" else change.kind == "soft_delete"
        row = _values(change, table) | {DELETED: gone, SYNCED: change.read}
        lists[{"upsert": "replace", "soft_delete": "update"}.get(change.kind, change.kind)].append(row)
    return lists


def _history_lists(changes: Sequence[Change], table: common.Table) -> Lists:
    """The lists of a history batch. A change is true until the file's next change of its key.

    The tester's form of a soft delete is unknown (7.11). Here it is a delete.
    """
    lists: Lists = defaultdict(list)
    earliest: dict[tuple[object, ...], dict[str, object]] = {}
    names = [column.name for column in table.columns if column.primary_key and column.name != START]
    keys = [tuple(change.row[name] for name in names) for change in changes]
    for place, change in enumerate(changes):
        key, time = keys[place], change.time
        row = _values(change, table) | {SYNCED: change.read}
        if change.kind in {"delete", "soft_delete"}:
            lists["delete"].append(row | {START: None, END: time, ACTIVE: False})
            continue
        later = zip(keys[place + 1 :], changes[place + 1 :], strict=True)
        ends = next((after.time - MILLISECOND for other, after in later if other == key), None)
        kind = "replace" if change.kind == "upsert" else "update"
        lists[kind].append(row | {START: time, END: ends or TMAX, ACTIVE: ends is None})
        first = earliest.setdefault(key, {**dict(zip(names, key, strict=True)), START: time})
        first[START] = min(first[START], time)
    lists["earliest_start"] = [*earliest.values()]
    return lists


def _values(change: Change, table: common.Table) -> dict[str, object]:
    """The user's columns. Deletes have only the key. An upsert that lacks a column raises KeyError."""
    blanks = {"update": UNMODIFIED, "soft_delete": UNMODIFIED, "delete": None}
    brought = change.kind in {"upsert", "update"}
    values = {}
    for column in table.columns:
        if column.name == FIVETRAN_ID or column.name not in SYSTEM_COLUMNS:
            has_value = column.name in change.row and (brought or column.primary_key)
            values[column.name] = change.row[column.name] if has_value else blanks[change.kind]
    return values


def _truncate(replay: Replay, name: str, read: datetime, *, soft: bool) -> None:
    request = sdk.TruncateRequest(
        configuration=replay.sender.configuration,
        schema_name=replay.schema,
        table_name=name,
        synced_column=SYNCED,
        soft=sdk.SoftTruncate(deleted_column=DELETED) if soft else None,
    )
    request.utc_delete_before.FromDatetime(read)
    for _ in range(replay.times):
        _member(replay.sender.stub.Truncate, request)


def _play_migrations(replay: Replay, entries: Iterable[Mapping[str, object]]) -> list[str]:
    named = [(name, arguments) for entry in entries for name, listed in entry.items() for arguments in listed]
    return [name for name, arguments in named if _play_migration(replay, name, arguments) == "unsupported"]


def _play_migration(replay: Replay, name: str, arguments: Mapping[str, object]) -> str:
    sender = replay.sender
    if name in ALTERS:
        table = _altered(sender.describe(replay.schema, arguments["table"]), name, arguments)
        _alter(replay, table, drop_columns=name == "drop_column")
        return "success"
    details = migration(replay.schema, name, arguments)
    request = sdk.MigrateRequest(configuration=sender.configuration, details=details)
    return [_member(sender.stub.Migrate, request) for _ in range(replay.times)][-1]


def _altered(table: common.Table, name: str, arguments: Mapping[str, object]) -> common.Table:
    """The table's definition after one of the migrations that use AlterTable."""
    altered = common.Table(name=table.name)
    for column in table.columns:
        if column.name != arguments["column"]:
            altered.columns.add().CopyFrom(column)
        elif name == "change_column_data_type":
            add_column(altered, column.name, _type(arguments["data_type"]), key=column.primary_key)
    if name == "add_column":
        add_column(altered, arguments["column"], _type(arguments["data_type"]))
    return altered


def migration(schema: str, name: str, arguments: Mapping[str, object]) -> sdk.MigrationDetails:
    """A migration of the file in the form of the wire (section 7.12)."""
    names = {"data_type": "column_type", "deleted_column": "soft_deleted_column"}
    fields = {names.get(key, key): _text(value) for key, value in arguments.items() if key != "table"}
    if "keep_inactive_rows" in arguments:
        fields["keep_deleted_rows"] = fields.pop("keep_inactive_rows") == "true"
    if name == "drop_table":
        operation = {"drop": {name: True}}
    elif name == "update_column_value":
        operation = {name: fields}
    elif name == "set_column_to_null":
        operation = {"update_column_value": fields | {"value": "NULL"}}
    elif name.startswith("migrate_"):
        fields["type"] = name.removeprefix("migrate_").upper()
        operation = {"table_sync_mode_migration": fields}
    else:
        # An entity's name begins with its operation's: copy_table is an entity of copy.
        operation = {name.partition("_")[0]: {name: fields}}
    return sdk.MigrationDetails(
        schema=schema, table=arguments.get("table") or arguments["from_table"], **operation
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _member(call: Callable[[object], object], request: object) -> str:
    """The member of a reply. Raises Refused for a task."""
    reply = call(request)
    member = reply.WhichOneof("response")
    if member == "task":
        raise Refused("task", f"{type(request).__name__} was refused: {reply.task.message}")
    return member
