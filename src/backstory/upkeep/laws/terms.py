"""The laws of each layout as data, and the facts about a table and its rows with which laws are checked.

Instants and recorded times are microseconds since 1970.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from backstory.model.layout import Layout
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

    `place` identifies it among the record's rows. `keyed` is true if no part of its key is NULL. `rightly` is
    true if the row's hash fits its values, and None if the way of hashing is unknown. `twin` is equal for
    rows that are identical in all columns, and the row with the smallest `row_id` is the oldest of them.
    `broken` are the laws of single rows that the stored row breaks. The other fields are the layout's
    columns, None if the layout lacks them.
    """

    place: int
    start: int | None
    end: int | None = None
    keyed: bool = True
    flag: bool | None = None
    state: str | None = None
    hash: str | None = None
    rightly: bool | None = None
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


@dataclass(frozen=True, slots=True)
class LawTerms:
    """The facts that hold for all records of a table.

    If `flagged` is true, a flag in each row records whether the row is open. If `stated` is true, a state in
    each row records it. `grain` and `far` are taken from the layout's span. If the table `remembers`, rows
    have a recorded time and may be memory. Then `newest` is the newest commit's recorded time, and `settled`
    is the settled interval. `marks` are remembered copies and truncates, which apply to every key. `tracked`
    are the columns whose change begins a version, and `numbers` are their field ids.
    """

    flagged: bool = False
    stated: bool = False
    hashed: bool = False
    grain: int = 0
    far: int | None = None
    remembers: bool = False
    newest: int | None = None
    settled: tuple[int | None, int] | None = None
    marks: tuple[RecordRow, ...] = ()
    tracked: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)


# The columns by which versions are checked, without the prefix.
FIELDS: Final = {each.name for each in fields(RecordRow)} - {"place", "values", "twin", "row_id", "broken"}
