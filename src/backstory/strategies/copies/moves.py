"""How stored versions end, are taken back or begin: the layout's own columns of their rows (V6 to V8)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from backstory.model.layout import IS_CURRENT, MEMORY, RECORDED_AT, VALID_FROM, VALID_TO
from backstory.model.remembered import COLUMNS, END_BEFORE, ENDED_AT, KIND, ROLE, Role, Told
from backstory.model.schema import Column as SourceColumn
from backstory.model.types import ColumnType
from backstory.stores.iceberg.literals import quoted
from backstory.stores.iceberg.schema import spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column


def moved(
    row: str, end: "Column", recorded: "Column", memory: ColumnType, role: Role | None = None
) -> "dict[str, Column]":
    """The own columns of a version whose end moves; with a role it is taken back (V7, V8)."""
    from pyspark.sql.functions import coalesce, lit

    told = {ENDED_AT: recorded, END_BEFORE: of(row, VALID_TO)}
    if role is not None:
        told[ROLE] = lit(role.value)
    return {
        VALID_TO: end,
        IS_CURRENT: end.isNull(),
        RECORDED_AT: coalesce(_remembered(row, ENDED_AT), of(row, RECORDED_AT)),
        MEMORY: _memory(row, memory, told),
    }


def left_behind(row: str, memory: ColumnType) -> "dict[str, Column]":
    """The own columns of the statement that a second move of an end would forget (V7)."""
    from pyspark.sql.functions import lit

    return {
        VALID_TO: of(row, VALID_FROM),
        IS_CURRENT: lit(False),
        MEMORY: _memory(row, memory, {ROLE: lit(Role.PAST.value)}),
    }


def moves_again(row: str) -> "Column":
    """Whether the version's end was moved before."""
    return _remembered(row, ENDED_AT).isNotNull()


def begun(start: "Column", end: "Column", recorded: "Column") -> "dict[str, Column]":
    """The own columns of a version that begins."""
    from pyspark.sql.functions import lit

    return {
        VALID_FROM: start,
        VALID_TO: end,
        IS_CURRENT: end.isNull(),
        RECORDED_AT: recorded,
        MEMORY: lit(None),
    }


def mark(
    instant: "Column", recorded: "Column", memory: ColumnType, columns: Sequence[int] | None
) -> "dict[str, Column]":
    """The own columns of the row that remembers a copy; `columns` are field ids, None for all (V31)."""
    from pyspark.sql.functions import array, lit

    told = {ROLE: lit(Role.FACT.value), KIND: lit(Told.COPY.value)}
    if columns is not None:
        told[COLUMNS] = array(*map(lit, columns))
    return {
        VALID_FROM: instant,
        VALID_TO: instant,
        IS_CURRENT: lit(False),
        RECORDED_AT: recorded,
        MEMORY: _struct({name: told.get(name, lit(None)) for name, _ in memory.parts}, memory),
    }


def forgotten(row: str, recorded: "Column", memory: ColumnType) -> "dict[str, Column]":
    """The own columns of a remembered fact that is taken back (V8)."""
    return {MEMORY: _memory(row, memory, {ENDED_AT: recorded})}


def of(row: str, name: str) -> "Column":
    """A column of a struct, which is given as Spark's name of it."""
    from pyspark.sql.functions import col

    return col(f"{row}.{quoted(name)}")


def row_of(
    columns: Sequence[SourceColumn], own: "Mapping[str, Column]", rest: "Mapping[str, Column]"
) -> "list[Column]":
    """A table's columns in their order and types: the `own`, else those of the `rest`, else NULL."""
    from pyspark.sql.functions import lit

    found = {**rest, **own}
    return [found.get(each.name, lit(None)).cast(spark_type(each.type)).alias(each.name) for each in columns]


def _remembered(row: str, name: str) -> "Column":
    from pyspark.sql.functions import col

    return col(f"{row}.{quoted(MEMORY)}.{quoted(name)}")


def _memory(row: str, memory: ColumnType, told: "Mapping[str, Column]") -> "Column":
    """What the row remembers, with some of it told anew; fields that feeds add are kept."""
    fields = {name: told[name] if name in told else _remembered(row, name) for name, _ in memory.parts}
    return _struct(fields, memory)


def _struct(fields: "Mapping[str, Column]", memory: ColumnType) -> "Column":
    from pyspark.sql.functions import struct

    parts = ((name, fields[name].cast(spark_type(type_))) for name, type_ in memory.parts)
    return struct(*(value.alias(name) for name, value in parts))
