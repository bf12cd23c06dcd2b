"""Tables of event logs: rows are added and never change; columns of any type that Spark knows."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from backstory.errors import Refused
from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.stores.iceberg.commit import Note, discarding, finish
from backstory.stores.iceberg.create import PROPERTIES, ensure_schema, location_of
from backstory.stores.iceberg.data_files import write_frame
from backstory.stores.iceberg.faults import translated
from backstory.stores.iceberg.literals import quoted
from backstory.stores.iceberg.schema import fields_of, refuse_names
from backstory.stores.iceberg.store import KEY, LAYOUT, Store, StoredTable, settle

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType


def create_log(
    store: Store, table: TableName, columns: "StructType", key: Sequence[str], properties: Mapping[str, str]
) -> None:
    """Create an empty log with these columns; nothing sorts its rows but the order that they come in."""
    refuse_names(store.jvm, columns.names)
    own = {
        **PROPERTIES,
        LAYOUT: Layout.ODF.value,
        KEY: json.dumps(list(key), ensure_ascii=False),
        "format-version": str(store.format_version),
        # Rows lie in the order of their offsets, and are read by ranges of them.
        "write.parquet.row-group-size-bytes": str(16 << 20),
        **properties,
    }
    with translated(table):
        ensure_schema(store, table.schema)
        building = store.iceberg().buildTable(store.identifier(table), _iceberg(store, columns))
        for name, value in own.items():
            building = building.withProperty(name, value)
        location = location_of(store, table)
        (building.withLocation(location) if location else building).create()


def stage_log(
    store: Store,
    table: StoredTable,
    columns: "StructType | None",
    properties: Mapping[str, str],
    *,
    renamed: Mapping[str, str] | None = None,
    anew: bool = False,
) -> Any:
    """A transaction that gives a log the columns that it lacks, and properties; nothing is committed yet.

    A column of another type takes the place of the stored one, which only an empty log allows: Refused
    for any other. Columns of the log that are not named stay as they are, unless an empty log gets all
    of them `anew`.
    """
    transaction = table.begin()
    if properties:
        update = transaction.updateProperties()
        for name, value in properties.items():
            update.set(name, value)
        update.commit()
    if renamed:
        renaming = transaction.updateSchema()
        for old, new in renamed.items():
            renaming.renameColumn(old, new)
        renaming.commit()
    if columns is not None:
        refuse_names(store.jvm, columns.names)
        known = spark_schema(store, transaction.table().schema())
        if table.rows:
            _refuse_retyped(known, columns)
        if anew and not table.rows:
            _replace_columns(store, transaction, known, columns)
        else:
            _add_columns(store, transaction, known, columns)
    return transaction


def append(
    store: Store, table: StoredTable, rows: "DataFrame | None", note: Callable[[], Note], *, staged: Any
) -> int:
    """Add rows, or none, in one commit with what is staged; the snapshot's id.

    `note` is asked when the rows are written, and may tell what was seen on the way. Raises TryAgain if
    another writer came first.
    """
    with translated(table.shape.table), discarding(table) as written:
        adding = staged.newAppend()
        if rows is not None:
            pending = StoredTable(table.shape, staged.table())
            names = [field["name"] for field in fields_of(store.jvm, pending.iceberg.schema())]
            missing = [name for name in names if name not in rows.columns]
            rows = rows.withColumns({name: _nothing() for name in missing}) if missing else rows
            written.extend(write_frame(store, pending, rows.select(*map(quoted, names))))
            for file in written:
                adding.appendFile(file)
        told = note()
    return finish(table.shape.table, staged, adding, told, written)


def _nothing() -> "Column":
    from pyspark.sql.functions import lit

    return lit(None)


def _refuse_retyped(known: "StructType", columns: "StructType") -> None:
    """Rows never change: no column of a log that has any makes way for another of its name."""
    types = {field.name: field.dataType for field in known}
    retyped = [
        each.name for each in columns if each.name in types and types[each.name] != _nullable(each.dataType)
    ]
    if retyped:
        raise Refused(
            "incompatible-schema",
            f"The column {retyped[0]} of the log is of type {types[retyped[0]].simpleString()}.",
            "Nothing was written; bring values of that type.",
            retyped,
        )


def _replace_columns(store: Store, transaction: Any, known: "StructType", columns: "StructType") -> None:
    update, new = transaction.updateSchema(), _iceberg(store, columns)
    for name in known.names:
        update.deleteColumn(name)
    for field in new.asStruct().fields():
        update.addColumn(None, field.name(), field.type(), field.doc())
    update.commit()


def _add_columns(store: Store, transaction: Any, known: "StructType", columns: "StructType") -> None:
    types = {field.name: field.dataType for field in known}
    wanted = {field.name: _nullable(field.dataType) for field in columns}
    if all(types.get(name) == type_ for name, type_ in wanted.items()):
        return
    update, previous = transaction.updateSchema(), None
    new = _iceberg(store, columns)
    for field in columns:
        if types.get(field.name) != wanted[field.name]:
            if field.name in types:
                update.deleteColumn(field.name)
            found = new.asStruct().field(field.name)
            update.addColumn(None, field.name, found.type(), found.doc())
            if field.name in types and previous is not None:
                update.moveAfter(field.name, previous)
        previous = field.name
    update.commit()


def settle_log(table: TableName, transaction: Any) -> None:
    """Commit a transaction that adds no rows and makes no snapshot."""
    with translated(table):
        settle(transaction)


def spark_schema(store: Store, schema: Any) -> "StructType":
    """An Iceberg schema as Spark has it, comments included."""
    from pyspark.sql.types import StructType

    convert = store.jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert
    return StructType.fromJson(json.loads(convert(schema).json()))


def _iceberg(store: Store, columns: "StructType") -> Any:
    """Spark's columns as an Iceberg schema of optional columns."""
    from pyspark.sql.types import StructType

    optional = StructType([_optional(field) for field in columns])
    parsed = store.spark._jsparkSession.parseDataType(optional.json())  # noqa: SLF001
    return store.jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(parsed)


def _optional(field: Any) -> Any:
    from pyspark.sql.types import StructField

    return StructField(field.name, _nullable(field.dataType), True, field.metadata)


def _nullable(type_: "DataType") -> "DataType":
    """The type with NULL allowed everywhere, but in the keys of maps."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(type_, StructType):
        return StructType([_optional(field) for field in type_])
    if isinstance(type_, ArrayType):
        return ArrayType(_nullable(type_.elementType), True)
    if isinstance(type_, MapType):
        return MapType(_nullable(type_.keyType), _nullable(type_.valueType), True)
    return type_
