"""What a caller asks of a snapshot, looked at before anything is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime
from typing import Any, Final, Literal, TypedDict, Unpack, cast, get_args

from backstory.errors import UsageError
from backstory.formats.file_options import FileOptions
from backstory.formats.source_files import FileFormat
from backstory.model.instant import instant_of
from backstory.model.types import ColumnType, type_named

Deletes = Literal["close", "ignore"]
RATIO: Final = 0.5
# What names a table of the warehouse as a source.
TABLE: Final = "table:"


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """The options of `snapshot`; column lists that are None are those that the table keeps (V13).

    `at` is None for `begun`: when the call began, before anything of the source was read. A copy that is
    planned anew keeps it, for its rows are no younger.
    """

    key: tuple[str, ...] | None = None
    at: datetime | None = None
    begun: datetime = field(default_factory=_now)
    deletes: Deletes = "close"
    max_delete_ratio: float = RATIO
    max_null_ratio: float = RATIO
    allow_empty: bool = False
    track: frozenset[str] | None = None
    ignore: frozenset[str] | None = None
    overwrite: frozenset[str] | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    retype: Mapping[str, ColumnType] = field(default_factory=dict)
    backfill: bool = False
    remember: bool = False
    restate: bool = False
    backfill_added: bool = False
    format: FileFormat | None = None
    files: FileOptions = field(default_factory=FileOptions)
    dry_run: bool = False

    @property
    def instant(self) -> datetime:
        """The time of which the copy is."""
        return self.at or self.begun

    @property
    def begins_memory(self) -> bool:
        """Whether a table without a memory begins one with this copy (V28)."""
        return self.backfill or self.remember

    def __post_init__(self) -> None:
        if self.deletes not in {"close", "ignore"}:
            raise bad_option(f"deletes is {self.deletes!r}.", "Say close or ignore.")
        for name in ("max_delete_ratio", "max_null_ratio"):
            if not 0 <= (ratio := getattr(self, name)) <= 1:
                raise bad_option(f"{name} is {ratio}.", "Give a share of the records, from 0 to 1.")
        if self.track is not None and self.ignore is not None:
            raise bad_option("Both track and ignore are given.", "Give one: what is not tracked is ignored.")
        both = (self.track or frozenset()) & (self.overwrite or frozenset())
        both |= (self.ignore or frozenset()) & (self.overwrite or frozenset())
        if both:
            told = ", ".join(sorted(both))
            raise bad_option(f"{told}: overwrite, and track or ignore.", "Name a column once.")
        if self.format is not None and self.format not in get_args(FileFormat):
            raise bad_option(f"There is no format {self.format}.", f"Say {', '.join(get_args(FileFormat))}.")
        if self.key is not None and (not self.key or len(set(self.key)) < len(self.key)):
            raise bad_option("The key names no column, or one twice.", "Name each of its columns once.")


class SnapshotOptions(TypedDict, total=False):
    """The options of `snapshot`, as the command line has them.

    Attributes:
        key: the column or columns that tell records apart; a table that is there keeps them.
        at: the instant of which the copy is; by default when the call began.
        deletes: what becomes of records that the copy lacks: `close` (the default) or `ignore`.
        max_delete_ratio: at most this part of the records may be closed by one copy, 0.5 by default.
        max_null_ratio: at most this part of the records that have a value in a column may lose it by one
            copy, 0.5 by default; fewer than 20 always may.
        allow_empty: whether a source without a row is taken for what it is.
        track: the columns that make versions; all by default.
        ignore: the columns that make none.
        overwrite: the columns that the open version has as they were last, without history.
        rename: new names of columns, by the old ones.
        retype: new types of columns, by their names; every stored value stays exactly the same.
        backfill: whether a copy may be older than all that is stored; the table then remembers.
        remember: whether the table remembers the time of each copy from now on, also of those that change
            nothing, so that a copy that comes late is true only until the next one.
        backfill_added: whether a new column's values come into the open versions, and make none.
        restate: whether the copy takes the place of the one that is stored of its instant.
        format: that of the source's files, where their endings do not tell it.
        separator: the letter between the cells of a CSV file, a comma by default; `tab` for a tab.
        encoding: the encoding of CSV and JSON files, UTF-8 by default.
        decimal: the decimal point of numbers in a CSV file, `.` by default, or `,`.
        null: the text that stands for NULL in a CSV file; an empty cell by default.
        quote: the letter around values of a CSV file, `"` by default; empty where none is quoted.
        type: types of columns in CSV and JSON files, by the names that the file has for them.
        dry_run: whether nothing is written, and the plan comes back.
    """

    key: str | Sequence[str] | None
    at: str | date | None
    deletes: Deletes
    max_delete_ratio: float
    max_null_ratio: float
    allow_empty: bool
    track: Sequence[str] | None
    ignore: Sequence[str] | None
    overwrite: Sequence[str] | None
    rename: Mapping[str, str] | None
    retype: Mapping[str, str] | None
    backfill: bool
    remember: bool
    backfill_added: bool
    restate: bool
    format: FileFormat | None
    separator: str | None
    encoding: str | None
    decimal: str | None
    null: str | None
    quote: str | None
    type: Mapping[str, str] | None
    dry_run: bool


FILE_OPTIONS: Final = frozenset(each.name for each in fields(FileOptions))
# Words of other systems, and those of this one (V123).
_ELSEWHERE: Final = {
    "keys": "key",
    "except_column_list": "ignore",
    "track_history_column_list": "track",
    "track_history_except_column_list": "ignore",
    "stored_as_scd_type": "nothing: both axes are kept",
    "system_sequence_by": "nothing: recorded_at is when the table was told",
}


def asked(**options: Unpack[SnapshotOptions]) -> SnapshotRequest:
    """The options as a caller gives them; UsageError for those that nothing can be done with."""
    given = dict(cast("dict[str, Any]", options))
    for name in given.keys() - SnapshotOptions.__annotations__.keys():
        word = _ELSEWHERE.get(name)
        remedy = f"Say {word}." if word else "See `backstory snapshot --help`."
        raise bad_option(f"There is no option {name}.", remedy)
    key, at = given.get("key"), given.get("at")
    names = {each: _names(given.get(each)) for each in ("track", "ignore", "overwrite")}
    told = {
        "key": None if key is None else (key,) if isinstance(key, str) else tuple(key),
        "at": None if at is None else instant_of(at),
        "rename": dict(given.get("rename") or {}),
        "retype": {name: _type(name, word) for name, word in (given.get("retype") or {}).items()},
    }
    files = {name: given.pop(name) for name in FILE_OPTIONS & given.keys()}
    files["type"] = {name: _type(name, word) for name, word in (files.get("type") or {}).items()}
    return SnapshotRequest(**{**given, **names, **told, "files": FileOptions(**files)})


def _names(given: Sequence[str] | None) -> frozenset[str] | None:
    return None if given is None else frozenset([given] if isinstance(given, str) else given)


def _type(name: str, word: str) -> ColumnType:
    try:
        return type_named(word)
    except ValueError:
        raise bad_option(
            f"There is no type {word} for column {name}.",
            "The types are BOOLEAN, INT, LONG, FLOAT, DOUBLE, DECIMAL(18,2), STRING, BINARY, DATE, TIMESTAMP "
            "(an instant) and TIMESTAMP_NTZ (a time without a zone).",
        ) from None


def bad_option(told: str, remedy: str) -> UsageError:
    """The error for options that nothing can be done with."""
    return UsageError("bad-option", told, remedy)
