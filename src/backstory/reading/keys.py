"""A record's key as people write it: one meaning in every command that takes one, and never another record's.

A text or a value of Python is read as the one value of its column's type that it names, or it is refused:
a cast that rounds, cuts off or fills in would name a record that nobody meant.
"""

from collections.abc import Mapping
from typing import Any, Final

from backstory.errors import UsageError
from backstory.formats.values.named import Unnamed, named_value
from backstory.model.schema import Shape
from backstory.model.types import TEXT_KINDS, ColumnType
from backstory.reading.lives import shown_name

# The remedy where no record can be named.
_WITHOUT: Final = "Use `current` without a key."


def key_of(shape: Shape, given: object) -> dict[str, Any]:
    """The key that a value, or a mapping of a key of several columns, names; by the table's own names.

    Raises UsageError (`other-key`) for a key of other columns, and for what no key of its type is.
    """
    wanted = given if isinstance(given, Mapping) else dict.fromkeys(shape.source_key[:1], given)
    require_key(shape, wanted)
    types = {each.name: each.type for each in shape.columns}
    if isinstance(given, str):
        _refuse_other_name(shape, given, types[shape.key[0]])
    return {
        name: exact(source, wanted[source], types[name])
        for source, name in zip(shape.source_key, shape.key, strict=True)
    }


def shown_key_of(shape: Shape, given: object) -> dict[str, Any]:
    """The same by the names that readers show; UsageError also for a key that they do not show."""
    users = {each.name: shown_name(each.source) for each in shape.user_columns}
    if hidden := [name for name in shape.key if name not in users]:
        raise UsageError(
            "no-key",
            f"The key of {shape.table} contains {hidden[0]}, which readers do not show.",
            _WITHOUT,
        )
    return {users[name]: value for name, value in key_of(shape, given).items()}


def require_key(shape: Shape, key: Mapping[str, object]) -> None:
    """Raise UsageError for a key of other columns than the table's."""
    if not shape.key:
        raise UsageError("no-key", f"{shape.table} has no key.", _WITHOUT)
    if set(key) != set(shape.source_key):
        unknown = [name for name in key if name not in shape.source_key]
        lacking = [name for name in shape.source_key if name not in key]
        listed = ", ".join(shape.source_key)
        if unknown:
            told = f"{shape.table} has no key column {unknown[0]}; the key is {listed}."
        else:
            told = f"The key of {shape.table} is {listed}; {lacking[0]} is not given."
        raise UsageError("other-key", told, _as_written(shape, key))


def _refuse_other_name(shape: Shape, given: str, type_: ColumnType) -> None:
    """Raise UsageError for `name=value` of another column; only a text may have an `=` in it."""
    name, equals, value = given.partition("=")
    if equals and type_.kind not in TEXT_KINDS:
        require_key(shape, {name: value})


def _as_written(shape: Shape, key: Mapping[str, object]) -> str:
    """The remedy for a key of other columns: the same values by the right names."""
    if len(shape.source_key) == len(key) == 1:
        (value,) = key.values()
        return f"Write {shape.source_key[0]}={value}, or {value} alone."
    return f"Write {' '.join(f'{name}=VALUE' for name in shape.source_key)}."


def exact(name: str, given: object, type_: ColumnType) -> Any:
    """The value of a key's column that is given; UsageError (`other-key`) for what is none of its type."""
    try:
        return named_value(given, type_)
    except Unnamed as told:
        raise UsageError(
            "other-key",
            f"{given!r} is not {_article(type_)} {type_}, the type of column {name}.",
            told.remedy,
        ) from None


def _article(type_: ColumnType) -> str:
    return "an" if str(type_)[0] in "AEIOaeio" else "a"
