"""The options of `snapshot` and `apply`, checked before anything is read.

Each option is declared once, as a field with its default, its converter and its text. Python calls, the
command line, `histories.yaml` with its JSON Schema, and the reference are derived from the fields.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeVar, Union, cast, get_args

from attrs import field, frozen

from backstory.engine.run_context import Remark
from backstory.errors import bad_option
from backstory.formats.file_options import FileOptions, parse_types
from backstory.formats.source_files import FileFormat, source_files
from backstory.model.instant import optional_instant
from backstory.model.options import NEEDS_KEY, declared_options
from backstory.model.table import TableName, table_name
from backstory.model.types import ColumnType
from backstory.sources.databases.address import is_database, parse_address

Deletes = Literal["close", "ignore"]
OnSchemaChange = Literal["accept", "refuse"]
# The prefix of a source that is a table of the warehouse.
TABLE: Final = "table:"


if TYPE_CHECKING:
    from pyspark.sql import Column

    from backstory.formats.envelopes.events import LogSource

# Options of other systems, with our equivalents (V123).
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


def names_files(source: str) -> bool:
    """Whether a source names files, not a table of the warehouse or a database."""
    return not source.startswith(TABLE) and not is_database(source)


def column_names(value: str | Sequence[str] | None) -> frozenset[str] | None:
    """The set of columns that an option names, or None if it is not set."""
    return None if value is None else frozenset([value] if isinstance(value, str) else value)


def _table(name: str) -> TableName:
    return name if isinstance(name, TableName) else table_name(name)


def _key(value: str | Sequence[str] | None) -> tuple[str, ...] | None:
    return None if value is None else (value,) if isinstance(value, str) else tuple(value)


def _renames(value: Mapping[str, str] | None) -> dict[str, str]:
    return dict(value or {})


def _scope(value: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict(value or {})


def _expressions(value: "Expression | Sequence[Expression] | None") -> "tuple[Expression, ...] | None":
    if value is None or isinstance(value, list | tuple):
        return None if value is None else tuple(value)
    return (cast("Expression", value),)


def _columns_or_all(value: bool | str | Sequence[str] | None) -> frozenset[str] | bool | None:  # noqa: FBT001
    return value if isinstance(value, bool) else column_names(value)


@frozen(kw_only=True)
class DeliveryRequest(FileOptions, Remark):
    """The options that `snapshot` and `apply` share. None means the table's own option (V13).

    Attributes:
        track: Columns whose changes make versions. Default: all.
        ignore: Columns whose changes make no versions.
        overwrite: Columns overwritten in place, with no history kept.
        format: Format of the files: csv, parquet, jsonl or json. Default: by their file extensions.
        query: A SELECT statement for the rows of a database, instead of a table.
        branch: Deliver to this branch of the table, as a preview. `publish` makes it the table.
        dry_run: Print counts, sample keys, and the columns that cause the changes. Nothing is written.
    """

    # Our equivalents for options of other systems, and the remedy for any other option.
    foreign: ClassVar[Mapping[str, str]]
    remedy: ClassVar[str]

    into: TableName = field(converter=_table)
    key: tuple[str, ...] | None = field(default=None, converter=_key)
    track: frozenset[str] | None = field(default=None, converter=column_names, metadata=NEEDS_KEY)
    ignore: frozenset[str] | None = field(default=None, converter=column_names, metadata=NEEDS_KEY)
    overwrite: frozenset[str] | None = field(default=None, converter=column_names, metadata=NEEDS_KEY)
    on_schema_change: OnSchemaChange | None = None
    rename: Mapping[str, str] = field(factory=dict, converter=_renames, metadata=NEEDS_KEY)
    retype: Mapping[str, ColumnType] = field(factory=dict, converter=parse_types, metadata=NEEDS_KEY)
    allow_empty: bool = False
    format: FileFormat | None = None
    query: str | None = None
    branch: str | None = None
    dry_run: bool = False

    @property
    def new_types(self) -> dict[str, ColumnType]:
        """The new types of columns, by their new names."""
        return {self.rename.get(name, name): type_ for name, type_ in self.retype.items()}

    @property
    def may_retype(self) -> bool:
        """Whether the request can have new types. A feed renames no columns and changes no types."""
        return False

    def _refuse_words(self, **choices: Any) -> None:
        """Raise UsageError for an option whose word is not one of its choices (a Literal)."""
        for name, literal in {"format": FileFormat, "on_schema_change": OnSchemaChange, **choices}.items():
            word, words = getattr(self, name), get_args(literal)
            if word is not None and word not in words:
                message = f"`{name}=` must be one of {', '.join(words)}, not {word!r}."
                raise bad_option(message, "Use one of them.")

    def _refuse_columns(self) -> None:
        """Raise UsageError for an empty or repeated key, and for `track=` together with `ignore=`."""
        if self.key is not None and (not self.key or len(set(self.key)) < len(self.key)):
            raise bad_option("`key=` is empty or names a column twice.", "Name each key column once.")
        if self.track is not None and self.ignore is not None:
            raise bad_option(
                "Both `track=` and `ignore=` are given.",
                "Use one of them: a column that is not tracked is ignored.",
            )


@frozen(kw_only=True)
class SnapshotRequest(DeliveryRequest):
    """The options of `snapshot`.

    Attributes:
        into: The table, as schema.table.
        key: Key columns. An existing table keeps its own. `row` makes the whole row the key, unless the
            source has a column named `row`. The column `copies` then counts equal rows.
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
        retype: New types of columns, by name. A new type is refused if a stored value would change.
        scope: The part of the source that the copy contains, as values of columns. All other records are
            unchanged.
        backfill: Accept a copy older than all stored data. The table remembers its copies from then on.
        remember: Store the time of every copy from now on, even of copies without changes, so that a late
            copy holds only until the next one. The table keeps this setting.
        backfill_added: Write the values of a new column into the open versions instead of opening new ones.
        restate: Replace the stored copy for the same time.
    """

    foreign = FOREIGN_WORDS
    remedy = "See `backstory snapshot --help`."

    at: datetime | None = field(default=None, converter=optional_instant)
    deletes: Deletes = "close"
    max_delete_ratio: float = 0.5
    max_null_ratio: float = 0.5
    scope: Mapping[str, Any] = field(factory=dict, converter=_scope)
    backfill: bool = False
    remember: bool = False
    restate: bool = False
    backfill_added: bool = field(default=False, metadata=NEEDS_KEY)
    # The time when the call began, before the source was read. It is the copy's time if `at` is None. A
    # second attempt at a plan keeps it, because its rows are no newer.
    begun: datetime = field(factory=lambda: datetime.now(UTC))
    # Whether the key is the whole row. This is decided once the table is loaded.
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
        """Whether the table remembers its copies from this one on, even if it has not so far (V28)."""
        return self.backfill or self.remember or bool(self.scope)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._refuse_words(deletes=Deletes)
        for name in ("max_delete_ratio", "max_null_ratio"):
            if not 0 <= (ratio := getattr(self, name)) <= 1:
                message = f"`{name}=` must be between 0 and 1, not {ratio}."
                raise bad_option(message, "Give a share, such as 0.8.")
        self._refuse_columns()
        both = ((self.track or frozenset()) | (self.ignore or frozenset())) & (self.overwrite or frozenset())
        if both:
            message = ", ".join(sorted(both))
            raise bad_option(
                f"`overwrite=` and `track=` or `ignore=` name the same columns: {message}.",
                "Name each column in one of them.",
            )


@frozen(kw_only=True)
class ApplyRequest(DeliveryRequest):
    """The options of `apply`. None means the table's own option (V13).

    The window of a restatement is half-open. By default, it ends just after the delivery's last instant
    (V86).

    Attributes:
        into: The table, as schema.table.
        key: Key columns. An existing table keeps its own.
        sequence_by: Columns or SQL expressions that order the changes. The first is the time of the change.
            The others, such as a log position, order changes with the same time. An existing table keeps
            its own.
        apply_as_deletes: SQL condition for rows that delete their record, such as "op = 'D'".
        apply_as_truncates: SQL condition for rows that delete every record.
        ignore_null_updates: Columns that NULL leaves unchanged, or all columns if no column is named.
        columns_to_update: Column whose array names the columns that a row sets.
        unmodified: Text in a cell that leaves the column unchanged. In a CSV file, it applies to every
            column; in other sources, only to text columns.
        envelope: Envelope of the messages: debezium or changes.
        drop: Columns that are not stored.
        late: Refuse or drop changes whose time is already settled. Default: refuse.
        on_schema_change: Accept or refuse a delivery that lacks a column of the previous one. The table keeps
            `refuse`. `accept` is for this delivery only.
        restate_from: Replace the stored history from this time on, for the delivered keys.
        restate_until: End of the replaced time. Default: just after the last delivered time.
        all_keys: Replace the stored history of all keys.
        allow_empty: Accept an empty source, with `all_keys=`.
        new_log: Accept messages of a log that starts again. Everything before it is then settled.
        allow_future: Accept messages with a time more than a day from now.
    """

    foreign = FOREIGN_FEED_WORDS
    remedy = "See `backstory apply --help`."

    sequence_by: "tuple[Expression, ...] | None" = field(default=None, converter=_expressions)
    apply_as_deletes: Expression | None = None
    apply_as_truncates: Expression | None = None
    # Columns whose NULLs leave values unmodified, or True for all.
    ignore_null_updates: frozenset[str] | bool | None = field(default=None, converter=_columns_or_all)
    columns_to_update: str | None = None
    unmodified: str | None = None
    envelope: EnvelopeName | None = None
    drop: frozenset[str] | None = field(default=None, converter=column_names)
    late: Late = "refuse"
    restate_from: datetime | None = field(default=None, converter=optional_instant)
    restate_until: datetime | None = field(default=None, converter=optional_instant)
    all_keys: bool = False
    new_log: bool = False
    allow_future: bool = False
    # Whether the rows were messages in an envelope, which determines their meaning, and the messages' log.
    is_unwrapped: bool = False
    log: "LogSource | None" = None

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._refuse_words(late=Late, envelope=EnvelopeName)
        self._refuse_columns()
        if self.sequence_by is not None and not self.sequence_by:
            raise bad_option("`sequence_by=` is empty.", "Name the time of the change first.")
        if self.columns_to_update is not None and self.ignore_null_updates:
            raise bad_option(
                "Both `columns_to_update=` and `ignore_null_updates=` are given.",
                "Use one of them: the array already names the columns that an event sets.",
            )
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


def source_of(source: Any, request: DeliveryRequest) -> Any:
    """The source that a text or a path names: a `Database`, a `TableName` or `SourceFiles`.

    Rows are returned unchanged. Only the names and states of files are read. Raises UsageError for a wrong
    name, and for options that do not fit the source. Raises the errors of `source_files`.
    """
    if isinstance(source, str) and is_database(source):
        if request.format is not None:
            raise bad_option("`format=` is for files.", "Leave it out.")
        request.refuse_all("a database", frozenset({"type"}))
        return parse_address(source, request.query)
    if request.query is not None:
        raise bad_option("`query=` is for databases.", "Give the address of one as the source.")
    if isinstance(source, str) and source.startswith(TABLE):
        request.refuse_all("a table")
        return table_name(source.removeprefix(TABLE))
    if not isinstance(source, str | Path):
        request.refuse_all(f"a {type(source).__name__}")
        return source
    files = source_files(str(source), request.format)
    request.refuse_misplaced(files.format)
    return files


Request = TypeVar("Request", bound=DeliveryRequest)


def request_of(form: type[Request], /, **options: Any) -> Request:
    """The request with these options.

    Raises UsageError for wrong values, and for options that are not declared. The remedy names the option as
    backstory spells it.
    """
    names = {option.name for option in declared_options(form)}
    for name in options.keys() - names:
        word = form.foreign.get(name)
        raise bad_option(f"There is no option {name}.", f"Use {word}." if word else form.remedy)
    return form(**options)
