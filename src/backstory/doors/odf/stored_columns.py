"""The data columns that a dataset stores, and a check of a batch against them (section 2.8)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import FloatType, NullType, StructField, StructType

from backstory.doors.odf.data_types import (
    arrow_schema,
    data_schema_of,
)
from backstory.doors.odf.manifest.data_schema import (
    DataSchema,
)
from backstory.doors.odf.registry import KnownDataset
from backstory.engine.staging import PARTLY_VOID
from backstory.errors import Refused
from backstory.model.types import fits
from backstory.stores.iceberg.literals import cast_as_shown, quote
from backstory.stores.iceberg.schema import column_type
from backstory.stores.port import TableLike

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField


ADD = "Add it to setDataSchema, or to the read schema, as an optional column and run `backstory add`."


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
    if document is None:
        return None
    schema = arrow_schema(DataSchema.model_validate(document))
    dated = pa.types.is_date(schema.field(time).type) if time in schema.names else None
    data = pa.schema([field for field in schema if field.name not in system])
    # Tables have no required fields within lists and structs.
    fields = [storable(field) for field in from_arrow_schema(data)]
    return ExpectedColumns(fields, tuple(field.name for field in data if not field.nullable), dated)


def expected_columns(dataset: KnownDataset[TableLike]) -> ExpectedColumns | None:
    """The columns that a batch of a dataset must have.

    They are None before the first rows, unless the manifest sets them.
    """
    columns = dataset.columns
    expected = expected_of(dataset.schema, columns.system, columns.time)
    dated = dataset.is_dated
    return expected if expected is None or dated is None else replace(expected, dated=dated)


def document_of(
    fields: "Sequence[StructField]", declared: DataSchema | None, time: str, *, dated: bool
) -> dict[str, Any]:
    """The DataSchema document of a dataset's first rows, with declared types if there are any."""
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
    return StructField(field.name, _storable(field.dataType, field.name), True)


def _storable(type_: "DataType", name: str) -> "DataType":  # noqa: PLR0911 - a branch for each type

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
    """The dataset's columns, and expressions for the batch's columns that need a conversion.

    Columns are matched by name, in any order. Raises Refused for a new, a missing or a retyped column.
    """
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
            values[name] = sf.lit(None)
        elif batch[name].metadata.get(PARTLY_VOID):
            partly_void = StructType.fromJson(json.loads(batch[name].metadata[PARTLY_VOID]))[0].dataType
            if not _fits_but_for_void(partly_void, field.dataType):
                raise _wrong_type(name, partly_void, field.dataType)
            values[name] = _fill_voids(sf.col(quote(name)), partly_void, field.dataType)
        elif not _fits(actual, field.dataType):
            raise _wrong_type(name, actual, field.dataType)
        elif isinstance(actual, FloatType) and actual != field.dataType:
            values[name] = cast_as_shown(sf.col(quote(name)), actual, field.dataType)
    return list(expected.fields), values


def _fill_voids(value: "Column", actual: "DataType", expected: "DataType") -> "Column":
    """The value, with parts of void type replaced by NULLs of the expected types."""
    match actual, expected:
        case spark.NullType(), _:
            return sf.lit(None).cast(expected)
        case spark.ArrayType(), spark.ArrayType():
            return sf.transform(
                value, lambda item: _fill_voids(item, actual.elementType, expected.elementType)
            )
        case spark.MapType(), spark.MapType():
            return sf.transform_values(
                value, lambda _, item: _fill_voids(item, actual.valueType, expected.valueType)
            )
        case spark.StructType(), spark.StructType():
            pairs = zip(actual, expected, strict=True)
            parts = [_fill_voids(value[f.name], f.dataType, e.dataType).alias(e.name) for f, e in pairs]
            return sf.when(value.isNotNull(), sf.struct(*parts))
    return cast_as_shown(value, actual, expected)


def _fits_but_for_void(actual: "DataType", expected: "DataType") -> bool:
    """Whether every value of the first type fits into the second type. Parts of void type always fit."""
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
