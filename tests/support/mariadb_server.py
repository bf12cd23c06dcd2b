"""A real MariaDB server, and sessions in it that stay open. Each session is a separate client."""

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ports import free_ports
from serving import SECONDS, within


@dataclass(frozen=True)
class Server:
    """The address of a server. Every client is its owner."""

    port: int
    socket: Path

    def client(self, database):
        """The command line of a client."""
        at = ["-S", self.socket, "-u", "root", *([database] if database else [])]
        return ["mariadb", "--no-defaults", "-N", "--unbuffered", *at]

    def do(self, statement, database="shop"):
        """The output of statements."""
        words = self.client(database)
        return subprocess.run(words, input=statement, text=True, check=True, capture_output=True).stdout

    def answers(self):
        """Whether the server responds."""
        try:
            return self.do("SELECT 1", "")
        except subprocess.CalledProcessError:
            return ""


@contextmanager
def mariadb_server(*options):
    """A server with these options and an empty database `shop`, which ends with the block."""
    with tempfile.TemporaryDirectory(prefix="backstory-mariadb-") as folder:
        data, socket = Path(folder) / "data", Path(folder) / "s"
        user = ["--user=root"] if os.getuid() == 0 else []
        made = ["--no-defaults", *user, f"--datadir={data}", "--auth-root-authentication-method=normal"]
        subprocess.run(["mariadb-install-db", *made], check=True, capture_output=True)
        (port,) = free_ports()
        program = shutil.which("mariadbd") or "/usr/sbin/mariadbd"
        words = [f"--datadir={data}", f"--socket={socket}", f"--port={port}", "--bind-address=127.0.0.1"]
        words = [program, "--no-defaults", *user, *words, f"--pid-file={folder}/pid", *options]
        with subprocess.Popen(words, stderr=subprocess.DEVNULL) as running:
            try:
                server = Server(port, socket)
                assert within(SECONDS, server.answers, 0.2)
                server.do("CREATE DATABASE shop", "")
                yield server
            finally:
                running.terminate()


class Session:
    """A session that stays open, with its transaction."""

    def __init__(self, server, database="shop"):
        self.running = subprocess.Popen(
            server.client(database), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.running.stdin.close()
        self.running.stdout.close()
        self.running.wait(60)

    def do(self, statement):
        """The rows that a statement returns, each a list of strings."""
        self.running.stdin.write(f"{statement};\nSELECT 'that is all';\n")
        self.running.stdin.flush()
        lines = []
        for line in self.running.stdout:
            if line == "that is all\n":
                return [each.split("\t") for each in lines]
            lines.append(line.removesuffix("\n"))
        raise AssertionError(f"The session ended at: {statement}")
