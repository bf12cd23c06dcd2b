"""What a caller asks of a feed, looked at before anything is read (native.md, sections 2.5 and 7.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Union, Unpack, cast, get_args

from backstory.doors.native.request import (
    ELSEWHERE,
    DeliveryOptions,
    OnSchemaChange,
    bad_option,
    column_names,
    refuse_columns,
    take_file_options,
)
from backstory.formats.envelopes.log_source import LogSource
from backstory.formats.file_options import FileOptions
from backstory.formats.source_files import FileFormat
from backstory.model.instant import instant_of
from backstory.model.types import ColumnType

if TYPE_CHECKING:
    from pyspark.sql import Column

Late = Literal["refuse", "drop"]
EnvelopeName = Literal["debezium", "changes"]
Expression = Union[str, "Column"]
# Words of other systems that mean something else of a feed than of a copy, or nothing there (V123).
_ELSEWHERE: Final = {**ELSEWHERE, "except_column_list": "drop", "apply_changes": "apply"}


@dataclass(frozen=True, slots=True)
class FeedRequest:
    """The options of `apply`; those that are None are as the table keeps them (V13).

    `ignore_nulls` are the columns whose NULLs are unmodified, or True for all. The window of a restatement is
    half-open; without an end it ends just behind the delivery's last instant (V86). `is_unwrapped`: the rows
    come out of an envelope, which says what each means; `log` is whose log they are of.
    """

    key: tuple[str, ...] | None = None
    sequence_by: tuple[Expression, ...] | None = None
    apply_as_deletes: Expression | None = None
    apply_as_truncates: Expression | None = None
    ignore_nulls: frozenset[str] | bool | None = None
    columns_to_update: str | None = None
    unmodified: str | None = None
    envelope: EnvelopeName | None = None
    drop: frozenset[str] | None = None
    track: frozenset[str] | None = None
    ignore: frozenset[str] | None = None
    overwrite: frozenset[str] | None = None
    on_schema_change: OnSchemaChange | None = None
    late: Late = "refuse"
    restate_from: datetime | None = None
    restate_until: datetime | None = None
    all_keys: bool = False
    allow_empty: bool = False
    new_log: bool = False
    allow_future: bool = False
    format: FileFormat | None = None
    files: FileOptions = field(default_factory=FileOptions)
    query: str | None = None
    dry_run: bool = False
    note: str | None = None
    author: str | None = None
    is_unwrapped: bool = False
    log: LogSource | None = None

    @property
    def rename(self) -> Mapping[str, str]:
        """A feed renames no columns."""
        return {}

    @property
    def retype(self) -> Mapping[str, ColumnType]:
        """A feed gives columns no other types."""
        return {}

    @property
    def may_retype(self) -> bool:
        """It never does."""
        return False

    def __post_init__(self) -> None:
        self._refuse_words()
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

    def _refuse_words(self) -> None:
        words = {
            "late": Late,
            "envelope": EnvelopeName,
            "format": FileFormat,
            "on_schema_change": OnSchemaChange,
        }
        for name, choices in words.items():
            word = getattr(self, name)
            if word is not None and word not in get_args(choices):
                raise bad_option(
                    f"`{name}=` must be one of {', '.join(get_args(choices))}, not {word!r}.",
                    "Use one of them.",
                )

    def _refuse_columns(self) -> None:
        refuse_columns(self)
        if self.sequence_by is not None and not self.sequence_by:
            raise bad_option("`sequence_by=` is empty.", "Name the time of the change first.")
        if self.columns_to_update is not None and self.ignore_nulls:
            raise bad_option(
                "Both `columns_to_update=` and `ignore_null_updates=` are given.",
                "Use one of them: the array of names says which columns an event sets.",
            )


class FeedOptions(DeliveryOptions, total=False):
    """The options of `apply`, as the command line has them.

    Attributes:
        key: key columns; an existing table keeps its own.
        sequence_by: columns or SQL expressions that order the changes: first the time of the change, then
            what orders changes of one time, such as a log position. An existing table keeps its own.
        apply_as_deletes: SQL condition for rows that delete their record, such as `op = 'D'`.
        apply_as_truncates: SQL condition for rows that delete every record.
        ignore_null_updates: NULL leaves a column as it was: True for all columns, or their names.
        columns_to_update: the column whose array names the columns that a row sets.
        unmodified: a cell with this text leaves its column as it was: in CSV any column, else one of texts.
        envelope: the form of the messages: `debezium` or `changes`.
        drop: columns that are not stored.
        track: columns whose changes make versions. Default: all.
        ignore: columns whose changes make no versions.
        overwrite: columns overwritten in place, with no history kept.
        on_schema_change: `refuse` a delivery that lacks a column of the last one: the table keeps this.
            `accept` takes such a delivery, this one alone. Default: `accept`.
        late: what happens to changes of a settled time: `refuse` (the default) or `drop`.
        restate_from: replace what is stored from this time on, of the delivered keys.
        restate_until: the end of what is replaced. Default: just after the last delivered time.
        all_keys: replace what is stored of all keys.
        allow_empty: accept an empty source, with `all_keys`.
        new_log: accept messages of a log that starts again: what was before is settled.
        allow_future: accept messages that say that they are of a time more than a day from now.
        format: format of the files, whatever their endings: `csv`, `parquet`, `jsonl` or `json`.
        separator: the character between the cells of a CSV file. Default: a comma. `tab` for a tab.
        encoding: the encoding of CSV or JSON files, such as `latin-1` or `cp1252`. Default: UTF-8.
        decimal: the decimal point of numbers in a CSV file: a point or a comma. Default: a point.
        null: the text that means NULL in a CSV file, such as `NA`. Default: an empty cell.
        quote: the character around values of a CSV file. Default: a double quote; empty if none is quoted.
        type: types of columns in CSV or JSON files, by the names in the file. Default: the type that fits
            all values.
        query: the rows of a database, as a SELECT statement, in place of those of a table.
        dry_run: return the plan, and write nothing.
        note: why the commit is made, which `log` shows.
        author: who makes the commit, which `log` shows.
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


def parse_options(**options: Unpack[FeedOptions]) -> FeedRequest:
    """The options as a caller gives them; UsageError for those that nothing can be done with."""
    given = dict(cast("dict[str, Any]", options))
    for name in given.keys() - FeedOptions.__annotations__.keys():
        word = _ELSEWHERE.get(name)
        remedy = (
            f"Use {word}." if word else f"The options are {', '.join(sorted(FeedOptions.__annotations__))}."
        )
        raise bad_option(f"There is no option {name}.", remedy)
    nulls = given.pop("ignore_null_updates", None)
    given["ignore_nulls"] = nulls if isinstance(nulls, bool) else column_names(nulls)
    for name in ("key", "sequence_by"):
        if given.get(name) is not None:
            given[name] = tuple(given[name]) if isinstance(given[name], list | tuple) else (given[name],)
    for name in ("track", "ignore", "overwrite", "drop"):
        given[name] = column_names(given.get(name))
    for name in ("restate_from", "restate_until"):
        if given.get(name) is not None:
            given[name] = instant_of(given[name])
    files = take_file_options(given)
    return FeedRequest(**given, files=files)
