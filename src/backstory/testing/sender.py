"""A sender of Fivetran batches: copies of a source, their differences, and batch files (section 3).

A destination identifies a batch by the names and bytes of its files, which contain the time of the change. A
pair of copies therefore keeps its time, and its secret for names and keys, until the destination accepts
another pair.
"""

import csv
import gzip
import hashlib
import hmac
import io
import json
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
from attrs import evolve
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.padding import PKCS7

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.doors.fivetran.wire.destination_sdk_pb2_grpc import DestinationConnectorStub
from backstory.errors import Refused, TryAgain, UsageError, option
from backstory.formats.batch_file import BatchFile, Compression, Encoding, Format
from backstory.formats.file_options import AS_EXPECTED, FileOptions
from backstory.formats.options import JsonOptions
from backstory.formats.reading import as_files_of_a_user, open_files
from backstory.formats.rows import type_of_arrow
from backstory.formats.source_files import source_files
from backstory.model.instant import TMAX, iso, parse_instant
from backstory.model.layout import ACTIVE, END, HISTORY_COLUMNS, START, SYNCED
from backstory.model.table import Column, TableName, nested_key_error
from backstory.model.types import NESTED_KINDS, ColumnType, Kind
from backstory.model.values import UNMODIFIED, as_json, base64_text, comparison_key
from backstory.stores.metadata.values import values_of

NULL_STRING = "null-m8yilkvPsNulehxl2G6pmSQ3G3WWdLP"
UNMODIFIED_STRING = "unmod-NcK9NIjPUutCsz4mjOQQztbnwnE1sY3"
AS_FIVETRAN = Encoding(Format.CSV, Compression.ZSTD, True, NULL_STRING, UNMODIFIED_STRING)

Row = Mapping[str, object]


def write_batch_file(
    folder: Path,
    rows: Iterable[Row],
    columns: Sequence[str],
    encoding: Encoding = AS_FIVETRAN,
    secret: bytes | None = None,
) -> BatchFile:
    """Write a new file with these rows into the folder.

    The result has a key if the file is encrypted. A value is a Python value, a string to write unchanged,
    None for NULL, or UNMODIFIED. Missing columns are NULL.
    """
    content = _content(rows, columns, encoding)
    return seal(folder, content, encoding, secret)


def seal(folder: Path, content: bytes, encoding: Encoding, secret: bytes | None = None) -> BatchFile:
    """Write a new file with this content, compressed and encrypted with its own key and IV.

    With a secret, the file is reproducible: name, key and IV are derived from the secret and the content.
    """
    clear = hashlib.sha256(content).digest()

    def draw(what: str, size: int) -> bytes:
        if secret is None:
            return os.urandom(size)
        return hmac.digest(secret, what.encode() + clear, "sha256")[:size]

    if encoding.compression is Compression.ZSTD:
        content = _zstd(content)
    elif encoding.compression is Compression.GZIP:
        content = gzip.compress(content, mtime=0)
    key = draw("key", 32) if encoding.encrypted else None
    if key is not None:
        content = encrypt(content, key, draw("iv", 16))
    path = folder / f"{draw('name', 16).hex()}.{encoding.format}"
    path.write_bytes(content)
    return BatchFile(path, key)


def encrypt(content: bytes, key: bytes, iv: bytes) -> bytes:
    """Encrypt with AES-256 in CBC mode with PKCS#7 padding. Returns the IV and the ciphertext."""
    padder = PKCS7(AES.block_size).padder()
    encryptor = Cipher(AES(key), CBC(iv)).encryptor()
    padded = padder.update(content) + padder.finalize()
    return iv + encryptor.update(padded) + encryptor.finalize()


def _zstd(content: bytes) -> bytes:
    """Compress into one frame without the content's size, as Fivetran's streaming writer does."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


def _content(rows: Iterable[Row], columns: Sequence[str], encoding: Encoding) -> bytes:
    texts = [[_text(row.get(name), encoding) for name in columns] for row in rows]
    if encoding.format is Format.PARQUET:
        arrays = [pa.array([row[place] for row in texts], pa.string()) for place in range(len(columns))]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(arrays, names=list(columns)), sink)
        return bytes(sink.getvalue())
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    for row in texts:
        writer.writerow(row)
    return out.getvalue().encode()


def _text(value: object, encoding: Encoding) -> str:
    """The text form of a value in a batch file (section 3.3)."""
    if value is None:
        return encoding.null_string
    if value is UNMODIFIED:
        return encoding.unmodified_string
    match value:
        case bool():
            text = "true" if value else "false"
        case bytes():
            text = base64_text(value)
        case datetime(tzinfo=zone) if zone is not None:
            text = instant(value)
        case date() | time():
            text = value.isoformat()
        case Decimal():
            text = format(value, "f")
        case _:
            text = str(value)
    return text


def instant(value: datetime) -> str:
    """A time in Java's ISO_INSTANT format: UTC, with 0, 3 or 6 digits of the second."""
    utc = value.astimezone(UTC).replace(tzinfo=None)
    micros = utc.microsecond
    digits = "seconds" if not micros else "milliseconds" if micros % 1000 == 0 else "microseconds"
    return utc.isoformat(timespec=digits) + "Z"


Key = tuple[object, ...]
CopyRow = dict[str, object]


@dataclass(frozen=True, slots=True)
class SourceCopy:
    """All rows of a source at a single point in time, by key, and its repeated keys.

    The columns `with_commas` are text columns that would be numbers if the comma were a decimal separator.
    """

    key: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    rows: Mapping[Key, CopyRow] = field(default_factory=dict)
    repeated: Sequence[Key] = ()
    with_commas: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CopyDifference:
    """The rows of one batch. `earliest` is empty unless history is kept."""

    replace: Sequence[CopyRow] = ()
    update: Sequence[CopyRow] = ()
    delete: Sequence[CopyRow] = ()
    earliest: Sequence[CopyRow] = ()

    @property
    def empty(self) -> bool:
        """Whether the copies are equal."""
        return not (self.replace or self.update or self.delete)


def read_copy(
    path: Path, key: Sequence[str], texts: Collection[str] = (), written: FileOptions = AS_EXPECTED
) -> SourceCopy:
    """The rows of a CSV, Parquet or JSON file, compressed or not, as a copy of a source.

    An empty file is a copy without rows. `written` has the format options. Column types are inferred from all
    values, but columns in `texts` stay text. If rows share a key, the last row is used. Raises UsageError for
    a file in another format or without a key column. Raises Failed if there is no file, and Refused for an
    unreadable file.
    """
    source = source_files(str(path))
    written.refuse_misplaced(source.format)
    if path.is_file() and path.stat().st_size == 0:
        return SourceCopy(tuple(key))
    with tempfile.TemporaryDirectory(prefix="backstory-copy-") as folder, as_files_of_a_user():
        files = open_files(source, Path(folder), written)
        known = {name: pa.field(name, pa.string()) for name in texts}
        schema, with_commas = files.columns(known)
        columns = tuple(Column(field.name, _type(field.type)) for field in schema)
        _refuse_wrong_key(path, key, columns)
        nested = {column.name: _TEXT for column in columns if column.type.kind is Kind.JSON}
        if nested and isinstance(files.options, JsonOptions):  # objects and arrays stay as they are written
            files = replace(files, written=evolve(written, type={**written.type, **nested}))
            schema, _ = files.columns(known)
        batches = list(files.batches(schema))
    rows: dict[Key, CopyRow] = {}
    repeated: list[Key] = []
    for row in _python_rows(pa.Table.from_batches(batches, schema)):
        value = tuple(row[name] for name in key)
        if value in rows:
            repeated.append(value)
        rows[value] = row
    return SourceCopy(tuple(key), columns, rows, repeated, with_commas - set(texts))


def _refuse_wrong_key(path: Path, key: Sequence[str], columns: Sequence[Column]) -> None:
    types = {column.name: column.type for column in columns}
    if lacking := [name for name in key if name not in types]:
        raise UsageError(
            "no-key", f"{path} has no column {', '.join(lacking)}.", f"It has {', '.join(types)}.", lacking
        )
    if nested := [name for name in key if types[name].kind is Kind.JSON]:
        raise nested_key_error(nested, nested)


def _type(type_: pa.DataType) -> ColumnType:
    """The type of a column at the destination. Nested values are sent as JSON, as Fivetran sends them."""
    column = type_of_arrow(type_)
    if column.kind in NESTED_KINDS:
        return ColumnType(Kind.JSON)
    return column if column.flat else ColumnType(Kind.STRING)


def _python_rows(table: pa.Table) -> Iterator[CopyRow]:
    """Rows as dictionaries of their `values_of`. Nested values are JSON texts."""
    for values in zip(*map(values_of, table.columns), strict=True):
        yield {
            name: as_json(value, base64_text) if isinstance(value, dict | list) else value
            for name, value in zip(table.column_names, values, strict=True)
        }


def difference(before: SourceCopy, after: SourceCopy, instant: datetime, *, history: bool) -> CopyDifference:
    """The rows that a source connector would send for the change between two copies at `instant`.

    New keys are in `replace`. Changed keys are in `update`, with the unmodified mark in unchanged columns.
    Missing keys are in `delete`. With `history`, the rows have the columns of history mode.
    """
    stamp: CopyRow = {SYNCED: instant}
    if history:
        stamp |= {START: instant, END: TMAX, ACTIVE: True}
    names = [column.name for column in after.columns if column.name not in after.key]
    replace, update = [], []
    for key, row in after.rows.items():
        old = before.rows.get(key)
        if old is None:
            replace.append(row | stamp)
        elif any(not _same(old.get(name), row[name]) for name in names):
            update.append(
                {name: row[name] for name in after.key}
                | {name: UNMODIFIED if _same(old.get(name), row[name]) else row[name] for name in names}
                | stamp
            )
    missing = [row for key, row in before.rows.items() if key not in after.rows]
    delete = [row | {SYNCED: instant, END: instant} for row in missing]
    earliest = [row | {START: instant} for row in (*replace, *update)] if history else []
    return CopyDifference(replace, update, delete, earliest)


def _same(old: object, new: object) -> bool:
    """Whether two values are equal (native.md, V16)."""
    return old == new or comparison_key(old) == comparison_key(new)


SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class SentBatch:
    """The time of a batch, and the secret for names, keys and IVs of its files.

    `taken` is true for the last batch that the destination is known to have accepted.
    """

    time: datetime
    secret: bytes
    taken: bool = False


@dataclass(frozen=True, slots=True)
class SentBatches:
    """A file with a table's batches that may be sent again: the last accepted batch and later attempts."""

    place: Path

    @classmethod
    def of(cls, *table: str) -> "SentBatches":
        """The recorded batches of a table, which is identified by its destination, schema and name."""
        name = sha256(json.dumps(table).encode()).hexdigest()
        return cls(Path.home() / ".cache" / "backstory" / "sent" / f"{name}.json")

    def batch(self, pair: str, time: datetime | None = None) -> SentBatch:
        """The batch of a pair as it was sent before, or else a new batch with this time (by default now)."""
        known = self._read()
        if pair not in known:
            new = SentBatch(time or datetime.now(UTC), os.urandom(SECRET_BYTES))
            self._write({**known, pair: new})
            return new
        return known[pair]

    def mark_taken(self, pair: str) -> None:
        """Record that the destination accepted this pair, and remove all other batches."""
        known = self._read()
        self._write({pair: replace(known[pair], taken=True)} if pair in known else {})

    def _read(self) -> dict[str, SentBatch]:
        try:
            stored = json.loads(self.place.read_text("utf-8"))
            return {
                pair: SentBatch(parse_instant(time), bytes.fromhex(secret), *taken)
                for pair, (time, secret, *taken) in stored.items()
            }
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _write(self, batches: dict[str, SentBatch]) -> None:
        """Store the batches. If this fails, a repeated call sends a new batch instead of the same one."""
        stored = {pair: [iso(batch.time), batch.secret.hex(), batch.taken] for pair, batch in batches.items()}
        fresh = self.place.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            self.place.parent.mkdir(0o700, parents=True, exist_ok=True)
            fresh.touch(0o600)
            fresh.write_text(json.dumps(stored), "utf-8")
            fresh.replace(self.place)


MESSAGE_BYTES = 134_217_728
# The time limit for a connection to the destination.
CONNECT_SECONDS = 10.0
_INSTANT = ColumnType(Kind.UTC_DATETIME)
_TEXT = ColumnType(Kind.STRING)


@dataclass(frozen=True)
class Sender:
    """A connection to a destination. With a `secret`, its batch files are reproducible."""

    stub: Any
    folder: Path
    encoding: Encoding = AS_FIVETRAN
    configuration: Mapping[str, str] = field(default_factory=dict)
    secret: bytes | None = field(default=None, repr=False)
    channel: grpc.Channel | None = field(default=None, repr=False)
    address: str = ""

    @classmethod
    def to(cls, address: str, folder: Path, **more: Any) -> "Sender":
        """Make a sender that sends to `host:port` and writes its batch files into `folder`."""
        channel = grpc.insecure_channel(address, options=[("grpc.max_send_message_length", MESSAGE_BYTES)])
        stub = DestinationConnectorStub(channel)  # type: ignore[no-untyped-call]
        return cls(stub, folder, channel=channel, address=address, **more)

    def require_format(self) -> None:
        """Raise UsageError if the destination takes batch files in another format."""
        reply = self._call("Capabilities", sdk.CapabilitiesRequest())
        taken = sdk.BatchFileFormat.Name(reply.batch_file_format).lower()
        if taken != self.encoding.format:
            what = f"{self.address} takes batch files in the format {taken}, not {self.encoding.format}."
            raise UsageError("bad-option", what, f"Use {option('format', taken)}.")

    def describe(self, schema: str, table: str) -> common.Table | None:
        """The table's definition at the destination, or None if the table does not exist."""
        request = sdk.DescribeTableRequest(
            configuration=self.configuration, schema_name=schema, table_name=table
        )
        reply = self._call("DescribeTable", request)
        return reply.table if reply.WhichOneof("response") == "table" else None

    def create(self, schema: str, table: common.Table) -> None:
        """Create the table at the destination."""
        request = sdk.CreateTableRequest(configuration=self.configuration, schema_name=schema, table=table)
        self._call("CreateTable", request)

    def alter(self, schema: str, table: common.Table, *, drop_columns: bool = False) -> None:
        """Alter the table so that it matches the definition."""
        request = sdk.AlterTableRequest(
            configuration=self.configuration, schema_name=schema, table=table, drop_columns=drop_columns
        )
        self._call("AlterTable", request)

    def prepare(self, schema: str, name: str, copy: SourceCopy, *, history: bool) -> common.Table:
        """Create the table for a copy, or add missing columns to it. Returns the destination's definition."""
        known = self.describe(schema, name)
        wanted = definition(name, copy, history=history, known=known)
        if known is None:
            self.create(schema, wanted)
        elif {column.name for column in wanted.columns} - {column.name for column in known.columns}:
            self.alter(schema, wanted)
        else:
            return wanted
        return definition(name, copy, history=history, known=self.describe(schema, name))

    def bring(self, schema: str, name: str, copy: SourceCopy, rows: CopyDifference, *, history: bool) -> None:
        """Send a difference to the table of a copy. Call `prepare` first."""
        table = self.prepare(schema, name, copy, history=history)
        if not rows.empty:
            self.write(schema, table, rows)

    def write(self, schema: str, table: common.Table, rows: CopyDifference) -> None:
        """Write the rows into one batch file for each kind, and send all files in one request."""
        columns = [column.name for column in table.columns]
        key = [column.name for column in table.columns if column.primary_key]
        files = {
            "replace_files": self._files(rows.replace, columns),
            "update_files": self._files(rows.update, columns),
            "delete_files": self._files(
                rows.delete, [*_without_start(key), *(name for name in (SYNCED, END) if name in columns)]
            ),
        }
        if set(columns).issuperset(HISTORY_COLUMNS):
            files["earliest_start_files"] = self._files(rows.earliest, [*_without_start(key), START])
        self.send_files(schema, table, files)

    def send_files(self, schema: str, table: common.Table, files: Mapping[str, Sequence[BatchFile]]) -> None:
        """Send files by kind in one WriteBatch request, or WriteHistoryBatch for a history table."""
        history = {column.name for column in table.columns}.issuperset(HISTORY_COLUMNS)
        make = sdk.WriteHistoryBatchRequest if history else sdk.WriteBatchRequest
        request = make(
            configuration=self.configuration,
            schema_name=schema,
            table=table,
            keys={str(file.path): file.key for listed in files.values() for file in listed if file.key},
            file_params=sdk.FileParams(
                compression=self.encoding.compression.name,
                encryption=sdk.Encryption.AES if self.encoding.encrypted else sdk.Encryption.NONE,
                null_string=self.encoding.null_string,
                unmodified_string=self.encoding.unmodified_string,
            ),
            **{kind: [str(file.path) for file in listed] for kind, listed in files.items()},
        )
        self._call("WriteHistoryBatch" if history else "WriteBatch", request)

    def _files(self, rows: Iterable[Row], columns: Sequence[str]) -> list[BatchFile]:
        listed = list(rows)
        if not listed:
            return []
        return [write_batch_file(self.folder, listed, columns, self.encoding, self.secret)]

    def _call(self, rpc: str, request: Any) -> Any:
        """Call an RPC and return its reply.

        Raises Refused if the reply is a task. Raises TryAgain for an error status or an unreachable
        destination.
        """
        self._require_destination()
        try:
            reply = getattr(self.stub, rpc)(request)
        except grpc.RpcError as error:
            raise TryAgain(
                "destination-failed", f"{rpc} ended with {error.code().name}: {error.details()}"
            ) from error
        if rpc != "Capabilities" and reply.WhichOneof("response") == "task":
            raise Refused("task", f"{rpc} was refused: {reply.task.message}")
        return reply

    def _require_destination(self) -> None:
        """Wait until the channel is ready. Raises TryAgain after `CONNECT_SECONDS`."""
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
    name: str, copy: SourceCopy, *, history: bool, known: common.Table | None = None
) -> common.Table:
    """The definition of a table for a copy, including system columns. Columns of `known` keep their types."""
    existing = {column.name: column for column in known.columns} if known else {}
    table = common.Table(name=name)
    instants = [SYNCED, START, END] if history else [SYNCED]
    columns = [*copy.columns, *(Column(system, _INSTANT) for system in instants)]
    if history:
        columns.append(Column(HISTORY_COLUMNS[-1], ColumnType(Kind.BOOLEAN)))
    for column in columns:
        is_key = column.name in copy.key or column.name == START
        declared = existing.get(column.name) or common.Column(
            name=column.name, type=common.DataType.Name(common.DataType.Value(column.type.kind))
        )
        added = table.columns.add()
        added.CopyFrom(declared)
        added.primary_key = is_key
        if column.type.kind is Kind.DECIMAL and column.name not in existing:
            added.params.decimal.precision = column.type.precision
            added.params.decimal.scale = column.type.scale
    return table


def text_columns(known: common.Table | None) -> list[str]:
    """The columns of a definition whose values are text in the source itself."""
    text = {common.DataType.STRING, common.DataType.JSON, common.DataType.XML}
    return [column.name for column in known.columns if column.type in text] if known else []


@dataclass(frozen=True, slots=True)
class CopyPair:
    """Two copies of a source in files, their key, the form of the files, and whether history is kept."""

    before: Path
    after: Path
    key: tuple[str, ...]
    written: FileOptions = AS_EXPECTED
    history: bool = False

    def read(self, texts: Sequence[str] = ()) -> tuple[SourceCopy, SourceCopy]:
        """The older and the newer copy, which must not be an empty file. Columns in `texts` stay text."""
        newer, older = (read_copy(path, self.key, texts, self.written) for path in (self.after, self.before))
        if not newer.columns:
            what = f"{self.after} is empty, so it has no column {', '.join(self.key)}."
            raise UsageError("no-key", what, "Keep its header line, even if it has no rows.", self.key)
        return older, newer

    def identity(self, *about: object) -> str:
        """The identity of the pair and of the way to send it.

        It depends on the files' content, not on their names.
        """
        digests = []
        for path in (self.before, self.after):
            with path.open("rb") as file:
                digests.append(file_digest(file, "sha256").hexdigest())
        return sha256(json.dumps([*digests, *map(str, about)]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SentPair:
    """The rows of a batch, and repeated keys and texts with commas of the newer copy.

    `is_recognised` is true if the destination had already accepted the same batch.
    """

    rows: CopyDifference
    repeated: Sequence[Key]
    with_commas: frozenset[str]
    is_recognised: bool = False


def rehearse_pair(pair: CopyPair, time: datetime | None) -> SentPair:
    """The rows that would be sent for a table whose columns are unknown."""
    older, newer = pair.read()
    rows = difference(older, newer, time or datetime.now(UTC), history=pair.history)
    return SentPair(rows, newer.repeated, newer.with_commas)


def send_pair(sender: Sender, table: TableName, pair: CopyPair, time: datetime | None) -> SentPair:
    """Send the difference of two copies. The same pair is always sent as one batch with the same time."""
    sender.require_format()
    _, newer = pair.read(text_columns(sender.describe(table.schema, table.name)))
    with_commas = newer.with_commas
    definition = sender.prepare(table.schema, table.name, newer, history=pair.history)
    older, newer = pair.read(text_columns(definition))  # a new table has a definition only now
    batches = SentBatches.of(sender.address, table.schema, table.name)
    identity = pair.identity(list(pair.key), time, pair.history, sender.encoding)
    batch = batches.batch(identity, time)
    rows = difference(older, newer, batch.time, history=pair.history)
    if not rows.empty:
        replace(sender, secret=batch.secret).write(table.schema, definition, rows)
        batches.mark_taken(identity)
    return SentPair(rows, newer.repeated, with_commas, batch.taken)


def _without_start(key: Sequence[str]) -> list[str]:
    return [name for name in key if name != START]
