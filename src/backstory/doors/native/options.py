"""The options of `snapshot` and `apply`, checked before anything is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Union, Unpack, cast, get_args

from backstory.engine.run_context import RemarkOptions
from backstory.errors import bad_option
from backstory.formats.file_options import FileOptions, FileWords, parse_file_words, parse_types
from backstory.formats.source_files import FileFormat
from backstory.model.instant import instant_of
from backstory.model.types import ColumnType
from backstory.sources.databases.address import is_database

Deletes = Literal["close", "ignore"]
OnSchemaChange = Literal["accept", "refuse"]
RATIO: Final = 0.5
# The prefix of a source that is a table of the warehouse.
TABLE: Final = "table:"


if TYPE_CHECKING:
    from pyspark.sql import Column

    from backstory.formats.envelopes.events import LogSource

# Options of other systems, and ours for them (V123).
FOREIGN_WORDS: Final = {
    "keys": "key",
    "except_column_list": "ignore",
    "track_history_column_list": "track",
    "track_history_except_column_list": "ignore",
    "stored_as_scd_type": "no option: both axes are always kept",
    "system_sequence_by": "no option: recorded_at is the time of the commit",
}
Late = Literal["refuse", "drop"]
EnvelopeName = Literal["debezium", "changes"]
Expression = Union[str, "Column"]
# The same for feeds: some of these words have another meaning there (V123).
FOREIGN_FEED_WORDS: Final = {**FOREIGN_WORDS, "except_column_list": "drop", "apply_changes": "apply"}


def names_files(source: object) -> bool:
    """Whether a source names files, not rows, a table of the warehouse or a database."""
    text = str(source)
    return isinstance(source, str | Path) and not text.startswith(TABLE) and not is_database(text)


@dataclass(frozen=True, slots=True)
class DeliveryRequest:
    """The options that `snapshot` and `apply` have in common. None means the table's own option (V13)."""

    key: tuple[str, ...] | None = None
    track: frozenset[str] | None = None
    ignore: frozenset[str] | None = None
    overwrite: frozenset[str] | None = None
    on_schema_change: OnSchemaChange | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    retype: Mapping[str, ColumnType] = field(default_factory=dict)
    allow_empty: bool = False
    format: FileFormat | None = None
    files: FileOptions = field(default_factory=FileOptions)
    query: str | None = None
    branch: str | None = None
    dry_run: bool = False
    note: str | None = None
    author: str | None = None

    @property
    def may_retype(self) -> bool:
        """Whether the request can have new types. A feed renames no columns and changes no types."""
        return False

    def refuse_words(self, **choices: Any) -> None:
        """Raise UsageError for an option whose word is not one of its choices (a Literal)."""
        for name, literal in {"format": FileFormat, "on_schema_change": OnSchemaChange, **choices}.items():
            word, words = getattr(self, name), get_args(literal)
            if word is not None and word not in words:
                message = f"`{name}=` must be one of {', '.join(words)}, not {word!r}."
                raise bad_option(message, "Use one of them.")


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class SnapshotRequest(DeliveryRequest):
    """The options of `snapshot`. For a list of columns, None means the table's own list (V13).

    `begun` is the time when the call began, before the source was read. It is the copy's time if `at` is
    None. A second attempt at a plan keeps it, because its rows are no younger. `whole_rows` is true if the
    key is the whole row. This is decided once the table is loaded.
    """

    at: datetime | None = None
    begun: datetime = field(default_factory=_now)
    deletes: Deletes = "close"
    max_delete_ratio: float = RATIO
    max_null_ratio: float = RATIO
    scope: Mapping[str, Any] = field(default_factory=dict)
    backfill: bool = False
    remember: bool = False
    restate: bool = False
    backfill_added: bool = False
    whole_rows: bool = False

    @property
    def may_retype(self) -> bool:
        """True, because a copy can have new types."""
        return True

    @property
    def instant(self) -> datetime:
        """The time of the copy."""
        return self.at or self.begun

    @property
    def has_all_records(self) -> bool:
        """Whether a record that is missing from the copy is missing from the source."""
        return self.deletes == "close" and not self.scope

    @property
    def begins_memory(self) -> bool:
        """Whether the table remembers its copies from this one on, if it does not yet (V28)."""
        return self.backfill or self.remember or bool(self.scope)

    def __post_init__(self) -> None:
        self.refuse_words(deletes=Deletes)
        for name in ("max_delete_ratio", "max_null_ratio"):
            if not 0 <= (ratio := getattr(self, name)) <= 1:
                message = f"`{name}=` must be between 0 and 1, not {ratio}."
                raise bad_option(message, "Give a share, such as 0.8.")
        refuse_columns(self)
        both = (self.track or frozenset()) & (self.overwrite or frozenset())
        both |= (self.ignore or frozenset()) & (self.overwrite or frozenset())
        if both:
            message = ", ".join(sorted(both))
            raise bad_option(
                f"`overwrite=` and `track=` or `ignore=` name the same columns: {message}.",
                "Name each column in one of them.",
            )


class DeliveryOptions(FileWords, RemarkOptions, total=False):
    """The options that `snapshot` and `apply` share, in addition to those of files and commits.

    Attributes:
        track: Columns whose changes make versions. Default: all.
        ignore: Columns whose changes make no versions.
        overwrite: Columns overwritten in place, with no history kept.
        format: Format of the files: csv, parquet, jsonl or json. Default: by their endings.
        query: A SELECT statement for the rows of a database, instead of a table.
        branch: Deliver to this branch of the table, as a preview. `publish` makes it the table.
        dry_run: Print counts, sample keys, and the columns that cause the changes. Nothing is written.
    """

    key: str | Sequence[str] | None
    allow_empty: bool
    track: Sequence[str] | None
    ignore: Sequence[str] | None
    overwrite: Sequence[str] | None
    on_schema_change: OnSchemaChange | None
    format: FileFormat | None
    query: str | None
    branch: str | None
    dry_run: bool


class SnapshotOptions(DeliveryOptions, total=False):
    """The options of `snapshot`.

    Attributes:
        key: Key columns. A table keeps its own. `row` makes the whole row the key, unless the source has a
            column of this name. The column `copies` then counts equal rows.
        at: The time the copy was taken, ISO 8601. Default: now. For a copy without changes, the time is
            stored only if the table remembers its copies (`remember=`).
        deletes: Close records that are missing from the copy, or ignore that they are missing. Default:
            close.
        max_delete_ratio: Largest share of the records that one copy may close, 0 to 1. Default: 0.5.
        max_null_ratio: Largest share of a column's values that one copy may replace with NULL, 0 to 1.
            Default: 0.5. A loss of fewer than 20 values is always allowed.
        allow_empty: Accept an empty source.
        on_schema_change: Accept or refuse a copy that lacks a column of the previous copy, or whose new
            column has the values of a missing one. The table keeps `refuse`. `accept` is for this copy only.
        rename: New names of columns, by their old names.
        retype: New types of columns, by name. Refused if a stored value would change.
        scope: The part of the source that the copy contains, as values of columns. All other records are
            unchanged.
        backfill: Accept a copy older than all stored data. The table remembers its copies from then on.
        remember: Store the time of every copy from now on, even of copies without changes, so that a late
            copy holds only until the next one. The table keeps this setting.
        backfill_added: Write the values of a new column into the open versions instead of opening new ones.
        restate: Replace the stored copy for the same time.
    """

    at: str | date | None
    deletes: Deletes
    max_delete_ratio: float
    max_null_ratio: float
    rename: Mapping[str, str] | None
    retype: Mapping[str, str] | None
    scope: Mapping[str, Any] | None
    backfill: bool
    remember: bool
    backfill_added: bool
    restate: bool


def parse_options(**options: Unpack[SnapshotOptions]) -> SnapshotRequest:
    """The request of `snapshot` with these options.

    Raises UsageError for unknown options and wrong values.
    """
    values = dict(cast("dict[str, Any]", options))
    _refuse_names(values, SnapshotOptions, FOREIGN_WORDS, "See `backstory snapshot --help`.")
    key, at = values.get("key"), values.get("at")
    names = {option: column_names(values.get(option)) for option in ("track", "ignore", "overwrite")}
    parsed = {
        "key": None if key is None else (key,) if isinstance(key, str) else tuple(key),
        "at": None if at is None else instant_of(at),
        "rename": dict(values.get("rename") or {}),
        "scope": dict(values.get("scope") or {}),
        "retype": parse_types(values.get("retype")),
    }
    files = _take_file_options(values)
    return SnapshotRequest(**{**values, **names, **parsed, "files": files})


def _refuse_names(values: Mapping[str, Any], declared: type, foreign: Mapping[str, str], known: str) -> None:
    """Raise UsageError for an undeclared option. The remedy is our option for it, or else `known`."""
    for name in values.keys() - declared.__annotations__.keys():
        word = foreign.get(name)
        raise bad_option(f"There is no option {name}.", f"Use {word}." if word else known)


def _take_file_options(values: dict[str, Any]) -> FileOptions:
    """Remove the options that describe files from the values, and return them."""
    return parse_file_words(**{name: values.pop(name) for name in FileWords.__annotations__ & values.keys()})


def column_names(value: Sequence[str] | None) -> frozenset[str] | None:
    """The set of columns that an option names, or None if it is not set."""
    return None if value is None else frozenset([value] if isinstance(value, str) else value)


def refuse_columns(request: DeliveryRequest) -> None:
    """Raise UsageError for an empty or repeated key, and for `track=` together with `ignore=`."""
    if request.key is not None and (not request.key or len(set(request.key)) < len(request.key)):
        raise bad_option("`key=` is empty or names a column twice.", "Name each key column once.")
    if request.track is not None and request.ignore is not None:
        raise bad_option(
            "Both `track=` and `ignore=` are given.",
            "Use one of them: a column that is not tracked is ignored.",
        )


@dataclass(frozen=True, slots=True)
class ApplyRequest(DeliveryRequest):
    """The options of `apply`. None means the table's own option (V13).

    `ignore_nulls` are columns whose NULLs leave values unmodified, or True for all. The window of a
    restatement is half-open. By default, it ends just after the delivery's last instant (V86). If
    `is_unwrapped` is true, the rows were messages in an envelope, which determine their meaning. `log` is the
    log of these messages.
    """

    sequence_by: tuple[Expression, ...] | None = None
    apply_as_deletes: Expression | None = None
    apply_as_truncates: Expression | None = None
    ignore_nulls: frozenset[str] | bool | None = None
    columns_to_update: str | None = None
    unmodified: str | None = None
    envelope: EnvelopeName | None = None
    drop: frozenset[str] | None = None
    late: Late = "refuse"
    restate_from: datetime | None = None
    restate_until: datetime | None = None
    all_keys: bool = False
    new_log: bool = False
    allow_future: bool = False
    is_unwrapped: bool = False
    log: "LogSource | None" = None

    def __post_init__(self) -> None:
        self.refuse_words(late=Late, envelope=EnvelopeName)
        self._refuse_columns()
        if self.restate_from is None and (self.restate_until is not None or self.all_keys):
            raise bad_option(
                "`restate_until=` and `all_keys=` need the beginning of a window.",
                "Name it with `restate_from=TIME`.",
            )
        if self.restate_from and self.restate_until and self.restate_until <= self.restate_from:
            raise bad_option("The window of the restatement is empty.", "Let it end after it begins.")
        if self.allow_empty and not self.all_keys:
            raise bad_option(
                "`allow_empty=True` is for restatements of all keys.",
                "Use it with `all_keys=True`, or omit it.",
            )

    def _refuse_columns(self) -> None:
        refuse_columns(self)
        if self.sequence_by is not None and not self.sequence_by:
            raise bad_option("`sequence_by=` is empty.", "Name the time of the change first.")
        if self.columns_to_update is not None and self.ignore_nulls:
            raise bad_option(
                "Both `columns_to_update=` and `ignore_null_updates=` are given.",
                "Use one of them: the array already names the columns that an event sets.",
            )


class FeedOptions(DeliveryOptions, total=False):
    """The options of `apply`.

    Attributes:
        key: Key columns. A table keeps its own.
        sequence_by: Columns or SQL expressions that order the changes. The first is the time of the change.
            The others, such as a log position, order changes of the same time. A table keeps its own.
        apply_as_deletes: SQL condition for rows that delete their record, such as "op = 'D'".
        apply_as_truncates: SQL condition for rows that delete every record.
        ignore_null_updates: Columns that NULL leaves unchanged, or all columns if no column is named.
        columns_to_update: Column whose array names the columns that a row sets.
        unmodified: Text in a cell that leaves the column unchanged. It applies to every column of a CSV file,
            and elsewhere to columns of text.
        envelope: Envelope of the messages: debezium or changes.
        drop: Columns that are not stored.
        late: Refuse or drop changes of a settled time. Default: refuse.
        on_schema_change: Accept or refuse a delivery that lacks a column of the previous one. The table keeps
            `refuse`. `accept` is for this delivery only.
        restate_from: Replace the stored history from this time on, for the delivered keys.
        restate_until: End of the replaced time. Default: just after the last delivered time.
        all_keys: Replace the stored history of all keys.
        allow_empty: Accept an empty source, with `all_keys=`.
        new_log: Accept messages of a log that starts again. Everything before it is then settled.
        allow_future: Accept messages with a time more than a day from now.
    """

    sequence_by: "Expression | Sequence[Expression] | None"
    apply_as_deletes: Expression | None
    apply_as_truncates: Expression | None
    ignore_null_updates: bool | str | Sequence[str] | None
    columns_to_update: str | None
    unmodified: str | None
    envelope: EnvelopeName | None
    drop: Sequence[str] | None
    late: Late
    restate_from: str | date | None
    restate_until: str | date | None
    all_keys: bool
    new_log: bool
    allow_future: bool


# The declarations of all options of `snapshot`, and of `apply`.
COPY: Final = (SnapshotOptions, DeliveryOptions, FileWords, RemarkOptions)
FEED: Final = (FeedOptions, DeliveryOptions, FileWords, RemarkOptions)


def parse_feed_options(**options: Unpack[FeedOptions]) -> ApplyRequest:
    """The request of `apply` with these options. Raises UsageError for unknown options and wrong values."""
    values = dict(cast("dict[str, Any]", options))
    known = f"The options are {', '.join(sorted(FeedOptions.__annotations__))}."
    _refuse_names(values, FeedOptions, FOREIGN_FEED_WORDS, known)
    nulls = values.pop("ignore_null_updates", None)
    values["ignore_nulls"] = nulls if isinstance(nulls, bool) else column_names(nulls)
    for name in ("key", "sequence_by"):
        if values.get(name) is not None:
            values[name] = tuple(values[name]) if isinstance(values[name], list | tuple) else (values[name],)
    for name in ("track", "ignore", "overwrite", "drop"):
        values[name] = column_names(values.get(name))
    for name in ("restate_from", "restate_until"):
        if values.get(name) is not None:
            values[name] = instant_of(values[name])
    files = _take_file_options(values)
    return ApplyRequest(**values, files=files)
