"""The question of a page: as an address, and as snippets for a shell, Python and SQL."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from backstory.errors import UsageError, bad_option
from backstory.model.instant import iso, optional_instant
from backstory.model.layout import DELETED, VALID_FROM, VALID_TO, Layout
from backstory.model.types import TEXT_KINDS, ColumnType
from backstory.model.values import cell_text, key_of_words
from backstory.reading.options import exact_value, key_of
from backstory.reading.questions import HISTORIES
from backstory.settings import CATALOG
from backstory.stores.iceberg.literals import quote, text_literal
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.metadata.table_metadata import TableMetadata
from backstory.upkeep.table_views import VERSIONS

# The default and the largest number of rows on a page.
ROWS, MOST_ROWS = 50, 500
# Parameters in an address whose fields have other names.
_FIELD_OF_PARAMETER: Final = {"from": "first"}
_PARAMETER_OF_FIELD: Final = {field: word for word, field in _FIELD_OF_PARAMETER.items()}


@dataclass(frozen=True, slots=True)
class Question:
    """A view, its table, and the options in an address, as strings. Missing options are empty."""

    view: str
    table: str = ""
    key: tuple[str, ...] = ()
    column: str = ""
    at: str = ""
    known_at: str = ""
    axis: str = ""
    first: str = ""
    to: str = ""
    change: str = ""
    where: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    step: str = ""
    limit: str = ""

    @property
    def rows(self) -> int:
        """The number of rows of the page. Raises UsageError if it is not a number in the allowed range."""
        if not self.limit:
            return ROWS
        if not self.limit.isdecimal() or not 0 < int(self.limit[:9]) <= MOST_ROWS:
            raise bad_option(f"A page has 1 to {MOST_ROWS} rows.", "Change `limit` in the address.")
        return int(self.limit)

    @property
    def offset(self) -> int:
        """The number of rows before the page, or 0 if the page begins after a key."""
        return int(self.after[0][:18]) if self.after and self.after[0].isdecimal() else 0

    @property
    def instant(self) -> datetime | None:
        """The valid time of the question. Raises UsageError if it is not a time."""
        return optional_instant(self.at or None)

    @property
    def time_of_knowledge(self) -> datetime | None:
        """The known time of the question. Raises UsageError if it is not a time."""
        return optional_instant(self.known_at or None)

    @property
    def values_by_column(self) -> dict[str, str]:
        """The values to filter by, by column name."""
        pairs = [word.partition("=") for word in self.where]
        if wrong := [name for name, equals, _ in pairs if not equals]:
            raise bad_option(f"{wrong[0]!r} has no value.", "Write it as column=value.")
        return {name: value for name, _, value in pairs}

    def record(self, names: Iterable[str]) -> Any:
        """The key of the record in a table with these key columns. Raises UsageError if no key is given."""
        if not self.key:
            raise UsageError("no-key", "No key is given.", "Choose a record of the table.")
        return key_of_words(list(names), self.key)

    def address(self, ending: str = "") -> str:
        """The link to the page. With an ending, it links to another format of the page."""
        words: list[tuple[str, str]] = []
        for field in fields(self):
            value = getattr(self, field.name)
            word = _PARAMETER_OF_FIELD.get(field.name, field.name)
            if field.name != "view" and value:
                words += [(word, part) for part in ([value] if isinstance(value, str) else value)]
        path = "/" if self.view == "tables" and not ending else f"/{self.view}{ending}"
        return path + (f"?{urlencode(words)}" if words else "")

    def alter(self, **changes: Any) -> "Question":
        """The same question with other options."""
        return replace(self, **changes)


_MANY: Final = {field.name for field in fields(Question) if "tuple" in str(field.type)}
_WORDS: Final = {field.name for field in fields(Question)} - {"view"}


def question_of(view: str, words: Iterable[tuple[str, str]]) -> Question:
    """The question in an address. Raises UsageError for an unknown or repeated parameter."""
    options: dict[str, Any] = {}
    for word, value in words:
        name = _FIELD_OF_PARAMETER.get(word, word)
        if name not in _WORDS or (name in options and name not in _MANY):
            problem = "is twice in the address" if name in options else "has no meaning here"
            raise bad_option(f"{word!r} {problem}.", "Follow a link of the page.")
        if value:
            options[name] = (*options.get(name, ()), value) if name in _MANY else value
    return Question(view, **options)


def key_words(key: Mapping[str, object]) -> tuple[str, ...]:
    """The words that name a record by the values of its key. Empty if the key contains NULL."""
    if None in key.values():
        return ()
    texts = {name: cell_text(value, "") for name, value in key.items()}
    (text,) = texts.values() if len(texts) == 1 else ("",)
    if text and "=" not in text:
        return (text,)
    return tuple(f"{name}={text}" for name, text in texts.items())


def key_parts(names: Sequence[str], text: str) -> tuple[str, ...]:
    """The words of a key that `check` prints as this string. Empty if the string is not a key."""
    if len(names) == 1:
        return () if text == "NULL" else (f"{names[0]}={text}",)
    form = " ".join(f"{re.escape(name)}=(.*)" for name in names)
    match = re.fullmatch(form, text, re.DOTALL)
    if not names or match is None or "NULL" in match.groups():
        return ()
    return tuple(f"{name}={value}" for name, value in zip(names, match.groups(), strict=True))


# Layouts whose rows contain their own start and end in UTC.
_PLAIN: Final = (Layout.VERSIONS, Layout.HIST)


@dataclass(frozen=True, slots=True)
class Snippet:
    """A snippet to copy, and the place to run it."""

    place: str
    text: str

    @classmethod
    def command(cls, *words: str) -> "Snippet":
        """A backstory command, quoted for a shell."""
        return cls("Command line", shlex.join(["backstory", *words]))


def call_snippets(
    table: TableMetadata,
    call: str,
    words: Sequence[str] = (),
    arguments: Sequence[Any] | None = None,
    more: Sequence[str] = (),
    **options: str,
) -> list[Snippet]:
    """Snippets with the command and with the table's method for the same call, with the nonempty options.

    `arguments` are the arguments of the method, by default `words`. `more` are words for only the command.
    """
    name, options = str(table.shape.table), {key: value for key, value in options.items() if value}
    flags = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", value)]
    values = [repr(value) for value in (words if arguments is None else arguments)]
    values += [f"{key}={value!r}" for key, value in options.items()]
    return [
        Snippet.command(call.replace("_", "-"), name, *words, *flags, *more),
        Snippet("Python", f"warehouse.table({name!r}).{call}({', '.join(values)})"),
    ]


def rows_snippets(question: Question, table: TableMetadata) -> list[Snippet]:
    """Snippets that read the same rows of a table, for a shell, Python and SQL."""
    call, words = ("as_of", [question.at]) if question.at else ("current", [])
    limit = ["--limit", str(question.rows)]
    calls = call_snippets(table, call, words, more=limit, known_at=question.known_at)
    return calls + _sql_of_rows(question, table)


def life_snippets(question: Question, table: TableMetadata) -> list[Snippet]:
    """Snippets that read the same record's history, for a shell, Python and SQL."""
    key, options = [question.record(table.shape.source_key)], {"axis": question.axis}
    calls = call_snippets(table, "timeline", question.key, key, **options, known_at=question.known_at)
    return calls + _sql_of_life(question, table)


def diff_snippets(question: Question, table: TableMetadata) -> list[Snippet]:
    """Snippets that read the same differences between two times, for a shell and Python."""
    axis = "" if table.shape.layout in HISTORIES else "recorded"
    options = {"axis": axis, "known_at": question.known_at, "change": question.change}
    return call_snippets(table, "diff", [question.first, question.to], **options)


def _sql_of_rows(question: Question, table: TableMetadata) -> list[Snippet]:
    """A Spark SQL query for the rows. Empty if no single query can return them."""
    layout, names = table.shape.layout, table.shape.names
    if question.known_at or layout is Layout.ODF:
        return []
    filters = [_filter(table, *each) for each in question.values_by_column.items()]
    if layout.span is None:
        not_deleted = [f"NOT coalesce({quote(DELETED)}, false)"] if DELETED in names else []
        return [_query(table, [*not_deleted, *filters])]
    if layout in _PLAIN:
        start, end, open_ = layout.span.start, layout.span.end, layout.span.open
    else:
        start, end, open_ = VALID_FROM, VALID_TO, f"{VALID_TO} IS NULL"
    time = question.instant and f"TIMESTAMP '{iso(question.instant)}'"
    then = f"{start} <= {time} AND ({end} IS NULL OR {end} > {time})" if time else open_
    return [_query(table, [then, *filters])]


def _filter(table: TableMetadata, name: str, text: str) -> str:
    """The condition that a column has the value that a string denotes."""
    column = table.shape.column_of_source(name)
    if column is None:
        return f"{quote(name)} = {text_literal(text)}"
    return f"{quote(name)} = {_literal(exact_value(name, text, column.type), column.type)}"


def _sql_of_life(question: Question, table: TableMetadata) -> list[Snippet]:
    """A Spark SQL query for the versions of a record, as known now."""
    layout = table.shape.layout
    if question.known_at or question.axis == "both" or layout is Layout.ODF or layout.span is None:
        return []
    key = key_of(table.shape, question.record(table.shape.source_key))
    types = {column.name: column.type for column in table.shape.columns}
    filters = [f"{quote(name)} = {_literal(value, types[name])}" for name, value in key.items()]
    start, end = layout.span.start, layout.span.end
    if layout is Layout.VERSIONS:  # rows whose validity has no length are memory rows
        filters.append(f"({end} IS NULL OR {end} > {start})")
    return [_query(table, filters, f" ORDER BY {start if layout in _PLAIN else VALID_FROM}")]


def _query(table: TableMetadata, conditions: Sequence[str], more: str = "") -> Snippet:
    """A query of a table, or of its view of versions if its rows do not contain their own times."""
    name, layout = table.shape.table, table.shape.layout
    viewed = layout.span is not None and layout not in _PLAIN
    read = f"{name.name}{VERSIONS}" if viewed else name.name
    relation = ".".join(map(quote, (CATALOG, name.schema, read)))
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    place = f"Spark SQL, after `{shlex.join(['backstory', 'views', str(name)])}`" if viewed else "Spark SQL"
    return Snippet(place, f"SELECT * FROM {relation}{where}{more}")  # noqa: S608 - quoted, and not run here


def _literal(value: Any, type_: ColumnType) -> str:
    """A value of a column as a Spark SQL literal of the column's type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, datetime):
        naive = value.tzinfo is None  # the other literal would move it by the zone of the session
        return f"TIMESTAMP_NTZ '{value.isoformat(' ')}'" if naive else f"TIMESTAMP '{iso(value)}'"
    if isinstance(value, int):
        return str(value)
    text = text_literal(str(value))
    return text if type_.kind in TEXT_KINDS else f"CAST({text} AS {spark_type(type_).upper()})"
