"""A real FTP server on loopback. It sends files in passive mode and records the commands that it receives."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from socket import create_server


@dataclass
class Ftp:
    """The server.

    Attributes:
        files: Its files, by their paths in commands.
        users: The accepted users and their passwords. Anybody is accepted if there are none.
        sized: Whether it supports the command SIZE.
        cuts: The numbers of bytes after which the next transfers end, and the replies then.
        heard: The received commands, in their order.
    """

    port: int = 0
    files: dict[bytes, bytes] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=dict)
    sized: bool = True
    cuts: list[tuple[int, str]] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)

    def play(self, path: str, body: bytes) -> str:
        """Serve a file from now on. Returns its address."""
        self.files[path.encode()] = body
        return self.url(path)

    def url(self, path: str, user: str = "") -> str:
        """The address of a path."""
        return f"ftp://{user}127.0.0.1:{self.port}/{path}"

    def transfers(self) -> int:
        """The number of requested files."""
        return sum(command.startswith("RETR") for command in self.heard)


@contextmanager
def serving() -> Iterator[Ftp]:
    """A server on a free port, until the end of the block."""
    ftp = Ftp()
    server = _Server(("127.0.0.1", 0), type("Asked", (_Handler,), {"ftp": ftp}))
    ftp.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield ftp
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def handle_error(self, *arguments: object) -> None:
        """Ignore a client that closed the connection."""


class _Handler(socketserver.StreamRequestHandler):
    ftp: Ftp

    def handle(self) -> None:
        self.user, self.data = "", None
        self._say("220 d\xe9j\xe0 vu")  # not UTF-8, as from old servers
        for line in self.rfile:
            command = line.rstrip(b"\r\n")
            self.ftp.heard.append(command.decode("latin-1"))
            word, _, text = command.partition(b" ")
            getattr(self, f"_{word.decode().lower()}", self._unknown)(text)

    def _say(self, text: str) -> None:
        self.wfile.write(text.encode("latin-1") + b"\r\n")

    def _unknown(self, _: bytes) -> None:
        self._say("502 What?")

    def _user(self, name: bytes) -> None:
        self.user = name.decode()
        self._say("331 And the password?")

    def _pass(self, word: bytes) -> None:
        good = not self.ftp.users or self.ftp.users.get(self.user) == word.decode()
        self._say("230 Come in." if good else f"530 {word.decode()} is not the password of {self.user}.")

    def _type(self, _: bytes) -> None:
        self._say("200 So be it.")

    def _size(self, path: bytes) -> None:
        if not self.ftp.sized:
            self._unknown(path)
        elif path in self.ftp.files:
            self._say(f"213 {len(self.ftp.files[path])}")
        else:
            self._say("550 No such file.")

    def _pasv(self, _: bytes) -> None:
        self.data = create_server(("127.0.0.1", 0))
        high, low = divmod(self.data.getsockname()[1], 256)
        self._say(f"227 Entering passive mode (127,0,0,1,{high},{low}).")

    def _retr(self, path: bytes) -> None:
        with closing(self.data):
            if path not in self.ftp.files:
                self._say("550 No such file.")
                return
            body = self.ftp.files[path]
            count, end = self.ftp.cuts.pop(0) if self.ftp.cuts else (len(body), "226 That is all.")
            self._say("150 Here it comes.")
            connection, _ = self.data.accept()
            with connection:
                connection.sendall(body[:count])
        self._say(end)
