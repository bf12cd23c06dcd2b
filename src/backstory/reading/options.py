"""The options for reading, the selected record, and the selected columns, in Python calls and commands.

Every command reads a key in the same way, and exactly. A key is refused unless it is exactly one value of the
column's type.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, get_args

from attrs import field, frozen

from backstory.errors import UsageError, bad_option, option
from backstory.formats.values.named import Unnamed, named_value
from backstory.model.change import CommitName, Start
from backstory.model.instant import instant_of, optional_instant
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.model.table import Shape, TableName
from backstory.model.types import TEXT_KINDS, ColumnType
from backstory.reading.lifetimes import BETWEEN, STATED_FROM, STATED_TO
from backstory.reading.timelines import Axis, require_axis, shown_name

# The remedy if no record can be named.
_WITHOUT: Final = "Use `current` without a key."


def key_of(shape: Shape, key: object) -> dict[str, Any]:
    """The values of a key by the table's own column names.

    `key` is a value, or a mapping if the key has several columns. Raises UsageError (`other-key`) for other
    columns, and for a value that does not exactly fit the type of its column.
    """
    values = key if isinstance(key, Mapping) else dict.fromkeys(shape.source_key[:1], key)
    require_key(shape, values)
    types = {each.name: each.type for each in shape.columns}
    if isinstance(key, str) and "=" in key and types[shape.key[0]].kind not in TEXT_KINDS:
        name, _, value = key.partition("=")
        require_key(shape, {name: value})
    return {
        name: exact_value(source, values[source], types[name])
        for source, name in zip(shape.source_key, shape.key, strict=True)
    }


def shown_key_of(shape: Shape, key: object) -> dict[str, Any]:
    """The values of a key by the names that readers show.

    Raises UsageError (`no-key`) if readers do not show the key.
    """
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
        remedy = f"Write {' '.join(f'{name}=VALUE' for name in shape.source_key)}."
        if len(shape.source_key) == len(key) == 1:
            (value,) = key.values()
            remedy = f"Write {shape.source_key[0]}={value}, or only {value}."
        raise UsageError("other-key", message, remedy)


def exact_value(name: str, value: object, type_: ColumnType) -> Any:
    """Read a value as exactly one value of a column's type, or raise UsageError (`other-key`).

    A cast that rounds, truncates or pads would name another record.
    """
    try:
        return named_value(value, type_)
    except Unnamed as error:
        article = "an" if str(type_)[0] in "AEIOaeio" else "a"
        message = f"{value!r} is not {article} {type_}, the type of column {name}."
        raise UsageError("other-key", message, error.remedy) from None


_AXES: Final = {VALID_FROM, VALID_TO, STATED_FROM, STATED_TO}


def select_columns(
    columns: Sequence[str], table: TableName, key: Sequence[str], names: Iterable[str]
) -> list[str]:
    """The names of the key, of the chosen `columns` (by default, of all), and of the times.

    Raises UsageError for a missing column.
    """
    names = list(names)
    if missing := [name for name in columns if name not in names]:
        raise UsageError(
            "unknown-column",
            f"{table} has no column {missing[0]}.",
            f"Its columns are {', '.join(name for name in names if name not in _AXES)}.",
        )
    return [name for name in names if name in {*key, *columns, *_AXES}] if columns else names


def as_object(difference: Mapping[str, Any], *, whole: bool = False) -> dict[str, Any]:
    """A difference as JSON: `key`, `change`, and `columns` for changed records.

    `whole` adds the values `before` and `after` for added and removed records.
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
    """The values of a record without its key, before or after, or None if it did not exist then."""
    row = difference[side]
    return None if row is None else {name: row[name] for name in row if name not in difference["key"]}


ChangeKind = Literal["added", "changed", "removed", "returned", "reverted", "passed"]

# Whether the two times of a comparison are valid time or recorded time.
ComparedAxis = Literal["valid", "recorded"]


def _columns(value: str | Sequence[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _file(value: str | Path) -> Path:
    return Path(value)


@frozen(kw_only=True)
class KnownRequest:
    """The options of calls that return versions.

    Attributes:
        columns: Show only these columns, with the key and the times.
        known_at: Use the data that the table contained at this time.
    """

    columns: tuple[str, ...] = field(default=None, converter=_columns)
    known_at: datetime | None = field(default=None, converter=optional_instant)


@frozen(kw_only=True)
class ReadRequest(KnownRequest):
    """The options of `current` and `as_of`.

    Attributes:
        key: Show only the record with this key. A composite key is a mapping.
    """

    key: object = None


EVERYTHING: Final = ReadRequest()


@frozen(kw_only=True)
class AsOfRequest(ReadRequest):
    """The time and the options of `as_of`."""

    time: datetime = field(converter=instant_of, kw_only=False)


@frozen(kw_only=True)
class TimelineRequest(KnownRequest):
    """The key and the options of `timeline`.

    Attributes:
        axis: Show when the values were true (valid), or also when they were known (both).
        svg: Also write the drawing to this file.
    """

    key: object = field(kw_only=False)
    axis: Axis = "valid"
    svg: str | Path | None = None

    def __attrs_post_init__(self) -> None:
        require_axis(self.axis, self.known_at)


# The record and the columns of an answer.
Selection = ReadRequest | TimelineRequest


@frozen(kw_only=True)
class Comparison:
    """The options of `diff`. Raises UsageError for options that exclude each other.

    Attributes:
        known_at: Use the data that the table contained at this time.
        axis: Whether the times are valid time or recorded time.
        at: The valid time to compare, with `axis='recorded'`. Default: now.
        columns: Compare only these columns.
        change: Show only records of this kind: added, changed or removed. With `through=True` also returned,
            reverted or passed.
        through: Also show records that changed between the times but are the same at both.
    """

    known_at: datetime | None = field(default=None, converter=optional_instant)
    axis: ComparedAxis = "valid"
    at: datetime | None = field(default=None, converter=optional_instant)
    columns: tuple[str, ...] = field(default=None, converter=_columns)
    change: ChangeKind | None = None
    through: bool = False

    def __attrs_post_init__(self) -> None:
        valid, recorded = option("axis", "valid"), option("axis", "recorded")
        if self.axis not in get_args(ComparedAxis):
            raise bad_option(
                f"`axis=` must be valid or recorded, not {self.axis!r}.", f"Use {valid} or {recorded}."
            )
        if (self.known_at if self.axis == "recorded" else self.at) is not None:
            raise bad_option(
                f"`known_at=` belongs to {valid}, and `at=` to {recorded}.",
                "Use the one that belongs to the axis.",
            )
        if self.change is not None and self.change not in get_args(ChangeKind):
            words = ", ".join(get_args(ChangeKind))
            raise bad_option(
                f"There is no kind of change {self.change!r}.", f"Use one of {words} for `change=`."
            )
        of_passages = option("through", value=True)
        if self.through and self.axis != "valid":
            raise bad_option(f"{of_passages} needs {valid}.", f"Omit {option('axis', self.axis)}.")
        if self.change in BETWEEN and not self.through:
            raise bad_option(
                f"{option('change', self.change)} needs {of_passages}.",
                f"Add {of_passages}, or choose another kind of change.",
            )

    @property
    def time(self) -> datetime:
        """The valid time for which recorded states are compared."""
        return self.at or datetime.now(UTC)

    @property
    def is_plain(self) -> bool:
        """Whether the times are valid time as known now."""
        return self.axis == "valid" and self.known_at is None

    def names(self, table: TableName, key: Sequence[str], names: Sequence[str]) -> list[str]:
        """The compared columns. Raises UsageError for a missing column, and for `through` without a key."""
        if self.through and not key:
            raise UsageError(
                "no-key",
                f"{table} has no key, so its records cannot be followed between the two times.",
                f"Omit {option('through', value=True)} to compare only the two times.",
            )
        return select_columns(self.columns, table, key, names)


ENDS: Final = Comparison()


@frozen(kw_only=True)
class DiffRequest(Comparison):
    """The two times and the options of `diff`."""

    first: datetime = field(converter=instant_of, kw_only=False)
    second: datetime = field(converter=instant_of, kw_only=False)


@frozen(kw_only=True)
class ChangesRequest:
    """The options of `changes`.

    Attributes:
        since: Commit after which to begin, or its time. Default: before the first commit.
        until: Last commit to show, or its time. Default: the newest.
        net: Show the difference between the two ends, not each commit.
        current: Show only current rows (live rows, open versions), without technical columns.
        cursor: Begin at the cursor with this name; a new cursor begins before the first commit.
        start: The commit at which a new or lost cursor begins: the first one, or the newest one (now).
    """

    since: CommitName | None = None
    until: CommitName | None = None
    net: bool = False
    current: bool = False
    cursor: str | None = None
    start: Start | None = None


@frozen(kw_only=True)
class CursorRequest(ChangesRequest):
    """The options of `changes` that only concern a cursor.

    Attributes:
        advance: Move the cursor to the commit with this version; show nothing.
        drop: Remove the cursor; show nothing.
    """

    advance: int | None = None
    drop: bool = False


@frozen(kw_only=True)
class ExportRequest:
    """The file of an export and its options. Raises UsageError if the file cannot be written.

    Attributes:
        axis: Write when rows were true (valid), or also when that was known (both).
        overwrite: Replace an existing file.
    """

    file: Path = field(converter=_file, kw_only=False)
    axis: Axis = "valid"
    overwrite: bool = False

    def __attrs_post_init__(self) -> None:
        require_axis(self.axis)
        if self.file.suffix.lower() not in {".csv", ".parquet"}:
            raise bad_option(
                f"{self.file} ends in neither .csv nor .parquet.",
                "Name a file that ends in .csv or .parquet.",
            )
        folder = self.file.absolute().parent
        if not folder.is_dir():
            raise UsageError("no-file", f"There is no folder {folder}.", "Create it first.")
        if self.file.is_dir():
            raise UsageError("file-exists", f"{self.file} is a folder.", "Name a file.")
        if self.file.exists() and not self.overwrite:
            remedy = f"Name another file, or use {option('overwrite', value=True)} to replace it."
            raise UsageError("file-exists", f"{self.file} already exists.", remedy)
