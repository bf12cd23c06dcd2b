"""A table as it was known: its snapshot and columns, and its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.layout import Layout
from backstory.model.schema import Shape
from backstory.reading.frames.knowledge import as_it_was, commit_at, require_knowledge
from backstory.reading.keys import key_of
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.iceberg.schema import columns_of_fields
from backstory.stores.metadata import rows
from backstory.stores.metadata.described import Described
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.rows import Files
from backstory.stores.metadata.searches import EqualTo, Searches
from backstory.stores.metadata.values import integers

_DAY = 86_400_000_000


@dataclass(frozen=True, slots=True)
class KnownTable:
    """What a table held at a recorded time: the shape of then, and where its rows are.

    `until` is that time in microseconds where the rows themselves tell what was known. With `searches` only
    rows are read that have what is searched for.
    """

    files: Files
    shape: Shape
    fields: Sequence[Mapping[str, Any]]
    snapshot: Mapping[str, Any] | None
    until: int | None = None
    searches: Searches | None = None

    @property
    def table(self) -> Described:
        """The table as it stands now."""
        return self.files.table

    def rows(self, names: Sequence[str]) -> pa.Table:
        """The rows, with these columns; raises Unreadable for what Spark alone reads."""
        asked = list(dict.fromkeys(names))
        return self.files.rows(self.snapshot, self.fields, asked, rows.MOST_IN_ARROW, self.searches)

    def of_record(self, key: object) -> "KnownTable":
        """The same of one record, or of all for None; UsageError for what is no key of the table."""
        if key is None:
            return self
        values = key_of(self.shape, key)
        return replace(self, searches={name: EqualTo(value) for name, value in values.items()})


def table_at(files: Files, known_at: datetime | None) -> KnownTable:
    """The table as known at a recorded time, or as it is; raises what `source_at` of frames raises."""
    table = files.table
    if known_at is None:
        return KnownTable(files, table.shape, table.fields, table.snapshot)
    if table.shape.layout is Layout.VERSIONS:
        require_knowledge(table, known_at)
    if table.shape.layout in {Layout.VERSIONS, Layout.ODF}:
        return KnownTable(files, table.shape, table.fields, table.snapshot, micros_of(known_at))
    commit = commit_at(map(_Commit, table.ancestry), table.shape.table, known_at)
    if commit is None:
        return KnownTable(files, table.shape, table.fields, None)
    return table_after(files, commit.told)


def table_after(files: Files, snapshot: Mapping[str, Any]) -> KnownTable:
    """The table as a commit left it, whatever its rows remember."""
    table, schema_id = files.table, snapshot.get("schema-id")
    shape = as_it_was(_shape_then(table, schema_id))
    return KnownTable(files, shape, table.fields_then(schema_id), snapshot)


@dataclass(frozen=True, slots=True)
class _Commit:
    told: Mapping[str, Any]

    @property
    def committed_at(self) -> datetime:
        return datetime.fromtimestamp(self.told["timestamp-ms"] / 1000, UTC)

    @property
    def parent(self) -> int | None:
        return self.told.get("parent-snapshot-id")


def _shape_then(table: Described, schema_id: int | None) -> Shape:
    """The table's shape in an earlier state of its columns; its key's columns by their names of then."""
    shape, fields = table.shape, table.fields_then(schema_id)
    columns = columns_of_fields(fields, {each.name: each.called for each in shape.columns})
    ids = {each["name"]: each["id"] for each in table.fields}
    names = {each["id"]: each["name"] for each in fields}
    key = (names.get(ids.get(name)) for name in shape.key)
    return replace(shape, columns=columns, key=tuple(name for name in key if name is not None))


def micros(values: pa.Table | pa.ChunkedArray, name: str = "") -> list[int | None]:
    """Times as microseconds since 1970, as `times` has them."""
    found: list[int | None] = times(values, name).to_pylist()
    return found


def times(values: pa.Table | pa.ChunkedArray, name: str = "") -> pa.ChunkedArray:
    """The same; a day begins at midnight, UTC. Unreadable for a column without times."""
    column = values[name] if name else values
    if pa.types.is_date32(column.type):
        return pc.multiply(column.cast(pa.int32()).cast(pa.int64()), integers([_DAY])[0])
    if not pa.types.is_timestamp(column.type):
        raise Unreadable(f"times as {column.type}")
    return column.cast(pa.int64())


def within(struct: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A field of a struct."""
    return pc.struct_field(struct, name)
