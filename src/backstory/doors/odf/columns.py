"""The data columns of a dataset and of its sources, and a check of a batch against them (section 2.8)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from backstory.documents import DocumentPath
from backstory.doors.odf.data_types import (
    arrow_schema,
    data_schema_of,
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
from backstory.engine.staging import PARTLY_VOID
from backstory.errors import Refused
from backstory.model.types import fits
from backstory.stores.iceberg.literals import cast_as_shown, quote
from backstory.stores.iceberg.schema import column_type
from backstory.strategies.events.terms import EventEncoding

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField

ADD = "Add it to setDataSchema, or to the read schema, as an optional column and run `backstory add`."

# Types that can contain event times: times, years as numbers or strings (decision O5), and a column of NULLs.
EVENT_TIMES: Final = (
    *(Date, Timestamp, String, Null),
    *(Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64),
)


@dataclass(frozen=True, slots=True)
class ExpectedColumns:
    """A dataset's data columns in order, the names of required columns, and whether event times are days."""

    fields: "Sequence[StructField]"
    required: tuple[str, ...] = ()
    dated: bool | None = None


def expected_of(
    document: Mapping[str, Any] | None, system: Sequence[str], time: str
) -> ExpectedColumns | None:
    """The columns of a DataSchema document without system columns, or None if there is no document."""
    from pyspark.sql.pandas.types import from_arrow_schema

    if document is None:
        return None
    schema = arrow_schema(DataSchema.model_validate(document))
    dated = pa.types.is_date(schema.field(time).type) if time in schema.names else None
    data = pa.schema([field for field in schema if field.name not in system])
    # Tables have no required fields within lists and structs.
    fields = [storable(field) for field in from_arrow_schema(data)]
    return ExpectedColumns(fields, tuple(field.name for field in data if not field.nullable), dated)


def document_of(
    fields: "Sequence[StructField]", declared: DataSchema | None, time: str, *, dated: bool
) -> dict[str, Any]:
    """The DataSchema document of a dataset's first rows, with declared types if there are any."""
    from pyspark.sql.pandas.types import to_arrow_type

    declared_fields = {field.name: field for field in arrow_schema(declared)} if declared else {}
    built_fields = [
        declared_fields.get(f.name) or pa.field(f.name, to_arrow_type(f.dataType)) for f in fields
    ]
    when = pa.field(time, pa.date32() if dated else pa.timestamp("us", "UTC"))
    return data_schema_of(pa.schema([when, *built_fields]))


def storable(field: "StructField") -> "StructField":
    """The column with a table type.

    Small integers are widened; times without a zone become instants in UTC.
    """
    from pyspark.sql.types import StructField

    return StructField(field.name, _storable(field.dataType, field.name), True)


def _storable(type_: "DataType", name: str) -> "DataType":  # noqa: PLR0911 - a branch for each type
    from pyspark.sql import types as spark

    match type_:
        case spark.ByteType() | spark.ShortType():
            return spark.IntegerType()
        case spark.NullType() | spark.VarcharType() | spark.CharType():
            return spark.StringType()
        case spark.TimestampNTZType():
            return spark.TimestampType()
        case spark.ArrayType():
            return spark.ArrayType(_storable(type_.elementType, name), True)
        case spark.MapType():
            return spark.MapType(_storable(type_.keyType, name), _storable(type_.valueType, name), True)
        case spark.StructType():
            return spark.StructType([storable(field) for field in type_])
        case _ if type_.simpleString().startswith("interval"):
            raise Refused(
                "bad-input-schema",
                f"The column {name} is of type {type_.simpleString()}, which tables cannot hold.",
                "Convert it to a number or a string in preprocess.",
                [name],
            )
    return type_


def conform_columns(
    batch: "Mapping[str, StructField]", expected: ExpectedColumns
) -> "tuple[list[StructField], dict[str, Column]]":
    """The dataset's columns, and expressions for the batch's columns that need a conversion.

    Columns are matched by name, in any order. Raises Refused for a new, a missing or a retyped column.
    """
    from pyspark.sql.functions import col, lit
    from pyspark.sql.types import FloatType, NullType, StructType

    known = {field.name: field for field in expected.fields}
    new = [name for name in batch if name not in known]
    if new:
        raise _incompatible(f"The batch has the column {new[0]}, which the dataset does not have.", ADD, new)
    missing = [name for name in known if name not in batch]
    if missing:
        raise _incompatible(
            f"The batch lacks the column {missing[0]} ({known[missing[0]].dataType.simpleString()}).",
            f"It has {', '.join(batch) or 'none'}; names are compared exactly.",
            missing,
        )
    values = {}
    for name, field in known.items():
        actual = storable(batch[name]).dataType
        if isinstance(batch[name].dataType, NullType):
            values[name] = lit(None)
        elif batch[name].metadata.get(PARTLY_VOID):
            partly_void = StructType.fromJson(json.loads(batch[name].metadata[PARTLY_VOID]))[0].dataType
            if not _fits_but_for_void(partly_void, field.dataType):
                raise _wrong_type(name, partly_void, field.dataType)
            values[name] = _fill_voids(col(quote(name)), partly_void, field.dataType)
        elif not _fits(actual, field.dataType):
            raise _wrong_type(name, actual, field.dataType)
        elif isinstance(actual, FloatType) and actual != field.dataType:
            values[name] = cast_as_shown(col(quote(name)), actual, field.dataType)
    return list(expected.fields), values


def _fill_voids(value: "Column", actual: "DataType", expected: "DataType") -> "Column":
    """The value, with parts of void type replaced by NULLs of the expected types."""
    from pyspark.sql import types as spark
    from pyspark.sql.functions import lit, struct, transform, transform_values, when

    match actual, expected:
        case spark.NullType(), _:
            return lit(None).cast(expected)
        case spark.ArrayType(), spark.ArrayType():
            return transform(value, lambda item: _fill_voids(item, actual.elementType, expected.elementType))
        case spark.MapType(), spark.MapType():
            return transform_values(
                value, lambda _, item: _fill_voids(item, actual.valueType, expected.valueType)
            )
        case spark.StructType(), spark.StructType():
            pairs = zip(actual, expected, strict=True)
            parts = [_fill_voids(value[f.name], f.dataType, e.dataType).alias(e.name) for f, e in pairs]
            return when(value.isNotNull(), struct(*parts))
    return cast_as_shown(value, actual, expected)


def _fits_but_for_void(actual: "DataType", expected: "DataType") -> bool:
    """Whether every value of the first type fits into the second type. Parts of void type always fit."""
    from pyspark.sql import types as spark

    match actual, expected:
        case spark.NullType(), _:
            return True
        case spark.ArrayType(), spark.ArrayType():
            return _fits_but_for_void(actual.elementType, expected.elementType)
        case spark.MapType(), spark.MapType():
            values = _fits_but_for_void(actual.valueType, expected.valueType)
            return values and bool(actual.keyType == expected.keyType)
        case spark.StructType(), spark.StructType():
            pairs = [(f.dataType, e.dataType) for f, e in zip(actual, expected, strict=False)]
            return actual.names == expected.names and all(_fits_but_for_void(*pair) for pair in pairs)
    return _fits(actual, expected)


def _fits(actual: "DataType", expected: "DataType") -> bool:
    """Whether every value of the first type fits into the second type."""
    return fits(column_type(actual), column_type(expected))


def _wrong_type(name: str, actual: "DataType", expected: "DataType") -> Refused:
    difference = f"expected {expected.simpleString()}, but found {actual.simpleString()}"
    remedy = "Cast it in preprocess, or fix the source."
    return _incompatible(f"The column {name} has the wrong type: {difference}.", remedy, [name])


def _incompatible(message: str, remedy: str, keys: Sequence[str]) -> Refused:
    return Refused("incompatible-schema", message, remedy, keys)


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
