"""A real HTTP server on loopback, with planned answers and a record of its requests.

`Web.play` plans the answers to the next requests of a path, and repeats the last one. As on other servers, an
answer supports conditions (`304`) and ranges (`206`), and can be cut off, sent in chunks, or late.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CHUNK = 1000


@dataclass(frozen=True)
class Play:
    """An answer.

    `cut` closes the connection after this number of bytes of the body. `pause` waits this number of seconds
    before the status line. `linger` keeps the connection open for this number of seconds after the body. Both
    waits end with the server. Without `conditional` and `ranges`, the server supports neither. Any other
    status than 200 is sent unchanged.
    """

    body: bytes = b""
    status: int = 200
    etag: str | None = None
    modified: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    conditional: bool = True
    ranges: bool = False
    chunked: bool = False
    cut: int | None = None
    pause: float = 0.0
    linger: float = 0.0


@dataclass(frozen=True)
class Seen:
    """A request, and the status of its answer."""

    path: str
    headers: Message
    status: int


@dataclass
class Web:
    """The server: its planned answers, and its requests."""

    port: int = 0
    plays: dict[str, list[Play]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)

    def play(self, path: str, *plays: Play) -> str:
        """Plan the answers of a path from now on. Returns its address."""
        self.plays[path] = list(plays)
        return self.url(path)

    def url(self, path: str, user: str = "") -> str:
        """The address of a path."""
        return f"http://{user}127.0.0.1:{self.port}{path}"

    def statuses(self) -> list[int]:
        """The statuses of all answers."""
        return [seen.status for seen in self.seen]

    def next(self, path: str) -> Play:
        """The next answer of a path."""
        with self.lock:
            plays = self.plays.get(path.partition("?")[0], [Play(b"no such page", 404)])
            return plays.pop(0) if len(plays) > 1 else plays[0]


@contextmanager
def serving() -> Iterator[Web]:
    """A server on a free port, until the end of the block."""
    web = Web()
    server = _Server(("127.0.0.1", 0), type("Asked", (_Handler,), {"web": web}))
    web.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield web
    finally:
        web.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *arguments: Any) -> None:
        """Ignore a client that closed the connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: Web

    def do_GET(self) -> None:
        play = self.web.next(self.path)
        status, start = _status(play, self.headers)
        self.web.seen.append(Seen(self.path, self.headers, status))
        self.web.ended.wait(play.pause)
        body = b"" if status == 304 else play.body[start:]
        self.send_response(status)
        self._send_headers(play, status, start, len(body))
        self._send_body(play, body)
        self.web.ended.wait(play.linger)

    def _send_headers(self, play: Play, status: int, start: int, length: int) -> None:
        validators = {"ETag": play.etag, "Last-Modified": play.modified}
        for name, value in [*validators.items(), *play.headers]:
            if value is not None:
                self.send_header(name, value)
        if play.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if status == 206 and play.status == 200:
            self.send_header("Content-Range", f"bytes {start}-{len(play.body) - 1}/{len(play.body)}")
        if play.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _send_body(self, play: Play, body: bytes) -> None:
        sent = body if play.cut is None else body[: play.cut]
        for place in range(0, len(sent), CHUNK):
            piece = sent[place : place + CHUNK]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if play.chunked else piece)
        if play.cut is not None:
            self.close_connection = True
        elif play.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *arguments: Any) -> None:
        """Log nothing, because the tests inspect `seen`."""


def _status(play: Play, headers: Message) -> tuple[int, int]:
    """The status, and the first byte of the body that is sent."""
    if play.status != 200:
        return play.status, 0
    tag, since = headers["If-None-Match"], headers["If-Modified-Since"]
    if play.conditional and (
        (tag is not None and tag == play.etag)
        or (tag is None and since is not None and since == play.modified)
    ):
        return 304, 0
    if play.ranges and headers["Range"] and headers["If-Range"] in {None, play.etag}:
        start = int(headers["Range"].removeprefix("bytes=").partition("-")[0])
        return (206, start) if start < len(play.body) else (416, len(play.body))
    return 200, 0
