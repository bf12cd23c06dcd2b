"""An event log in plain Python: its rows, and the identity of records and of content."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backstory.strategies.events.terms import EventTerms, Op


class LogRejected(Exception):
    """The delivery would corrupt the log. The error has the reason and the keys."""

    def __init__(self, code: str, keys: Iterable[Any] = ()) -> None:
        super().__init__(code, list(keys))
        self.code = code
        self.keys = list(keys)


@dataclass(frozen=True)
class Arrival:
    """A delivered row: its event time, or None if the source has none, and its values.

    `op` is the operation of the row, if the source specifies it.
    """

    time: Any
    values: Mapping[str, Any]
    op: Any = Op.APPEND


@dataclass(frozen=True)
class Event:
    """A row of the log."""

    offset: int
    op: Op
    system_time: Any
    time: Any
    values: Mapping[str, Any]


@dataclass
class LogOutcome:
    """The events that a delivery adds, the number of rows by outcome, and the watermark."""

    events: list[Event]
    counts: Counter[str] = field(default_factory=Counter)
    watermark: Any = None


def state(log: Sequence[Event], terms: EventTerms) -> dict[Any, Event]:
    """The current event of each record: its last event, unless that is a retraction (section 2.10)."""
    last = {identity(terms, event.time, event.values): event for event in log}
    return {key: event for key, event in last.items() if event.op is not Op.RETRACT}


def identity(terms: EventTerms, time: Any, values: Mapping[str, Any]) -> Any:
    """The identity of a row's record. Rows of the same record have equal identities."""
    key = key_of(terms, values)
    return (*key, canonical(time)) if terms.time_in_key else key


def key_of(terms: EventTerms, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of the key, in a form that can be compared."""
    return tuple(canonical(values[name]) for name in terms.key)


def content(time: Any, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """An event time and all values, in a form that can be compared."""
    return canonical(time), *map(canonical, values.values())


def canonical(value: Any) -> Any:
    """The value in a form in which NaN equals NaN, and 0.0 equals -0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def ranked(value: Any) -> tuple[int, Any]:
    """The value in a form that sorts as in Spark: NULL first, NaN last, strings by their bytes."""
    if value is None:
        return 0, 0
    if isinstance(value, float) and math.isnan(value):
        return 2, 0
    return 1, value.encode() if isinstance(value, str) else value
