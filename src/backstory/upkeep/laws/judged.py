"""How the records of a table are judged: what tells them apart, and what the table tells of all of them."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from backstory.model.instant import parse_instant
from backstory.model.layout import HIST_SUFFIX, KEY_SUFFIX, Layout
from backstory.model.remembered import IGNORE, OVERWRITE, SETTLED, TRACK
from backstory.model.schema import Shape
from backstory.stores.iceberg.literals import column, micros_of
from backstory.stores.port import ToldTable
from backstory.upkeep.laws.terms import LAWS, Law, LawTerms, RecordRow, RememberedMark

if TYPE_CHECKING:
    from pyspark.sql import Column

    from backstory.stores.sql.row_hashes import RowHash

PREFIX: Final = "law "  # no column of a table is called so
NEXT: Final = PREFIX + "next"  # what is asked of the row behind
TIMES: Final = ("start", "end", "written", "ended_at", "end_before", "time")
FIELDS: Final = (
    *(*TIMES, "keyed", "flag", "state", "hash", "rightly"),
    *("role", "kind", "scope", "columns", "sequence"),
)


def law_column(name: str) -> "Column":
    """One of the columns that the rule judges by, as Spark has it."""
    return column(PREFIX + name)


@dataclass(frozen=True, slots=True)
class Judged:
    """How the records of a table are told apart and shown, and by which terms they are judged.

    `hashes` are the hashes that a row may have, as SQL; none where nobody knows how they were made.
    """

    shape: Shape
    terms: LawTerms
    valued: bool = False
    hashes: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns whose values make rows those of one record."""
        shape = self.shape
        record = f"{shape.table.name.removesuffix(HIST_SUFFIX)}{KEY_SUFFIX}"
        known = shape.layout in {Layout.HIST, Layout.BASE} and record in shape.names
        return (record,) if known else shape.key

    @property
    def naming(self) -> tuple[str, ...]:
        """The columns by which people know a record."""
        return self.shape.key or self.identity

    def row(
        self, place: int, told: Mapping[str, Any], twin: object = None, row_id: int | None = None
    ) -> RecordRow:
        """A row of the rule, of what `told` gave."""
        said = {name: told[PREFIX + name] for name in FIELDS}
        sequence = said["sequence"]
        said["sequence"] = () if sequence is None else tuple(sequence.values())
        values = {name: told[name] for name in self.terms.tracked} if self.valued else {}
        return RecordRow(place, **said, values=values, twin=twin, row_id=row_id)


@dataclass(frozen=True, slots=True)
class Telling:
    """What a table is asked once it matters: its newest recorded time, field ids, marks, hashes in SQL."""

    newest: Callable[[], str | None]
    numbers: Callable[[], Mapping[str, int]]
    marks: Callable[[], tuple[RememberedMark, ...]]
    hashes: Callable[[], tuple[str, ...]]


def judged_spans(table: ToldTable, telling: Telling) -> Judged:
    """The terms of a table whose rows are versions: by its layout, its properties and its commits."""
    shape, span = table.shape, table.shape.layout.span
    assert span is not None
    terms = LawTerms(
        flagged=bool(span.flag),
        stated=bool(span.state),
        hashed=Law.ROW_HASH in LAWS[shape.layout],
        grain=span.grain,
        far=span.far,
    )
    if shape.layout is not Layout.VERSIONS:
        return Judged(shape, terms, hashes=telling.hashes() if terms.hashed else ())
    told = telling.newest()
    newest = None if told is None else micros_of(parse_instant(told))
    terms = replace(terms, remembers=True, newest=newest, settled=settled(table))
    if table.properties.get(SETTLED) is None:
        return Judged(shape, terms)
    terms = replace(terms, tracked=tracked(table), numbers=telling.numbers(), marks=telling.marks())
    return Judged(shape, terms, valued=True)


def judged_rows(table: ToldTable, hashes: Callable[[], tuple[str, ...]]) -> Judged:
    """The terms of a table that has each record once."""
    hashed = Law.ROW_HASH in LAWS[table.shape.layout]
    return Judged(table.shape, LawTerms(hashed=hashed), hashes=hashes() if hashed else ())


def read_row_hashes(table: ToldTable, numbers: Callable[[], Mapping[str, int]]) -> "tuple[RowHash, ...]":
    """The ways in which a row may be hashed.

    None where the table does not record all of them, or the SQL of models is not installed.
    """
    if find_spec("sqlglot") is None:
        return ()
    from backstory.stores.sql.row_hashes import ROW_HASHES, hashes_of_property

    text = table.properties.get(ROW_HASHES)
    if text is None:
        return ()
    names = {number: name for name, number in numbers().items()}
    return tuple(hashes_of_property(text, names) or ())


def numbers_of(fields: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The ids of fields by their names."""
    return {each["name"]: int(each["id"]) for each in fields}


def read_marks(shape: Shape, rows: Iterable[Mapping[str, Any]]) -> tuple[RememberedMark, ...]:
    """The marks that rows without a key set for every key."""
    marks = []
    for values in rows:
        row = Judged(shape, LawTerms()).row(0, values)
        if row.kind is not None and row.start is not None and row.ended_at is None:
            marks.append(RememberedMark(row.start, row.kind, row.sequence, row.scope, row.time))
    return tuple(marks)


def settled(table: ToldTable) -> tuple[int | None, int] | None:
    """The settled interval; None where nothing is settled, or where the property cannot be read."""
    try:
        first, last = json.loads(table.properties.get(SETTLED) or "[]")
        return (None if first is None else micros_of(parse_instant(first))), micros_of(parse_instant(last))
    except (TypeError, ValueError, AttributeError):
        return None


def tracked(table: ToldTable) -> tuple[str, ...]:
    """The columns whose change makes a version: all but the key's and those that settings name."""
    told = {name: json.loads(table.properties.get(name) or "[]") for name in (TRACK, IGNORE, OVERWRITE)}
    left = {*told[IGNORE], *told[OVERWRITE], *table.shape.key}
    names = [each.name for each in table.shape.user_columns if each.name not in left]
    return tuple(name for name in names if not told[TRACK] or name in told[TRACK])
