"""Many logs of one dataset, each with its life according to the rule, to compare plans with.

`d` is part of every key and distinguishes the logs, so that one delivery of a plan is a delivery to each log.
"""

import math
from collections import Counter
from datetime import UTC, datetime, timedelta

from specification.event_log import Arrival, Event, LogRejected
from specification.events import ingest

from backstory.strategies.events.terms import EventEncoding, EventTerms, Moment, OnConflict, Op, Strategy

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
COLUMNS = ("d", "k", "a b.`c", "x")
OP, OBSERVED = EventEncoding.OP, EventEncoding.OBSERVED
KEY = ("d", "k")
TERMS = {
    "append": EventTerms(Strategy.APPEND),
    "ledger": EventTerms(Strategy.LEDGER, KEY, time_at=1),
    "ledger literal": EventTerms(Strategy.LEDGER, KEY),
    "ledger required": EventTerms(Strategy.LEDGER, KEY, time_at=1, time_required=True),
    "ledger error": EventTerms(Strategy.LEDGER, KEY, on_conflict=OnConflict.ERROR),
    "ledger correct": EventTerms(Strategy.LEDGER, KEY, on_conflict=OnConflict.CORRECT, encoding=OP),
    "ledger correct time": EventTerms(
        Strategy.LEDGER, KEY, time_at=1, on_conflict=OnConflict.CORRECT, encoding=OP
    ),
    "snapshot": EventTerms(Strategy.SNAPSHOT, KEY, encoding=OP),
    "snapshot observed": EventTerms(Strategy.SNAPSHOT, KEY, encoding=OBSERVED),
    "snapshot compare": EventTerms(
        Strategy.SNAPSHOT, KEY, encoding=OBSERVED, compare=("x",), compare_time=False
    ),
    "snapshot time": EventTerms(Strategy.SNAPSHOT, KEY, time_at=0, time_required=True, encoding=OBSERVED),
    "upsert": EventTerms(Strategy.UPSERT, KEY, encoding=OP),
    "upsert time": EventTerms(Strategy.UPSERT, KEY, time_at=1, time_required=True, encoding=OBSERVED),
    "upsert sequence": EventTerms(Strategy.UPSERT, KEY, encoding=OP, sequence="x"),
    "changelog": EventTerms(Strategy.CHANGELOG, KEY, encoding=OP),
    "changelog schema": EventTerms(Strategy.CHANGELOG, KEY, encoding=OP, strict=False),
}


def second(number):
    return None if number is None else EPOCH + timedelta(seconds=number)


class Lives:
    """Many logs under the same terms according to the rule, and the deliveries to each."""

    def __init__(self, terms, chance, logs):
        self.terms, self.chance = terms, chance
        self.logs = {number: [] for number in range(logs)}

    def deliveries(self):
        return {number: self.delivery(number) for number in self.logs}

    def delivery(self, number):
        chance, strategy = self.chance, self.terms.strategy
        if strategy is Strategy.CHANGELOG and chance.random() < 0.8:
            return self.changes(number)
        rows = [self.row(number) for _ in range(chance.choice([0, 1, 2, 3, 5]))]
        if strategy in {Strategy.LEDGER, Strategy.SNAPSHOT} and chance.random() < 0.8:
            # Mostly one row a key, so that not everything is refused.
            rows = list({(row.values["k"], row.time): row for row in rows}.values())
            rows = list({row.values["k"]: row for row in rows if row.values["k"] is not None}.values())
            rows += rows[: chance.choice([0, 0, 1])]
        known = self.logs[number]
        if known and chance.random() < 0.5:
            again = chance.choice(known)
            rows.append(Arrival(chance.choice([again.time, None]), again.values, chance.choice([0, 0, 1, 3])))
        return rows

    def row(self, number):
        chance, strategy = self.chance, self.terms.strategy
        values = {
            "d": number,
            "k": chance.choice(["a", "b", "c", "é", None] if chance.random() < 0.1 else ["a", "b", "c", "é"]),
            "a b.`c": chance.choice(["x", "y", "", None]),
            "x": chance.choice([0.0, -0.0, 1.5, float("nan"), None]),
        }
        missing = [None] if chance.random() < (0.05 if self.terms.time_required else 0.5) else []
        time = second(chance.choice([*missing, 1, 2, 3]))
        odd = chance.random() < 0.05
        ops = {Strategy.UPSERT: [0, 0, 1, 3], Strategy.CHANGELOG: [0, 1, 2, 3]}.get(strategy, [0])
        return Arrival(
            time,
            values,
            chance.choice([2, 7, None]) if odd and strategy is Strategy.UPSERT else chance.choice(ops),
        )

    def changes(self, number):
        """Changes that are mostly well formed."""
        last = {event.values["k"]: event for event in self.logs[number]}
        now = {key: event for key, event in last.items() if event.op is not Op.RETRACT}
        rows = []
        for _ in range(self.chance.choice([0, 1, 2])):
            row = self.row(number)
            event = now.get(row.values["k"])
            if row.values["k"] is None or event is None:
                rows.append(Arrival(row.time, row.values, 0))
            elif self.chance.random() < 0.4:
                rows.append(Arrival(self.chance.choice([None, event.time]), event.values, 1))
            else:
                rows += [Arrival(event.time, event.values, 2), Arrival(row.time, row.values, 3)]
            now.pop(row.values["k"], None)
        return rows

    def grow(self, expected):
        """Apply the events of a delivery according to the rule."""
        for number, events in expected.items():
            log = self.logs[number]
            log += [
                Event(len(log) + place, e.op, e.system_time, e.time, e.values)
                for place, e in enumerate(events or [])
            ]

    def by_the_rule(self, deliveries, moment):
        """The new events of each log by the rule, or None if it refuses, and the counts of all logs."""
        counts, events = Counter(), {}
        for number, rows in deliveries.items():
            try:
                made = ingest(self.logs[number], rows, self.terms, moment)
            except LogRejected:
                events[number] = None
                continue
            events[number] = made.events
            counts += made.counts
        return events, counts


def plain(value):
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def plain_event(op, time, values):
    return (int(op), time.replace(tzinfo=UTC), *(plain(values[name]) for name in COLUMNS))


def moment_of(number):
    """The time of the n-th delivery."""
    return Moment(second(1000 + number), second(100 + 10 * number), second(2) if number else None)
