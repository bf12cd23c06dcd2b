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
# A changelog that is taken as it comes keeps its pairs together, and nothing else.
_TAKEN: Final = {
    op: frozenset(Op) - {Op.CORRECT_TO} if op is not Op.CORRECT_FROM else frozenset({Op.CORRECT_TO})
    for op in (None, *Op)
}


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a log says of itself: whether its rows have keys, how it writes corrections, its watermark."""

    keyed: bool
    paired: bool
    strict: bool = True
    watermark: int | None = None

    def follows(self, before: Op | None, op: Op) -> bool:
        """Whether an event may come after another of its record, or as the first."""
        if not self.keyed:
            return op is Op.APPEND
        if not self.strict:
            return not self.paired or op in _TAKEN[before]
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
    for event in events:
        op = Op(event.op) if event.op in set(Op) else None
        found[Law.NULL_KEY] += log.keyed and not event.keyed
        found[Law.OPERATIONS] += op is None or not log.follows(before, op)
        late = log.watermark is not None and (event.time is None or event.time > log.watermark)
        found[Law.WATERMARK] += late
        before = op
    found[Law.OPERATIONS] += log.keyed and log.paired and before is Op.CORRECT_FROM
    return +found
