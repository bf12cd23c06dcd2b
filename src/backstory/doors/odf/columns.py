"""The data columns that a manifest declares (section 2.8), and Open Data Fabric's types in Arrow (1.9).

The metadata of a field contains its Open Data Fabric type as compact JSON. This JSON becomes the column's
comment. It preserves a type that tables lack, such as UInt8.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kind_of
from pydantic import TypeAdapter

from backstory.documents import DocumentPath
from backstory.doors.odf.manifest import data_schema as odf
from backstory.doors.odf.manifest.dataset import Dataset, DatasetSource
from backstory.doors.odf.manifest.events import (
    OBSERVED,
    Append,
    Ledger,
    Merge,
    Reader,
    SetVocab,
    SnapshotMerge,
    encoding_of,
)
from backstory.errors import Refused, UsageError
from backstory.strategies.events.terms import EventEncoding

# Keys in a field's metadata: its type, and its extra attributes from the schema.
TYPE: Final = b"odf"
EXTRA: Final = b"odf-extra"

ARROW: Final[Mapping[str, pa.DataType]] = {
    "Bool": pa.bool_(),
    **dict.fromkeys(("Int8", "Int16", "Int32", "UInt8", "UInt16"), pa.int32()),
    **dict.fromkeys(("Int64", "UInt32", "Time", "Duration"), pa.int64()),
    "UInt64": pa.decimal128(20, 0),
    **dict.fromkeys(("Float16", "Float32"), pa.float32()),
    "Float64": pa.float64(),
    "Date": pa.date32(),
    "Timestamp": pa.timestamp("us", "UTC"),
    **dict.fromkeys(("String", "Null"), pa.string()),
    "Binary": pa.binary(),
}

# The Open Data Fabric types for the Arrow types without parameters that Spark has.
FROM_ARROW: Final[Mapping[pa.DataType, odf.DataType]] = {
    pa.binary(): odf.Binary(),
    pa.date32(): odf.SIMPLE["Date"](),
    **{
        pa.type_for_alias(kind.lower()): odf.SIMPLE[kind]()
        for kind in ("Bool", "Int8", "Int16", "Int32", "Int64", "Float32", "Float64", "String", "Null")
    },
}
UNITS: Final = {
    "s": odf.Unit.SECOND,
    "ms": odf.Unit.MILLISECOND,
    "us": odf.Unit.MICROSECOND,
    "ns": odf.Unit.NANOSECOND,
}
ANY_TYPE: Final[TypeAdapter[Any]] = TypeAdapter(odf.DataType)


def declared_schema(read: Reader) -> odf.DataSchema | None:
    """The schema that a reader declares, in either form, or None if it declares no schema."""
    if read.ddl_schema is not None:
        return odf.ddl_schema(read.ddl_schema)
    return read.schema_


def arrow_schema(schema: odf.DataSchema) -> pa.Schema:
    """The columns of a schema, with the Arrow types of a table."""
    return pa.schema([_arrow_field(field, top=True) for field in schema.fields_])


def unwrap_option(datatype: odf.DataType) -> tuple[odf.DataType, bool]:
    """The type without its Option, and whether the field is required because the type had no Option."""
    inner = datatype
    while isinstance(inner, odf.Option):
        inner = inner.inner
    return inner, inner is datatype


def type_of(field: pa.Field) -> odf.DataType:
    """The Open Data Fabric type of a field, from its metadata or else from its Arrow type."""
    text = (field.metadata or {}).get(TYPE)
    inner, _ = unwrap_option(ANY_TYPE.validate_json(text) if text else _from_arrow(field))
    if field.nullable and inner.kind != "Null":
        return odf.Option(inner=inner)
    return inner


def data_schema_of(schema: pa.Schema) -> dict[str, Any]:
    """The document of a DataSchema with these columns."""
    fields = []
    for field in schema:
        extra = (field.metadata or {}).get(EXTRA)
        document = {"name": field.name, "type": type_document(type_of(field))}
        fields.append(document | ({"extra": json.loads(extra)} if extra else {}))
    return {"fields": fields}


def type_document(datatype: odf.DataType) -> dict[str, Any]:
    """The document of a type, without attributes that have their default values."""
    return datatype.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _arrow_field(field: odf.DataField, *, top: bool = False) -> pa.Field:
    """The Arrow field. Only top-level columns have metadata, which includes their nested types."""
    inner, needed = unwrap_option(field.type)
    type_ = _arrow(inner)
    if top and _holds_empty_struct(type_):
        raise UsageError(
            "empty-struct",
            f"The column {field.name} is declared as a Struct without fields, which no table can hold.",
            "Name its fields, or declare it as a String, which keeps a JSON value as text.",
            [field.name],
        )
    metadata = {TYPE: _compact(type_document(field.type))}
    if field.extra:
        metadata[EXTRA] = _compact(field.extra)
    nullable = not needed or inner.kind == "Null"
    return pa.field(field.name, type_, nullable, metadata if top else None)


def _compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _arrow(datatype: odf.DataType) -> pa.DataType:
    if isinstance(datatype, odf.Decimal):
        return pa.decimal128(datatype.precision, datatype.scale)
    if isinstance(datatype, odf.List):
        return pa.list_(_arrow_field(odf.DataField(name="element", type=datatype.item_type)))
    if isinstance(datatype, odf.Map):
        value = _arrow_field(odf.DataField(name="value", type=datatype.value_type))
        key, _ = unwrap_option(datatype.key_type)
        return pa.map_(_arrow(key), value)
    if isinstance(datatype, odf.Struct):
        return pa.struct([_arrow_field(field) for field in datatype.fields_])
    return ARROW[datatype.kind]


def _holds_empty_struct(type_: pa.DataType) -> bool:
    """Whether the type is a struct without fields, or contains one."""
    inner = (type_.field(place).type for place in range(type_.num_fields))
    return type_ == pa.struct([]) or any(map(_holds_empty_struct, inner))


def _from_arrow(field: pa.Field) -> odf.DataType:  # noqa: PLR0911 - a branch for each family
    """The type of a field, derived from its Arrow type."""
    arrow = field.type
    if arrow in FROM_ARROW:
        return FROM_ARROW[arrow]
    if kind_of.is_decimal(arrow):
        return odf.Decimal(precision=arrow.precision, scale=arrow.scale)
    if kind_of.is_timestamp(arrow):
        return odf.Timestamp(unit=UNITS[arrow.unit], timezone=arrow.tz)
    if kind_of.is_time(arrow):
        return odf.Time(unit=UNITS[arrow.unit])
    if kind_of.is_duration(arrow):
        return odf.Duration(unit=UNITS[arrow.unit])
    if kind_of.is_map(arrow):
        key, _ = unwrap_option(type_of(arrow.key_field))
        return odf.Map.model_validate({"keyType": key, "valueType": type_of(arrow.item_field)})
    if kind_of.is_list(arrow):
        return odf.List.model_validate({"itemType": type_of(arrow.value_field)})
    if kind_of.is_struct(arrow):
        fields = tuple(odf.DataField(name=child.name, type=type_of(child)) for child in arrow)
        return odf.Struct(fields=fields)
    raise Refused(
        "unknown-type",
        f"The column {field.name} has the type {arrow}, which Open Data Fabric does not have.",
        "Cast it in preprocess.",
    )


# Types that can contain event times: times, years as numbers or strings (decision O5), and a column of NULLs.
EVENT_TIMES: Final = {"Date", "Timestamp", "String", "Null"} | {
    f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)
}


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
    """The fields of the dataset's schema by name, for sources without a read schema (decision O25).

    They include the data columns, and the event-time column if its type is a date. A column with the name of
    a system column is stored with a leading `_` (D32). The result is empty for a source with preprocess: its
    query determines the types. Fields are nullable, because NULLs in required columns are counted in the
    whole batch (B52a).
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
    return inner.kind in EVENT_TIMES


def _optional(schema: odf.DataSchema | None) -> frozenset[str]:
    fields = schema.fields_ if schema else ()
    return frozenset(field.name for field in fields if isinstance(field.type, odf.Option))
