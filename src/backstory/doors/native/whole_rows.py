"""Tables without a key. The whole row is the key, and equal rows are counted in a column of the table."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from attrs import evolve, fields

from backstory.doors.native.evolution import KEEPS_KEY
from backstory.doors.native.options import SnapshotRequest
from backstory.errors import Refused, UsageError, bad_option
from backstory.formats.delivered import in_schema
from backstory.model.options import NEEDS_KEY
from backstory.model.table import Column, TableName, is_reserved
from backstory.model.types import ColumnType, Kind
from backstory.model.versions_layout import WHOLE_ROWS
from backstory.stores.iceberg.frames import spark_fields
from backstory.stores.iceberg.store import IcebergTable
from backstory.stores.iceberg.workers import map_batches
from backstory.strategies.whole_rows import row_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The word for the whole row as the key, and the two columns that such tables have after the source's.
ROW: Final = "row"
COPIES: Final = Column("copies", ColumnType(Kind.LONG))
ROW_KEY: Final = Column("row_key", ColumnType(Kind.STRING))
DERIVED: Final = (COPIES, ROW_KEY)
DERIVED_NAMES: Final = tuple(column.name for column in DERIVED)


def names_whole_row(key: Sequence[str] | None, names: Collection[str]) -> bool:
    """Whether the key of a new table is the whole row.

    The word `row` means the whole row unless a column has that name.
    """
    return key is not None and tuple(key) == (ROW,) and not is_reserved(ROW, names)


def has_whole_rows(properties: Mapping[str, str]) -> bool:
    """Whether the key of a table's records is the whole row."""
    return WHOLE_ROWS in properties


def with_row_key(
    table: IcebergTable | None, names: Sequence[str], request: SnapshotRequest
) -> SnapshotRequest:
    """The request with the key column of whole rows if the key is the whole row, or else the same request.

    `names` are the columns of the source. Raises UsageError and Refused for options and columns that a table
    of whole rows cannot have.
    """
    new = table is None and names_whole_row(request.key, names)
    if not new and (table is None or not has_whole_rows(table.properties)):
        return request
    if table is not None and request.key is not None and request.key != (ROW,):
        raise Refused(
            "key-changed",
            f"The key of {table.shape.table} is the whole row, but ({', '.join(request.key)}) is given.",
            KEEPS_KEY,
        )
    if taken := [name for name in names if is_reserved(name, DERIVED_NAMES)]:
        raise Refused(
            "reserved-column",
            f"The key is the whole row, and the table's own columns are {' and '.join(DERIVED_NAMES)}; "
            f"the source has {' and '.join(taken)}.",
            "Nothing was written; rename them at the source, or name key columns with `key=`.",
            taken,
        )
    _refuse_options(request)
    return evolve(request, key=(ROW_KEY.name,), whole_rows=True)


def _refuse_options(request: SnapshotRequest) -> None:
    needy = (option.name for option in fields(type(request)) if option.metadata == NEEDS_KEY)
    if named := next((name for name in needy if getattr(request, name)), None):
        raise bad_option(
            f"`{named}=` needs a key, but the key of this table is the whole row.",
            "Omit it: a row with another value is another row.",
        )
    if request.deletes == "ignore":
        raise UsageError(
            "partial-copy",
            "The table counts equal rows, so each copy must be complete.",
            "Omit `deletes='ignore'`, and send complete copies.",
        )


def refuse_feed(table: TableName, properties: Mapping[str, str]) -> None:
    """Raise UsageError for a feed into a table of whole rows, because no change can name its record."""
    if has_whole_rows(properties):
        raise UsageError(
            "whole-rows",
            f"The key of {table} is the whole row, so a change cannot identify its record.",
            "Send full copies with `backstory snapshot`, or begin another table with key columns.",
        )


def add_derived(rows: pa.Table) -> pa.Table:
    """The rows in the table's types, each with its key and a count of one."""
    once = pa.repeat(pa.scalar(1, pa.int64()), len(rows))
    return rows.append_column(COPIES.name, once).append_column(ROW_KEY.name, row_keys(rows))


def derived_frame(rows: "DataFrame", schema: pa.Schema) -> "DataFrame":
    """The rows of a frame in the table's types, each with its key and a count of one.

    `schema` has all columns of the result.
    """
    own = source_schema(schema)
    derived = [schema.field(name) for name in DERIVED_NAMES]
    return map_batches(rows, partial(_add_in_task, own), spark_fields(pa.schema([*own, *derived])))


def source_schema(schema: pa.Schema) -> pa.Schema:
    """The schema without the table's own two columns."""
    return pa.schema([field for field in schema if field.name not in DERIVED_NAMES])


def _add_in_task(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from add_derived(in_schema(pa.Table.from_batches([batch]), schema)).to_batches()
