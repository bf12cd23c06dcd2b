"""The selected record and columns of an answer, as callers name them.

A key is read exactly, in the same way by every command: its value names one value of the column's type, or
it is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from backstory.errors import UsageError
from backstory.formats.values.named import Unnamed, named_value
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.model.table import Shape, TableName
from backstory.model.types import TEXT_KINDS, ColumnType
from backstory.reading.lifetimes import STATED_FROM, STATED_TO
from backstory.reading.timelines import shown_name

# The remedy where no record can be named.
_WITHOUT: Final = "Use `current` without a key."


def key_of(shape: Shape, key: object) -> dict[str, Any]:
    """The values of a key by the table's own column names.

    `key` is a value, or a mapping if the key has several columns. Raises UsageError (`other-key`) for other
    columns, and for a value that does not exactly fit the type of its column.
    """
    values = key if isinstance(key, Mapping) else dict.fromkeys(shape.source_key[:1], key)
    require_key(shape, values)
    types = {each.name: each.type for each in shape.columns}
    if isinstance(key, str):
        _refuse_other_name(shape, key, types[shape.key[0]])
    return {
        name: exact_value(source, values[source], types[name])
        for source, name in zip(shape.source_key, shape.key, strict=True)
    }


def shown_key_of(shape: Shape, key: object) -> dict[str, Any]:
    """The values of a key by the names that readers show; UsageError (`no-key`) if they do not show it."""
    users = {each.name: shown_name(each.source) for each in shape.user_columns}
    if hidden := [name for name in shape.key if name not in users]:
        raise UsageError(
            "no-key",
            f"The key of {shape.table} contains {hidden[0]}, which readers do not show.",
            _WITHOUT,
        )
    return {users[name]: value for name, value in key_of(shape, key).items()}


def require_key(shape: Shape, key: Mapping[str, object]) -> None:
    """Raise UsageError if the columns of a key are not the columns of the table's key."""
    if not shape.key:
        raise UsageError("no-key", f"{shape.table} has no key.", _WITHOUT)
    if set(key) != set(shape.source_key):
        unknown = [name for name in key if name not in shape.source_key]
        lacking = [name for name in shape.source_key if name not in key]
        listed = ", ".join(shape.source_key)
        if unknown:
            message = f"{shape.table} has no key column {unknown[0]}; the key is {listed}."
        else:
            message = f"The key of {shape.table} is {listed}; {lacking[0]} is not given."
        raise UsageError("other-key", message, _key_remedy(shape, key))


def _refuse_other_name(shape: Shape, key: str, type_: ColumnType) -> None:
    """Raise UsageError for `name=value` with another column's name; only text keys may contain an `=`."""
    name, equals, value = key.partition("=")
    if equals and type_.kind not in TEXT_KINDS:
        require_key(shape, {name: value})


def _key_remedy(shape: Shape, key: Mapping[str, object]) -> str:
    """The remedy for a key of other columns: the same values by the right names."""
    if len(shape.source_key) == len(key) == 1:
        (value,) = key.values()
        return f"Write {shape.source_key[0]}={value}, or only {value}."
    return f"Write {' '.join(f'{name}=VALUE' for name in shape.source_key)}."


def exact_value(name: str, value: object, type_: ColumnType) -> Any:
    """Read a value as exactly one value of a column's type, or raise UsageError (`other-key`).

    A cast that rounds, truncates or pads would name another record.
    """
    try:
        return named_value(value, type_)
    except Unnamed as error:
        raise UsageError(
            "other-key",
            f"{value!r} is not {_article(type_)} {type_}, the type of column {name}.",
            error.remedy,
        ) from None


def _article(type_: ColumnType) -> str:
    return "an" if str(type_)[0] in "AEIOaeio" else "a"


_AXES: Final = {VALID_FROM, VALID_TO, STATED_FROM, STATED_TO}


@dataclass(frozen=True, slots=True)
class Selection:
    """The key of one record, None for all records; the columns to show besides the key, empty for all."""

    key: object = None
    columns: Sequence[str] = ()

    @classmethod
    def of(cls, key: object, columns: str | Sequence[str] | None) -> "Selection":
        """A selection by a key, and by one column or several."""
        return cls(key, [columns] if isinstance(columns, str) else list(columns or ()))

    def require(self, shape: Shape) -> None:
        """Raise UsageError, before anything is read, if key or columns are not the table's."""
        if self.key is not None:
            shown_key_of(shape, self.key)
        users = [name for each in shape.user_columns for name in (each.source, shown_name(each.source))]
        self.select(shape.table, (), [*dict.fromkeys(users), *_AXES])

    def select(self, table: TableName, key: Sequence[str], names: Sequence[str]) -> list[str]:
        """The selected names: the key's, the chosen columns, and the times.

        Raises UsageError for a missing column.
        """
        if not self.columns:
            return list(names)
        if missing := [name for name in self.columns if name not in names]:
            raise UsageError(
                "unknown-column",
                f"{table} has no column {missing[0]}.",
                f"Its columns are {', '.join(name for name in names if name not in _AXES)}.",
            )
        return [name for name in names if name in {*key, *self.columns, *_AXES}]


EVERYTHING: Final = Selection()


def as_object(difference: Mapping[str, Any], *, whole: bool = False) -> dict[str, Any]:
    """A difference as JSON: `key`, `change`, and `columns` for changed records.

    `whole` adds the values of the other records, `before` and `after`.
    """
    shown = {"key": difference["key"], "change": difference["change"]}
    if "away" in difference:
        shown["away"] = difference["away"]
    before, after = difference["before"], difference["after"]
    if difference["change"] == "changed":
        shown["columns"] = {name: [before[name], after[name]] for name in difference["changed"]}
    elif whole:
        sides = {side: side_values(difference, side) for side in ("before", "after")}
        shown |= {side: values for side, values in sides.items() if values is not None}
    return shown


def side_values(difference: Mapping[str, Any], side: str) -> dict[str, Any] | None:
    """The values of a record, without its key, before or after; None if it did not exist then."""
    row = difference[side]
    return None if row is None else {name: row[name] for name in row if name not in difference["key"]}
