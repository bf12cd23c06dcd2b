"""The laws of each layout, as data, and what is known of a record's rows to judge them by.

Instants and recorded times are microseconds since 1970, so that each of them can be compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from backstory.model.layout import Layout
from backstory.model.types import Kind

INFINITY: Final = (1 << 63) - 1
PREFIX: Final = "law "  # no column of a table is called so
# The columns, behind the prefix, that versions are judged by.
FIELDS: Final = (
    *("start", "end", "written", "ended_at", "end_before", "time", "keyed", "flag", "state", "hash"),
    *("rightly", "role", "kind", "scope", "columns", "sequence"),
)
TIMELY: Final = frozenset({Kind.UTC_DATETIME, Kind.NAIVE_DATETIME, Kind.NAIVE_DATE})
# The words of models for the states of versions.
NEW, CHANGED, DELETED = "new", "changed", "deleted"
WORDS: Final = frozenset({NEW, CHANGED, DELETED})


class Law(StrEnum):
    """What holds of a table, by the name that `check` gives it (interface, section 6)."""

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
    **{each: (*SPANS, Law.PROPERTIES) for each in Layout if each.is_adopted},
}


@dataclass(frozen=True, slots=True)
class RememberedMark:
    """A remembered copy or truncate: it speaks of every key."""

    at: int
    kind: str
    sequence: tuple[Any, ...] = ()
    scope: str | None = None
    time: int | None = None


@dataclass(frozen=True, slots=True)
class LawTerms:
    """What a table says of all its records.

    `flagged` and `stated`: rows say in a flag, or in a state, whether they are open. `grain` and `far` are
    those of the layout's span. With `remembers` rows have a recorded time and may be memory: `newest` is the
    newest commit's recorded time, `settled` the settled interval, `marks` speak of every key, `tracked` are
    the columns that make a version, and `numbers` their field ids.
    """

    flagged: bool = False
    stated: bool = False
    hashed: bool = False
    grain: int = 0
    far: int | None = None
    remembers: bool = False
    newest: int | None = None
    settled: tuple[int | None, int] | None = None
    marks: tuple[RememberedMark, ...] = ()
    tracked: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A stored row of one record: `place` tells it from the others, `keyed` that its key is whole.

    `rightly` says whether its hash is that of its values, NULL where nobody knows how that was made.
    `twin` is the same for rows that are identical in all columns, and `row_id` tells which of them is the
    oldest. The rest is what the layout's columns say; what a layout does not have is NULL.
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
