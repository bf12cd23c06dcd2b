"""WriteBatch and WriteHistoryBatch as deliveries (sections 2.8, 2.9 and 5).

The rows of a batch are read under the table's column names, checked for completeness, and planned.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.fivetran.definitions import DOOR, LAYOUTS, columns_from, key_from, refuse_foreign
from backstory.doors.fivetran.options import ServeRequest
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.engine.batches import BatchFiles
from backstory.errors import Refused
from backstory.formats.batch_file import NOT_THERE, BatchFile, Compression, Encoding, Format
from backstory.formats.delivered import arrow_schema, read_files, stream_file
from backstory.formats.memory import MemoryLease
from backstory.formats.rows import Rows
from backstory.model.layout import END, PREFIX, START, SYSTEM_COLUMNS, Layout
from backstory.model.table import Shape, TableName
from backstory.model.types import ColumnType
from backstory.stores.port import StoredTable
from backstory.strategies import live_rows
from backstory.strategies import versions as intervals
from backstory.strategies.part_plan import PartPlan


def refuse_incomplete(
    kind: str, file: str, rows: Rows, key: Sequence[str], needed: str | None, first: int = 0
) -> None:
    """Raise Refused, with file and row, for the first row that lacks its key or a required value.

    `kind` is earliest, replace, update or delete. `needed` is the time column that must have a value in each
    row. `first` is the number of earlier rows in the file. A replace row of a history also needs an end,
    because without an end, its version might still be valid. An update row without `_fivetran_start` may
    close a version, but may not change a value.
    """
    instants = [] if needed is None else [needed, END] if kind == "replace" else [needed]
    required = [*key, *instants]
    for name in required:
        if name not in rows.values.column_names:
            raise Refused(
                "missing-column",
                f"{file}: the {kind} file lacks the column {name}.",
                "Nothing was written; send the batch again with that column.",
            )
    for column, wrong, why in _row_faults(kind, rows, key, needed, instants):
        if pc.any(wrong).as_py():
            row = first + int(np.flatnonzero(np.asarray(wrong))[0]) + 1
            raise Refused(
                "unplaceable-row",
                f"{file}, row {row}, column {column}: {why}.",
                "Nothing was written; send the batch again with complete rows.",
            )


def _row_faults(
    kind: str, rows: Rows, key: Sequence[str], needed: str | None, instants: Sequence[str]
) -> Iterator[tuple[str, pa.Array | pa.ChunkedArray, str]]:
    """The rules for rows of one kind: for each rule, a column, a mask of rows that break it, and a reason."""
    for name in key:
        yield name, pc.invert(rows.known[name]), "the key is marked unmodified"
    if kind == "replace":
        for name in rows.known.column_names:
            yield name, pc.invert(rows.known[name]), "a replaced row must be complete"
    if kind != "update":
        for name in instants:
            yield name, rows.values[name].is_null(), "the time is missing"
    elif needed:
        has_start = START in rows.values.column_names
        startless = np.asarray(rows.values[START].is_null()) if has_start else np.ones(rows.count, bool)
        endless = np.asarray(rows.values[needed].is_null())
        yield END, pa.array(~startless & endless), "the end is missing"
        for name in rows.known.column_names:
            if name not in key and not name.startswith(PREFIX):
                changed = startless & np.asarray(rows.known[name])
                yield name, pa.array(changed), f"a value changes but {START} is missing"


KINDS = ("earliest", "replace", "update", "delete")


@dataclass(frozen=True, slots=True)
class Batch:
    """The files of a request as rows of the request's table.

    A batch is small enough to be sent to Spark's tasks. `types` are the types of the table's columns, in
    order. `sources` are the columns' names in files and messages. `parts` are the files with their kinds.
    """

    types: Mapping[str, ColumnType]
    sources: Mapping[str, str]
    requested: frozenset[str]
    key: tuple[str, ...]
    parts: list[tuple[str, BatchFile]]
    encoding: Encoding
    keeps_history: bool

    @classmethod
    def of(
        cls,
        shape: Shape,
        requested: Mapping[str, ColumnType],
        key: Sequence[str],
        parts: list[tuple[str, BatchFile]],
        encoding: Encoding,
    ) -> "Batch":
        """The batch of a request. Raises Refused if its key or columns differ from the table's."""
        refuse_foreign(shape)
        if not key:
            raise Refused(
                "no-key",
                f"The request for {shape.table} marks no key column.",
                "Send the table's definition with its key columns marked.",
            )
        if shape.key and set(key) != set(shape.source_key):
            raise Refused(
                "other-key",
                f"The key of {shape.table} is ({', '.join(shape.source_key)}), not ({', '.join(key)}).",
                "Alter the table's key first.",
            )
        names = {column.source: column.name for column in shape.columns}
        unknown = [n for n in requested if n not in names and n not in SYSTEM_COLUMNS]
        if unknown:
            raise Refused(
                "unknown-column",
                f"{shape.table} has no column {unknown[0]}.",
                "Add the column to the table first.",
            )
        return cls(
            {column.name: column.type for column in shape.columns},
            {column.name: column.source for column in shape.columns},
            frozenset(names[source] for source in requested if source in names),
            tuple(names.get(source, source) for source in key),
            parts,
            encoding,
            shape.layout is Layout.FIVETRAN_HISTORY,
        )

    def decode(self, lease: MemoryLease) -> dict[str, Rows]:
        """The rows of all files, by kind.

        Raises Refused for an unreadable file, and TooLarge if the lease is exceeded.
        """
        rows = {}
        for kind in KINDS:
            files = [file for of_kind, file in self.parts if of_kind == kind]
            parts = read_files(files, self.encoding, *self._file_columns(kind), lease)
            checked = [self._check_rows(kind, file, part) for file, part in parts]
            rows[kind] = Rows.concat(checked, self._schema(kind))
        return rows

    def stream(self, kind: str, file: BatchFile) -> Iterator[Rows]:
        """The rows of one file in parts, with every column of the table."""
        first = 0
        for rows in stream_file(file, self.encoding, *self._file_columns(kind)):
            yield self._check_rows(kind, file, rows, first).align(arrow_schema(self.types))
            first += rows.count

    def plan(self, rows: Mapping[str, Rows], stored: pa.Table) -> PartPlan:
        """The plan that applies rows, by kind, to the stored rows.

        The rows have all columns of the table, or at least the required columns.
        """
        earliest, replace, update, delete = (
            Rows.concat([rows[kind]] if kind in rows else [], self._schema(kind)) for kind in KINDS
        )
        if not self.keeps_history:
            deleted = delete.values.select(self.key)
            live = live_rows.LiveDelivery(self.key, self.requested, replace, update, deleted)
            return live_rows.plan_live_rows(stored, live)
        history = intervals.HistoryDelivery(self.key, earliest.values, replace, update, delete.values)
        return intervals.plan_versions(stored, history)

    def _needed_columns(self, kind: str) -> tuple[frozenset[str], str | None]:
        """The columns to read from files of one kind, and the time column that must have values."""
        key, every = frozenset(self.key), frozenset(self.types)
        if not self.keeps_history:
            return (key if kind == "delete" else every), None
        instants = {"earliest": START, "replace": START, "update": END, "delete": END}
        few = kind in {"earliest", "delete"}
        return (key | {instants[kind]} if few else every), instants[kind]

    def _schema(self, kind: str) -> pa.Schema:
        columns, _ = self._needed_columns(kind)
        return arrow_schema({name: type_ for name, type_ in self.types.items() if name in columns})

    def _file_columns(self, kind: str) -> tuple[dict[str, ColumnType], frozenset[str]]:
        """The types of the table's columns by their names in files, and the names of the required columns."""
        columns, _ = self._needed_columns(kind)
        types = {self.sources[name]: type_ for name, type_ in self.types.items()}
        return types, frozenset(self.sources.get(name, name) for name in columns)

    def _check_rows(self, kind: str, file: BatchFile, rows: Rows, first: int = 0) -> Rows:
        """The rows of a file under the table's column names. Raises Refused if a row is incomplete."""
        _, needed = self._needed_columns(kind)
        key = [self.sources.get(name, name) for name in self.key]
        refuse_incomplete(kind, file.name, rows, key, needed, first)
        return rows.rename({source: name for name, source in self.sources.items()})


_COMPRESSIONS = {number: Compression[name] for name, number in sdk.Compression.items()}
_ENCRYPTED = {sdk.Encryption.NONE: False, sdk.Encryption.AES: True}
# Folders whose files are not on a disk and may be endless.
VIRTUAL_FOLDERS = ("/proc", "/sys")

Request = sdk.WriteBatchRequest | sdk.WriteHistoryBatchRequest


def encoding_of(params: sdk.FileParams, format_: Format) -> Encoding:
    """The encoding of a request's files. Raises Refused unless it is in the contract."""
    if params.compression not in _COMPRESSIONS or params.encryption not in _ENCRYPTED:
        raise Refused(
            "unknown-wrapping",
            f"The request names compression {params.compression} and encryption {params.encryption}, which "
            "this server does not support.",
            "Nothing was written; send files with ZSTD, GZIP or no compression, with AES or no encryption.",
        )
    return Encoding(
        format_,
        _COMPRESSIONS[params.compression],
        _ENCRYPTED[params.encryption],
        params.null_string,
        params.unmodified_string,
    )


def files_of(request: Request, folder: Path | None) -> list[tuple[str, BatchFile]]:
    """The files of a request with their kinds, each with the encryption key for its exact path.

    Raises Refused for a file outside the folder.
    """
    fields = {**{kind: f"{kind}_files" for kind in KINDS}, "earliest": "earliest_start_files"}
    return [
        (kind, _batch_file(path, request.keys.get(path), folder))
        for kind, field in fields.items()
        for path in getattr(request, field, ())
    ]


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


def batch_of(request: Request, table: TableName, options: ServeRequest) -> BatchFiles:
    """The delivery of a request: rows for a table without history, or changes to versions.

    A WriteBatch to a history table may only contain replace files (F19).
    """
    definition = request.table.SerializeToString(deterministic=True).hex()
    columns = {column.name: column.type for column in columns_from(request.table.columns)}
    key = key_from(request.table.columns)
    encoding = encoding_of(request.file_params, Format(options.batch_format))
    parts = files_of(request, options.batch_folder)
    of_versions = isinstance(request, sdk.WriteHistoryBatchRequest)

    def token(stored: StoredTable) -> str:
        """A digest of the files' names, content and encoding, the definition, and the table's columns.

        If the table's columns change, the same files are a new delivery (F14).
        """
        about = [str(table), definition, str(stored.schema_id)]
        result = hashlib.sha256(json.dumps([*about, *map(str, astuple(encoding))]).encode())
        for kind, file in parts:
            result.update(json.dumps([kind, file.name, file.digest()]).encode())
        return result.hexdigest()

    def read(stored: StoredTable) -> Batch:
        if of_versions and stored.shape.layout is not Layout.FIVETRAN_HISTORY:
            raise Refused(
                "no-history",
                f"{table} keeps no history: it lacks the columns of history mode.",
                "Send WriteBatch, or migrate the table to history mode first.",
            )
        batch = Batch.of(stored.shape, columns, key, parts, encoding)
        if batch.keeps_history and not of_versions and {kind for kind, _ in parts} - {"replace"}:
            raise Refused(
                "history-table",
                f"{table} keeps history, so WriteBatch may contain only replace files.",
                "Send updates and deletes with WriteHistoryBatch.",
            )
        return batch

    return BatchFiles(table, DOOR, LAYOUTS, [file for _, file in parts], token, read)
