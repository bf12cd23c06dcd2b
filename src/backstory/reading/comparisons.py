"""What of the differences between two times is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from backstory.errors import UsageError, option
from backstory.model.table import TableName
from backstory.reading.differences import BETWEEN
from backstory.reading.selection import Selection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Change = Literal["added", "changed", "removed", "returned", "reverted", "passed"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The columns that are compared, none for all; the one kind of change that is shown, None for all.

    `through` looks at all that happened between the times, and not at the two ends alone.
    """

    columns: Sequence[str] = ()
    change: Change | None = None
    through: bool = False

    @classmethod
    def of(
        cls, columns: str | Sequence[str] | None, change: Change | None, *, through: bool, axis: str
    ) -> "Comparison":
        """What a caller asks for; UsageError for what is no change, or none of this comparison."""
        if change is not None and change not in get_args(Change):
            words = ", ".join(get_args(Change))
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
        return Selection(columns=self.columns).chosen(table, key, names)

    def chosen(self, found: "DataFrame") -> "DataFrame":
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
        sides = {side: values_of(told, side) for side in ("before", "after")}
        found |= {side: values for side, values in sides.items() if values is not None}
    return found


def values_of(told: Mapping[str, Any], side: str) -> dict[str, Any] | None:
    """The values of a record beside its key, before or after; None where it was not there."""
    row = told[side]
    return None if row is None else {name: row[name] for name in row if name not in told["key"]}
