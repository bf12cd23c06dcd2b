"""A resource of an HTTP server: conditional requests, event time, and each response (5.1 and 5.2)."""

import logging
import socket
import threading
from datetime import UTC, datetime
from importlib.metadata import version
from typing import ClassVar

import httpx2
import pytest
from fetch_steps import from_path, url_step
from web import Play, serving

from backstory.errors import BackstoryError, Failed, TryAgain, UsageError
from backstory.sources import http
from backstory.sources.source import ETAG, LAST_MODIFIED, SourceState

BODY = b"city,population\nA,1000\n"
DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
INSTANT = datetime(2015, 10, 21, 7, 28, tzinfo=UTC)


def only(answer):
    assert answer.status == "new"
    [fetched] = answer.deliveries
    return fetched


def test_a_download_is_a_file_in_the_cache(web, ask, asking):
    progress = []
    fetched = only(ask(web.play("/a.csv", Play(BODY, etag='"1"')), progress=lambda *it: progress.append(it)))

    assert fetched.path.read_bytes() == BODY
    assert fetched.path.is_relative_to(asking.cache)
    assert fetched.name == web.url("/a.csv")
    assert fetched.taken_up is None
    assert progress[0] == ("Checking for updates", 0, None)
    assert progress[-1] == ("Downloading data", len(BODY), len(BODY))


def test_progress_of_a_chunked_download_has_no_total(web, ask):
    progress = []
    answer = ask(web.play("/a", Play(BODY * 500, chunked=True)), progress=lambda *it: progress.append(it))

    assert only(answer).path.read_bytes() == BODY * 500
    assert progress[-1] == ("Downloading data", len(BODY) * 500, None)


def test_an_etag_is_preferred_to_last_modified(web, ask):
    address = web.play("/a", Play(BODY, etag='"one"', modified=DATE))

    assert only(ask(address)).state == SourceState(ETAG, '"one"')
    assert only(ask(address, state=SourceState(ETAG, '"two"'))).state == SourceState(ETAG, '"one"')
    headers = web.seen[-1].headers
    assert (headers["If-None-Match"], headers["If-Modified-Since"]) == ('"two"', None)


def test_not_modified_is_up_to_date_without_a_download(web, ask, asking):
    address = web.play("/a", Play(BODY, etag='"one"'))

    answer = ask(address, state=SourceState(ETAG, '"one"'), asked_before=True)

    assert answer.status == "up-to-date"
    assert list(answer.deliveries) == []
    assert web.statuses() == [304]
    assert list(asking.cache.iterdir()) == []


@pytest.mark.parametrize("tag", ['W/"weak"', '"strong"', "bare", '"a\xe4"', '"with, comma"'])
def test_an_etag_is_sent_back_unchanged(web, ask, tag):
    address = web.play("/a", Play(BODY, etag=tag))

    state = only(ask(address)).state
    again = ask(address, state=state)

    assert state == SourceState(ETAG, tag)
    assert web.seen[-1].headers["If-None-Match"] == tag
    assert again.status == "up-to-date"


def test_last_modified_is_the_state_without_an_etag(web, ask):
    address = web.play("/a", Play(BODY, modified=DATE))

    state = only(ask(address)).state

    assert state == SourceState(LAST_MODIFIED, "2015-10-21T07:28:00.000Z")
    assert ask(address, state=state).status == "up-to-date"
    assert web.seen[-1].headers["If-Modified-Since"] == DATE


@pytest.mark.parametrize("date", ["yesterday", "", "Wed, 99 Oct 2015 07:28:00 GMT"])
def test_an_unreadable_last_modified_date_is_ignored(web, ask, date):
    answer = ask(web.play("/a", Play(BODY, modified=date)))

    fetched = only(answer)
    assert (fetched.state, fetched.event_time) == (None, None)
    assert "neither an ETag" in answer.warnings[0]


@pytest.mark.parametrize("etag", [None, '"one"'])
@pytest.mark.parametrize("event_time", [None, "FromMetadata"])
def test_last_modified_is_the_event_time_with_or_without_an_etag(web, ask, etag, event_time):
    address = web.play("/a", Play(BODY, etag=etag, modified=DATE))

    assert only(ask(url_step(address, event_time=event_time))).event_time == INSTANT


def test_the_event_time_depends_on_the_declared_source(web, ask, asking):
    """Without Last-Modified there is no time. FromSystemTime is the run's time, and FromPath is an error."""
    address = web.play("/a", Play(BODY, etag='"one"', modified=DATE))
    bare = web.play("/bare", Play(BODY, etag='"one"'))

    assert only(ask(bare)).event_time is None
    assert only(ask(url_step(address, event_time="FromSystemTime"))).event_time == asking.system_time
    with pytest.raises(UsageError) as caught:
        ask(url_step(address, event_time=from_path("(.*)")))
    assert caught.value.code == "event-time"


@pytest.mark.parametrize("status", [404, 410])
def test_a_missing_page_fails_without_retries(web, ask, status):
    address = web.play("/a", Play(b"gone", status))

    with pytest.raises(Failed) as caught:
        ask(address)

    assert (caught.value.code, caught.value.exit_code) == ("not-found", 1)
    assert str(status) in caught.value.message
    assert len(web.seen) == 1


@pytest.mark.parametrize("status", [204, 206, 304, 401, 403, 429, 500, 503])
def test_an_unexpected_status_is_reported_as_unreachable(web, ask, status):
    address = web.play("/a", Play(b"", status))

    with pytest.raises(TryAgain) as caught:
        ask(address)

    assert (caught.value.code, caught.value.exit_code) == ("unreachable", 75)
    assert str(status) in caught.value.message


def test_the_error_has_the_status_and_the_start_of_the_body(web, ask):
    kind = ("Content-Type", "text/html; charset=utf-8")
    address = web.play(
        "/a", Play(("Wartung \x1b[31m\n bis fünf " + "x" * 5000).encode(), 503, headers=(kind,))
    )

    with pytest.raises(TryAgain, match="503") as caught:
        ask(address)

    assert "Wartung [31m bis fünf xxx" in caught.value.message
    assert "\x1b" not in caught.value.message
    assert 150 < caught.value.message.count("x") <= 200


def test_a_binary_body_is_not_shown(web, ask):
    address = web.play("/a", Play(b"\x00\x01binary", 500, headers=(("Content-Type", "image/png"),)))

    with pytest.raises(TryAgain) as caught:
        ask(address)

    assert "binary" not in caught.value.message


def test_a_closed_port_is_unreachable(ask):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    with pytest.raises(TryAgain, match="refused") as caught:
        ask(f"http://127.0.0.1:{port}/a.csv")

    assert (caught.value.code, caught.value.exit_code) == ("unreachable", 75)
    assert "(3 attempts)" in caught.value.message


def test_a_server_that_does_not_answer_is_unreachable(web, ask, monkeypatch):
    monkeypatch.setattr(http, "READ_SECONDS", 0.1)

    with pytest.raises(TryAgain, match="no answer within"):
        ask(web.play("/a", Play(BODY, pause=600)))


def test_a_server_with_another_protocol_is_unreachable(ask):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.01)
        port = server.getsockname()[1]
        stop = threading.Event()

        def chat():
            while not stop.is_set():
                try:
                    client, _ = server.accept()
                except TimeoutError:
                    continue
                with client:
                    client.recv(10_000)
                    client.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        thread = threading.Thread(target=chat)
        thread.start()
        try:
            with pytest.raises(TryAgain, match="did not answer in HTTP"):
                ask(f"http://127.0.0.1:{port}/a")
        finally:
            stop.set()
            thread.join()


def test_a_connection_left_open_delays_no_download(web, ask):
    """The headers define the end of the body, so the end of the connection is not needed."""
    assert only(ask(web.play("/a", Play(BODY, linger=3600)))).path.read_bytes() == BODY


def test_at_most_ten_redirects_are_followed(web, ask):
    for number in range(12):
        web.play(f"/{number}", Play(b"", 302, headers=(("Location", f"/{number + 1}"),)))
    web.play("/12", Play(BODY, etag='"one"'))

    assert only(ask(web.url("/2"))).path.read_bytes() == BODY
    with pytest.raises(TryAgain, match="more than 10 redirects"):
        ask(web.url("/1"))


@pytest.mark.parametrize("target", ["ftp://127.0.0.1/a", "file:///etc/hostname", "http://[broken", "http://"])
def test_a_redirect_to_nowhere_is_unreachable(web, ask, target):
    address = web.play("/a", Play(b"", 302, headers=(("Location", target),)))

    with pytest.raises(TryAgain):
        ask(address)


def test_conditions_are_sent_after_a_redirect(web, ask):
    web.play("/b", Play(BODY, etag='"one"'))
    address = web.play("/a", Play(b"", 301, headers=(("Location", "/b"),)))

    assert ask(address, state=SourceState(ETAG, '"one"')).status == "up-to-date"


def test_declared_headers_and_the_user_agent_are_sent(web, ask):
    address = web.play("/a", Play(BODY))
    headers = [
        ("X-Key", "${{ env.KEY || 'none' }}"),
        ("Accept", "text/csv"),
    ]

    only(ask(url_step(address, headers=headers), environment={"KEY": "grün"}))
    only(ask(address, fetch_uncacheable=True))

    first, second = (seen.headers for seen in web.seen)
    assert first["X-Key"].encode("latin-1").decode() == "grün"
    assert first["Accept"] == "text/csv"
    assert second["User-Agent"] == f"backstory/{version('backstory')}"


def test_a_declared_user_agent_replaces_the_default(web, ask):
    address = web.play("/a", Play(BODY))

    ask(url_step(address, headers=(("user-agent", "mine"),)))

    assert web.seen[0].headers.get_all("User-Agent") == ["mine"]


def test_private_headers_are_sent_only_to_their_host(web, ask):
    """A redirect to another host loses keys and passwords, but keeps harmless headers."""
    with serving() as other:
        target = other.play("/b", Play(BODY))
        web.play("/here", Play(b"", 302, headers=(("Location", target),)))
        web.play("/a", Play(b"", 302, headers=(("Location", "/here"),)))
        headers = [("X-Key", "secret"), ("Accept", "text/csv")]

        only(ask(url_step(web.url("/a", "user:password@"), headers=headers)))

        assert [seen.headers["X-Key"] for seen in web.seen] == ["secret", "secret"]
        assert all(seen.headers["Authorization"] for seen in web.seen)
        [request] = other.seen
        assert (request.headers["X-Key"], request.headers["Authorization"]) == (None, None)
        assert request.headers["Accept"] == "text/csv"


@pytest.mark.parametrize(
    "address",
    ["http://", "http:///a", "http://host:port/a", "http://user:pa/ss@host/a", "http://[::1", "http:a"],
)
def test_an_invalid_address_is_a_usage_error(ask, address):
    with pytest.raises(UsageError) as caught:
        ask(address)

    assert caught.value.code == "invalid-url"
    assert "pa/ss" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"), [("X-Key", "a\nsecret: b"), ("X Key", "secret"), ("Schlüssel", "secret")]
)
def test_a_header_that_cannot_be_sent_is_a_usage_error(web, ask, name, value):
    with pytest.raises(UsageError) as caught:
        ask(url_step(web.play("/a", Play(BODY)), headers=((name, value),)))

    assert caught.value.code == "invalid-header"
    assert "secret" not in str(caught.value)


def test_a_template_without_a_value_is_a_usage_error(web, ask):
    with pytest.raises(UsageError):
        ask(url_step(web.play("/a", Play(BODY)), headers=(("X", "${{ env.UNSET }}"),)))
    assert web.seen == []


def test_a_cache_folder_that_cannot_be_created_fails(web, ask, tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(Failed) as caught:
        ask(web.play("/a", Play(BODY)), cache=tmp_path / "file" / "cache")

    assert caught.value.code == "cache-unwritable"


class TestUncacheable:
    """A source without ETag and Last-Modified is polled once (D21)."""

    def test_a_later_pull_makes_no_request(self, web, ask):
        address = web.play("/a", Play(BODY))

        answer = ask(address)
        assert only(answer).state is None
        assert "uncacheable" in answer.warnings[0]
        assert ask(address, asked_before=True).status == "uncacheable"
        assert len(web.seen) == 1

    def test_the_option_fetches_an_uncacheable_source(self, web, ask):
        address = web.play("/a", Play(BODY))

        assert only(ask(address, asked_before=True, fetch_uncacheable=True)).path.read_bytes() == BODY

    def test_refetch_always_fetches_an_uncacheable_source(self, web, ask):
        step = url_step(web.play("/a", Play(BODY)), always=True)

        assert ask(step).warnings == []
        assert only(ask(step, asked_before=True)).path.read_bytes() == BODY
        assert len(web.seen) == 2

    def test_a_source_with_a_state_is_requested(self, web, ask):
        address = web.play("/a", Play(BODY))

        assert only(ask(address, asked_before=True, state=SourceState(ETAG, '"old"'))).state is None

    def test_a_refetch_does_not_fetch_an_uncacheable_source(self, web, ask):
        assert ask(web.play("/a", Play(BODY)), asked_before=True, refetch=True).status == "uncacheable"


class TestForever:
    """`cache: Forever` never contacts a source again after it was ingested (D29)."""

    def test_no_request_is_made_after_the_first_success(self, web, ask):
        step = url_step(web.play("/a", Play(BODY, etag='"one"')), once=True)

        state = only(ask(step)).state
        for known in ({}, {"state": state}, {"state": state, "fetch_uncacheable": True}):
            assert ask(step, asked_before=True, complete=True, **known).status == "up-to-date"
        assert len(web.seen) == 1

    def test_a_failed_pull_does_not_complete_the_source(self, web, ask):
        step = url_step(web.play("/a", Play(b"", 404), Play(BODY)), once=True)

        with pytest.raises(Failed):
            ask(step)
        assert only(ask(step)).path.read_bytes() == BODY


def everything(error: BackstoryError) -> str:
    return f"{error} {error.to_dict()} {error!r} {error.__cause__!r}"


class TestSecrets:
    """No message and no log line contains the secrets of an address, a header or a variable (R8)."""

    ENVIRONMENT: ClassVar = {"TOKEN": "t0ken-value", "PLACE": "hidden-folder"}
    HEADERS = (("Authorization", "Bearer ${{ env.TOKEN }}"),)
    SECRETS = ("t0ken-value", "hidden-folder", "pass%20word", "pass word", "quer1-key")

    @pytest.mark.parametrize("status", [200, 404, 500])
    def test_messages_and_logs_contain_no_secrets(self, web, ask, capsys, caplog, status):
        caplog.set_level(0)
        echo = b"no route for " + " ".join(self.SECRETS).encode()
        web.play("/hidden-folder/a.csv", Play(echo, status, headers=(("Content-Type", "text/plain"),)))
        address = web.url("/${{ env.PLACE }}/a.csv?key=quer1-key&page=1", "anna:pass%20word@")

        output = ""
        try:
            answer = ask(url_step(address, headers=self.HEADERS), environment=self.ENVIRONMENT)
            output = f"{only(answer).name} {answer.warnings}"
        except BackstoryError as error:
            output = everything(error)

        written = output + caplog.text + "".join(capsys.readouterr())
        assert [secret for secret in (*self.SECRETS, "anna") if secret in written] == []
        assert web.url("/${{ env.PLACE }}/a.csv") in output

    def test_other_requests_of_the_process_keep_their_logging(self, web, ask, caplog):
        """A library changes no log level, and handles only its own lines."""
        caplog.set_level(0)
        web.play("/a.csv", Play(BODY))
        ask(web.url("/a.csv"))
        assert "a.csv" not in caplog.text
        httpx2.get(web.url("/a.csv"))
        assert "a.csv" in caplog.text
        assert [logging.getLogger(name).level for name in ("httpx2", "httpcore2")] == [0, 0]

    def test_savepoints_contain_no_secrets(self, web, ask, asking):
        web.play("/hidden-folder/a.csv", Play(BODY, etag='"one"'))
        address = web.url("/${{ env.PLACE }}/a.csv?key=quer1-key", "anna:pass%20word@")

        ask(url_step(address, headers=self.HEADERS), environment=self.ENVIRONMENT)

        [savepoint] = asking.cache.glob("*.json")
        assert [secret for secret in self.SECRETS if secret in savepoint.read_text()] == []
