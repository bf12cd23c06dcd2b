"""Access, and the permissions of a page: nothing is written, executed or shown without permission."""

import json
import re
import signal
import socket
import threading
import urllib.request
from contextlib import suppress

import pyarrow as pa
import pytest
from commands import command
from exploring import HOSTILE, exploring, foreign_warehouse, raw
from serving import SECONDS

from backstory.errors import UsageError
from backstory.explorer import server
from backstory.explorer.access import POLICY, is_loopback, new_token, open_explorer
from backstory.explorer.catalog_reader import table_reader, without_paths
from backstory.explorer.server import MOST, BoundedConnection
from backstory.settings import Settings

ROWS = pa.table({"id": [1, 2, 3, 4], "note": list(HOSTILE), '<b>"x': [1, 2, 3, 4]})
NAME = 'crm.<img src=x onerror="alert(1)">/..'
KEPT = {"backstory.layout": "fivetran-live", "backstory.key": '["id"]', "backstory.layout-version": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return foreign_warehouse(tmp_path_factory.mktemp("guarded") / "warehouse", ROWS, NAME, **KEPT)


@pytest.fixture(scope="module")
def explorer(folder):
    with exploring(folder) as client:
        yield client


@pytest.fixture(scope="module")
def behind_token(folder):
    with exploring(folder, token="0123456789abcdef-only") as client:
        yield client


def test_values_from_any_source_are_shown_as_text(explorer):
    """Table names, columns, keys and cells are never markup."""
    for path, words in (
        ("/", {}),
        ("/table", {"table": NAME}),
        ("/log", {"table": NAME}),
        ("/check", {"table": NAME}),
        ("/value", {"table": NAME, "key": "1", "column": "note"}),
        ("/table", {"table": HOSTILE[0]}),
        ("/table", {"table": NAME, "where": HOSTILE[1]}),
        ("/record", {"table": NAME, "key": HOSTILE[1]}),
    ):
        page = explorer.get(path, **words).text
        assert not re.search(r"<(img|b|script)\b", unquoted(page)), path
        assert "\x07" not in page


def unquoted(page):
    """The page without its own script and attributes, in which markup is text."""
    return re.sub(r'="[^"]*"', "", page.replace('<script src="/static/explore.js" defer></script>', ""))


def test_the_policy_blocks_foreign_scripts_and_resources(explorer):
    for path in ("/", "/table.json", "/static/explore.js", "/nowhere"):
        headers = explorer.get(path).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
    for word in ("unsafe", "http", "*", "data:"):
        assert word not in POLICY
    assert "default-src 'none'" in POLICY


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil"]
)
def test_requests_with_a_foreign_host_header_are_refused(explorer, host):
    answer = raw(explorer, f"GET /tables.json HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
    assert answer.split(" ")[1] == "421"
    assert "crm" not in answer


def test_requests_with_local_host_names_are_answered(explorer):
    port = explorer.base.rpartition(":")[2]
    for host in ("localhost", "127.0.0.1", f"LOCALHOST:{port}", f"[::1]:{port}"):
        answer = raw(explorer, f"GET /tables.json HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        assert answer.split(" ")[1] == "200", host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1", "0.0.0.0", "::"])
def test_the_link_of_every_host_opens(folder, host):
    """Its host can be reached and is accepted, wherever the explorer listens."""
    token = "" if is_loopback(host) else new_token()
    running = open_explorer(table_reader(Settings(folder)), host, 0, token)
    try:
        with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(running.link) as answer:
            assert answer.status == 200
    finally:
        running.stop()


def test_unfinished_requests_do_not_block_other_clients(folder):
    """If there are too many connections, the oldest idle one is closed."""
    with exploring(folder) as explorer:
        port = int(explorer.base.rpartition(":")[2])
        unfinished = [socket.create_connection(("127.0.0.1", port)) for _ in range(2 * MOST)]
        for each in unfinished:
            with suppress(OSError):
                each.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        assert explorer.get("/tables.json").status == 200
        for each in unfinished:
            each.close()


def test_a_connection_with_an_unfinished_head_is_closed(folder, monkeypatch):
    monkeypatch.setattr(BoundedConnection, "head_seconds", 0.1)
    with exploring(folder) as explorer:
        port = int(explorer.base.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 60) as unfinished:
            unfinished.sendall(b"GET / HTTP/1.1\r\nHost: loc")
            assert unfinished.recv(1) == b""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_read_methods_are_answered(explorer, method):
    assert explorer.get("/tables.json", method=method).status == 405


def test_requests_without_the_token_are_refused(behind_token):
    for path in ("/", "/tables.json", "/static/style.css", "/?token=wrong"):
        answer = behind_token.get(path)
        assert answer.status == 401
        assert "crm" not in answer.text


def test_a_token_does_not_permit_a_foreign_host_header(behind_token):
    text = "GET /tables.json HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer 0123456789abcdef-only\r\n\r\n"
    assert raw(behind_token, text).split(" ")[1] == "421"


def test_the_token_of_the_link_is_kept_in_a_cookie(behind_token):
    opened = behind_token.get("/table?token=0123456789abcdef-only&table=a.b")
    assert (opened.status, opened.headers["location"]) == (303, "/table?table=a.b")
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "0123456789abcdef" not in cookie
    assert "SameSite=Strict" in cookie
    answer = behind_token.get("/tables.json", headers={"cookie": cookie.partition(";")[0]})
    assert answer.status == 200
    bearer = {"authorization": "Bearer 0123456789abcdef-only"}
    assert behind_token.get("/tables.json", headers=bearer).status == 200
    assert "0123456789abcdef" not in behind_token.get("/", headers=bearer).text


def test_a_token_may_be_any_text(folder):
    with exploring(folder, token="ä b&c=d;") as explorer:
        assert explorer.get("/tables.json").status == 401
        opened = explorer.get("/" + explorer.link.rpartition("/")[2])
        cookie = opened.headers["set-cookie"].partition(";")[0]
        assert explorer.get("/tables.json", headers={"cookie": cookie}).status == 200
        assert explorer.get("/tables.json", headers={"cookie": "backstory=x"}).status == 401


def test_a_redirect_never_leaves_the_explorer(behind_token):
    answer = behind_token.get("//evil.example/?token=0123456789abcdef-only")
    assert answer.headers["location"] == "/evil.example/"


@pytest.mark.parametrize(
    "path", ["/static/../guard.py", "/static/%2e%2e%2fguard.py", "/static/", "/static/x.js"]
)
def test_unknown_and_outside_files_are_not_served(explorer, path):
    answer = raw(explorer, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer.split(" ")[1] == "404"


def test_a_public_explorer_requires_a_token(folder):
    source = table_reader(Settings(folder))
    with pytest.raises(UsageError, match="could read every table") as refused:
        open_explorer(source, "0.0.0.0", 0)
    assert refused.value.code == "no-token"
    with pytest.raises(UsageError, match="at least 16 characters"):
        open_explorer(source, "0.0.0.0", 0, "x" * 15)
    open_explorer(source, "0.0.0.0", 0, new_token()).stop()
    assert [is_loopback(each) for each in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "a.b")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_pages_and_errors_show_no_local_folders(explorer, folder, tmp_path):
    missing = foreign_warehouse(tmp_path / "lost", ROWS, "crm.t", **KEPT)
    for each in (missing / "crm").rglob("*.parquet") or missing.rglob("*.parquet"):
        each.unlink()
    with exploring(missing) as lost:
        pages = [lost.get(path, table="crm.t") for path in ("/table", "/table.json", "/check", "/log")]
        pages += [lost.get("/"), explorer.get("/table", table="a.b"), explorer.get("/table", table=NAME)]
    for page in pages:
        assert str(tmp_path) not in page.text
        assert str(folder.parent) not in page.text
    assert pages[0].status == 500
    assert "file" in pages[1].document["error"]["message"].lower()
    assert without_paths("No answer of https://ada:secret@example.org:8181.") == (
        "No answer of https://example.org:8181."
    )
    assert without_paths("See /home/me/a/b.csv, or file:///x/y/z.db: gone") == "See b.csv, or z.db: gone"


def test_a_table_that_needs_spark_is_refused_without_starting_spark(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("backstory.upkeep.laws.checks.MOST_IN_ARROW", 2)
    monkeypatch.setattr("backstory.reading.pages.FEW", 0)
    with exploring(folder) as here:
        answer = here.get("/check.json", table=NAME)
    assert (answer.status, answer.document["error"]["code"]) == (501, "needs-spark")
    assert "backstory check" in answer.document["error"]["remedy"]


def test_empty_tables_and_warehouses_are_reported_as_empty(tmp_path):
    empty = foreign_warehouse(tmp_path / "empty", ROWS.slice(0, 0), "crm.t", **KEPT)
    with exploring(empty) as here:
        assert "no commits yet" in here.get("/").text
        assert "This table has no commits yet." in here.get("/table", table="crm.t").text
        assert here.get("/table.json", table="crm.t").document == []
    with exploring(tmp_path / "nowhere") as here:
        assert "has no tables yet" in here.get("/").text


def test_too_many_concurrent_requests_are_refused_as_busy(explorer, monkeypatch):
    """Running requests occupy the places. If the queue is full, the client is asked to try again."""
    begun, go = threading.Semaphore(0), threading.Event()

    def slow(*_):
        begun.release()
        go.wait(SECONDS)
        raise UsageError("done", "Done.", "Nothing.")

    monkeypatch.setitem(server.OF_WAREHOUSE, "tables", slow)
    monkeypatch.setattr(server, "SECONDS", SECONDS)
    asking = [threading.Thread(target=explorer.get, args=("/tables.json",)) for _ in range(server.WAITING)]
    for each in asking:
        each.start()
    for _ in range(server.AT_ONCE):
        assert begun.acquire(timeout=SECONDS)
    answers = []
    while not answers or answers[-1].status != 503:  # until the queue is full
        assert len(answers) < 100
        late = threading.Thread(target=lambda: answers.append(explorer.get("/tables.json")), daemon=True)
        late.start()
        late.join(1)  # a request that waits in the queue has no answer yet
    go.set()
    assert answers[-1].document["error"]["code"] == "busy"
    for each in asking:
        each.join(SECONDS)


def test_a_slow_request_is_given_up(explorer, monkeypatch):
    go = threading.Event()
    monkeypatch.setitem(server.OF_WAREHOUSE, "tables", lambda *_: go.wait(SECONDS))
    monkeypatch.setattr(server, "SECONDS", 0.2)
    answer = explorer.get("/tables.json")
    go.set()
    assert (answer.status, answer.document["error"]["code"]) == (503, "too-long")


def test_a_bug_is_reported_without_its_message(explorer, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("secret")

    monkeypatch.setitem(server.OF_WAREHOUSE, "tables", broken)
    answer = explorer.get("/tables.json")
    assert (answer.status, answer.document["error"]["code"]) == (500, "bug")
    assert "secret" not in answer.text


@pytest.mark.process
def test_the_command_prints_its_link_and_ends_on_a_signal(folder, tmp_path):
    for number in (signal.SIGTERM, signal.SIGINT):
        with command(
            tmp_path, "explore", "--port", "0", "--warehouse", folder, JAVA_HOME=str(tmp_path)
        ) as running:
            link = json.loads(running.process.stdout.readline())["link"]
            from exploring import Asked

            assert Asked(link).get("/tables.json").status == 200
            running.process.send_signal(number)
            assert running.end()[0] == 0
