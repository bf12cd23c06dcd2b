"""The rows of a batch: read as the table's columns, checked, and ready to be planned."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from backstory.doors.fivetran.placeable import refuse_unplaceable
from backstory.errors import Refused
from backstory.files.batch_file import BatchFile, Encoding
from backstory.files.delivered import arrow_schema, read_files
from backstory.files.rows import Rows
from backstory.model.column import END, START, SYSTEM_COLUMNS, ColumnType
from backstory.strategies.actions import Actions
from backstory.strategies.intervals import plan as intervals
from backstory.strategies.live_rows import plan as live_rows
from backstory.tables.store import StoredTable


@dataclass(frozen=True, slots=True)
class Files:
    """The batch files of one request by kind, and how they are written."""

    encoding: Encoding
    replace: Sequence[BatchFile] = ()
    update: Sequence[BatchFile] = ()
    delete: Sequence[BatchFile] = ()
    earliest: Sequence[BatchFile] = ()


@dataclass(frozen=True)
class LiveChange:
    """A decoded WriteBatch."""

    delivery: live_rows.LiveDelivery
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
class BatchReader:
    """Reads a request's files as rows of the table, and refuses what a plan could not place."""

    table: StoredTable
    requested: frozenset[str]
    key: Sequence[str]
    files: Files

    @classmethod
    def of(
        cls,
        table: StoredTable,
        requested: Mapping[str, ColumnType],
        key: Sequence[str],
        files: Files,
    ) -> "BatchReader":
        """Raises Refused when the request's key or columns are not the table's."""
        shape = table.shape
        if not key:
            raise Refused(
                "no-key",
                f"The request for {shape.table} marks no key column.",
                "Send the table's definition with its key columns marked.",
            )
        if shape.key and set(key) != set(shape.key):
            raise Refused(
                "other-key",
                f"The key of {shape.table} is ({', '.join(shape.key)}), not ({', '.join(key)}).",
                "Alter the table's key first.",
            )
        unknown = [n for n in requested if n not in shape.names and n not in SYSTEM_COLUMNS]
        if unknown:
            raise Refused(
                "unknown-column",
                f"{shape.table} has no column {unknown[0]}.",
                "Add the column to the table first.",
            )
        return cls(table, frozenset(requested), key, files)

    def live(self) -> LiveChange:
        """The rows of a WriteBatch."""
        every = frozenset(self.table.shape.names)
        replace = self._rows("replace", every)
        delivery = live_rows.LiveDelivery(
            key=self.key,
            columns=self.requested,
            replace=replace,
            update=self._rows("update", every),
            delete=self._rows("delete", frozenset(self.key)).values.select(self.key),
        )
        return LiveChange(delivery)

    def history(self) -> HistoryChange:
        """The rows of a WriteHistoryBatch."""
        every = frozenset(self.table.shape.names)
        return HistoryChange(
            intervals.HistoryDelivery(
                key=self.key,
                earliest=self._rows("earliest", {*self.key, START}, START).values,
                replace=self._rows("replace", every, START),
                update=self._rows("update", every, END),
                delete=self._rows("delete", {*self.key, END}, END).values,
            )
        )

    def _rows(self, kind: str, wanted: Collection[str], needed: str | None = None) -> Rows:
        """The wanted columns of all files of a kind; `needed` must be given in each row."""
        types = {column.name: column.type for column in self.table.shape.columns}
        files = getattr(self.files, kind)
        parts = read_files(files, self.files.encoding, types, frozenset(wanted))
        for file, rows in parts:
            refuse_unplaceable(kind, file.name, rows, self.key, needed)
        chosen = {name: type_ for name, type_ in types.items() if name in wanted}
        return Rows.concat((rows for _, rows in parts), arrow_schema(chosen))
