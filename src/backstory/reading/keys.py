"""A record's key as people write it: one meaning in every command that takes one, and never another record's.

A text or a value of Python is read as the one value of its column's type that it names, or it is refused:
a cast that rounds, cuts off or fills in would name a record that nobody meant.
"""

from collections.abc import Mapping
from typing import Any

from backstory.errors import UsageError
from backstory.formats.values.named import Unnamed, named_value
from backstory.model.schema import Shape
from backstory.model.types import ColumnType
from backstory.reading.lives import shown_name
from backstory.stores.iceberg.schema import spark_type


def key_of(shape: Shape, given: object) -> dict[str, Any]:
    """The key that a value, or a mapping of a key of several columns, names; by the table's own names.

    Raises UsageError (`other-key`) for a key of other columns, and for what no key of its type is.
    """
    wanted = given if isinstance(given, Mapping) else dict.fromkeys(shape.source_key[:1], given)
    require_key(shape, wanted)
    types = {each.name: each.type for each in shape.columns}
    listed = ", ".join(shape.source_key)
    return {
        name: exact(f"The key of {shape.table} is ({listed})", source, wanted[source], types[name])
        for source, name in zip(shape.source_key, shape.key, strict=True)
    }


def shown_key_of(shape: Shape, given: object) -> dict[str, Any]:
    """The same by the names that readers show; UsageError also for a key that they do not show."""
    users = {each.name: shown_name(each.source) for each in shape.user_columns}
    if hidden := [name for name in shape.key if name not in users]:
        raise UsageError(
            "no-key",
            f"Records of {shape.table} are told apart by {hidden[0]}, which readers do not show.",
            "Ask for all rows.",
        )
    return {users[name]: value for name, value in key_of(shape, given).items()}


def require_key(shape: Shape, key: Mapping[str, object]) -> None:
    """Raise UsageError for a key of other columns than the table's."""
    if not shape.key:
        raise UsageError("no-key", f"{shape.table} has no key.", "Ask for all rows.")
    if set(key) != set(shape.source_key):
        raise UsageError(
            "other-key",
            f"The key of {shape.table} is ({', '.join(shape.source_key)}).",
            "Give a value for each of its columns.",
        )


def exact(key: str, name: str, given: object, type_: ColumnType) -> Any:
    """The value of a key's column that is given; UsageError (`other-key`) for what is none of its type.

    `key` says what the key is, for the error.
    """
    try:
        return named_value(given, type_)
    except Unnamed as told:
        raise UsageError(
            "other-key",
            f"{key}: {name} is of type {spark_type(type_)}, and {given!r} is none.",
            told.remedy,
        ) from None
