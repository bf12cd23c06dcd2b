"""Random sequences of snapshots: the specification's oracle, and the laws of section 2.10 (R48 to R51).

These tests compare the rule with appendix A, and check its laws. Others compare the plan with the rule.
"""

import math
import random
import re
from dataclasses import replace

import pytest
from specification.event_log import Arrival, canonical, state
from specification.events import ingest

from backstory.strategies.events.terms import EventTerms, Moment, Strategy

SEQUENCES, LENGTH = 1000, 5
TERMS = {
    "all columns": EventTerms(Strategy.SNAPSHOT, ("k",)),
    "compared": EventTerms(Strategy.SNAPSHOT, ("k",), compare=("x",), compare_time=False),
}
LIFE = re.compile(r"0(23)*(10(23)*)*1?")
NAN = math.nan


def snapshots(chance):
    """Consecutive copies of a source, some with repeated rows or event times."""
    for _ in range(LENGTH):
        timed = chance.random() < 0.3
        rows = []
        for key in chance.sample("ABCDE", chance.randint(0, 5)):
            values = {
                "k": key,
                "x": chance.choice([None, 0.0, -0.0, NAN, 1.0]),
                "y": chance.choice([None, "", "a"]),
            }
            rows.append(Arrival(chance.choice([1, 2, None]) if timed else None, values))
        yield rows + rows[:1] * chance.randint(0, 1)


def by_the_appendix(log, rows, terms, moment):
    """The events that appendix A adds for a snapshot: op, time, values, by offset."""
    last = {}
    for op, time, values in log:
        last[values["k"]] = (op, time, values)
    stored = {key: event[1:] for key, event in last.items() if event[0] != 1}
    events, new = [], {row.values["k"]: row for row in rows}
    for key, row in new.items():
        if key not in stored:
            events.append((0, row.time, row.values))
            continue
        time, values = stored[key]
        names = terms.compare or ("x", "y")
        moved = terms.compare is None and row.time is not None and row.time != time
        if moved or any(canonical(values[name]) != canonical(row.values[name]) for name in names):
            events += [(2, time, values), (3, row.time, row.values)]
    events += [(1, *event) for key, event in stored.items() if key not in new]
    filled = [(op, moment.fallback if time is None else time, values) for op, time, values in events]
    return sorted(filled, key=lambda event: (event[2]["k"], event[0]))


def comparable(events):
    """Events in comparable form, with the rule's offsets in order."""
    return [(op, time, *map(canonical, values.values())) for op, time, values in events]


@pytest.mark.parametrize("name", TERMS)
def test_the_rule_equals_the_appendix(name):
    """R51, R48, R49, R50: Events are equal, the state is the last copy, lives follow the pattern, and
    repetition adds nothing."""
    terms = TERMS[name]
    for seed in range(SEQUENCES):
        log, watermark, rows = [], None, []
        for number, rows in enumerate(snapshots(random.Random(seed)), 10):
            moment = Moment(number, number, watermark, len(log))
            outcome = ingest(log, rows, terms, moment)
            plain = [(event.op, event.time, event.values) for event in log]
            added = [(event.op, event.time, event.values) for event in outcome.events]
            assert comparable(added) == comparable(by_the_appendix(plain, rows, terms, moment)), seed
            log, watermark = log + outcome.events, outcome.watermark
        assert [event.offset for event in log] == list(range(len(log)))
        again = ingest(log, rows, terms, replace(moment, start=len(log)))
        assert again.events == [], seed
        lives = {}
        for event in log:
            lives[event.values["k"]] = lives.get(event.values["k"], "") + str(int(event.op))
        assert all(LIFE.fullmatch(life) for life in lives.values()), seed
        if terms.compare is None:
            now = [(event.time, event.values) for event in state(log, terms).values()]
            last = {row.values["k"]: row for row in rows}
            assert len(now) == len(last)
            for time, values in now:
                row = last[values["k"]]
                assert row.time in {None, time}
                assert comparable([(0, 0, values)]) == comparable([(0, 0, row.values)])
