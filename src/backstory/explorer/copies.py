"""The same question for a shell, for Python and for SQL, to copy from a page."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from backstory.explorer.questions import Question
from backstory.model.instant import iso
from backstory.model.layout import DELETED, VALID_FROM, VALID_TO, Layout
from backstory.reading.frames.versions import HISTORIES
from backstory.reading.keys import key_of
from backstory.settings import CATALOG
from backstory.stores.iceberg.literals import quoted, text_literal
from backstory.stores.metadata.described import Described
from backstory.upkeep.table_views import VERSIONS

# Layouts whose rows say from when to when they were true, in UTC, each by itself.
_PLAIN: Final = (Layout.VERSIONS, Layout.HIST)


@dataclass(frozen=True, slots=True)
class Copy:
    """A text to copy, and where it is run."""

    place: str
    text: str

    @classmethod
    def command(cls, *words: str) -> "Copy":
        """A command of backstory, quoted for a shell."""
        return cls("Command line", shlex.join(["backstory", *words]))


def rows_copies(question: Question, table: Described) -> list[Copy]:
    """How the rows of a table are asked for elsewhere."""
    name = str(table.shape.table)
    known = ["--known-at", question.known_at] if question.known_at else []
    words = ["as-of", name, question.at] if question.at else ["current", name]
    arguments = _arguments(known_at=question.known_at)
    deed, of = ("as_of", [repr(question.at)]) if question.at else ("current", [])
    call = f"{deed}({', '.join([*of, *arguments])})"
    found = [
        Copy.command(*words, *known, "--limit", str(question.rows)),
        Copy("Python", f"warehouse.table({name!r}).{call}"),
    ]
    return found + _sql_of_rows(question, table)


def life_copies(question: Question, table: Described) -> list[Copy]:
    """How a record's life is asked for elsewhere."""
    name = str(table.shape.table)
    axis = ["--axis", question.axis] if question.axis else []
    known = ["--known-at", question.known_at] if question.known_at else []
    key = question.record(table.shape.source_key)
    arguments = _arguments(axis=question.axis, known_at=question.known_at)
    found = [
        Copy.command("timeline", name, *question.key, *axis, *known),
        Copy("Python", f"warehouse.table({name!r}).timeline({', '.join([repr(key), *arguments])})"),
    ]
    return found + _sql_of_life(question, table)


def diff_copies(question: Question, table: Described) -> list[Copy]:
    """How the differences of two times are asked for elsewhere."""
    name = str(table.shape.table)
    axis = "" if table.shape.layout in HISTORIES else "recorded"
    more = [
        *(["--axis", axis] if axis else []),
        *(["--known-at", question.known_at] if question.known_at else []),
        *(["--change", question.change] if question.change else []),
    ]
    arguments = _arguments(axis=axis, known_at=question.known_at, change=question.change)
    words = ", ".join([repr(question.first), repr(question.to), *arguments])
    return [
        Copy.command("diff", name, question.first, question.to, *more),
        Copy("Python", f"warehouse.table({name!r}).diff({words})"),
    ]


def _arguments(**named: str) -> list[str]:
    return [f"{name}={value!r}" for name, value in named.items() if value]


def _sql_of_rows(question: Question, table: Described) -> list[Copy]:
    """The rows in Spark SQL; nothing where one query of a table does not tell them."""
    layout, names = table.shape.layout, table.shape.names
    wanted = [f"{quoted(name)} = {text_literal(value)}" for name, value in question.values_by_column.items()]
    if question.known_at or layout is Layout.ODF:
        return []
    if layout.span is None:
        there = [f"NOT coalesce({quoted(DELETED)}, false)"] if DELETED in names else []
        return [_query(table, [*there, *wanted])]
    if layout in _PLAIN:
        start, end, open_ = layout.span.start, layout.span.end, layout.span.open
    else:
        start, end, open_ = VALID_FROM, VALID_TO, f"{VALID_TO} IS NULL"
    time = question.instant and f"TIMESTAMP '{iso(question.instant)}'"
    then = f"{start} <= {time} AND ({end} IS NULL OR {end} > {time})" if time else open_
    return [_query(table, [then, *wanted])]


def _sql_of_life(question: Question, table: Described) -> list[Copy]:
    """The versions of a record in Spark SQL, as they are known now."""
    layout = table.shape.layout
    if question.known_at or question.axis == "both" or layout is Layout.ODF or layout.span is None:
        return []
    key = key_of(table.shape, question.record(table.shape.source_key))
    wanted = [f"{quoted(name)} = {_literal(value)}" for name, value in key.items()]
    start, end = layout.span.start, layout.span.end
    if layout is Layout.VERSIONS:  # what has no length is memory, and no version
        wanted.append(f"({end} IS NULL OR {end} > {start})")
    return [_query(table, wanted, f" ORDER BY {start if layout in _PLAIN else VALID_FROM}")]


def _query(table: Described, conditions: Sequence[str], more: str = "") -> Copy:
    """The query of a table, or of the view of its versions where its own rows tell them not so simply."""
    name, layout = table.shape.table, table.shape.layout
    viewed = layout.span is not None and layout not in _PLAIN
    read = f"{name.name}{VERSIONS}" if viewed else name.name
    of = ".".join(map(quoted, (CATALOG, name.schema, read)))
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    place = f"Spark SQL, after `{shlex.join(['backstory', 'views', str(name)])}`" if viewed else "Spark SQL"
    return Copy(place, f"SELECT * FROM {of}{where}{more}")  # noqa: S608 - quoted, and not run here


def _literal(value: Any) -> str:
    """A value of a key as a literal of Spark SQL."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return f"TIMESTAMP '{iso(value)}'"
    return str(value) if isinstance(value, int) else text_literal(str(value))
