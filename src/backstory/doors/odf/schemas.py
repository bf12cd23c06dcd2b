"""The columns that a dataset has, and whether those of a batch are the same (section 2.8)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backstory.doors.odf.data_types import arrow_schema, data_schema_of
from backstory.doors.odf.manifest.data_schema import DataSchema
from backstory.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField

ADD = "Add it to setDataSchema, or to the read schema, as an optional column and run `backstory add`."


@dataclass(frozen=True, slots=True)
class Expected:
    """A dataset's data columns in their order, the required ones, and whether event times are days."""

    fields: "Sequence[StructField]"
    required: tuple[str, ...] = ()
    dated: bool | None = None


def expected_of(document: Mapping[str, Any] | None, system: Sequence[str], time: str) -> Expected | None:
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
    return Expected(fields, tuple(field.name for field in own if not field.nullable), dated)


def document_of(
    fields: "Sequence[StructField]", declared: DataSchema | None, time: str, *, dated: bool
) -> dict[str, Any]:
    """The DataSchema document of a dataset's first rows: as declared, where something was."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    told = {field.name: field for field in arrow_schema(declared)} if declared else {}
    made = [told.get(f.name) or pa.field(f.name, to_arrow_type(f.dataType)) for f in fields]
    when = pa.field(time, pa.date32() if dated else pa.timestamp("us", "UTC"))
    return data_schema_of(pa.schema([when, *made]))


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
        case spark.DayTimeIntervalType() | spark.YearMonthIntervalType() | spark.CalendarIntervalType():
            raise Refused(
                "bad-input-schema",
                f"The column {name} is of type {type_.simpleString()}, which tables cannot hold.",
                "Make a number or a text of it in preprocess.",
                [name],
            )
    return type_


def conformed(
    batch: "Mapping[str, StructField]", expected: Expected
) -> "tuple[list[StructField], dict[str, Column]]":
    """The dataset's columns, and for those that the batch has in a lesser form how it becomes theirs.

    Columns are matched by name, in any order. Raises Refused for a new, a missing and a retyped column.
    """
    from pyspark.sql.functions import lit
    from pyspark.sql.types import NullType

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
        elif not _fits(found, field.dataType):
            told = f"{field.dataType.simpleString()} is expected, {found.simpleString()} was found"
            raise _incompatible(
                f"The column {name} has another type: {told}.",
                "Cast it in preprocess, or mend the source.",
                [name],
            )
    return list(expected.fields), values


def _fits(found: "DataType", expected: "DataType") -> bool:
    """Whether every value of the one type is one of the other."""
    from pyspark.sql import types as spark

    whole: list[type] = [spark.IntegerType, spark.LongType]
    if type(found) in whole and type(expected) in whole:
        return whole.index(type(found)) <= whole.index(type(expected))
    if isinstance(found, spark.FloatType) and isinstance(expected, spark.DoubleType):
        return True
    if isinstance(found, spark.DecimalType) and isinstance(expected, spark.DecimalType):
        digits = expected.precision - expected.scale
        return found.scale <= expected.scale and found.precision - found.scale <= digits
    return bool(found.simpleString() == expected.simpleString())


def _incompatible(message: str, remedy: str, keys: Sequence[str]) -> Refused:
    return Refused("incompatible-schema", message, remedy, keys)
