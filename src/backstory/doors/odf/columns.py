"""The columns that a source delivers, as far as they are known before it is asked.

The columns that a dataset has, and whether those of a batch are the same (section 2.8).
"""

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
from backstory.doors.odf.manifest.merge import OBSERVED, Append, Ledger, Merge, Snapshot, encoding_of
from backstory.engine.staging import PARTLY_VOID
from backstory.errors import Refused
from backstory.model.types import fits
from backstory.stores.iceberg.literals import cast_as_shown, quote
from backstory.stores.iceberg.spark_types import column_type
from backstory.strategies.events.terms import EventEncoding

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField

ADD = "Add it to setDataSchema, or to the read schema, as an optional column and run `backstory add`."


@dataclass(frozen=True, slots=True)
class ExpectedColumns:
    """A dataset's data columns in their order, the required ones, and whether event times are days."""

    fields: "Sequence[StructField]"
    required: tuple[str, ...] = ()
    dated: bool | None = None


def expected_of(
    document: Mapping[str, Any] | None, system: Sequence[str], time: str
) -> ExpectedColumns | None:
    """The columns of a DataSchema document without the system's own; None if there is none."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    if document is None:
        return None
    schema = arrow_schema(DataSchema.model_validate(document))
    dated = pa.types.is_date(schema.field(time).type) if time in schema.names else None
    own = pa.schema([field for field in schema if field.name not in system])
    # Within lists and structs no table promises that there is no NULL.
    fields = [storable(field) for field in from_arrow_schema(own)]
    return ExpectedColumns(fields, tuple(field.name for field in own if not field.nullable), dated)


def document_of(
    fields: "Sequence[StructField]", declared: DataSchema | None, time: str, *, dated: bool
) -> dict[str, Any]:
    """The DataSchema document of a dataset's first rows: as declared, where something was."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    told = {field.name: field for field in arrow_schema(declared)} if declared else {}
    built = [told.get(f.name) or pa.field(f.name, to_arrow_type(f.dataType)) for f in fields]
    when = pa.field(time, pa.date32() if dated else pa.timestamp("us", "UTC"))
    return data_schema_of(pa.schema([when, *built]))


def storable(field: "StructField") -> "StructField":
    """A column of a type that tables have: small integers widened, naive times taken for UTC."""
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
                "Convert it to a number or a text in preprocess.",
                [name],
            )
    return type_


def conform_columns(
    batch: "Mapping[str, StructField]", expected: ExpectedColumns
) -> "tuple[list[StructField], dict[str, Column]]":
    """The dataset's columns, and for those that the batch has in a lesser form how it becomes theirs.

    Columns are matched by name, in any order. Raises Refused for a new, a missing and a retyped column.
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
        found = storable(batch[name]).dataType
        if isinstance(batch[name].dataType, NullType):
            values[name] = lit(None)
        elif batch[name].metadata.get(PARTLY_VOID):
            told = StructType.fromJson(json.loads(batch[name].metadata[PARTLY_VOID]))[0].dataType
            if not _fits_but_for_void(told, field.dataType):
                raise _wrong_type(name, told, field.dataType)
            values[name] = _fill_voids(col(quote(name)), told, field.dataType)
        elif not _fits(found, field.dataType):
            raise _wrong_type(name, found, field.dataType)
        elif isinstance(found, FloatType) and found != field.dataType:
            values[name] = cast_as_shown(col(quote(name)), found, field.dataType)
    return list(expected.fields), values


def _fill_voids(value: "Column", found: "DataType", expected: "DataType") -> "Column":
    """A value with NULLs of the expected types for those of void types."""
    from pyspark.sql import types as spark
    from pyspark.sql.functions import lit, struct, transform, transform_values, when

    match found, expected:
        case spark.NullType(), _:
            return lit(None).cast(expected)
        case spark.ArrayType(), spark.ArrayType():
            return transform(value, lambda each: _fill_voids(each, found.elementType, expected.elementType))
        case spark.MapType(), spark.MapType():
            return transform_values(
                value, lambda _, each: _fill_voids(each, found.valueType, expected.valueType)
            )
        case spark.StructType(), spark.StructType():
            pairs = zip(found, expected, strict=True)
            parts = [_fill_voids(value[f.name], f.dataType, e.dataType).alias(e.name) for f, e in pairs]
            return when(value.isNotNull(), struct(*parts))
    return cast_as_shown(value, found, expected)


def _fits_but_for_void(found: "DataType", expected: "DataType") -> bool:
    """Whether every value of the one type is one of the other, where it has a type."""
    from pyspark.sql import types as spark

    match found, expected:
        case spark.NullType(), _:
            return True
        case spark.ArrayType(), spark.ArrayType():
            return _fits_but_for_void(found.elementType, expected.elementType)
        case spark.MapType(), spark.MapType():
            values = _fits_but_for_void(found.valueType, expected.valueType)
            return values and bool(found.keyType == expected.keyType)
        case spark.StructType(), spark.StructType():
            pairs = [(f.dataType, e.dataType) for f, e in zip(found, expected, strict=False)]
            return found.names == expected.names and all(_fits_but_for_void(*pair) for pair in pairs)
    return _fits(found, expected)


def _fits(found: "DataType", expected: "DataType") -> bool:
    """Whether every value of the one type is one of the other."""
    return fits(column_type(found), column_type(expected))


def _wrong_type(name: str, found: "DataType", expected: "DataType") -> Refused:
    told = f"expected {expected.simpleString()}, but found {found.simpleString()}"
    remedy = "Cast it in preprocess, or fix the source."
    return _incompatible(f"The column {name} has the wrong type: {told}.", remedy, [name])


def _incompatible(message: str, remedy: str, keys: Sequence[str]) -> Refused:
    return Refused("incompatible-schema", message, remedy, keys)


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


def batch_columns(dataset: Dataset, source: DatasetSource, output: pa.Schema | None) -> Columns | None:
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


def typed_columns(dataset: Dataset, source: DatasetSource) -> dict[str, pa.Field]:
    """The columns of a source without a read schema that the dataset's own gives types to (decision O25).

    Only data columns, and an event time that is a day: other system columns in it say what the table has. A
    column with the name of one of these is stored with a leading `_` (D32). After preprocess the query says
    the types. A NULL is no matter of types: what is required is counted in the whole batch (B52a).
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
        inner, _ = unwrap_option(type_of(field))
    except Refused:
        return False
    return isinstance(inner, EVENT_TIMES)


def _optional(schema: DataSchema | None) -> frozenset[str]:
    return (
        frozenset(each.name for each in schema.fields_ if isinstance(each.type, Option))
        if schema
        else frozenset()
    )
