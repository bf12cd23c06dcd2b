"""WriteBatch and WriteHistoryBatch as deliveries (sections 2.8, 2.9 and 5)."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

from backstory.doors.fivetran.batch_rows import Batch, RequestFiles
from backstory.doors.fivetran.definitions import columns_from, key_from
from backstory.doors.fivetran.targets import DOOR, LAYOUTS
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.errors import Refused
from backstory.formats.wrapping.batch_file import NOT_THERE, BatchFile, Compression, Encoding, Format
from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.model.types import ColumnType
from backstory.stores.port import StoredTable

_COMPRESSIONS = {
    sdk.Compression.OFF: Compression.OFF,
    sdk.Compression.ZSTD: Compression.ZSTD,
    sdk.Compression.GZIP: Compression.GZIP,
}
_ENCRYPTED = {sdk.Encryption.NONE: False, sdk.Encryption.AES: True}
# Folders whose files are not on a disk and may be endless.
VIRTUAL_FOLDERS = ("/proc", "/sys")

Request = sdk.WriteBatchRequest | sdk.WriteHistoryBatchRequest


@dataclass(frozen=True, slots=True)
class AcceptedFiles:
    """The batch files that this server accepts: their format and, if it is restricted, their folder."""

    format: Format = Format.CSV
    folder: Path | None = None


def files_of(request: Request, accepted: AcceptedFiles) -> RequestFiles:
    """The files of a request, each with the encryption key for its exact path.

    Raises Refused for a file outside the allowed folder, and for a compression or encryption that is not in
    the contract.
    """
    params = request.file_params
    if params.compression not in _COMPRESSIONS or params.encryption not in _ENCRYPTED:
        raise Refused(
            "unknown-wrapping",
            f"The request names compression {params.compression} and encryption {params.encryption}, which "
            "this server does not support.",
            "Nothing was written; send files with ZSTD, GZIP or no compression, with AES or no encryption.",
        )
    encoding = Encoding(
        accepted.format,
        _COMPRESSIONS[params.compression],
        _ENCRYPTED[params.encryption],
        params.null_string,
        params.unmodified_string,
    )

    def files(paths: Iterable[str]) -> list[BatchFile]:
        return [_batch_file(path, request.keys.get(path), accepted.folder) for path in paths]

    return RequestFiles(
        encoding,
        files(request.replace_files),
        files(request.update_files),
        files(request.delete_files),
        files(getattr(request, "earliest_start_files", ())),
    )


def _batch_file(path: str, key: bytes | None, folder: Path | None) -> BatchFile:
    """The file at a path, under its name in the request. Raises Refused for paths below /proc and /sys."""
    file = Path(path)
    try:
        place = file.resolve()
    except (OSError, RuntimeError, ValueError):  # circular links, or an invalid name
        raise BatchFile(file).unreadable(NOT_THERE) from None
    if any(place.is_relative_to(virtual) for virtual in VIRTUAL_FOLDERS):
        raise BatchFile(file).unreadable("it is not a regular file")
    if folder is not None and not place.is_relative_to(folder):
        raise Refused(
            "outside-folder",
            f"{file.name} is outside the folder from which this server reads batch files.",
            "Send files from that folder, or set batch-folder in [serve] of backstory.toml to theirs.",
        )
    return BatchFile(place, key, file.name)


def digest(files: RequestFiles, *about: str) -> str:
    """A digest of the files' names, content and encoding, and of `about`."""
    result = hashlib.sha256(json.dumps([*about, *map(str, astuple(files.encoding))]).encode())
    for kind, file in files.parts:
        result.update(json.dumps([kind, file.name, file.digest()]).encode())
    return result.hexdigest()


@dataclass(frozen=True)
class LiveBatch:
    """A WriteBatch: replace, update and delete rows of a table without history."""

    table: TableName
    definition: bytes
    columns: Mapping[str, ColumnType]
    key: Sequence[str]
    files: RequestFiles
    door: str = DOOR
    layouts: Sequence[Layout] = LAYOUTS

    def token(self, table: StoredTable) -> str:
        """The digest of the delivery (F14).

        If the table's columns change, the same files are a new delivery.
        """
        return digest(self.files, str(self.table), self.definition.hex(), str(table.schema_id))

    @contextmanager
    def refuse_changes(self) -> Iterator[None]:
        """Raise Refused at the end of the block if a file has changed in the meantime."""
        with ExitStack() as stack:
            for _, file in self.files.parts:
                stack.enter_context(file.refuse_changes())
            yield

    def batch(self, table: StoredTable) -> Batch:
        """The files as rows of the table. A history table accepts only replace files (F19)."""
        batch = Batch.of(table.shape, self.columns, self.key, self.files)
        if batch.keeps_history and (self.files.update or self.files.delete):
            raise Refused(
                "history-table",
                f"{self.table} keeps history: WriteBatch may carry only replace files.",
                "Send updates and deletes with WriteHistoryBatch.",
            )
        return batch


@dataclass(frozen=True)
class HistoryBatch(LiveBatch):
    """A WriteHistoryBatch: changes of records, in the order of their starts."""

    def batch(self, table: StoredTable) -> Batch:
        """The files as rows of the table."""
        if table.shape.layout is not Layout.FIVETRAN_HISTORY:
            raise Refused(
                "no-history",
                f"{self.table} keeps no history: it lacks the columns of history mode.",
                "Send WriteBatch, or migrate the table to history mode first.",
            )
        return Batch.of(table.shape, self.columns, self.key, self.files)


def live_batch(request: sdk.WriteBatchRequest, table: TableName, accepted: AcceptedFiles) -> LiveBatch:
    """The delivery of a WriteBatch request."""
    return LiveBatch(table, *_definition_parts(request), files_of(request, accepted))


def history_batch(
    request: sdk.WriteHistoryBatchRequest, table: TableName, accepted: AcceptedFiles
) -> HistoryBatch:
    """The delivery of a WriteHistoryBatch request."""
    return HistoryBatch(table, *_definition_parts(request), files_of(request, accepted))


def _definition_parts(request: Request) -> tuple[bytes, dict[str, ColumnType], tuple[str, ...]]:
    """The table's definition in a request: its bytes, the types of its columns by name, and its key."""
    columns = request.table.columns
    definition = request.table.SerializeToString(deterministic=True)
    return definition, {c.name: c.type for c in columns_from(columns)}, key_from(columns)
