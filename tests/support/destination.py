"""A table of a destination in the words of a test: text tables are sent by RPC and read back.

Columns are written as `id:LONG* v n:DECIMAL(12,2) synced`. A star marks the key, a name without a type is
STRING, and `synced`, `start`, `end`, `active`, `deleted` are the `_fivetran_` columns.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count, groupby
from pathlib import Path

import grpc
from committing import commit, snapshots_of
from memory_store.store import MemoryStore
from tables_as_text import in_order, table

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.formats.batch_file import BatchFile, Compression, Encoding, Format
from backstory.model.change import Change
from backstory.model.table import TableName
from backstory.stores.port import Store
from backstory.stores.tables import existing, rows_of
from backstory.testing.sender import Sender, write_batch_file

LIVE = "id:LONG* v n:LONG synced"
HISTORY = f"{LIVE} start* end active"
# Two records with an open version each, and a deleted one.
VERSIONS = """
    id v n start end  active synced
    1  a 1 T1    T2-1 false  T1
    1  b 1 T2    TMAX true   T2
    2  c 2 T1    T3   false  T3
    3  d 3 T3    TMAX true   T3
"""
SYSTEM = {
    "synced": "UTC_DATETIME",
    "start": "UTC_DATETIME",
    "end": "UTC_DATETIME",
    "active": "BOOLEAN",
    "deleted": "BOOLEAN",
}
PLAIN = Encoding(Format.CSV, Compression.OFF, False, "null-marker", "unmodified-marker")
KINDS = ("earliest", "replace", "update", "delete")

_numbers = count(1)


def fresh() -> str:
    """A table name that no other test has."""
    return f"t{next(_numbers)}"


@contextmanager
def serving(stores: Mapping[str, Store], tls: object = None, **more: object) -> Iterator[str]:
    """The address of a separate server with these stores."""
    from backstory.doors.fivetran.options import ServeRequest
    from backstory.doors.fivetran.server import listen
    from backstory.doors.fivetran.service import Destination

    running = listen(Destination(stores, ServeRequest(**more)), "127.0.0.1", 0, tls)
    try:
        yield f"127.0.0.1:{running.port}"
    finally:
        running.stop(5)


Rows = Sequence[Mapping[str, object]]


def definition(name: str, columns: str) -> common.Table:
    """The wire's definition of a table with these columns."""
    wire_table = common.Table(name=name)
    for word in columns.split():
        column, _, type_ = word.rstrip("*").partition(":")
        add_column(
            wire_table,
            f"_fivetran_{column}" if column in SYSTEM else column,
            type_ or SYSTEM.get(column, "STRING"),
            key=word.endswith("*"),
        )
    return wire_table


def add_column(wire_table: common.Table, name: str, type_: str = "STRING", *, key: bool = False) -> None:
    """Add a column to a definition. The type may be `DECIMAL(12,2)` or `STRING(64)`."""
    kind, *numbers = re.findall(r"\w+", type_)
    column = wire_table.columns.add(name=name, type=common.DataType.Value(kind), primary_key=key)
    if kind == "STRING" and numbers:
        column.params.string_byte_length = int(numbers[0])
    elif numbers:
        column.params.decimal.precision, column.params.decimal.scale = map(int, numbers)


def column_types(definition: common.Table) -> dict[str, str]:
    """A definition's columns by name as `TYPE`, or `TYPE*` for a key column."""
    return {c.name: _type(c) + "*" * c.primary_key for c in definition.columns}


def _type(column: common.Column) -> str:
    name = common.DataType.Name(column.type)
    decimal = column.params.decimal
    return f"{name}({decimal.precision},{decimal.scale})" if name == "DECIMAL" else name


def as_rows(rows: str | Rows) -> Rows:
    return table(rows) if isinstance(rows, str) else rows


@dataclass(frozen=True)
class Place:
    """A table of a destination."""

    sender: Sender
    store: Store
    schema: str
    table: common.Table

    @classmethod
    def made(
        cls, sender: Sender, store: Store, schema: str, columns: str = LIVE, rows: str | Rows = ()
    ) -> "Place":
        """A new table with these rows, which replace files deliver."""
        place = cls(sender, store, schema, definition(fresh(), columns))
        sender.create(schema, place.table)
        if rows:
            place.write(replace=rows)
        return place

    @property
    def name(self) -> TableName:
        return TableName(self.schema, self.table.name)

    @property
    def history(self) -> bool:
        return any(column.name == "_fivetran_active" for column in self.table.columns)

    def having(self, columns: str) -> "Place":
        """The same table, as a request with other columns describes it."""
        return replace(self, table=definition(self.table.name, columns))

    def sent(self, **sender: object) -> "Place":
        """The same table, as a sender with other settings writes it."""
        return replace(self, sender=replace(self.sender, **sender))

    def alter(self, columns: str, *, drop_columns: bool = False) -> "Place":
        """The table, after it was altered to have these columns."""
        altered = self.having(columns)
        self.sender.alter(self.schema, altered.table, drop_columns=drop_columns)
        return altered

    def write(self, **kinds: str | Rows) -> None:
        """Write one batch.

        A file has the columns of its rows, and the first row with other columns begins a new file.
        """
        self.send(**{kind: self.files(rows) for kind, rows in kinds.items()})

    def files(self, rows: str | Rows) -> list[BatchFile]:
        """Batch files with these rows."""
        parts = groupby(as_rows(rows), key=list)
        encoding = self.sender.encoding
        return [write_batch_file(self.sender.folder, part, columns, encoding) for columns, part in parts]

    def send(self, **kinds: Sequence[BatchFile]) -> None:
        """Send one batch of these files."""
        files = {_list(kind): listed for kind, listed in kinds.items()}
        self.sender.send_files(self.schema, self.table, files)

    def reply(self, **kinds: Sequence[BatchFile]) -> sdk.WriteBatchResponse:
        """The reply to one batch of these files."""
        encoding = self.sender.encoding
        make = sdk.WriteHistoryBatchRequest if self.history else sdk.WriteBatchRequest
        request = make(
            schema_name=self.schema,
            table=self.table,
            configuration=self.sender.configuration,
            keys={str(f.path): f.key for files in kinds.values() for f in files if f.key},
            file_params=sdk.FileParams(
                compression=encoding.compression.upper(),
                encryption="AES" if encoding.encrypted else "NONE",
                null_string=encoding.null_string,
                unmodified_string=encoding.unmodified_string,
            ),
            **{_list(kind): [str(f.path) for f in files] for kind, files in kinds.items()},
        )
        stub = self.sender.stub
        return (stub.WriteHistoryBatch if self.history else stub.WriteBatch)(request)

    def truncate(
        self, before: datetime | None, soft: str | None = None, synced: str = "_fivetran_synced"
    ) -> sdk.TruncateResponse:
        """The reply to a truncate, which is soft if `soft` names the deleted column."""
        request = sdk.TruncateRequest(
            schema_name=self.schema, table_name=self.table.name, synced_column=synced
        )
        if before is not None:
            request.utc_delete_before.FromDatetime(before)
        if soft is not None:
            request.soft.deleted_column = soft
        return self.sender.stub.Truncate(request)

    def migrate(self, entity: str, **options: object) -> sdk.MigrateResponse:
        """The reply to a migration of the table, given as the innermost name of its kind."""
        return self.sender.stub.Migrate(migration(self.schema, self.table.name, entity, **options))

    def named(self, name: str) -> "Place":
        """Another table next to this one."""
        return replace(self, table=definition(name, ""))

    def described(self) -> dict[str, str] | None:
        """The columns according to DescribeTable, or None if the table does not exist."""
        wire_table = self.sender.describe(self.schema, self.table.name)
        return None if wire_table is None else column_types(wire_table)

    def rows(self, columns: str | None = None) -> list[dict[str, object]]:
        """The rows of the table, as Spark reads them if it runs, with all columns or these columns."""
        stored_table = existing(self.store, self.name)
        read = rows_of(self.store, stored_table)
        read = read if isinstance(self.store, MemoryStore) else read.toArrow()
        read = read.select(columns.split() if columns else stored_table.shape.names)
        return in_order({c: _utc(v) for c, v in row.items()} for row in read.to_pylist())

    def metadata(self) -> object:
        """The state of the table, which differs after every commit. In Iceberg, this is the metadata file."""
        stored_table = existing(self.store, self.name)
        return stored_table.state if isinstance(self.store, MemoryStore) else stored_table.location

    def files_below(self) -> set[str]:
        """Every data file and delete file below the table's folder. A table in memory has none."""
        if isinstance(self.store, MemoryStore):
            return set()
        folder = Path(existing(self.store, self.name).iceberg.location(), "data")
        return {str(path) for path in folder.rglob("*") if path.is_file() and path.suffix != ".crc"}

    def snapshots(self) -> list[dict[str, str]]:
        """The properties of each commit of rows, oldest first."""
        return [dict(each.properties) for each in snapshots_of(existing(self.store, self.name))]

    def drop(self) -> None:
        commit(self.store, existing(self.store, self.name), Change(dropped=True))


KINDS_OF_MIGRATION = {
    "drop": ("drop_table", "drop_column_in_history_mode"),
    "copy": ("copy_table", "copy_column", "copy_table_to_history_mode"),
    "rename": ("rename_table", "rename_column"),
    "add": ("add_column_in_history_mode", "add_column_with_default_value"),
}


def migration(schema: str, table: str, entity: str, **options: object) -> sdk.MigrateRequest:
    """The request for a migration. `drop_table` takes `drop`, and other kinds take their fields."""
    request = sdk.MigrateRequest()
    details = request.details
    details.schema, details.table = schema, table
    for operation, entities in KINDS_OF_MIGRATION.items():
        if entity in entities:
            details = getattr(details, operation)
    if entity == "drop_table":
        details.drop_table = options.get("drop", True)
        return request
    message = getattr(details, entity)
    message.SetInParent()
    for name, value in options.items():
        setattr(message, name, value)
    return request


def _list(kind: str) -> str:
    return "earliest_start_files" if kind == "earliest" else f"{kind}_files"


def _utc(value: object) -> object:
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


def gives(rows: str | Rows) -> list[dict[str, object]]:
    """Check that `Place.rows` returns these rows."""
    return in_order(dict(row) for row in as_rows(rows))


def refusal(reply: object) -> str:
    """The message of a reply that is a task and nothing else."""
    assert [field.name for field, _ in reply.ListFields()] == ["task"], reply
    assert reply.task.message
    return reply.task.message


def status(call: object, request: object) -> grpc.RpcError | None:
    """The status with which a call ends, or None if it succeeds."""
    try:
        call(request)
    except grpc.RpcError as error:
        return error
    return None


def done(reply: object) -> None:
    """Check that the reply is a success."""
    assert reply.success, reply


def twice(place: Place, entity: str, **options: object) -> None:
    """Check that the migration succeeds, and that a second one succeeds and leaves the table unchanged."""
    done(place.migrate(entity, **options))
    rows, columns, metadata = place.rows(), place.described(), place.metadata()
    done(place.migrate(entity, **options))
    assert (place.rows(), place.described(), place.metadata()) == (rows, columns, metadata)


def without(rows: Iterable[Mapping[str, object]], *names: str) -> list[dict[str, object]]:
    """The rows without some of their columns."""
    return in_order({c: v for c, v in row.items() if c not in names} for row in rows)
