"""Column types as Iceberg types, and back.

Iceberg has fewer types than sources: SHORT, JSON, XML and NAIVE_TIME are wider or text there. The
column's comment keeps the source's type; it counts as long as it fits the stored type.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from backstory.errors import Refused
from backstory.model.column import HISTORY_COLUMNS, SYNCED, Column, ColumnType, Kind
from backstory.model.table import Layout

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
# Columns that show the layout of a table which does not tell it.
_BLOCK = {"sequence_number", "prev_block_hash", "system_time", "event_kind", "event_json", "block_hash"}
_RUN = {"load_run_id", "attempt_no", "status"}
_LOADED = {"row_hash", "load_run_id", "loaded_at"}
_VERSION = {"version_started_at", "version_ended_at", "version_state"}


def iceberg_name(type_: ColumnType) -> str:
    """The name of the Iceberg type, such as `timestamptz` or `decimal(38, 10)`."""
    if type_.kind is Kind.DECIMAL:
        return f"decimal({type_.precision}, {type_.scale})"
    return _ICEBERG.get(type_.kind, "string")


def spark_type(type_: ColumnType) -> str:
    """The name that Spark has for the same type, such as `bigint`."""
    name = iceberg_name(type_)
    return {"long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}.get(name, name)


def iceberg_type(jvm: Any, type_: ColumnType) -> Any:
    """Iceberg's object for the type."""
    return jvm.org.apache.iceberg.types.Types.fromPrimitiveString(iceberg_name(type_))


def iceberg_schema(jvm: Any, columns: Sequence[Column]) -> Any:
    """A schema of optional columns, numbered from 1.

    Columns stay nullable, key columns too: one that leaves the key later holds NULL (section 2.5).
    Raises Refused for a name that Iceberg keeps for itself, an empty or a repeated one.
    """
    refuse_names(jvm, [column.name for column in columns])
    fields = jvm.java.util.ArrayList()
    optional = jvm.org.apache.iceberg.types.Types.NestedField.optional
    for number, column in enumerate(columns, start=1):
        fields.add(optional(number, column.name, iceberg_type(jvm, column.type), str(column.type)))
    return jvm.org.apache.iceberg.Schema(fields)


def stored_names(jvm: Any, sources: Iterable[str], known: Iterable[Column] = ()) -> dict[str, str]:
    """The names that a table has for a source's columns, those of the `known` columns included (F21).

    A name that Iceberg keeps for itself gets an underscore behind, one more while that is taken; any
    other is stored as it is unless such a one took it.
    """
    names = {column.source: column.name for column in known}
    reserved = jvm.org.apache.iceberg.MetadataColumns.isMetadataColumn
    kept = {source: bool(reserved(source)) for source in sources if source not in names}
    for source in sorted(kept, key=kept.__getitem__):
        name = f"{source}_" if kept[source] else source
        while name in names.values():
            name += "_"
        names[source] = name
    return names


def refuse_names(jvm: Any, names: Sequence[str]) -> None:
    """Raises Refused for column names that no table can have."""
    reserved = jvm.org.apache.iceberg.MetadataColumns.isMetadataColumn
    for name in names:
        if not name or reserved(name):
            raise Refused(
                "reserved-column",
                f"A column cannot be named {name!r}: Iceberg keeps the name for itself.",
                "Rename the column at its source or leave it out.",
            )
    if len(set(names)) < len(names):
        raise Refused("repeated-column", "Two columns have one name.", "Name each column once.")


def fields_of(jvm: Any, schema: Any) -> list[dict[str, Any]]:
    """The fields of an Iceberg schema as its JSON has them: one call, however many there are."""
    fields: list[dict[str, Any]] = json.loads(jvm.org.apache.iceberg.SchemaParser.toJson(schema))["fields"]
    return fields


def columns_of(jvm: Any, schema: Any, called: Mapping[str, str]) -> tuple[Column, ...]:
    """The columns of an Iceberg schema, in its order; `called` are the source's names where they differ."""
    return tuple(
        Column(field["name"], _column_type(field["type"], field.get("doc")), called.get(field["name"], ""))
        for field in fields_of(jvm, schema)
    )


def _column_type(stored: Any, comment: str | None) -> ColumnType:
    if not isinstance(stored, str):
        return ColumnType(Kind.STRING, foreign=stored["type"])
    try:
        told = ColumnType.parse(comment or "")
        if iceberg_name(told) == stored:
            return told
    except ValueError:
        pass
    decimal = re.fullmatch(r"decimal\((\d+), ?(\d+)\)", stored)
    if decimal:
        return ColumnType.decimal(int(decimal.group(1)), int(decimal.group(2)))
    if stored in _KINDS:
        return ColumnType(_KINDS[stored])
    return ColumnType(Kind.STRING, foreign="" if stored == "string" else stored)


def layout_of(told: str | None, table: str, columns: Sequence[Column]) -> Layout:
    """The layout that a table tells, or that its columns show where it tells none.

    Bases and logs once called themselves `fivetran-live`. What Fivetran brings has `_fivetran_synced`.
    """
    if told and told != Layout.FIVETRAN_LIVE:
        return Layout(told)
    names = {column.name for column in columns}
    if not told and names.issuperset(HISTORY_COLUMNS):
        return Layout.FIVETRAN_HISTORY
    hashed = {f"{table}_key", "row_hash"}
    # An earlier base that was renamed may have its key under the old name still.
    renamed = told and names.issuperset(_LOADED) and any(name.endswith("_key") for name in names)
    shown = {
        Layout.ODF_LOG: names == _BLOCK,
        Layout.RUN_LOG: names.issuperset(_RUN),
        Layout.HIST: names.issuperset((_LOADED if renamed else hashed) | _VERSION),
        Layout.BASE: bool(renamed) or names.issuperset(hashed),
    }
    found = next((layout for layout, shows in shown.items() if shows), Layout.FIVETRAN_LIVE)
    return Layout.FIVETRAN_LIVE if SYNCED in names else found
