"""The share that may be removed at once: the ratio is the written decimal, in every place (P7, R46)."""

import pytest
from specification.event_log import Arrival as Arrived
from specification.event_log import LogRejected as NotIngested
from specification.events import ingest
from specification.scd2 import BaseRow, LoadRejected, Rules, historize

from backstory.model.change import exceeds
from backstory.strategies.events.terms import EventEncoding, EventTerms, Moment, Strategy

# The removed number, the total, the ratio, and whether it is too much.
GUARDS = [
    (29, 100, 0.29, False),  # in floats 0.29 * 100 is 28.999999999999996
    (30, 100, 0.29, True),
    (57, 100, 0.57, False),
    (1, 1, 1.0, False),
    (0, 100, 0.0, False),
    (1, 10**17, 1e-17, False),
    (2, 10**17, 1e-17, True),
]


@pytest.mark.parametrize(("part", "whole", "ratio", "refused"), GUARDS)
def test_a_guard_allows_exactly_its_ratio(part, whole, ratio, refused):
    """P7, R46: Exactly the ratio is allowed, and one more is not."""
    assert exceeds(part, ratio, whole) == refused


@pytest.mark.parametrize(("gone", "refused"), [(29, False), (30, True)])
def test_loads_and_pulls_apply_the_guard_exactly(gone, refused):
    """P7, R46: At 0.29, 29 of 100 are loaded and ingested, and 30 are not."""
    keys = range(100)
    history, _ = historize([], [BaseRow(key, "h") for key in keys], 1, "r1", lambda key, at: (key, at))
    left = [BaseRow(key, "h") for key in keys[gone:]]
    terms = EventTerms(Strategy.SNAPSHOT, ("k",), encoding=EventEncoding.OP, max_retract=0.29)
    log = ingest([], [Arrived(None, {"k": key}) for key in keys], terms, Moment("s1", "e1", None, 0)).events
    rows = [Arrived(None, {"k": key}) for key in keys[gone:]]

    def loaded():
        return historize(history, left, 2, "r2", lambda key, at: (key, at), Rules(max_delete_ratio=0.29))

    def ingested():
        return ingest(log, rows, terms, Moment("s2", "e2", "e1", 100))

    if refused:
        with pytest.raises(LoadRejected, match="MASS_DELETE"):
            loaded()
        with pytest.raises(NotIngested, match="too-many-retracted"):
            ingested()
    else:
        assert loaded()[1].counts["deleted"] == gone
        assert ingested().counts["retracted"] == gone
