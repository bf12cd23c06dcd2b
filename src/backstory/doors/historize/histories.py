"""A history as it is read: its table and archive, its columns, and since when it is whole."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import NamedTuple

from backstory.doors.historize.model import Column, HistState, Role, StateLabels
from backstory.errors import Refused, UsageError
from backstory.model.instant import parse_instant
from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.dialects.dialect import Dialect

ARCHIVE = "_archive"
LONGEST_NAME = 63
Key = Mapping[str, object] | str | int
_KEYS = {Role.SURROGATE_KEY, Role.ENTITY_KEY, Role.BUSINESS_KEY}


class Query(NamedTuple):
    """A query, and the names of its columns."""

    sql: str
    columns: tuple[str, ...]


class Shown(NamedTuple):
    """A column of a result: the name that it should have, and its SQL."""

    name: str
    sql: str


class Archive(NamedTuple):
    """The table of what was pruned out of a history, and the record's key in it."""

    table: str
    key: str


@dataclass(frozen=True)
class History:
    """A history table in one dialect.

    `archived` names the columns of its archive, none of them where there is no archive; without it there
    is one with the same columns once something was pruned. `archive_name` is what it is called after a
    renaming. `catalog` goes before the schema, where a session has several.
    """

    dialect: Dialect
    schema: str
    hist: HistState
    archived: frozenset[str] | None = None
    catalog: str | None = None
    archive_name: str | None = None

    # Names

    @cached_property
    def table(self) -> str:
        """The history table."""
        return self.named("")

    @cached_property
    def archive(self) -> str:
        """The table of what was pruned."""
        return self._placed(self.archive_name) if self.archive_name else self.named(ARCHIVE)

    def named(self, suffix: str) -> str:
        """The table or view that has the history's name with this suffix."""
        return self._placed(f"{self.hist.target_dataset_name}{suffix}")

    def _placed(self, name: str) -> str:
        name = self.dialect.render_table_identifier(self.schema, name)
        return f"{self.dialect.render_identifier(self.catalog)}.{name}" if self.catalog else name

    def of(self, alias: str, column: str) -> str:
        """`alias.column`."""
        return f"{alias}.{self.dialect.render_identifier(column)}"

    def text(self, text: str) -> str:
        """A text's literal."""
        return self.dialect.string_literal(text)

    # Columns

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Every column, retired ones too."""
        return self.hist.target_columns

    def _one(self, role: Role) -> str:
        return next(column.name for column in self.columns if column.system_role is role)

    @cached_property
    def hist_key(self) -> str:
        """The column that tells versions apart."""
        return self._one(Role.SURROGATE_KEY)

    @cached_property
    def key(self) -> str:
        """The column that tells records apart."""
        return self._one(Role.ENTITY_KEY)

    @cached_property
    def business_keys(self) -> list[Column]:
        """The columns by which people know a record."""
        return [column for column in self.columns if column.system_role is Role.BUSINESS_KEY]

    @cached_property
    def identifying(self) -> list[Column]:
        """The entity key and the business keys."""
        return [next(each for each in self.columns if each.name == self.key), *self.business_keys]

    @cached_property
    def attributes(self) -> list[Column]:
        """The other columns that were copied from the base, retired ones too."""
        return [column for column in self.columns if column.system_role in {None, Role.FOREIGN_KEY}]

    # Facts

    @cached_property
    def labels(self) -> StateLabels:
        """The words for states that stand in the table."""
        labels = self.hist.state_labels
        return labels if labels and labels.mode == "stored" else StateLabels()

    @cached_property
    def watermark(self) -> datetime | None:
        """The instant since which the history is whole; None if nothing was pruned."""
        return parse_instant(self.hist.prune_watermark) if self.hist.prune_watermark else None

    def whole_at(self, instant: datetime) -> datetime:
        """The same instant; Refused if versions that were valid then may have been pruned."""
        if self.watermark and instant < self.watermark:
            raise Refused(
                "PRUNED",
                f"{self.hist.target_dataset_name} was pruned up to {self.watermark:%Y-%m-%dT%H:%M:%S.%fZ}.",
                f"Ask for a later time; {self.hist.target_dataset_name}_all also has what was archived.",
            )
        return instant

    # Relations

    @cached_property
    def everything(self) -> str:
        """The relation of all versions, those that were pruned too: a name, or a query in brackets."""
        there = bool(self.watermark) if self.archived is None else bool(self.archived)
        return f"(\n{self.union()}\n)" if there else self.table

    def union(self) -> str:
        """The query of all versions; a version that is on its way into the archive comes once."""
        kept = ", ".join(self.of("h", column.name) for column in self.columns)
        gone = ", ".join(self._in_archive(column) for column in self.columns)
        archived_key = self._in_archive(next(each for each in self.columns if each.name == self.hist_key))
        both = f"SELECT 1 FROM {self.table} AS b WHERE {self.of('b', self.hist_key)} = {archived_key}"
        return (
            f"SELECT {kept} FROM {self.table} AS h\nUNION ALL\n"
            f"SELECT {gone} FROM {self.archive} AS a WHERE NOT EXISTS ({both})"
        )

    def _in_archive(self, column: Column) -> str:
        """The column in the archive, under a former name if need be, or a NULL for a younger column."""
        names = (column.name, *reversed(column.former_names))
        name = next((each for each in names if self.archived is None or each in self.archived), None)
        if name is None:
            return self.dialect.cast_expression("NULL", self.dialect.type_of(column))
        return self.of("a", name)

    def is_record(self, alias: str, key: Key, renamed: Mapping[str, str] | None = None) -> str:
        """Whether a row is of the record with this business key; `renamed` has other names of its columns."""
        given = key if isinstance(key, Mapping) else {self.business_keys[0].name: key}
        names = [column.name for column in self.business_keys]
        if set(given) != set(names):
            raise UsageError(
                "other-key",
                f"The key of {self.hist.target_dataset_name} is ({', '.join(names)}).",
                "Give a value for each of its columns.",
            )
        pairs = [
            (self.of(alias, (renamed or {}).get(each.name, each.name)), self.literal(each, given[each.name]))
            for each in self.business_keys
        ]
        return " AND ".join(f"NOT ({self.dialect.null_safe_ne(*pair)})" for pair in pairs)

    def literal(self, column: Column, value: object) -> str:
        """A value of a column, which may be given as text; UsageError for one that has no literal."""
        if column.datatype is Datatype.TIMESTAMP and value is not None:
            value = instant_of(value)
        try:
            literal = self.dialect.render_literal(value)
        except ValueError as stop:
            raise UsageError("wrong-key", f"{column.name}: {stop}.", "Give it as text.") from None
        return self.dialect.cast_expression(literal, self.dialect.type_of(column))


def instant_of(time: object) -> datetime:
    """An instant given as ISO text or aware datetime, in UTC; UsageError for a time without zone."""
    if isinstance(time, str):
        return parse_instant(time)
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise UsageError("naive-time", "The time has no zone.", "Give it one: datetime(…, tzinfo=UTC).")
    return time.astimezone(UTC)


def select(dialect: Dialect, shown: Sequence[Shown], rest: str) -> Query:
    """`SELECT … rest`; names that are taken already get a number."""
    names = distinct(column.name for column in shown)
    listed = ",\n  ".join(
        f"{column.sql} AS {dialect.render_identifier(name)}"
        for column, name in zip(shown, names, strict=True)
    )
    return Query(f"SELECT\n  {listed}\n{rest}", names)


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """The names, none too long for any database; one that is taken gets a number."""
    found: list[str] = []
    for name in names:
        free, number = name[:LONGEST_NAME], 1
        while free in found:
            number += 1
            end = f"_{number}"
            free = f"{name[: LONGEST_NAME - len(end)]}{end}"
        found.append(free)
    return tuple(found)


def shown(history: History, alias: str, columns: Iterable[Column], before: str = "") -> list[Shown]:
    """Columns under their own names, with a word before them."""
    return [Shown(f"{before}{column.name}", history.of(alias, column.name)) for column in columns]
