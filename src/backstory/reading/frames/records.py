"""The rows of one record, by its key as people write it."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from backstory.errors import UsageError
from backstory.model.schema import Shape
from backstory.reading.frames.statements import require_key
from backstory.stores.iceberg.literals import column, literal
from backstory.stores.iceberg.store import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def key_of(shape: Shape, key: object) -> dict[str, object]:
    """A value, or a mapping of a key of several columns, by the table's names; UsageError if it is no key."""
    given = key if isinstance(key, Mapping) else dict.fromkeys(shape.source_key[:1], key)
    require_key(shape, given)
    names = dict(zip(shape.source_key, shape.key, strict=True))
    return {names[source]: value for source, value in given.items()}


def is_record(store: Store, key: Mapping[str, object], types: "Mapping[str, DataType]") -> "Column":
    """Whether a row is of the record, never NULL; UsageError for a value that no key of its type is."""
    from pyspark.sql.functions import coalesce, lit

    given = [literal(value).try_cast(types[name]) for name, value in key.items()]
    (read,) = store.spark.sql("VALUES (1)").select(*given).collect()
    for (name, value), found in zip(key.items(), read, strict=True):
        if found is None:
            kind = types[name].simpleString()
            raise UsageError("other-key", f"{name} is of type {kind}, and {value!r} is none.", "Give one.")
    equal = (column(name) == literal(value).cast(types[name]) for name, value in key.items())
    return coalesce(reduce(and_, equal), lit(False))


def sortable(rows: "DataFrame", first: Sequence[str]) -> "list[Column]":
    """These columns and then all others by which Spark can sort the rows of a frame."""
    names = [*first, *(name for name in rows.columns if name not in first)]
    return [column(name) for name in names if "map<" not in rows.schema[name].dataType.simpleString()]
