"""Send batches to a destination."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.doors.fivetran.wire.destination_sdk_pb2_grpc import DestinationConnectorStub
from backstory.errors import Refused, TryAgain
from backstory.formats.wrapping.batch_file import BatchFile, Compression, Encoding
from backstory.model.layout import END, HISTORY_COLUMNS, START, SYNCED
from backstory.model.table import Column
from backstory.model.types import ColumnType, Kind
from backstory.testing.sender.batch_files import AS_FIVETRAN, Row, write_batch_file
from backstory.testing.sender.copies import Difference, SourceCopy

MESSAGE_BYTES = 134_217_728
# How long a destination may take to answer at all.
CONNECT_SECONDS = 10.0
_INSTANT = ColumnType(Kind.UTC_DATETIME)
_COMPRESSIONS = {
    Compression.OFF: sdk.Compression.OFF,
    Compression.ZSTD: sdk.Compression.ZSTD,
    Compression.GZIP: sdk.Compression.GZIP,
}


@dataclass(frozen=True)
class Sender:
    """A connection to a destination, and how batch files are written: with a `secret`, always alike."""

    stub: Any
    folder: Path
    encoding: Encoding = AS_FIVETRAN
    configuration: Mapping[str, str] = field(default_factory=dict)
    secret: bytes | None = field(default=None, repr=False)
    channel: grpc.Channel | None = field(default=None, repr=False)
    address: str = ""

    @classmethod
    def to(cls, address: str, folder: Path, **more: Any) -> "Sender":
        """A sender to `host:port` that writes its batch files into `folder`."""
        channel = grpc.insecure_channel(address, options=[("grpc.max_send_message_length", MESSAGE_BYTES)])
        stub = DestinationConnectorStub(channel)  # type: ignore[no-untyped-call]
        return cls(stub, folder, channel=channel, address=address, **more)

    def describe(self, schema: str, table: str) -> common.Table | None:
        """The table's definition, or None if there is no such table."""
        request = sdk.DescribeTableRequest(
            configuration=self.configuration, schema_name=schema, table_name=table
        )
        reply = self._call("DescribeTable", request)
        return reply.table if reply.WhichOneof("response") == "table" else None

    def create(self, schema: str, table: common.Table) -> None:
        """Create the table."""
        request = sdk.CreateTableRequest(configuration=self.configuration, schema_name=schema, table=table)
        self._call("CreateTable", request)

    def alter(self, schema: str, table: common.Table, *, drop_columns: bool = False) -> None:
        """Bring the table to the definition."""
        request = sdk.AlterTableRequest(
            configuration=self.configuration,
            schema_name=schema,
            table=table,
            drop_columns=drop_columns,
        )
        self._call("AlterTable", request)

    def prepare(self, schema: str, name: str, copy: SourceCopy, *, history: bool) -> common.Table:
        """The table of a copy, as the destination has it: it is created, or gets the columns it lacks."""
        known = self.describe(schema, name)
        wanted = definition(name, copy, copy.key, history=history, known=known)
        if known is None:
            self.create(schema, wanted)
        elif {column.name for column in wanted.columns} - {column.name for column in known.columns}:
            self.alter(schema, wanted)
        else:
            return wanted
        return definition(name, copy, copy.key, history=history, known=self.describe(schema, name))

    def bring(self, schema: str, name: str, copy: SourceCopy, rows: Difference, *, history: bool) -> None:
        """Bring a difference into the table of a copy: it is created, or gets the columns it lacks."""
        table = self.prepare(schema, name, copy, history=history)
        if not rows.empty:
            self.write(schema, table, rows)

    def write(self, schema: str, table: common.Table, rows: Difference) -> None:
        """Write the rows into batch files, one for each kind, and send them in one request."""
        columns = [column.name for column in table.columns]
        key = [column.name for column in table.columns if column.primary_key]
        files = {
            "replace_files": self._files(rows.replace, columns),
            "update_files": self._files(rows.update, columns),
            "delete_files": self._files(rows.delete, [*_plain(key), *_present((SYNCED, END), columns)]),
        }
        if set(columns).issuperset(HISTORY_COLUMNS):
            files["earliest_start_files"] = self._files(rows.earliest, [*_plain(key), START])
        self.send_files(schema, table, files)

    def send_files(self, schema: str, table: common.Table, files: Mapping[str, Sequence[BatchFile]]) -> None:
        """Send files by kind in one WriteBatch, or WriteHistoryBatch for a history table."""
        history = {column.name for column in table.columns}.issuperset(HISTORY_COLUMNS)
        make = sdk.WriteHistoryBatchRequest if history else sdk.WriteBatchRequest
        request = make(
            configuration=self.configuration,
            schema_name=schema,
            table=table,
            keys={str(f.path): f.key for kind in files.values() for f in kind if f.key},
            file_params=_params(self.encoding),
            **{kind: [str(file.path) for file in listed] for kind, listed in files.items()},
        )
        self._call("WriteHistoryBatch" if history else "WriteBatch", request)

    def _files(self, rows: Iterable[Row], columns: Sequence[str]) -> list[BatchFile]:
        listed = list(rows)
        if not listed:
            return []
        return [write_batch_file(self.folder, listed, columns, self.encoding, self.secret)]

    def _call(self, rpc: str, request: Any) -> Any:
        """The reply; Refused for a task, TryAgain for a status and where nothing answers."""
        self._require_destination()
        try:
            reply = getattr(self.stub, rpc)(request)
        except grpc.RpcError as error:
            raise TryAgain(
                "destination-failed", f"{rpc} ended with {error.code().name}: {error.details()}"
            ) from error
        if reply.WhichOneof("response") == "task":
            raise Refused("task", f"{rpc} was refused: {reply.task.message}")
        return reply

    def _require_destination(self) -> None:
        """Wait until the channel is ready; TryAgain where it is not within some seconds."""
        if self.channel is None:
            return
        ready = grpc.channel_ready_future(self.channel)
        try:
            ready.result(timeout=CONNECT_SECONDS)
        except grpc.FutureTimeoutError:
            ready.cancel()
            raise TryAgain(
                "no-destination",
                f"Nothing answers at {self.address}.",
                "Nothing was sent; start `backstory serve` there, or check `to=`.",
            ) from None


def definition(
    name: str, copy: SourceCopy, key: Sequence[str], *, history: bool, known: common.Table | None = None
) -> common.Table:
    """The definition of a copy's table, with system columns; columns of `known` keep their types."""
    kept = {column.name: column for column in known.columns} if known else {}
    table = common.Table(name=name)
    instants = [SYNCED, START, END] if history else [SYNCED]
    columns = [*copy.columns, *(Column(system, _INSTANT) for system in instants)]
    if history:
        columns.append(Column(HISTORY_COLUMNS[-1], ColumnType(Kind.BOOLEAN)))
    for column in columns:
        is_key = column.name in key or column.name == START
        told = kept.get(column.name) or common.Column(
            name=column.name, type=common.DataType.Name(common.DataType.Value(column.type.kind))
        )
        added = table.columns.add()
        added.CopyFrom(told)
        added.primary_key = is_key
        if column.type.kind is Kind.DECIMAL and column.name not in kept:
            added.params.decimal.precision = column.type.precision
            added.params.decimal.scale = column.type.scale
    return table


def text_columns(known: common.Table | None) -> list[str]:
    """The columns of a definition whose values are text as the source writes it."""
    text = {common.DataType.STRING, common.DataType.JSON, common.DataType.XML}
    return [column.name for column in known.columns if column.type in text] if known else []


def _plain(key: Sequence[str]) -> list[str]:
    return [name for name in key if name != START]


def _present(names: Iterable[str], columns: Sequence[str]) -> list[str]:
    return [name for name in names if name in columns]


def _params(encoding: Encoding) -> sdk.FileParams:
    return sdk.FileParams(
        compression=_COMPRESSIONS[encoding.compression],
        encryption=sdk.Encryption.AES if encoding.encrypted else sdk.Encryption.NONE,
        null_string=encoding.null_string,
        unmodified_string=encoding.unmodified_string,
    )
