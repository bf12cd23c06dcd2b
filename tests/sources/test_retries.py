"""The retry policy: the retried failures, the waits and the log (R80)."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs
from web import Play

from backstory.errors import Failed, Refused, TryAgain, UsageError
from backstory.observe import RETRIES
from backstory.sources import source
from backstory.sources.source import (
    ATTEMPTS,
    DELAY,
    LONGEST,
    Unreachable,
    retry_requests,
    seconds_of,
    wait_after,
)


def failing(*errors):
    """A function that fails in these ways in sequence, and then returns `done`."""
    left = list(errors)

    def act():
        if left:
            raise left.pop(0)
        return "done"

    return act


def unreachable(retry_after=None):
    return Unreachable("unreachable", "The server is away.", "Try again later.", retry_after)


def test_attempts_and_delays_match_the_specification():
    assert (ATTEMPTS, DELAY, LONGEST) == (4, 0.5, 120)


def test_waits_double_after_each_failure(monkeypatch):
    monkeypatch.setattr(source, "DELAY", 2.0)
    for failed, whole in ((1, 2), (2, 4), (3, 8), (4, 16)):
        waits = [wait_after(failed) for _ in range(200)]

        assert all(whole / 2 <= wait <= whole for wait in waits)
        assert len(set(waits)) > 100


def test_no_wait_exceeds_the_limit(monkeypatch):
    monkeypatch.setattr(source, "DELAY", 50.0)
    assert wait_after(9) == 120.0


def test_a_request_is_repeated_until_it_succeeds():
    assert retry_requests(failing(unreachable(), TryAgain("busy", "Busy."))) == "done"


def test_a_request_fails_after_the_last_attempt():
    with pytest.raises(TryAgain) as caught:
        retry_requests(failing(*[unreachable()] * 9))

    assert caught.value.message == "The server is away (3 attempts)."
    assert (caught.value.code, caught.value.remedy) == ("unreachable", "Try again later.")


@pytest.mark.parametrize(
    "error", [Failed("a", "A."), Refused("a", "A."), UsageError("a", "A."), ValueError()]
)
def test_permanent_errors_are_not_retried(error):
    with pytest.raises(type(error)) as caught:
        retry_requests(failing(error))
    assert caught.value is error


def test_every_failed_attempt_is_logged_and_counted():
    before = RETRIES._value.get()

    with capture_logs() as lines, pytest.raises(TryAgain):
        retry_requests(failing(*[unreachable()] * 9))

    assert [line["attempt"] for line in lines] == [1, 2, 3]
    assert {(line["log_level"], line["code"]) for line in lines} == {("warning", "unreachable")}
    assert lines[0]["event"] == "attempt 1 of 3 failed, trying again in 0.0 s: The server is away."
    assert "giving up" in lines[-1]["event"]
    assert RETRIES._value.get() - before == 2


@pytest.fixture
def pauses(monkeypatch):
    """The pauses, which are not really waited for."""
    made = []
    monkeypatch.setattr("backstory.sources.source.time", SimpleNamespace(sleep=made.append))
    return made


def test_a_pause_requested_by_the_server_is_kept(pauses):
    assert retry_requests(failing(unreachable(7.0))) == "done"
    assert pauses == [7.0]


def test_too_long_a_pause_ends_the_retries():
    with pytest.raises(TryAgain) as caught:
        retry_requests(failing(unreachable(3600.0)))

    assert caught.value.message == "The server is away (1 attempt; the server asks for a pause of 3600 s)."


def test_retry_after_is_a_number_or_a_date():
    soon = datetime.now(UTC) + timedelta(seconds=1000)

    assert seconds_of("7") == 7.0
    assert 700 <= (seconds_of(format_datetime(soon, usegmt=True)) or 0) <= 1000
    assert seconds_of("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert [seconds_of(text) for text in (None, "", "soon", "-1", "1.5")] == [None] * 5


def test_a_server_that_recovers_is_retried(web, ask):
    with capture_logs() as lines:
        answer = ask(web.play("/a", Play(b"", 500), Play(b"", 502), Play(b"rows")))

    [fetched] = answer.deliveries
    assert fetched.path.read_bytes() == b"rows"
    assert web.statuses() == [500, 502, 200]
    assert ["500" in lines[0]["event"], "502" in lines[1]["event"], len(lines)] == [True, True, 2]


def test_retry_after_of_a_server_is_obeyed(web, ask, pauses):
    busy = Play(b"", 429, headers=(("Retry-After", "7"),))

    assert ask(web.play("/a", busy, Play(b"rows"))).status == "new"
    assert pauses == [7.0]


def test_a_server_that_requests_an_hour_is_not_retried(web, ask):
    late = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)

    with pytest.raises(TryAgain, match=r"pause of 3[56]"):
        ask(web.play("/a", Play(b"", 503, headers=(("Retry-After", late),))))
    assert len(web.seen) == 1
