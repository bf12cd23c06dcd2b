"""The facts needed to check a table's records: the identifying columns, and the table's settings.

For event logs, these facts include which events may follow each other (odf-ingest.md, section 2.10).
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from backstory.journal.chain import WATERMARK
from backstory.journal.verify import read_history
from backstory.model.instant import parse_instant
from backstory.model.layout import HIST_SUFFIX, KEY_SUFFIX, MEMORY, Layout
from backstory.model.table import Shape
from backstory.model.versions_layout import (
    IGNORE,
    OVERWRITE,
    RECORDED,
    SEQUENCE,
    SETTLED,
    TRACK,
    FactKind,
)
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.table_metadata import TableMetadata
from backstory.stores.metadata.values import rows_of
from backstory.stores.port import TableLike
from backstory.strategies.events.terms import Op
from backstory.upkeep.laws.mending import broken_together
from backstory.upkeep.laws.terms import FIELDS, LAWS, PREFIX, Law, LawTerms, RecordRow

if TYPE_CHECKING:
    from backstory.stores.sql.row_hashes import RowHash

# The query compares each row with at most this many instants of copies.
MOST_COPIES: Final = 1_000
# Types whose values engines do not compare, or compare differently.
_WITHOUT_ORDER: Final = ("map<", "variant")


@dataclass(frozen=True, slots=True)
class TableTerms:
    """The identifying columns of a table's records, and the facts needed to check them.

    If `valued` is true, the table keeps memory, so the values in its rows are checked too. `hashes` are the
    hashes that a row may have, as SQL, or empty if the way of hashing is unknown.
    """

    shape: Shape
    terms: LawTerms
    valued: bool = False
    hashes: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns whose values identify a record."""
        shape = self.shape
        record = f"{shape.table.name.removesuffix(HIST_SUFFIX)}{KEY_SUFFIX}"
        known = shape.layout in {Layout.HIST, Layout.BASE} and record in shape.names
        return (record,) if known else shape.key

    @property
    def naming(self) -> tuple[str, ...]:
        """The columns by which a record is shown to people."""
        return self.shape.key or self.identity

    @property
    def foldable(self) -> tuple[str, ...]:
        """The columns by which a query checks the law `fold`, or none if no query can check the law."""
        marks = self.terms.marks
        types = [
            str(column.type).lower() for column in self.shape.columns if column.name in self.terms.tracked
        ]
        ordered = not any(word in each for word in _WITHOUT_ORDER for each in types)
        copies = all(mark.kind == FactKind.COPY for mark in marks) and len(marks) <= MOST_COPIES
        return self.terms.tracked if self.valued and ordered and copies else ()

    @property
    def has_sequence(self) -> bool:
        """Whether facts at one instant have a sequence."""
        column = self.shape.column(MEMORY)
        return column is not None and SEQUENCE in dict(column.type.parts)

    def with_marks(self, rows: Iterable[Mapping[str, Any]]) -> "TableTerms":
        """The terms with the marks in these rows, which have no key."""
        marks = tuple(
            row
            for values in rows
            if (row := self.row(0, values)).kind and row.start is not None and row.ended_at is None
        )
        return replace(self, terms=replace(self.terms, marks=marks))

    def row(
        self, place: int, columns: Mapping[str, Any], twin: object = None, row_id: int | None = None
    ) -> RecordRow:
        """A row of a record from the columns of the first step."""
        fields: dict[str, Any] = {name: columns.get(PREFIX + name) for name in FIELDS}
        sequence = fields["sequence"]
        fields["sequence"] = () if sequence is None else tuple(sequence.values())
        values = {name: columns.get(name) for name in self.terms.tracked} if self.valued else {}
        broken = frozenset(law for law in Law if columns.get(PREFIX + law))
        return RecordRow(place, **fields, values=values, twin=twin, row_id=row_id, broken=broken)

    def count_broken(self, life: pa.Table) -> Mapping[str, int]:
        """How often the rows of a record break each law about several rows."""
        rows = [self.row(place, columns) for place, columns in enumerate(rows_of(life))]
        return Counter(law.value for law in broken_together(rows, self.terms))


def terms_of(table: TableMetadata) -> TableTerms:
    """The facts needed to check a table's rows, without its marks and hashes."""
    shape, span = table.shape, table.shape.layout.span
    hashed = Law.ROW_HASH in LAWS[shape.layout]
    if span is None:
        return TableTerms(shape, LawTerms(hashed=hashed))
    terms = LawTerms(bool(span.flag), bool(span.state), hashed, span.grain, span.far)
    if shape.layout is not Layout.VERSIONS:
        return TableTerms(shape, terms)
    newest = table.newest_property(RECORDED)
    known = None if newest is None else micros_of(parse_instant(newest))
    terms = replace(terms, remembers=True, newest=known, settled=settled_interval(table))
    if table.properties.get(SETTLED) is None:
        return TableTerms(shape, terms)
    tracked, numbers = tracked_columns(table), {each["name"]: int(each["id"]) for each in table.fields}
    return TableTerms(shape, replace(terms, tracked=tracked, numbers=numbers), valued=True)


def read_row_hashes(table: TableMetadata) -> "tuple[RowHash, ...]":
    """The ways in which rows may be hashed.

    The result is empty if rows have no hashes, if the table does not record all ways, or if sqlglot is not
    installed.
    """
    if Law.ROW_HASH not in LAWS[table.shape.layout] or find_spec("sqlglot") is None:
        return ()
    from backstory.stores.sql.row_hashes import ROW_HASHES, hashes_of_property

    names = {int(each["id"]): each["name"] for each in table.fields}
    return tuple(hashes_of_property(table.properties.get(ROW_HASHES), names) or ())


def settled_interval(table: TableLike) -> tuple[int | None, int] | None:
    """The settled interval, or None if nothing is settled or the property cannot be parsed."""
    try:
        first, last = json.loads(table.properties.get(SETTLED) or "[]")
        return (None if first is None else micros_of(parse_instant(first))), micros_of(parse_instant(last))
    except (TypeError, ValueError, AttributeError):
        return None


def tracked_columns(table: TableLike) -> tuple[str, ...]:
    """The columns whose change begins a version: by default all columns except the key."""
    settings = {name: json.loads(table.properties.get(name) or "[]") for name in (TRACK, IGNORE, OVERWRITE)}
    left_out = {*settings[IGNORE], *settings[OVERWRITE], *table.shape.key}
    names = [column.name for column in table.shape.user_columns if column.name not in left_out]
    return tuple(name for name in names if not settings[TRACK] or name in settings[TRACK])


_MANIFEST: Final = "backstory.odf.manifest"
_FOLLOWING: Final[Mapping[Op | None, frozenset[Op]]] = {
    None: frozenset({Op.APPEND}),
    Op.APPEND: frozenset({Op.CORRECT_FROM, Op.RETRACT}),
    Op.CORRECT_FROM: frozenset({Op.CORRECT_TO}),
    Op.CORRECT_TO: frozenset({Op.CORRECT_FROM, Op.RETRACT}),
    Op.RETRACT: frozenset({Op.APPEND}),
}
# A log without a row for the values before a correction.
_UNPAIRED: Final = {
    **_FOLLOWING,
    Op.APPEND: frozenset({Op.CORRECT_TO, Op.RETRACT}),
    Op.CORRECT_TO: frozenset({Op.CORRECT_TO, Op.RETRACT}),
    Op.CORRECT_FROM: frozenset[Op](),
}
# A ledger has many events of a key. A correction removes the old event before it adds the new one.
_LEDGER: Final = {
    None: frozenset({Op.APPEND}),
    Op.APPEND: frozenset({Op.APPEND, Op.CORRECT_FROM}),
    Op.CORRECT_FROM: frozenset({Op.CORRECT_TO}),
    Op.CORRECT_TO: frozenset({Op.APPEND, Op.CORRECT_FROM}),
    Op.RETRACT: frozenset[Op](),
}


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The settings of a log: whether its rows have keys, how it writes corrections, its watermark.

    A log that is not `strict` contains a changelog as delivered, whose operations follow no law (section
    2.6). A log that `corrects` is a ledger with corrections. In such a log, a key has an event for each time,
    and a correction may move the event to another time.
    """

    keyed: bool
    paired: bool
    strict: bool = True
    watermark: int | None = None
    corrects: bool = False

    def follows(self, before: Op | None, op: Op) -> bool:
        """Whether an event may follow another one of its record, or be the first."""
        if self.corrects:
            return op in _LEDGER[before]
        if not self.keyed:
            return op is Op.APPEND
        if not self.strict:
            return True
        return op in (_FOLLOWING if self.paired else _UNPAIRED)[before]


def log_facts(table: TableMetadata, names: Mapping[str, Any]) -> LogFacts:
    """The settings of a log, from its properties and system columns."""
    newest = table.newest_property(WATERMARK)
    watermark = None if newest is None else micros_of(parse_instant(newest))
    keyed, paired = bool(table.shape.key), names["op"] is not None
    corrects = keyed and paired and bool(names["events"])
    return LogFacts(keyed, paired, _is_strict(table), watermark, corrects)


def _is_strict(table: TableLike) -> bool:
    """Whether the manifest in the table's properties has no source that keeps a changelog as delivered."""
    return not any(
        str(each.get("validation", "")).lower() == "schema"
        for each in _all_objects(json.loads(table.properties.get(_MANIFEST) or "{}"))
    )


def _all_objects(document: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(document, dict):
        yield document
        document = list(document.values())
    if isinstance(document, list):
        for part in document:
            yield from _all_objects(part)


def wrong_offsets(
    logged: Sequence[Mapping[str, Any]], properties: Iterable[Mapping[str, str]], rows: int
) -> tuple[list[str], int]:
    """The first offset of each block with wrong offsets, and the right number of offsets.

    The right number is taken from the blocks. If the blocks contain no offsets, it is the number of `rows`.
    """
    blocks, problems = read_history(logged, properties)
    wrong = [str(problem.offsets[0]) for problem in problems if problem.what == "offsets" and problem.offsets]
    ends = [block.offsets[1] for block in blocks if block.offsets]
    return wrong, ends[-1] + 1 if ends else rows


def misplaced_query(offsets: str, wanted: int) -> str:
    """The query for offsets that do not occur exactly once, with the number of rows by which each is wrong.

    The right offsets are the numbers from 0 to `wanted` - 1. NULL is never a right offset.
    """
    due = "CASE WHEN number IS NULL THEN 0 ELSE 1 END"
    return f"""SELECT * FROM (
      SELECT COALESCE(place, number) AS place, ABS(COALESCE(times, 0) - {due}) AS times
      FROM (SELECT place, COUNT(*) AS times FROM {offsets} GROUP BY place) AS there
      FULL JOIN RANGE({wanted}) AS numbers (number) ON place = number
    ) AS found WHERE times > 0"""
