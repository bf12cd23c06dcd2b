"""The rows of one record."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from backstory.model.schema import Shape
from backstory.reading.keys import shown_key_of
from backstory.stores.iceberg.literals import column, literal

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def is_record(key: Mapping[str, Any], types: "Mapping[str, DataType]") -> "Column":
    """Whether a row is of the record with these values, as `key_of` reads them; never NULL."""
    from pyspark.sql.functions import coalesce, lit

    return coalesce(_equal(key, types), lit(False))


def _equal(key: Mapping[str, Any], types: "Mapping[str, DataType]") -> "Column":
    """The same, NULL where a row has no value: so Iceberg knows which files cannot hold the record."""
    return reduce(and_, (column(name) == literal(value).cast(types[name]) for name, value in key.items()))


def of_record(rows: "DataFrame", shape: Shape, key: object) -> "DataFrame":
    """The rows, as readers show them, of one record; UsageError for what is no key of the table."""
    wanted = shown_key_of(shape, key)
    return rows.where(_equal(wanted, {name: rows.schema[name].dataType for name in wanted}))


def sortable(rows: "DataFrame", first: Sequence[str]) -> "list[Column]":
    """These columns and then all others by which Spark can sort the rows of a frame."""
    names = [*first, *(name for name in rows.columns if name not in first)]
    return [column(name) for name in names if "map<" not in rows.schema[name].dataType.simpleString()]
