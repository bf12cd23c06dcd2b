"""The laws of an event log: the allowed sequences (odf-ingest.md 2.10)."""

import pytest
from specification.laws import LogFacts, LogRow, broken_events

from backstory.upkeep.laws.terms import Law

PAIRED = LogFacts(keyed=True, paired=True)
UNPAIRED = LogFacts(keyed=True, paired=False)
TAKEN = LogFacts(keyed=True, paired=True, strict=False)
LEDGERLESS = LogFacts(keyed=False, paired=False)
LEDGER = LogFacts(keyed=True, paired=True, corrects=True)


def operations(ops, log):
    return broken_events([LogRow(op, 1) for op in ops], log)[Law.OPERATIONS]


@pytest.mark.parametrize(
    ("ops", "log", "broken"),
    [
        ([0, 2, 3, 2, 3, 1, 0], PAIRED, 0),
        ([0, 0], PAIRED, 1),
        ([1], PAIRED, 1),
        ([0, 2], PAIRED, 1),
        ([0, 3], PAIRED, 1),
        ([0, 1, 1], PAIRED, 1),
        ([0, 9], PAIRED, 1),
        ([None], PAIRED, 1),
        ([0, 3, 3, 1, 0], UNPAIRED, 0),
        ([3], UNPAIRED, 1),
        ([0, 2], UNPAIRED, 1),
        ([1, 0, 0, 2, 3], TAKEN, 0),
        ([0, 2, 0], TAKEN, 0),
        ([3, 2], TAKEN, 0),
        ([9, None], TAKEN, 2),
        ([0, 0, 0], LEDGERLESS, 0),
        ([0, 1], LEDGERLESS, 1),
    ],
)
def test_invalid_sequences_of_operations_are_counted(ops, log, broken):
    assert operations(ops, log) == broken


def test_no_event_is_later_than_the_watermark():
    log = LogFacts(keyed=True, paired=True, watermark=5)

    assert broken_events([LogRow(0, 5), LogRow(1, 6), LogRow(0, None)], log) == {Law.WATERMARK: 2}


def test_events_of_a_keyed_log_require_a_key():
    assert broken_events([LogRow(0, 1, keyed=False)], PAIRED) == {Law.NULL_KEY: 1}
    assert not broken_events([LogRow(0, 1, keyed=False)], LEDGERLESS)


@pytest.mark.parametrize(
    ("events", "broken"),
    [
        ("A1 A2 A3", 0),
        ("A1 A2 -1 +1 A3", 0),
        ("A1 -1 +5 -5 +1", 0),
        ("A1 A1", 1),
        ("A1 -2 +2", 1),
        ("A1 -1 A2 +1", 2),
        ("A1 A2 -1 +2", 1),
        ("A1 -1", 1),
        ("+1", 1),
    ],
)
def test_a_correction_may_move_an_event_of_a_ledger_to_another_time(events, broken):
    rows = [LogRow({"A": 0, "-": 2, "+": 3}[each[0]], int(each[1])) for each in events.split()]
    assert broken_events(rows, LEDGER)[Law.OPERATIONS] == broken
