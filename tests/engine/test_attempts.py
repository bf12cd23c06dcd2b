"""Limited attempts when another writer was first."""

import pytest
import structlog
import tenacity

from backstory.engine import deliver
from backstory.engine.deliver import ATTEMPTS, retry
from backstory.errors import Refused, TryAgain
from backstory.observe import RETRIES


@pytest.fixture
def pauses(monkeypatch):
    """The pauses, which are not really waited for."""
    made = []
    monkeypatch.setattr(tenacity.nap.time, "sleep", made.append)
    return made


def failing(times, error):
    """A function that fails a number of times before it works."""
    left = [error] * times

    def act():
        if left:
            raise left.pop()
        return "done"

    return act


def test_a_conflict_is_tried_again_after_a_pause_and_told(pauses):
    """Each retry waits, is logged and is counted, without a process-wide hook."""
    told, before = [], RETRIES._value.get()
    with structlog.testing.capture_logs() as lines:
        assert retry(failing(2, TryAgain("conflict", "Busy.")), told.append) == "done"
    assert [line["code"] for line in lines] == ["conflict"] * 2
    assert all(line["event"].startswith("trying again in ") for line in lines)
    assert len(told) == len(pauses) == RETRIES._value.get() - before == 2
    assert min(pauses) >= deliver.FIRST


def test_what_goes_on_failing_ends(pauses):
    """After a few attempts, the last error is raised unchanged."""
    error = TryAgain("store-away", "Busy.")
    with pytest.raises(TryAgain) as raised:
        retry(failing(99, error))
    assert raised.value is error
    assert len(pauses) == ATTEMPTS - 1


def test_a_writer_that_meets_another_one_each_time_gets_its_turn(pauses):
    """A stream commits continuously, so a few attempts are not enough."""
    assert retry(failing(5 * ATTEMPTS, TryAgain("conflict", "Busy."))) == "done"
    assert max(pauses) <= deliver.LONGEST + deliver.SPREAD


def test_not_even_a_conflict_is_tried_for_ever(monkeypatch):
    """After some time, the last conflict is raised."""
    monkeypatch.setattr(deliver, "SECONDS", 0.3)
    monkeypatch.setattr(deliver, "SPREAD", 0.0)
    with pytest.raises(TryAgain):
        retry(failing(99, TryAgain("conflict", "Busy.")))


def test_a_refusal_is_not_tried_again(pauses):
    """Only errors that may disappear are retried."""
    with pytest.raises(Refused):
        retry(failing(1, Refused("no", "No.")))
    assert pauses == []
