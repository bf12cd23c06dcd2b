"""A table as it was known: its snapshot and columns, and its rows.

Which rows can be true at a time, or begin or end between two: so that others are not read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.instant import EPOCH
from backstory.model.layout import Layout, Span
from backstory.model.table import Shape
from backstory.model.types import Kind
from backstory.reading.histories import commit_at, require_knowledge, shape_with_layout
from backstory.reading.selection import key_of
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.iceberg.schema import columns_of_fields
from backstory.stores.metadata import table_rows
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.searches import AnyOf, Between, EqualTo, OneOf, Search, Searches
from backstory.stores.metadata.table_metadata import TableMetadata
from backstory.stores.metadata.table_rows import MOST_VALUES, TableReader
from backstory.stores.metadata.values import integers

_DAY = 86_400_000_000


@dataclass(frozen=True, slots=True)
class KnownTable:
    """What a table held at a recorded time: the shape of then, and where its rows are.

    `until` is that time in microseconds where the rows themselves tell what was known. With `searches` only
    rows are read that have what is searched for.
    """

    files: TableReader
    shape: Shape
    fields: Sequence[Mapping[str, Any]]
    snapshot: Mapping[str, Any] | None
    until: int | None = None
    searches: Searches | None = None

    @property
    def table(self) -> TableMetadata:
        """The table as it stands now."""
        return self.files.table

    def rows(self, names: Sequence[str]) -> pa.Table:
        """The rows, with these columns; raises Unreadable for what Spark alone reads."""
        asked = list(dict.fromkeys(names))
        return self.files.rows(self.snapshot, self.fields, asked, table_rows.MOST_IN_ARROW, self.searches)

    def of_record(self, key: object) -> "KnownTable":
        """The same of one record, or of all for None; UsageError for what is no key of the table."""
        if key is None:
            return self
        values = key_of(self.shape, key)
        return replace(self, searches={name: EqualTo(value) for name, value in values.items()})


def table_at(files: TableReader, known_at: datetime | None) -> KnownTable:
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


def table_after(files: TableReader, snapshot: Mapping[str, Any]) -> KnownTable:
    """The table as a commit left it, whatever its rows remember."""
    table, schema_id = files.table, snapshot.get("schema-id")
    shape = shape_with_layout(_shape_then(table, schema_id))
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


def _shape_then(table: TableMetadata, schema_id: int | None) -> Shape:
    """The table's shape in an earlier state of its columns; its key's columns by their names of then."""
    shape, fields = table.shape, table.fields_then(schema_id)
    columns = columns_of_fields(fields, {each.name: each.source_name for each in shape.columns})
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


def struct_field(struct: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A field of a struct."""
    return pc.struct_field(struct, name)


_LEAST: Final = timedelta(microseconds=1)


def searches_at(known: KnownTable, micros: int) -> Mapping[str, Search]:
    """What all rows have that were true at an instant, and few others; nothing where rows do not tell."""
    span = utc_span(known)
    if span is None:
        return {}
    instant, grain = EPOCH + timedelta(microseconds=micros), timedelta(microseconds=span.grain)
    started = {span.start: Between(greatest=instant)}
    if known.until is not None:  # the end that was known may have been another one
        return started
    return {**started, span.end: Between(least=_least_end(instant, grain), null=True)}


def _least_end(instant: datetime, grain: timedelta) -> datetime:
    """The least end that is after an instant by its grain; the instant itself at an end of all time."""
    try:
        return instant - (grain - _LEAST)
    except OverflowError:
        return instant


def narrow_to_changes(known: KnownTable, micros: tuple[int, int]) -> KnownTable:
    """The same table, of which only rows need be read that begin or end after one instant up to another.

    Until when a version was true that Fivetran brought, its successor tells: all rows of its record are read.
    """
    span = utc_span(known)
    if span is None or known.until is not None or known.searches:
        return known
    first, last = (EPOCH + timedelta(microseconds=each) for each in sorted(micros))
    grain = timedelta(microseconds=span.grain)
    moved = Between(_least_end(first, grain), last)
    moving = AnyOf({span.start: moved, span.end: moved})
    if known.shape.layout is not Layout.FIVETRAN_HISTORY:
        return replace(known, searches=moving)
    if not known.shape.key:
        return known
    name = known.shape.key[0]
    keys = known.files.rows(known.snapshot, known.fields, [name], MOST_VALUES, moving)[name]
    if keys.null_count:
        raise Unreadable("NULL in a key")
    return replace(known, searches={name: OneOf(keys)})


def utc_span(known: KnownTable) -> Span | None:
    """The columns in which each row says from when to when it was true; None where it does not, in UTC."""
    span = known.shape.layout.span
    if span is None or known.snapshot is None:
        return None
    kinds = {each.name: each.type.kind for each in known.shape.columns}
    return span if all(kinds.get(name) is Kind.UTC_DATETIME for name in (span.start, span.end)) else None
