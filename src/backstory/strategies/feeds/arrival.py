"""Check a delivery as a whole: its faults, its truncates, and omitted events (V29, V47, V56, V86)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS
from backstory.formats.delivered import shape_rows
from backstory.model import versions_layout
from backstory.model.layout import FILE, POSITION, VALID_FROM
from backstory.model.versions_layout import OWN_TIME, ROLE, SEQUENCE, FactKind, Role
from backstory.strategies.copies.version_rows import OPEN, micros, withdraw_facts
from backstory.strategies.feeds.facts import has_position, in_interval, place_in_order, times_to_store
from backstory.strategies.feeds.records import is_of, make_rows, own_times, sequence_codes, sequences
from backstory.strategies.feeds.terms import AT, FIRST, FURTHER, KIND, FeedTerms
from backstory.strategies.keys import pair_codes
from backstory.strategies.values import Values, take_rows

# The faults of a delivery, with sampled keys. An overlap of window and settled interval has no keys.
FAULTS = NO_KEY, NO_SEQUENCE, SETTLED, OUTSIDE, OVERLAP, CONFLICT, SPOILT = (
    "without a key",
    "without a sequence",
    "settled",
    "outside the window",
    "a settled window",
    "of one sequence",
    "spoilt",
)
DUPLICATE, TOO_LATE = "duplicate", "too_late"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A delivery of events, checked against the marks of its table.

    `events` are the delivered events of single records. `marks` are the live marks that still apply, followed
    by the delivered marks: new truncates, or a copy's own mark. `silenced_marks` are the marks that a
    restatement cancels for its keys. `inside` are the log's stored truncates in the window of the
    restatement. `has_later_mark` is a mask of the delivered marks that precede a stored mark. `removed` are
    the places of marks to remove, and `added` are rows of marks to add. If `counts` has faults, nothing else
    is valid.
    """

    events: pa.Table
    marks: pa.Table
    has_later_mark: np.ndarray
    silenced_marks: pa.Table
    inside: pa.Table
    removed: pa.Table
    added: pa.Table
    counts: Mapping[str, int]
    samples: Mapping[str, pa.Table]

    @property
    def first_mark(self) -> int:
        """The index of the first delivered mark."""
        return len(self.marks) - len(self.has_later_mark)


def check_delivery(terms: FeedTerms, delivered: pa.Table, marks: pa.Table) -> Arrival:
    """Check a delivery for faults as a whole. `marks` are the table's live marks, with their places."""
    truncate = of_kind(delivered, FactKind.TRUNCATE)
    flags = {
        NO_KEY: ~truncate & _any_null([delivered[name] for name in terms.key], nan=False),
        NO_SEQUENCE: _lacks_sequence(terms, delivered),
    }
    at = micros(delivered[AT])
    # The instant of a message depends on other messages of its log.
    late = in_interval(at, terms.settled) & (truncate | ~has_position(terms, delivered))
    late |= are_of_former_logs(terms, delivered) | _before_settled_truncates(terms, delivered, marks)
    flags |= {SETTLED: late & (not terms.drops), OUTSIDE: ~in_window(at, terms.window), TOO_LATE: late}
    keys = delivered.select(terms.key)
    faulty_keys = {name: keys.filter(pa.array(rows)) for name, rows in flags.items() if rows.any()}
    timely = take_rows(delivered, np.flatnonzero(~late))
    counts = {name: len(rows) for name, rows in faulty_keys.items()}
    if _overlaps_settled(terms):
        counts[OVERLAP] = 1
    truncate = of_kind(timely, FactKind.TRUNCATE)
    truncates, events = (take_rows(timely, np.flatnonzero(rows)) for rows in (truncate, ~truncate))
    return _match_truncates(
        terms,
        events,
        truncates,
        marks,
        counts,
        {name: rows.slice(0, MAX_KEYS) for name, rows in faulty_keys.items()},
    )


def _overlaps_settled(terms: FeedTerms) -> bool:
    """Whether the window overlaps the settled interval (V86)."""
    if terms.window is None or not terms.settled:
        return False
    first, last = terms.settled
    return terms.window[0] <= last and (first is None or terms.window[1] > first)


def _match_truncates(
    terms: FeedTerms,
    events: pa.Table,
    truncates: pa.Table,
    marks: pa.Table,
    counts: Mapping[str, int],
    samples: Mapping[str, pa.Table],
) -> Arrival:
    """Match delivered truncates with the stored marks.

    A known truncate is a duplicate, unless the stored mark is in the window of a restatement (V52, V86).
    """
    at, known_at = micros(truncates[AT]), micros(marks[VALID_FROM])
    own = np.where(has_position(terms, truncates), at, FIRST)
    places = place_in_order(np.concatenate([at, known_at]), np.concatenate([own, own_times(marks)]))
    sides = [(further_sequence(terms, truncates), len(truncates)), (sequences(marks), len(marks))]
    truncate_order, mark_order = sequence_codes(terms, sides)
    copy = is_of(marks, FactKind.COPY)
    codes, size = pair_codes(np.concatenate([truncate_order, np.where(copy, -1, mark_order)]) + 1, places)
    truncate_codes, mark_codes = np.split(codes, [len(at)])
    first, earliest = np.zeros(len(at), bool), np.argsort(at, kind="stable")
    first[earliest[np.unique(truncate_codes[earliest], return_index=True)[1]]] = True
    since = np.full(size, FIRST)
    since[mark_codes[~copy]] = known_at[~copy]
    inside = in_window(known_at, terms.window) & (terms.window is not None)
    restated = np.isin(truncate_codes, mark_codes[~copy & inside])
    # A truncate of a log replaces its mark if its own time is earlier (V133), or another and restated.
    earlier, later = at < since[truncate_codes], at > since[truncate_codes]
    moves = (own != FIRST) & (earlier | (later & restated))
    known = np.isin(truncate_codes, mark_codes[~copy]) & ~moves
    replaced = ~copy & np.isin(mark_codes, truncate_codes[first & ~known])
    again = ~copy & np.isin(mark_codes, truncate_codes) & inside
    is_new = first & (~known | restated)
    goes = (inside & ~again & terms.all_keys) | replaced
    new = _new_marks(terms, truncates.filter(pa.array(is_new)))
    ended = marks.filter(pa.array(goes))
    back = shape_rows(withdraw_facts(ended, terms.recorded, terms.memory), terms.columns, ids=terms.ids)
    return Arrival(
        events,
        pa.concat_tables([marks.filter(pa.array(~again & ~goes)), new], promote_options="default"),
        _later(at[is_new], truncate_order[is_new], known_at, np.where(copy, OPEN, mark_order)),
        marks.filter(pa.array(inside & ~again & (not terms.all_keys))),
        marks.filter(pa.array(inside & (own_times(marks) != FIRST))),
        ended.select([FILE, POSITION]),
        pa.concat_tables([new.filter(pa.array(~known[is_new])), back]),
        {**counts, DUPLICATE: int((~is_new).sum())},
        samples,
    )


def _later(at: np.ndarray, order: np.ndarray, known_at: np.ndarray, known: np.ndarray) -> np.ndarray:
    """A mask of the truncates that precede a stored mark."""
    latest = known_at.max(initial=FIRST)
    last = known[known_at == latest].max(initial=-1)
    return (at < latest) | ((at == latest) & (order < last))


def _new_marks(terms: FeedTerms, truncates: pa.Table) -> pa.Table:
    at = micros(truncates[AT])
    time = times_to_store(np.where(has_position(terms, truncates), at, FIRST))
    memory = {
        ROLE: pa.repeat(Role.FACT.value, len(truncates)),
        versions_layout.KIND: pa.repeat(FactKind.TRUNCATE.value, len(truncates)),
        SEQUENCE: further_sequence(terms, truncates),
        OWN_TIME: time,
    }
    return make_rows(terms, {}, at, at, memory)


def further_sequence(terms: FeedTerms, delivered: pa.Table) -> pa.Array | None:
    """The further sequence of delivered events, or None if the feed has none."""
    if not terms.sequence:
        return None
    sequence = delivered[FURTHER].combine_chunks()
    if not terms.log:
        return sequence
    return pc.if_else(pa.array(has_position(terms, delivered)), sequence, pa.scalar(None, sequence.type))


def are_of_former_logs(terms: FeedTerms, delivered: pa.Table) -> np.ndarray:
    """A mask of the messages from former logs. These messages are settled (V136)."""
    former = terms.former
    if former is None:
        return np.zeros(len(delivered), bool)
    at = micros(delivered[AT])
    is_former = at <= former.latest
    if former.last is not None:
        positions = further_sequence(terms, delivered)
        assert positions is not None
        last = pa.array([dict(zip(terms.sequence, former.last, strict=True))], positions.type)
        positions_, last_position = sequence_codes(terms, [(positions, len(positions)), (last, 1)])
        is_former |= positions_ > last_position[0]
    return is_former & (at <= former.until) & has_position(terms, delivered)


def _before_settled_truncates(terms: FeedTerms, delivered: pa.Table, marks: pa.Table) -> np.ndarray:
    """A mask of the messages that precede a settled truncate in their log (V135)."""
    own = own_times(marks)
    settled = marks.filter(pa.array((own != FIRST) & in_interval(own, terms.settled)))
    if not len(settled):
        return np.zeros(len(delivered), bool)
    sides = [(further_sequence(terms, delivered), len(delivered)), (sequences(settled), len(settled))]
    positions, truncates = sequence_codes(terms, sides)
    return has_position(terms, delivered) & (positions < truncates.max())


def _lacks_sequence(terms: FeedTerms, delivered: pa.Table) -> np.ndarray:
    """A mask of the events that lack a time or part of their sequence. Reads of a log may lack all of it."""
    side = delivered[FURTHER].combine_chunks() if terms.sequence else None
    parts = [] if side is None else [pc.struct_field(side, name) for name in terms.sequence]
    lacks = _any_null([delivered[AT]], nan=True)
    if not parts:
        return lacks
    return lacks | (_any_null(parts, nan=True) & (has_position(terms, delivered) | (not terms.log)))


def of_kind(delivered: pa.Table, kind: FactKind) -> np.ndarray:
    """A mask of the delivered events of one kind."""
    return np.asarray(pc.equal(delivered[KIND], kind.value).combine_chunks())


def _any_null(columns: Sequence[Values], *, nan: bool) -> np.ndarray:
    """A mask of the rows with a NULL in these columns. With `nan`, NaN counts as NULL (V16, V47)."""
    nulls = [pc.is_null(values, nan_is_null=nan) for values in columns]
    return np.logical_or.reduce([np.asarray(flags) for flags in nulls])


def in_window(at: np.ndarray, window: tuple[int, int] | None) -> np.ndarray:
    """A mask of the instants in a window, excluding its end. Without a window, all instants count."""
    return np.ones(len(at), bool) if window is None else (at >= window[0]) & (at < window[1])
