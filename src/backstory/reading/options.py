"""The options of reading, for Python calls and for the commands."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, Literal, Self, TypedDict, Unpack, get_args

from backstory.errors import UsageError, bad_option, option
from backstory.model.change_feed import CommitName, Start
from backstory.model.instant import optional_instant
from backstory.model.table import TableName
from backstory.reading.differences import BETWEEN
from backstory.reading.selection import Selection
from backstory.reading.timelines import Axis

ChangeKind = Literal["added", "changed", "removed", "returned", "reverted", "passed"]

# Whether the two times of a comparison are valid time or recorded time.
ComparedAxis = Literal["valid", "recorded"]


class KnownOptions(TypedDict, total=False):
    """The options of calls that return versions.

    Attributes:
        columns: Show only these columns, with the key and the times.
        known_at: Use the data that the table contained at this time.
    """

    columns: str | Sequence[str] | None
    known_at: str | date | None


class ReadOptions(KnownOptions, total=False):
    """The options of `current` and `as_of`.

    Attributes:
        key: Show only the record with this key: its value, or a mapping for a composite key.
    """

    key: object


class TimelineOptions(KnownOptions, total=False):
    """The options of `timeline`.

    Attributes:
        axis: Show when the record was true (valid), or also when that was known (both).
        svg: Also write the drawing to this file.
    """

    axis: Axis
    svg: str | Path | None


class DiffOptions(TypedDict, total=False):
    """The options of `diff`.

    Attributes:
        known_at: Use the data that the table contained at this time.
        axis: Whether the times are valid time or recorded time.
        at: The valid time to compare, with `axis='recorded'`. Default: now.
        columns: Compare only these columns.
        change: Show only records of this kind: added, changed or removed. With `through=True` also returned,
            reverted or passed.
        through: Also show records that changed between the times but are the same at both.
    """

    known_at: str | date | None
    axis: ComparedAxis
    at: str | date | None
    columns: str | Sequence[str] | None
    change: ChangeKind | None
    through: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of valid times as known at `known_at`, or of recorded times for the valid time `at`.

    It has the columns to compare, empty for all, and the kind of change to show, None for all kinds.
    `through` also compares everything that happened between the two times.
    """

    columns: Sequence[str] = ()
    change: ChangeKind | None = None
    through: bool = False
    axis: ComparedAxis = "valid"
    known_at: datetime | None = None
    at: datetime | None = None

    @classmethod
    def of(cls, **options: Unpack[DiffOptions]) -> Self:
        """The comparison with these options; UsageError for options that do not go together."""
        axis, known_at, at = options.get("axis", "valid"), options.get("known_at"), options.get("at")
        change, through = options.get("change"), options.get("through", False)
        valid, recorded = option("axis", "valid"), option("axis", "recorded")
        if axis not in get_args(ComparedAxis):
            raise bad_option(
                f"`axis=` must be valid or recorded, not {axis!r}.", f"Use {valid} or {recorded}."
            )
        if (known_at if axis == "recorded" else at) is not None:
            raise bad_option(
                f"`known_at=` belongs to {valid}, and `at=` to {recorded}.",
                "Use the one that belongs to the axis.",
            )
        if change is not None and change not in get_args(ChangeKind):
            words = ", ".join(get_args(ChangeKind))
            raise bad_option(f"There is no kind of change {change!r}.", f"Use one of {words} for `change=`.")
        of_passages = option("through", value=True)
        if through and axis != "valid":
            raise bad_option(f"{of_passages} needs {valid}.", f"Omit {option('axis', axis)}.")
        if change in BETWEEN and not through:
            raise bad_option(
                f"{option('change', change)} needs {of_passages}.",
                f"Add {of_passages}, or choose another kind of change.",
            )
        columns = Selection.of(None, options.get("columns")).columns
        return cls(columns, change, through, axis, optional_instant(known_at), optional_instant(at))

    @property
    def time(self) -> datetime:
        """The valid time for which knowledge is compared."""
        return self.at or datetime.now(UTC)

    @property
    def is_plain(self) -> bool:
        """Whether the times are valid time as known now."""
        return self.axis == "valid" and self.known_at is None

    def names(self, table: TableName, key: Sequence[str], names: Sequence[str]) -> list[str]:
        """The compared columns; UsageError for a missing column, and for `through` without a key."""
        if self.through and not key:
            raise UsageError(
                "no-key",
                f"{table} has no key, so its records cannot be followed between the two times.",
                f"Omit {option('through', value=True)} to compare only the two times.",
            )
        return Selection(columns=self.columns).select(table, key, names)


ENDS: Final = Comparison()


class ChangesOptions(TypedDict, total=False):
    """The options of `changes`.

    Attributes:
        since: Commit after which to begin, or its recorded time. Default: before the first commit.
        until: Last commit to show, or its recorded time. Default: the newest.
        net: Show the difference between the two ends, not each commit.
        current: Show only current rows (live rows, open versions), without technical columns.
        cursor: Begin at the cursor of this name; a new one begins before the first commit.
        start: The commit at which a new or lost cursor begins: the first one, or the newest one (now).
    """

    since: CommitName | None
    until: CommitName | None
    net: bool
    current: bool
    cursor: str | None
    start: Start | None


class CursorOptions(ChangesOptions, total=False):
    """The options of `changes` that only concern a cursor.

    Attributes:
        advance: Move the cursor to the commit of this version; show nothing.
        drop: Remove the cursor; show nothing.
    """

    advance: int | None
    drop: bool


class ExportOptions(TypedDict, total=False):
    """The options of `export`.

    Attributes:
        axis: Write when rows were true (valid), or also when that was known (both).
        overwrite: Replace an existing file.
    """

    axis: Axis
    overwrite: bool
