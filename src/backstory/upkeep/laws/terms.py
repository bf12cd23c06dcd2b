"""The laws of each layout as data, and the facts about a table and its rows with which laws are checked.

Instants and recorded times are microseconds since 1970.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from backstory.model.layout import HIST_SUFFIX, KEY_SUFFIX, Layout, Span
from backstory.model.table import Shape
from backstory.model.versions_layout import FactKind
from backstory.strategies.scd2.transitions import WORDS as STATES
from backstory.strategies.scd2.transitions import State

INFINITY: Final = (1 << 63) - 1
PREFIX: Final = "law "  # no column of a table begins like this
# The stored states of a model's versions. A model may have its own words for them.
NEW, CHANGED, DELETED = State.NEW.value, State.CHANGED.value, State.DELETED.value
WORDS: Final = frozenset(STATES.values())


class Law(StrEnum):
    """A law, by its name in `check` (interface, section 6)."""

    NULL_KEY = "null-key"
    UNIQUE_KEY = "unique-key"
    UNIQUE_START = "unique-start"
    START_BEFORE_END = "start-before-end"
    NO_OVERLAP = "no-overlap"
    ONE_OPEN = "one-open"
    OPEN_MARKER = "open-marker"
    ROW_HASH = "row-hash"
    OFFSETS = "offsets"
    OPERATIONS = "operations"
    WATERMARK = "watermark"
    MEMORY = "memory"
    RECORDED = "recorded"
    ONE_BELIEF = "one-belief"
    ONE_FACT = "one-fact"
    FOLD = "fold"
    SETTLED = "settled"
    PROPERTIES = "properties"


SPANS: Final = (Law.NULL_KEY, Law.UNIQUE_START, Law.START_BEFORE_END, Law.NO_OVERLAP, Law.ONE_OPEN)
REMEMBERED: Final = (Law.MEMORY, Law.RECORDED, Law.ONE_BELIEF, Law.ONE_FACT, Law.FOLD, Law.SETTLED)
KEYED: Final = (Law.NULL_KEY, Law.UNIQUE_KEY, Law.PROPERTIES)
LAWS: Final[Mapping[Layout, tuple[Law, ...]]] = {
    Layout.FIVETRAN_LIVE: KEYED,
    Layout.FOREIGN: KEYED,
    Layout.FIVETRAN_HISTORY: (*SPANS, Law.OPEN_MARKER, Law.PROPERTIES),
    Layout.BASE: (*KEYED[:2], Law.ROW_HASH, Law.PROPERTIES),
    Layout.HIST: (*SPANS, Law.OPEN_MARKER, Law.ROW_HASH, Law.PROPERTIES),
    Layout.RUN_LOG: (Law.PROPERTIES,),
    Layout.ODF: (Law.NULL_KEY, Law.OFFSETS, Law.OPERATIONS, Law.WATERMARK, Law.PROPERTIES),
    Layout.ODF_LOG: KEYED,
    Layout.VERSIONS: (*SPANS, Law.OPEN_MARKER, *REMEMBERED, Law.PROPERTIES),
    **{layout: (*SPANS, Law.PROPERTIES) for layout in Layout if layout.is_adopted},
}


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A stored row of one record.

    `place` identifies it among the record's rows. `keyed` is true if no part of its key is NULL. `twin` is
    equal for rows that are identical in all columns, and the row with the smallest `row_id` is the oldest of
    them. `broken` contains the single-row laws that the stored row breaks. The other fields are the layout's
    columns, None if the layout lacks them.
    """

    place: int
    start: int | None
    end: int | None = None
    keyed: bool = True
    flag: bool | None = None
    state: str | None = None
    written: int | None = None
    role: str | None = None
    ended_at: int | None = None
    end_before: int | None = None
    kind: str | None = None
    sequence: tuple[Any, ...] = ()
    columns: Sequence[int] | None = None
    scope: str | None = None
    time: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    twin: object = None
    row_id: int | None = None
    broken: frozenset[Law] = field(default_factory=frozenset[Law], compare=False)


# A query compares each row with at most this many instants of copies.
MOST_COPIES: Final = 1_000
# Types whose values engines do not compare, or compare differently.
_WITHOUT_ORDER: Final = ("map<", "variant")


@dataclass(frozen=True, slots=True)
class LawTerms:
    """The facts about a table that hold for all of its records.

    `newest` is the newest commit's recorded time, and `settled` is the settled interval. `marks` are
    remembered copies and truncates, which apply to every key. `tracked` are the columns whose change begins a
    version, and `numbers` are their field ids. `hashes` are the hashes that a row may have, as SQL, or empty
    if the way of hashing is unknown.
    """

    shape: Shape
    newest: int | None = None
    settled: tuple[int | None, int] | None = None
    marks: tuple[RecordRow, ...] = ()
    tracked: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    hashes: tuple[str, ...] = ()

    @property
    def span(self) -> Span:
        """The columns with the start and the end of a version."""
        span = self.shape.layout.span
        assert span is not None
        return span

    @property
    def remembers(self) -> bool:
        """Whether rows have a recorded time, and may be memory."""
        return self.shape.layout is Layout.VERSIONS

    @property
    def has_hashes(self) -> bool:
        """Whether rows have hashes."""
        return Law.ROW_HASH in LAWS[self.shape.layout]

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
        types = [str(column.type).lower() for column in self.shape.columns if column.name in self.tracked]
        ordered = not any(word in each for word in _WITHOUT_ORDER for each in types)
        copies = all(mark.kind == FactKind.COPY for mark in self.marks) and len(self.marks) <= MOST_COPIES
        return self.tracked if ordered and copies else ()

    def row(
        self, place: int, columns: Mapping[str, Any], twin: object = None, row_id: int | None = None
    ) -> RecordRow:
        """A row of a record from the layout's columns."""
        fields: dict[str, Any] = {name: columns.get(PREFIX + name) for name in FIELDS}
        fields["sequence"] = tuple((fields["sequence"] or {}).values())
        values = {name: columns.get(name) for name in self.tracked}
        broken = frozenset(law for law in Law if columns.get(PREFIX + law))
        return RecordRow(place, **fields, values=values, twin=twin, row_id=row_id, broken=broken)


# The columns by which versions are checked, without the prefix.
FIELDS: Final = {each.name for each in fields(RecordRow)} - {"place", "values", "twin", "row_id", "broken"}
