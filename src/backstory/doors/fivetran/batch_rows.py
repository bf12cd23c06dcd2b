"""The rows of a batch: read as the table's columns, checked, and ready to be planned."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from backstory.doors.fivetran.definitions import refuse_foreign
from backstory.doors.fivetran.placeable import refuse_unplaceable
from backstory.errors import Refused
from backstory.formats.delivered import arrow_schema, read_files, stream_file
from backstory.formats.memory import MemoryLease
from backstory.formats.rows import Rows
from backstory.formats.values.mended import Mended
from backstory.formats.wrapping.batch_file import BatchFile, Encoding
from backstory.model.layout import END, START, SYSTEM_COLUMNS, Layout
from backstory.model.schema import Shape
from backstory.model.types import ColumnType
from backstory.strategies.actions import Actions
from backstory.strategies.live_rows import plan as live_rows
from backstory.strategies.versions import plan as intervals

KINDS = ("earliest", "replace", "update", "delete")


@dataclass(frozen=True, slots=True)
class RequestFiles:
    """The batch files of one request by kind, and how they are written."""

    encoding: Encoding
    replace: Sequence[BatchFile] = ()
    update: Sequence[BatchFile] = ()
    delete: Sequence[BatchFile] = ()
    earliest: Sequence[BatchFile] = ()

    @property
    def parts(self) -> list[tuple[str, BatchFile]]:
        """Every file with its kind."""
        return [(kind, file) for kind in KINDS for file in getattr(self, kind)]


@dataclass(frozen=True)
class LiveChange:
    """A decoded WriteBatch."""

    delivery: live_rows.LiveDelivery
    mended: Mended
    rows: Mapping[str, Rows]
    since: None = None

    @cached_property
    def keys(self) -> pa.Table:
        """The key columns of all rows."""
        rows = self.delivery
        return _keys(rows.key, rows.replace.values, rows.update.values, rows.delete)

    def plan(self, stored: pa.Table) -> Actions:
        """See `strategies.live_rows`."""
        return live_rows.plan(stored, self.delivery)


@dataclass(frozen=True)
class HistoryChange:
    """A decoded WriteHistoryBatch."""

    delivery: intervals.HistoryDelivery
    mended: Mended
    rows: Mapping[str, Rows]

    @property
    def since(self) -> int | None:
        """The least instant that the batch names."""
        return self.delivery.first_instant()

    @cached_property
    def keys(self) -> pa.Table:
        """The key columns of all rows."""
        rows = self.delivery
        return _keys(rows.key, rows.earliest, rows.replace.values, rows.update.values, rows.delete)

    def plan(self, stored: pa.Table) -> Actions:
        """See `strategies.intervals`."""
        return intervals.plan(stored, self.delivery)


def _keys(key: Sequence[str], *tables: pa.Table) -> pa.Table:
    return pa.concat_tables([table.select(key) for table in tables])


@dataclass(frozen=True, slots=True)
class Batch:
    """The files of a request as rows of its table; small enough to be sent to where Spark runs.

    `types` are the table's columns, in its order, `sources` the names that files and messages have for them.
    """

    types: Mapping[str, ColumnType]
    sources: Mapping[str, str]
    requested: frozenset[str]
    key: tuple[str, ...]
    files: RequestFiles
    keeps_history: bool

    @classmethod
    def of(
        cls, shape: Shape, requested: Mapping[str, ColumnType], key: Sequence[str], files: RequestFiles
    ) -> "Batch":
        """Raises Refused when the request's key or columns are not the table's."""
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
            files,
            shape.layout is Layout.FIVETRAN_HISTORY,
        )

    @property
    def parts(self) -> list[tuple[str, BatchFile]]:
        """Every file with its kind."""
        return self.files.parts

    def decode(self, lease: MemoryLease) -> LiveChange | HistoryChange:
        """All rows at once; raises Refused for what cannot be read, TooLarge for more than fits."""
        return self.change({kind: self._rows(kind, lease) for kind in KINDS})

    def stream(self, kind: str, file: BatchFile) -> Iterator[Rows]:
        """The rows of one file, some at a time, with every column of the table."""
        first = 0
        for rows in stream_file(file, self.files.encoding, *self._in_files(kind)):
            yield self._placeable(kind, file, rows, first).aligned(arrow_schema(self.types))
            first += rows.count

    def change(self, rows: Mapping[str, Rows]) -> LiveChange | HistoryChange:
        """What the rows of each kind, with every column of the table or those that count, mean."""
        given = {kind: Rows.concat(filter(None, [rows.get(kind)]), self._schema(kind)) for kind in KINDS}
        mended = sum((each.mended for each in given.values()), Mended())
        if not self.keeps_history:
            return LiveChange(
                live_rows.LiveDelivery(
                    key=self.key,
                    columns=self.requested,
                    replace=given["replace"],
                    update=given["update"],
                    delete=given["delete"].values.select(self.key),
                ),
                mended,
                given,
            )
        return HistoryChange(
            intervals.HistoryDelivery(
                key=self.key,
                earliest=given["earliest"].values,
                replace=given["replace"],
                update=given["update"],
                delete=given["delete"].values,
            ),
            mended,
            given,
        )

    def _counting_columns(self, kind: str) -> tuple[frozenset[str], str | None]:
        """The columns that are read from files of a kind, and the instant that each row must have."""
        key, every = frozenset(self.key), frozenset(self.types)
        if not self.keeps_history:
            return (key if kind == "delete" else every), None
        instants = {"earliest": START, "replace": START, "update": END, "delete": END}
        few = kind in {"earliest", "delete"}
        return (key | {instants[kind]} if few else every), instants[kind]

    def _schema(self, kind: str) -> pa.Schema:
        wanted, _ = self._counting_columns(kind)
        return arrow_schema({name: type_ for name, type_ in self.types.items() if name in wanted})

    def _rows(self, kind: str, lease: MemoryLease) -> Rows:
        files = getattr(self.files, kind)
        parts = read_files(files, self.files.encoding, *self._in_files(kind), lease)
        placed = [self._placeable(kind, file, rows) for file, rows in parts]
        return Rows.concat(placed, self._schema(kind))

    def _in_files(self, kind: str) -> tuple[dict[str, ColumnType], frozenset[str]]:
        """The table's columns by the names that files have for them, and which of them count."""
        wanted, _ = self._counting_columns(kind)
        types = {self.sources[name]: type_ for name, type_ in self.types.items()}
        return types, frozenset(self.sources.get(name, name) for name in wanted)

    def _placeable(self, kind: str, file: BatchFile, rows: Rows, first: int = 0) -> Rows:
        """The rows of a file by the table's names, once each of them is known to have its place."""
        _, needed = self._counting_columns(kind)
        key = [self.sources.get(name, name) for name in self.key]
        refuse_unplaceable(kind, file.name, rows, key, needed, first)
        return rows.renamed({source: name for name, source in self.sources.items()})
