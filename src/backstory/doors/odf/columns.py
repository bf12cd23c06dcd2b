"""The columns that a source delivers, as far as they are known before it is asked."""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from backstory.documents import DocumentPath
from backstory.doors.odf.data_types import arrow_schema, declared_schema, required, type_of
from backstory.doors.odf.dataset import Dataset, Source
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
from backstory.doors.odf.manifest.events import SetVocab
from backstory.doors.odf.manifest.merge import OBSERVED, Append, Ledger, Merge, Snapshot, encoding_of
from backstory.errors import Refused
from backstory.strategies.events.terms import EventEncoding

# What may hold a time: times, and years as numbers or texts (decision O5), and a column of NULLs.
EVENT_TIMES: Final = (
    *(Date, Timestamp, String, Null),
    *(Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64),
)


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a batch, where they are said, and which of them are optional by what the manifest declares.

    `of_batch` is false for the dataset's own schema, which may list system columns (decision O22).
    """

    schema: pa.Schema
    origin: str
    path: DocumentPath | None = None
    optional: frozenset[str] = frozenset()
    of_batch: bool = True

    @property
    def names(self) -> list[str]:
        """Their names in order; a batch that is wrong may have one twice."""
        return list(self.schema.names)

    def field(self, name: str) -> pa.Field | None:
        """The column of that name, if there is one."""
        return self.schema.field(self.names.index(name)) if name in self.names else None

    def path_of(self, name: str) -> DocumentPath:
        """Where the column stands in its source; the source itself if it stands nowhere."""
        return (*self.path, self.names.index(name)) if self.path is not None else ()


def batch_columns(dataset: Dataset, source: Source, output: pa.Schema | None) -> Columns | None:
    """The columns after preprocess: the output itself, else the read schema, else the dataset's own schema.

    None if nothing tells them: a query may make any columns of those that are read.
    """
    declared = declared_schema(source.read)
    optional = _optional(declared)
    if source.preprocess is not None:
        # A query may fill in what is missing, and what it makes by itself nobody declares optional.
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
        own = arrow_schema(dataset.schema)
        return Columns(own, "the dataset's schema", None, optional, of_batch=False)
    return None


def expected_columns(dataset: Dataset, source: Source) -> dict[str, pa.Field]:
    """The columns of a source without a read schema that the dataset's own gives types to (decision O25).

    Only data columns, and an event time that is a day: other system columns in it say what the table has. A
    column with the name of one of these is stored with a leading `_` (D32). After preprocess the query says
    the types. A NULL is no matter of types: what is required is counted in the whole batch (B52a).
    """
    if dataset.schema is None or declared_schema(source.read) is not None or source.preprocess is not None:
        return {}
    vocab = dataset.vocab
    taken = reserved(vocab, source.merge)
    columns = {field.name: field.with_nullable(True) for field in arrow_schema(dataset.schema)}
    time = vocab.event_time_column
    dated = time in columns and pa.types.is_date(columns[time].type)
    system = taken | {vocab.operation_type_column} | (set() if dated else {time})
    renamed = {name: columns.pop(f"_{name}").with_name(name) for name in taken if f"_{name}" in columns}
    return {name: field for name, field in columns.items() if name not in system} | renamed


def reserved(vocab: SetVocab, merge: Merge) -> frozenset[str]:
    """The names that no column of a batch has (decision O11)."""
    found = {vocab.offset_column, vocab.system_time_column}
    if isinstance(merge, Append | Ledger | Snapshot):
        found.add(vocab.operation_type_column)
    if encoding_of(merge) is EventEncoding.OBSERVED:
        found.add(OBSERVED)
    return frozenset(found)


def may_be_event_time(field: pa.Field) -> bool:
    """Whether a column can be the event time, by the type that was declared, else by the one that it has."""
    try:
        inner, _ = required(type_of(field))
    except Refused:
        return False
    return isinstance(inner, EVENT_TIMES)


def _optional(schema: DataSchema | None) -> frozenset[str]:
    return (
        frozenset(each.name for each in schema.fields_ if isinstance(each.type, Option))
        if schema
        else frozenset()
    )
