"""S3's interface on this machine: moto's server behind a small one that counts requests and injects faults."""

import http.client
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ports import free_ports

MOTO = Path(__file__).parents[2] / ".venv" / "moto"
BUCKET, SECRET = "lake", "canary-7be0"
THROTTLED = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
HOPS = {"connection", "date", "keep-alive", "server", "transfer-encoding"}


@dataclass
class Fault:
    """The fate of the next requests like this one: `throttle`, `deny`, `lose` the answer, or `hold` them."""

    what: str
    method: str
    path: str
    times: int = 1
    met: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def meets(self, method: str, path: str) -> bool:
        hit = self.times > 0 and re.match(self.method, method) and re.search(self.path, path)
        self.times -= bool(hit)
        return bool(hit)


@dataclass
class ObjectStore:
    """The address of the store, its requests, and its injected faults."""

    port: int = 0
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    calls: set[str] = field(default_factory=set)

    def note(self, method: str, path: str, headers: Message) -> None:
        """Record a request.

        A client may repeat a request whose answer is late, which is not counted again.
        """
        call = headers.get("amz-sdk-invocation-id", "")
        if not call or call not in self.calls:
            self.requests.append((method, path, headers.get("Range", "")))
        self.calls.add(call)

    @property
    def reached(self) -> dict[str, str]:
        """The properties of a catalog in this store."""
        return {
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.endpoint": f"http://127.0.0.1:{self.port}",
            "s3.access-key-id": "key",
            "s3.secret-access-key": SECRET,
            "s3.path-style-access": "true",
            "client.region": "us-east-1",
        }

    @contextmanager
    def counting(self) -> Iterator[list[tuple[str, str, str]]]:
        """The requests during the block: method, path and range."""
        seen: list[tuple[str, str, str]] = []
        before = len(self.requests)
        yield seen
        seen += self.requests[before:]

    @contextmanager
    def failing(self, what: str, method: str, path: str, times: int = 1) -> Iterator[Fault]:
        fault = Fault(what, method, path, times)
        self.faults.append(fault)
        try:
            yield fault
        finally:
            fault.over.set()
            self.faults.remove(fault)


def _handler(store: ObjectStore, behind: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *args: object) -> None:
            pass

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            store.note(self.command, path, self.headers)
            fault = next((each for each in store.faults if each.meets(self.command, path)), None)
            if fault is not None:
                fault.met.set()
            if fault is not None and fault.what in {"throttle", "deny"}:
                status, text = (503, THROTTLED) if fault.what == "throttle" else (403, DENIED)
                return self.send(status, [("Content-Type", "application/xml")], text)
            if fault is not None and fault.what == "hold":
                fault.over.wait(120)
                self.close_connection = True
                return None
            there = http.client.HTTPConnection("127.0.0.1", behind, timeout=60)
            there.request(self.command, self.path, body, dict(self.headers.items()))
            answer = there.getresponse()
            content = answer.read()
            there.close()
            if fault is not None:  # the answer is lost
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return None
            return self.send(answer.status, answer.getheaders(), content)

        def send(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in HOPS:
                    self.send_header(name, value)
            if "content-length" not in {name.lower() for name, _ in headers}:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.answer)
    return Handler


@contextmanager
def serving_objects(folder: Path) -> Iterator[ObjectStore]:
    """A store with one empty bucket, on free ports of this machine."""
    (behind,) = free_ports()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(behind)]
    with (folder / "moto.log").open("wb") as log:
        environment = {**os.environ, "PYTHONPATH": str(MOTO), "PYTHONWARNINGS": "ignore"}
        moto = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    store = ObjectStore()
    try:
        _make_bucket(moto, behind, folder / "moto.log")
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(store, behind))
        server.daemon_threads = True
        store.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield store
        finally:
            server.shutdown()
            server.server_close()
    finally:
        moto.kill()
        moto.wait()


def _make_bucket(moto: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    for _ in range(600):
        assert moto.poll() is None, log.read_text()
        there = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            there.request("PUT", f"/{BUCKET}")
            assert there.getresponse().status == 200
        except OSError:
            time.sleep(0.2)
        else:
            return
        finally:
            there.close()
    raise AssertionError(log.read_text())
