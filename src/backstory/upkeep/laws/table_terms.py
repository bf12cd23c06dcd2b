"""How the records of a table are judged: what tells them apart, and what the table tells of all of them.

The facts of an event log, and which of its events may follow on which (odf-ingest.md, section 2.10).
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from backstory.journal.verify import read_history
from backstory.model.instant import parse_instant
from backstory.model.layout import HIST_SUFFIX, KEY_SUFFIX, MEMORY, Layout
from backstory.model.table import Shape
from backstory.model.versions_layout import IGNORE, OVERWRITE, SEQUENCE, SETTLED, TRACK, FactKind
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.values import rows_of
from backstory.stores.port import TableLike
from backstory.strategies.events.terms import Op
from backstory.upkeep.laws.memory import broken_together
from backstory.upkeep.laws.terms import FIELDS, LAWS, PREFIX, Law, LawTerms, RecordRow, RememberedMark

if TYPE_CHECKING:
    from backstory.stores.sql.row_hashes import RowHash

# So many instants of copies are asked of each row.
MOST_COPIES: Final = 1_000
# Values that engines do not compare, or not alike.
_WITHOUT_ORDER: Final = ("map(", "map<", "variant")


@dataclass(frozen=True, slots=True)
class TableTerms:
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

    @property
    def foldable(self) -> tuple[str, ...]:
        """The columns by which a query sees that a plain life is the fold of its facts; none if it cannot."""
        marks = self.terms.marks
        types = [str(each.type).lower() for each in self.shape.columns if each.name in self.terms.tracked]
        ordered = not any(word in each for word in _WITHOUT_ORDER for each in types)
        copies = all(each.kind == FactKind.COPY for each in marks) and len(marks) <= MOST_COPIES
        return self.terms.tracked if self.valued and ordered and copies else ()

    @property
    def has_sequence(self) -> bool:
        """Whether facts of one instant may have an order of their own."""
        held = self.shape.column(MEMORY)
        return held is not None and SEQUENCE in dict(held.type.parts)

    def with_marks(self, rows: Iterable[Mapping[str, Any]]) -> "TableTerms":
        """The same with the marks that rows without a key set for every key."""
        known = (self.row(0, values) for values in rows)
        marks = tuple(
            RememberedMark(row.start, row.kind, row.sequence, row.scope, row.time)
            for row in known
            if row.kind is not None and row.start is not None and row.ended_at is None
        )
        return replace(self, terms=replace(self.terms, marks=marks))

    def row(
        self, place: int, told: Mapping[str, Any], twin: object = None, row_id: int | None = None
    ) -> RecordRow:
        """A row of the rule, of what `told` gave."""
        said: dict[str, Any] = {name: told.get(PREFIX + name) for name in FIELDS}
        sequence = said["sequence"]
        said["sequence"] = () if sequence is None else tuple(sequence.values())
        values = {name: told.get(name) for name in self.terms.tracked} if self.valued else {}
        return RecordRow(place, **said, values=values, twin=twin, row_id=row_id)

    def count_broken(self, life: pa.Table) -> Mapping[str, int]:
        """How often the rows of a record break the laws that are about several of them together."""
        rows = [self.row(place, told) for place, told in enumerate(rows_of(life))]
        return Counter(law.value for law in broken_together(rows, self.terms))


def terms_of_versions(
    table: TableLike, hashes: Sequence[str], newest: str | None, numbers: Mapping[str, int]
) -> TableTerms:
    """The terms of a table whose rows are versions, but for its marks: by layout, properties and commits.

    `newest` is the newest recorded time, `numbers` are the ids of fields.
    """
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
        return TableTerms(shape, terms, hashes=tuple(hashes) if terms.hashed else ())
    known = None if newest is None else micros_of(parse_instant(newest))
    terms = replace(terms, remembers=True, newest=known, settled=settled_interval(table))
    if table.properties.get(SETTLED) is None:
        return TableTerms(shape, terms)
    return TableTerms(shape, replace(terms, tracked=tracked_columns(table), numbers=numbers), valued=True)


def terms_of_keys(table: TableLike, hashes: Sequence[str]) -> TableTerms:
    """The terms of a table that has each record once."""
    hashed = Law.ROW_HASH in LAWS[table.shape.layout]
    return TableTerms(table.shape, LawTerms(hashed=hashed), hashes=tuple(hashes) if hashed else ())


def read_row_hashes(table: TableLike, numbers: Mapping[str, int]) -> "tuple[RowHash, ...]":
    """The ways in which a row may be hashed.

    None where rows have no hashes, where the table does not record all of them, or the SQL of models is not
    installed.
    """
    if Law.ROW_HASH not in LAWS[table.shape.layout] or find_spec("sqlglot") is None:
        return ()
    from backstory.stores.sql.row_hashes import ROW_HASHES, hashes_of_property

    names = {number: name for name, number in numbers.items()}
    return tuple(hashes_of_property(table.properties.get(ROW_HASHES), names) or ())


def numbers_of(fields: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The ids of fields by their names."""
    return {each["name"]: int(each["id"]) for each in fields}


def settled_interval(table: TableLike) -> tuple[int | None, int] | None:
    """The settled interval; None where nothing is settled, or where the property cannot be read."""
    try:
        first, last = json.loads(table.properties.get(SETTLED) or "[]")
        return (None if first is None else micros_of(parse_instant(first))), micros_of(parse_instant(last))
    except (TypeError, ValueError, AttributeError):
        return None


def tracked_columns(table: TableLike) -> tuple[str, ...]:
    """The columns whose change makes a version: all but the key's and those that settings name."""
    told = {name: json.loads(table.properties.get(name) or "[]") for name in (TRACK, IGNORE, OVERWRITE)}
    left = {*told[IGNORE], *told[OVERWRITE], *table.shape.key}
    names = [each.name for each in table.shape.user_columns if each.name not in left]
    return tuple(name for name in names if not told[TRACK] or name in told[TRACK])


_MANIFEST: Final = "backstory.odf.manifest"
_FOLLOWING: Final[Mapping[Op | None, frozenset[Op]]] = {
    None: frozenset({Op.APPEND}),
    Op.APPEND: frozenset({Op.CORRECT_FROM, Op.RETRACT}),
    Op.CORRECT_FROM: frozenset({Op.CORRECT_TO}),
    Op.CORRECT_TO: frozenset({Op.CORRECT_FROM, Op.RETRACT}),
    Op.RETRACT: frozenset({Op.APPEND}),
}
# A log that has no row for what was before a correction.
_UNPAIRED: Final = {
    **_FOLLOWING,
    Op.APPEND: frozenset({Op.CORRECT_TO, Op.RETRACT}),
    Op.CORRECT_TO: frozenset({Op.CORRECT_TO, Op.RETRACT}),
    Op.CORRECT_FROM: frozenset[Op](),
}
# A ledger has many events of a key; one that is corrected goes before it stands there anew.
_LEDGER: Final = {
    None: frozenset({Op.APPEND}),
    Op.APPEND: frozenset({Op.APPEND, Op.CORRECT_FROM}),
    Op.CORRECT_FROM: frozenset({Op.CORRECT_TO}),
    Op.CORRECT_TO: frozenset({Op.APPEND, Op.CORRECT_FROM}),
    Op.RETRACT: frozenset[Op](),
}


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a log says of itself: whether its rows have keys, how it writes corrections, its watermark.

    One that is not `strict` has a changelog as it came, whose operations follow no law (section 2.6).
    With `corrects` it is a ledger that tells corrections: a key has an event for each time, and a correction
    may move it to another time.
    """

    keyed: bool
    paired: bool
    strict: bool = True
    watermark: int | None = None
    corrects: bool = False

    def follows(self, before: Op | None, op: Op) -> bool:
        """Whether an event may come after another of its record, or as the first."""
        if self.corrects:
            return op in _LEDGER[before]
        if not self.keyed:
            return op is Op.APPEND
        if not self.strict:
            return True
        return op in (_FOLLOWING if self.paired else _UNPAIRED)[before]


def log_facts(table: TableLike, names: Mapping[str, Any], told: str | None) -> LogFacts:
    """What a log says of itself, of which its newest watermark is told."""
    watermark = None if told is None else micros_of(parse_instant(told))
    keyed, paired = bool(table.shape.key), names["op"] is not None
    corrects = keyed and paired and bool(names["events"])
    return LogFacts(keyed, paired, _is_strict(table), watermark, corrects)


def _is_strict(table: TableLike) -> bool:
    """Whether no source takes a changelog as it comes, by the manifest that the table keeps."""
    return not any(
        str(each.get("validation", "")).lower() == "schema"
        for each in _all_objects(json.loads(table.properties.get(_MANIFEST) or "{}"))
    )


def _all_objects(document: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(document, dict):
        yield document
        document = list(document.values())
    if isinstance(document, list):
        for each in document:
            yield from _all_objects(each)


def wrong_offsets(
    logged: Sequence[Mapping[str, Any]], properties: Iterable[Mapping[str, str]], rows: int
) -> tuple[list[str], int]:
    """The first offsets of blocks whose offsets are wrong, and how many offsets there should be.

    By the blocks, or as many as there are `rows` where no block has offsets.
    """
    blocks, problems = read_history(logged, properties)
    wrong = [str(each.offsets[0]) for each in problems if each.what == "offsets" and each.offsets]
    ends = [block.offsets[1] for block in blocks if block.offsets]
    return wrong, ends[-1] + 1 if ends else rows


def misplaced_query(offsets: str, wanted: int) -> str:
    """The query for the offsets in a relation that are not there exactly once, and by how many rows each.

    NULL is none of the numbers from 0 to before `wanted`.
    """
    due = "CASE WHEN number IS NULL THEN 0 ELSE 1 END"
    return f"""SELECT * FROM (
      SELECT COALESCE(place, number) AS place, ABS(COALESCE(times, 0) - {due}) AS times
      FROM (SELECT place, COUNT(*) AS times FROM {offsets} GROUP BY place) AS there
      FULL JOIN RANGE({wanted}) AS numbers (number) ON place = number
    ) AS found WHERE times > 0"""
