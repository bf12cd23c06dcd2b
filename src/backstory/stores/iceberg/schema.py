"""Column types as Iceberg types, and back.

Iceberg has fewer types than sources: SHORT, JSON, XML and NAIVE_TIME are wider or text there. The
column's comment keeps the source's type; it counts as long as it fits the stored type.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final, TypeVar

from backstory.model.table import Column, TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.iceberg.jvm import is_reserved, schema_json, schema_of
from backstory.stores.port import refuse_names
from backstory.stores.refusals import property_garbled

# What Parquet files name the id of a column by.
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

Names = TypeVar("Names", list[str], dict[str, str])


def iceberg_name(type_: ColumnType) -> str:
    """The name of the flat Iceberg type, such as `timestamptz` or `decimal(38, 10)`."""
    if type_.kind is Kind.DECIMAL:
        return f"decimal({type_.precision}, {type_.scale})"
    return _ICEBERG.get(type_.kind, "string")


def spark_type(type_: ColumnType) -> str:
    """The name that Spark has for the same type, such as `bigint`."""
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
    """Iceberg's object for the type."""
    schema = iceberg_schema(jvm, [Column("value", type_)])
    return schema.findType("value")


def iceberg_schema(jvm: Any, columns: Sequence[Column]) -> Any:
    """A schema of optional columns, numbered from 1.

    Columns stay nullable, key columns too: one that leaves the key later holds NULL (section 2.5).
    Raises Refused for a name that Iceberg keeps for itself, an empty or a repeated one.
    """
    refuse_names(is_reserved(jvm), [column.name for column in columns])
    numbers = count(1)
    fields = [_json_field(column.name, column.type, numbers) | {"doc": column.doc} for column in columns]
    told = json.dumps({"type": "struct", "schema-id": 0, "fields": fields})
    return schema_of(jvm, told)


def _json_field(name: str, type_: ColumnType, numbers: Iterator[int]) -> dict[str, Any]:
    return {"id": next(numbers), "name": name, "required": False, "type": _json_type(type_, numbers)}


def _json_type(type_: ColumnType, numbers: Iterator[int]) -> Any:
    """The type as the JSON of a schema has it; everything within it is optional but the keys of maps."""
    if type_.kind is Kind.STRUCT:
        fields = [_json_field(name, part, numbers) for name, part in type_.parts]
        return {"type": "struct", "fields": fields}
    if type_.kind is Kind.LIST:
        ((_, part),) = type_.parts
        told = {"type": "list", "element-id": next(numbers), "element-required": False}
        return told | {"element": _json_type(part, numbers)}
    if type_.kind is Kind.MAP:
        (_, key), (_, value) = type_.parts
        told = {"type": "map", "key-id": next(numbers), "value-id": next(numbers), "value-required": False}
        return told | {"key": _json_type(key, numbers), "value": _json_type(value, numbers)}
    return iceberg_name(type_)


def fields_of(jvm: Any, schema: Any) -> list[dict[str, Any]]:
    """The fields of an Iceberg schema as its JSON has them: one call, however many there are."""
    fields: list[dict[str, Any]] = json.loads(schema_json(jvm, schema))["fields"]
    return fields


def columns_of(jvm: Any, schema: Any, called: Mapping[str, str]) -> tuple[Column, ...]:
    """The columns of an Iceberg schema, in its order; `called` are the source's names where they differ."""
    return columns_of_fields(fields_of(jvm, schema), called)


def columns_of_fields(fields: Sequence[Mapping[str, Any]], called: Mapping[str, str]) -> tuple[Column, ...]:
    """The columns of the fields of a schema's JSON, in their order."""
    return tuple(
        Column(field["name"], _column_type(field["type"], field.get("doc")), called.get(field["name"], ""))
        for field in fields
    )


def _column_type(stored: Any, comment: str | None) -> ColumnType:
    """The type of a field of an Iceberg schema's JSON; its comment counts where it fits what is stored."""
    if not isinstance(stored, str):
        return _nested_type(stored)
    try:
        told = ColumnType.parse(comment or "")
        if iceberg_name(told) == stored:
            return told
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
    """The names of columns that a property holds as JSON; Failed if it holds something else."""
    try:
        names = json.loads(properties[name]) if properties.get(name) else empty
    except ValueError:
        names = None
    if not isinstance(names, type(empty)) or not all(isinstance(each, str) for each in names):
        raise property_garbled(table, name)
    return names
