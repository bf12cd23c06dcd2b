"""Which record, and which of its columns, an answer tells of.

A record's key as people write it: one meaning in every command that takes one, and never another record's.

A text or a value of Python is read as the one value of its column's type that it names, or it is refused:
a cast that rounds, cuts off or fills in would name a record that nobody meant.

What of the differences between two times is asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from backstory.errors import UsageError, option
from backstory.formats.values.named import Unnamed, named_value
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.model.table import Shape, TableName
from backstory.model.types import TEXT_KINDS, ColumnType
from backstory.reading.differences import BETWEEN
from backstory.reading.lives import STATED_FROM, STATED_TO, shown_name

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
        name: exact_value(source, wanted[source], types[name])
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
        raise UsageError("other-key", told, _key_remedy(shape, key))


def _refuse_other_name(shape: Shape, given: str, type_: ColumnType) -> None:
    """Raise UsageError for `name=value` of another column; only a text may have an `=` in it."""
    name, equals, value = given.partition("=")
    if equals and type_.kind not in TEXT_KINDS:
        require_key(shape, {name: value})


def _key_remedy(shape: Shape, key: Mapping[str, object]) -> str:
    """The remedy for a key of other columns: the same values by the right names."""
    if len(shape.source_key) == len(key) == 1:
        (value,) = key.values()
        return f"Write {shape.source_key[0]}={value}, or {value} alone."
    return f"Write {' '.join(f'{name}=VALUE' for name in shape.source_key)}."


def exact_value(name: str, given: object, type_: ColumnType) -> Any:
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


_AXES: Final = {VALID_FROM, VALID_TO, STATED_FROM, STATED_TO}


@dataclass(frozen=True, slots=True)
class Selection:
    """The key of one record, None for all; and the columns that are told beside the key, none for all."""

    key: object = None
    columns: Sequence[str] = ()

    @classmethod
    def of(cls, key: object, columns: str | Sequence[str] | None) -> "Selection":
        """What a caller names: one column, or several."""
        return cls(key, [columns] if isinstance(columns, str) else list(columns or ()))

    def require(self, shape: Shape) -> None:
        """Raise UsageError, before anything is read, for what is no key or no column of the table."""
        if self.key is not None:
            shown_key_of(shape, self.key)
        users = [name for each in shape.user_columns for name in (each.source, shown_name(each.source))]
        self.select(shape.table, (), [*dict.fromkeys(users), *_AXES])

    def select(self, table: TableName, key: Sequence[str], names: Sequence[str]) -> list[str]:
        """Those of the names that stay: the key's, those that were chosen, and the times.

        Raises UsageError for a column that is not there.
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


if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ChangeKind = Literal["added", "changed", "removed", "returned", "reverted", "passed"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The columns that are compared, none for all; the one kind of change that is shown, None for all.

    `through` looks at all that happened between the times, and not at the two ends alone.
    """

    columns: Sequence[str] = ()
    change: ChangeKind | None = None
    through: bool = False

    @classmethod
    def of(
        cls, columns: str | Sequence[str] | None, change: ChangeKind | None, *, through: bool, axis: str
    ) -> "Comparison":
        """What a caller asks for; UsageError for what is no change, or none of this comparison."""
        if change is not None and change not in get_args(ChangeKind):
            words = ", ".join(get_args(ChangeKind))
            raise UsageError(
                "bad-option",
                f"There is no kind of change {change!r}.",
                f"Use one of {words} for `change=`.",
            )
        if through and axis != "valid":
            raise UsageError(
                "bad-option",
                f"{option('through', value=True)} needs {option('axis', 'valid')}.",
                f"Omit {option('axis', axis)}.",
            )
        if change in BETWEEN and not through:
            raise UsageError(
                "bad-option",
                f"{option('change', change)} needs {option('through', value=True)}.",
                f"Add {option('through', value=True)}, or choose another kind of change.",
            )
        return cls(Selection.of(None, columns).columns, change, through)

    def names(self, table: TableName, key: Sequence[str], names: Sequence[str]) -> list[str]:
        """The columns that are compared; UsageError for one that is not there, and where nothing is a key."""
        if self.through and not key:
            raise UsageError(
                "no-key",
                f"{table} has no key, so its records cannot be followed between the two times.",
                f"Omit {option('through', value=True)} to compare only the two times.",
            )
        return Selection(columns=self.columns).select(table, key, names)

    def filter_kind(self, found: "DataFrame") -> "DataFrame":
        """Those of the differences that are asked for."""
        from pyspark.sql.functions import col

        return found if self.change is None else found.where(col("change") == self.change)


ENDS: Final = Comparison()


def require_times(axis: str, known_at: object, at: object) -> None:
    """Raise UsageError for an axis that is none, or a time that is of the other one."""
    valid, recorded = option("axis", "valid"), option("axis", "recorded")
    if axis not in {"valid", "recorded"}:
        raise UsageError(
            "bad-option", f"`axis=` must be valid or recorded, not {axis!r}.", f"Use {valid} or {recorded}."
        )
    if (known_at if axis == "recorded" else at) is not None:
        raise UsageError(
            "bad-option",
            f"`known_at=` belongs to {valid}, and `at=` to {recorded}.",
            "Use the one that belongs to the axis.",
        )


def as_object(told: Mapping[str, Any], *, whole: bool = False) -> dict[str, Any]:
    """A difference in the words of the contract; only a changed record has columns."""
    found = {"key": told["key"], "change": told["change"]}
    if "away" in told:
        found["away"] = told["away"]
    if told["change"] == "changed":
        found["columns"] = {name: [told["before"][name], told["after"][name]] for name in told["changed"]}
    elif whole:
        sides = {side: side_values(told, side) for side in ("before", "after")}
        found |= {side: values for side, values in sides.items() if values is not None}
    return found


def side_values(told: Mapping[str, Any], side: str) -> dict[str, Any] | None:
    """The values of a record beside its key, before or after; None where it was not there."""
    row = told[side]
    return None if row is None else {name: row[name] for name in row if name not in told["key"]}
