"""Types and schemas of columns in Iceberg and Spark, and conversions in both directions.

Iceberg has fewer types than sources. SHORT is stored in a wider type, and JSON, XML and NAIVE_TIME as
strings. A column's comment contains the source's type, which is valid as long as it fits the stored type.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar

from backstory.model.layout import layout_of
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.iceberg.jvm import schema_of
from backstory.stores.port import property_garbled, refuse_names

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

# The key of a column's id in a Parquet file's metadata.
FIELD_ID: Final = b"PARQUET:field_id"
_ICEBERG = {
    Kind.BOOLEAN: "boolean",
    Kind.SHORT: "int",
    Kind.INT: "int",
    Kind.LONG: "long",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.NAIVE_DATE: "date",
    Kind.NAIVE_DATETIME: "timestamp",
    Kind.UTC_DATETIME: "timestamptz",
    Kind.BINARY: "binary",
}
_KINDS = {name: kind for kind, name in _ICEBERG.items() if kind is not Kind.SHORT}
# Properties of a table: its layout, its key, and the source's names of columns.
LAYOUT, KEY, SOURCE_NAMES = "backstory.layout", "backstory.key", "backstory.source-names"
LAYOUT_VERSION: Final = "backstory.layout-version"

Names = TypeVar("Names", list[str], dict[str, str])


def iceberg_name(type_: ColumnType) -> str:
    """The name of the flat Iceberg type, such as `timestamptz` or `decimal(38, 10)`."""
    if type_.kind is Kind.DECIMAL:
        return f"decimal({type_.precision}, {type_.scale})"
    return _ICEBERG.get(type_.kind, "string")


def spark_type(type_: ColumnType) -> str:
    """The name of the type in Spark SQL, such as `bigint`."""
    parts = [spark_type(part) for _, part in type_.parts]
    if type_.kind is Kind.LIST:
        return f"array<{parts[0]}>"
    if type_.kind is Kind.MAP:
        return f"map<{parts[0]},{parts[1]}>"
    if type_.kind is Kind.STRUCT:
        names = ("`" + name.replace("`", "``") + "`" for name, _ in type_.parts)
        return f"struct<{','.join(map(':'.join, zip(names, parts, strict=True)))}>"
    name = iceberg_name(type_)
    return {"long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}.get(name, name)


def iceberg_type(jvm: Any, type_: ColumnType) -> Any:
    """The Iceberg object for the type."""
    schema = iceberg_schema(jvm, [Column("value", type_)])
    return schema.findType("value")


def iceberg_schema(jvm: Any, columns: Sequence[Column]) -> Any:
    """A schema of optional columns with ids from 1.

    Key columns are nullable too, because a column that later leaves the key may be NULL (section 2.5). Raises
    Refused for a name that is empty or repeated, or that Iceberg reserves.
    """
    refuse_names([column.name for column in columns])
    return schema_of(jvm, json.dumps(json_schema(columns)))


def json_schema(columns: Sequence[Column]) -> dict[str, Any]:
    """The JSON form of a schema of optional columns with ids from 1."""
    numbers = count(1)
    fields = [_json_field(column.name, column.type, numbers) | {"doc": column.doc} for column in columns]
    return {"type": "struct", "schema-id": 0, "fields": fields}


def _json_field(name: str, type_: ColumnType, numbers: Iterator[int]) -> dict[str, Any]:
    return {"id": next(numbers), "name": name, "required": False, "type": _json_type(type_, numbers)}


def _json_type(type_: ColumnType, numbers: Iterator[int]) -> Any:
    """The type in the JSON form of a schema. Its parts are optional, except the keys of maps."""
    if type_.kind is Kind.STRUCT:
        fields = [_json_field(name, part, numbers) for name, part in type_.parts]
        return {"type": "struct", "fields": fields}
    if type_.kind is Kind.LIST:
        ((_, part),) = type_.parts
        list_type = {"type": "list", "element-id": next(numbers), "element-required": False}
        return list_type | {"element": _json_type(part, numbers)}
    if type_.kind is Kind.MAP:
        (_, key), (_, value) = type_.parts
        ids = {"key-id": next(numbers), "value-id": next(numbers)}
        map_type = {"type": "map", **ids, "value-required": False}
        return map_type | {"key": _json_type(key, numbers), "value": _json_type(value, numbers)}
    return iceberg_name(type_)


def names_by_id(fields: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """The names of fields by their ids."""
    return {field["id"]: field["name"] for field in fields}


def shape_of(table: TableName, fields: Sequence[Mapping[str, Any]], properties: Mapping[str, str]) -> Shape:
    """The shape of a table with these fields and properties. For a foreign table, it is inferred."""
    columns = columns_of_fields(fields, names_of_property(table, properties, SOURCE_NAMES, {}))
    key = tuple(names_of_property(table, properties, KEY, []))
    names = frozenset(column.name for column in columns)
    return Shape(table, columns, key, layout_of(properties.get(LAYOUT), table.name, names))


def columns_of_fields(fields: Sequence[Mapping[str, Any]], called: Mapping[str, str]) -> tuple[Column, ...]:
    """The columns for the fields in a schema's JSON, in order. `called` maps names to other source names."""
    return tuple(
        Column(field["name"], _column_type(field["type"], field.get("doc")), called.get(field["name"], ""))
        for field in fields
    )


def _column_type(stored: Any, comment: str | None) -> ColumnType:
    """The type of a field in a schema's JSON: the type in its comment, if that fits the stored type."""
    if not isinstance(stored, str):
        return _nested_type(stored)
    try:
        source_type = ColumnType.parse(comment or "")
        if iceberg_name(source_type) == stored:
            return source_type
    except ValueError:
        pass
    decimal = re.fullmatch(r"decimal\((\d+), ?(\d+)\)", stored)
    if decimal:
        return ColumnType(Kind.DECIMAL, int(decimal.group(1)), int(decimal.group(2)))
    if stored in _KINDS:
        return ColumnType(_KINDS[stored])
    return ColumnType(Kind.STRING, foreign="" if stored == "string" else stored)


def _nested_type(stored: Mapping[str, Any]) -> ColumnType:
    if stored["type"] == "list":
        return ColumnType(Kind.LIST, parts=(("element", _column_type(stored["element"], None)),))
    if stored["type"] == "map":
        key, value = _column_type(stored["key"], None), _column_type(stored["value"], None)
        return ColumnType(Kind.MAP, parts=(("key", key), ("value", value)))
    fields = ((field["name"], _column_type(field["type"], field.get("doc"))) for field in stored["fields"])
    return ColumnType(Kind.STRUCT, parts=tuple(fields))


def names_of_property(table: TableName, properties: Mapping[str, str], name: str, empty: Names) -> Names:
    """The column names that a property stores as JSON. Raises Failed for any other content."""
    try:
        names = json.loads(properties[name]) if properties.get(name) else empty
    except ValueError:
        names = None
    if not isinstance(names, type(empty)) or not all(isinstance(text, str) for text in names):
        raise property_garbled(table, name)
    return names


_SPARK_KINDS: Final = {
    "boolean": Kind.BOOLEAN,
    # Iceberg has no smaller integers.
    "tinyint": Kind.INT,
    "smallint": Kind.INT,
    "int": Kind.INT,
    "bigint": Kind.LONG,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "date": Kind.NAIVE_DATE,
    "timestamp": Kind.UTC_DATETIME,
    "timestamp_ntz": Kind.NAIVE_DATETIME,
    "binary": Kind.BINARY,
}


def columns_from(fields: "StructType") -> tuple[Column, ...]:
    """The columns of a Spark schema, with their comments."""
    return tuple(
        Column(field.name, column_type(field.dataType), comment=field.metadata.get("comment", ""))
        for field in fields
    )


def column_type(type_: "DataType") -> ColumnType:
    """The column type for a Spark type. The type's parts are nullable, except keys of maps."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if isinstance(type_, StructType):
        return ColumnType(Kind.STRUCT, parts=tuple((part.name, column_type(part.dataType)) for part in type_))
    if isinstance(type_, ArrayType):
        return ColumnType(Kind.LIST, parts=(("element", column_type(type_.elementType)),))
    if isinstance(type_, MapType):
        key, value = column_type(type_.keyType), column_type(type_.valueType)
        return ColumnType(Kind.MAP, parts=(("key", key), ("value", value)))
    if isinstance(type_, DecimalType):
        return ColumnType(Kind.DECIMAL, type_.precision, type_.scale)
    return ColumnType(_SPARK_KINDS.get(type_.simpleString(), Kind.STRING))


def spark_name(stored: Any) -> str:
    """Spark's `simpleString` for a type in the JSON form of a schema."""
    if isinstance(stored, str):
        type_ = _column_type(stored, None)
        other = type_.foreign.partition("[")[0]
        return _IN_SPARK.get(other, other) or spark_type(type_).replace(" ", "")
    if stored["type"] == "list":
        return f"array<{spark_name(stored['element'])}>"
    if stored["type"] == "map":
        return f"map<{spark_name(stored['key'])},{spark_name(stored['value'])}>"
    fields = (f"{field['name']}:{spark_name(field['type'])}" for field in stored["fields"])
    return f"struct<{','.join(fields)}>"


def spark_schema(fields: Sequence[Mapping[str, Any]]) -> "StructType":
    """The fields of an Iceberg schema as Spark's, with comments."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(_spark_json({"type": "struct", "fields": fields}))


def _spark_json(stored: Any) -> Any:
    """The JSON form of Spark's type for a type in the JSON form of a schema."""
    if isinstance(stored, str):
        plain = stored.replace(", ", ",").partition("[")[0]
        return _IN_SPARK.get(plain, plain)
    match stored["type"]:
        case "list":
            has_nulls = not stored["element-required"]
            return {
                "type": "array",
                "elementType": _spark_json(stored["element"]),
                "containsNull": has_nulls,
            }
        case "map":
            types = {"keyType": _spark_json(stored["key"]), "valueType": _spark_json(stored["value"])}
            return {"type": "map", **types, "valueContainsNull": not stored["value-required"]}
        case _:
            fields = [
                {
                    "name": field["name"],
                    "type": _spark_json(field["type"]),
                    "nullable": not field["required"],
                    "metadata": {"comment": field["doc"]} if "doc" in field else {},
                }
                for field in stored["fields"]
            ]
            return {"type": "struct", "fields": fields}


# Names of types in Iceberg's JSON that have another name in Spark's.
_IN_SPARK: Final = {
    "int": "integer",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "uuid": "string",
    "fixed": "binary",
    "unknown": "void",
}
