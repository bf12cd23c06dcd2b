"""The data columns of a dataset's sources, as its manifest declares them (section 2.8)."""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from backstory.documents import DocumentPath
from backstory.doors.odf.data_types import (
    arrow_schema,
    declared_schema,
    type_of,
    unwrap_option,
)
from backstory.doors.odf.manifest.data_schema import (
    DataSchema,
    Date,
    Int8,
    Int16,
    Int32,
    Int64,
    Null,
    Option,
    String,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)
from backstory.doors.odf.manifest.dataset import Dataset, DatasetSource
from backstory.doors.odf.manifest.events import SetVocab
from backstory.doors.odf.manifest.merge import OBSERVED, Append, Ledger, Merge, SnapshotMerge, encoding_of
from backstory.errors import Refused
from backstory.strategies.events.terms import EventEncoding

# Types that can contain event times: times, years as numbers or strings (decision O5), and a column of NULLs.
EVENT_TIMES: Final = (
    *(Date, Timestamp, String, Null),
    *(Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64),
)


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a batch, the origin of their schema, and the names that the manifest declares as optional.

    `of_batch` is false for the dataset's own schema, which may contain system columns (decision O22).
    """

    schema: pa.Schema
    origin: str
    path: DocumentPath | None = None
    optional: frozenset[str] = frozenset()
    of_batch: bool = True

    @property
    def names(self) -> list[str]:
        """The names in order. In an invalid batch, a name may be repeated."""
        return list(self.schema.names)

    def field(self, name: str) -> pa.Field | None:
        """The column with this name, or None."""
        return self.schema.field(self.names.index(name)) if name in self.names else None

    def path_of(self, name: str) -> DocumentPath:
        """The path of the column in its source, or an empty path if the manifest does not declare it."""
        return (*self.path, self.names.index(name)) if self.path is not None else ()


def batch_columns(dataset: Dataset, source: DatasetSource, output: pa.Schema | None) -> Columns | None:
    """The columns after preprocess: from the output itself, the read schema, or the dataset's schema.

    Returns None if the columns are unknown, because a query can produce any columns.
    """
    declared = declared_schema(source.read)
    optional = _optional(declared)
    if source.preprocess is not None:
        # A query may fill in missing values, and no declaration applies to the columns that it adds.
        optional &= frozenset(field.name for field in output or () if field.nullable)
        declared = None
    optional |= _optional(dataset.schema)
    if output is not None:
        origin = "the batch" if source.preprocess is None else "the output of preprocess"
        return Columns(output, origin, None, optional)
    if declared is not None:
        part = ("schema", "fields") if source.read.schema_ is not None else ("ddlSchema",)
        return Columns(arrow_schema(declared), "the read schema", ("read", *part), optional)
    if dataset.schema is not None:
        dataset_schema = arrow_schema(dataset.schema)
        return Columns(dataset_schema, "the dataset's schema", None, optional, of_batch=False)
    return None


def typed_columns(dataset: Dataset, source: DatasetSource) -> dict[str, pa.Field]:
    """For a source without a read schema, the fields of the dataset's schema by name (decision O25).

    They contain the data columns, and the event time if it is a day. A column with the name of a system
    column is stored with a leading `_` (D32). The result is empty for a source with preprocess: its query
    determines the types. Fields are nullable, because NULLs in required columns are counted in the whole
    batch (B52a).
    """
    if dataset.schema is None or declared_schema(source.read) is not None or source.preprocess is not None:
        return {}
    vocab = dataset.vocab
    taken = reserved_names(vocab, source.merge)
    columns = {field.name: field.with_nullable(True) for field in arrow_schema(dataset.schema)}
    time = vocab.event_time_column
    dated = time in columns and pa.types.is_date(columns[time].type)
    system = taken | {vocab.operation_type_column} | (set() if dated else {time})
    renamed = {name: columns.pop(f"_{name}").with_name(name) for name in taken if f"_{name}" in columns}
    return {name: field for name, field in columns.items() if name not in system} | renamed


def reserved_names(vocab: SetVocab, merge: Merge) -> frozenset[str]:
    """The names that no column of a batch may have (decision O11)."""
    names = {vocab.offset_column, vocab.system_time_column}
    if isinstance(merge, Append | Ledger | SnapshotMerge):
        names.add(vocab.operation_type_column)
    if encoding_of(merge) is EventEncoding.OBSERVED:
        names.add(OBSERVED)
    return frozenset(names)


def may_be_event_time(field: pa.Field) -> bool:
    """Whether a column can be the event time, by its declared type or else its own type."""
    try:
        inner, _ = unwrap_option(type_of(field))
    except Refused:
        return False
    return isinstance(inner, EVENT_TIMES)


def _optional(schema: DataSchema | None) -> frozenset[str]:
    return (
        frozenset(field.name for field in schema.fields_ if isinstance(field.type, Option))
        if schema
        else frozenset()
    )
