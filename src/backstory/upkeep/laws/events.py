"""The laws of an event log: what each row of a record may follow on (odf-ingest.md, section 2.10)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from backstory.strategies.events.terms import Op
from backstory.upkeep.laws.terms import Law

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


@dataclass(frozen=True, slots=True)
class LogRow:
    """A row of the log, in the order of offsets; `op` is None where it is none of the four."""

    op: int | None
    time: int | None
    keyed: bool = True


def broken_events(events: Sequence[LogRow], log: LogFacts) -> Counter[Law]:
    """How often the events of one record break each law."""
    found: Counter[Law] = Counter()
    before: Op | None = None
    there: set[int | None] = set()
    for event in events:
        op = Op(event.op) if event.op in set(Op) else None
        found[Law.NULL_KEY] += log.keyed and not event.keyed
        found[Law.OPERATIONS] += op is None or not (log.follows(before, op) and _fits(log, op, event, there))
        late = log.watermark is not None and (event.time is None or event.time > log.watermark)
        found[Law.WATERMARK] += late
        before = op
    half = log.keyed and log.paired and log.strict and before is Op.CORRECT_FROM
    found[Law.OPERATIONS] += half
    return +found


def _fits(log: LogFacts, op: Op, event: LogRow, there: set[int | None]) -> bool:
    """Whether the ledger has, or has not, an event of this time to correct, or to add; `there` keeps up."""
    fits = not log.corrects or (event.time in there) is (op is Op.CORRECT_FROM)
    (there.discard if op is Op.CORRECT_FROM else there.add)(event.time)
    return fits
