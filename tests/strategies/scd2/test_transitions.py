"""The action table of section 9.1: each record has one row, which determines states and counts."""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from specification.scd2 import BaseRow, Version, historize, now_of, past_of

from backstory.strategies.scd2.transitions import (
    BEGINNINGS,
    CLOSINGS,
    OUTCOMES,
    TRANSITIONS,
    WORDS,
    Now,
    Past,
    State,
    Step,
    Tally,
)
from backstory.testing.conformance import LIFE, RUNS, VERSIONS

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "historize.md"
HEAD = "| the history has | the base has | the open version closes as | a version begins as | counted as |"
FLAGS = list(product([False, True], repeat=3))


def cases():
    """The case of every possible record, by its properties."""
    for (is_open, interrupted, seen), (there, same, in_scope) in product(FLAGS, FLAGS):
        past = past_of(is_open=is_open, interrupted=interrupted, seen=seen)
        yield past, now_of(past, there=there, same=same, in_scope=in_scope)


def drawn():
    """The table as shown on the page."""
    rows = [
        f"| {past.value} | {now.value} | {step.closes or ''} | {step.begins or ''} | {step.counted or ''} |"
        for (past, now), step in TRANSITIONS.items()
    ]
    return "\n".join([HEAD, "|---|---|---|---|---|", *rows]).replace("|  |", "| |").replace("|  |", "| |")


def test_every_case_of_a_record_has_exactly_one_transition():
    """Section 9.1: The table is complete, and each row is reachable."""
    assert set(cases()) == set(TRANSITIONS)


def test_versions_end_only_if_open_and_begin_only_with_a_base_record():
    """Section 9.1, R16: At most one version is open before and after."""
    for (past, now), step in TRANSITIONS.items():
        assert bool(step.closes) <= (past is Past.OPEN)
        assert bool(step.begins) == (now in {Now.PRESENT, Now.OTHER})
        assert (past is Past.OPEN and bool(step.begins)) <= bool(step.closes)


def test_every_state_is_reached_and_counted_once():
    """A record whose version closes and begins has changed. The outcome is the new or final state."""
    assert {step.counted for step in TRANSITIONS.values()} == {*OUTCOMES, None}
    assert {state for step in TRANSITIONS.values() for state in (step.closes, step.begins)} == {*State, None}
    for step in TRANSITIONS.values():
        assert (step.begins or step.closes) in {None, step.counted}


def test_a_record_reappears_if_it_has_closed_versions_and_no_open_one():
    """Section 7.2: The reason for closing does not matter. A version closed by this load is healed instead
    (section 3.5)."""
    again = {case for case, step in TRANSITIONS.items() if step.begins is State.REAPPEARED}
    assert again == {(Past.CLOSED, Now.PRESENT)}
    assert past_of(is_open=False, interrupted=False, seen=True) is Past.CLOSED
    assert TRANSITIONS[Past.INTERRUPTED, Now.PRESENT].begins is State.CHANGED


def test_the_four_statements_have_the_specified_order():
    """Section 3.3: The order is the specification's, and there are three stored states (section 3.4)."""
    assert (CLOSINGS, BEGINNINGS) == (("close_changed", "close_deleted"), ("insert_changed", "insert_new"))
    assert set(WORDS.values()) == {"new", "changed", "deleted"}


def test_a_tally_counts_outcomes_and_statements():
    tally = Tally()
    for number, case in enumerate(TRANSITIONS):
        tally.cases[case] = 10**number
    assert tally.counts == {
        "new": 10**8, "changed": 10**1 + 10**4, "deleted": 10**2, "reappeared": 10**6, "unchanged": 1
    }  # fmt: skip
    assert tally.rows == {
        "close_changed": 10**1, "close_deleted": 10**2,
        "insert_changed": 10**1 + 10**4, "insert_new": 10**6 + 10**8,
    }  # fmt: skip
    assert Step().closing is None


def test_the_guide_has_the_table_of_transitions():
    """The guide shows the table that loads use."""
    assert drawn() in PAGE.read_text(encoding="utf-8")


def test_the_examination_of_dialects_expects_the_history_and_counts_of_the_rule():
    """A23 to A26: After each load of its life, versions with their runs, and counts."""
    history: Sequence[Version] = []
    last = 0
    for scenario, run, now, base in LIFE:
        rows = [BaseRow(key, name) for key, name in base.items()]
        history, counts = historize(history, rows, now, run, lambda key, instant: (key, instant))
        expected = {
            (
                key,
                name,
                begin,
                *((end, ended_as, RUNS[end]) if end and end <= now else (None, begun_as, RUNS[begin])),
            )
            for key, name, begin, begun_as, end, ended_as in VERSIONS
            if begin <= now
        }
        assert {(v.key, v.row_hash, v.started, v.ended, v.state, v.run) for v in history} == expected, (
            scenario
        )
        begun = Counter(f"insert_{state}" for _, _, begin, state, *_ in VERSIONS if begin == now > last)
        ended = Counter(f"close_{state}" for *_, end, state in VERSIONS if end == now > last)
        assert Counter(counts.rows) == begun + ended, scenario
        last = now
