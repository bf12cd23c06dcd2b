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


def test_a_conflict_is_retried_after_a_pause_and_logged(pauses):
    """Each retry waits, is logged and is counted, without a process-wide hook."""
    retries, before = [], RETRIES._value.get()
    with structlog.testing.capture_logs() as lines:
        assert retry(failing(2, TryAgain("conflict", "Busy.")), retries.append) == "done"
    assert [line["code"] for line in lines] == ["conflict"] * 2
    assert all(line["event"].startswith("trying again in ") for line in lines)
    assert len(retries) == len(pauses) == RETRIES._value.get() - before == 2
    assert min(pauses) >= deliver.FIRST


def test_a_repeated_failure_ends_the_retries(pauses):
    """After a few attempts, the last error is raised unchanged."""
    error = TryAgain("store-away", "Busy.")
    with pytest.raises(TryAgain) as raised:
        retry(failing(99, error))
    assert raised.value is error
    assert len(pauses) == ATTEMPTS - 1


def test_a_conflict_is_retried_more_often_than_other_errors(pauses):
    """A stream commits continuously, so a few attempts are not enough."""
    assert retry(failing(5 * ATTEMPTS, TryAgain("conflict", "Busy."))) == "done"
    assert max(pauses) <= deliver.LONGEST + deliver.SPREAD


def test_retries_of_a_conflict_end_too(monkeypatch):
    """After some time, the last conflict is raised."""
    monkeypatch.setattr(deliver, "SECONDS", 0.3)
    monkeypatch.setattr(deliver, "SPREAD", 0.0)
    with pytest.raises(TryAgain):
        retry(failing(99, TryAgain("conflict", "Busy.")))


def test_a_refusal_is_not_retried(pauses):
    """Only errors that may disappear are retried."""
    with pytest.raises(Refused):
        retry(failing(1, Refused("no", "No.")))
    assert pauses == []
