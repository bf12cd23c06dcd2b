"""One process for every `backstory` command and every Python program of a set of pages: Java starts once.

A shell finds `backstory` and `python` of this file first in its PATH. Each passes its words, folder, variables
and three streams to the process that runs `serve`, and ends with the exit code that it returns. Pipes,
redirections and exported variables work as the reader types them. Python's names last for a page, as in a
notebook. An expression next to a comment with a value is compared with it.
"""

import ast
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from depth import DEPTH

CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    told = json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(asked, [len(told).to_bytes(4, "big")], [0, 1, 2])
    asked.sendall(told)
    code = asked.recv(1)
sys.exit(code[0] if code else 70)
"""
# Before a release, each command is its own process, as for users.
NAMES = ("python",) if DEPTH == "laws" else ("backstory", "python")
SECONDS = 120
WIDTH, HEIGHT = 80, 50
# The terminal of each command, and of the session from its start, because it asks only once. Without lines, a
# dumb terminal has 80 columns, whatever its other settings.
TERMINAL = {"TERM": "dumb", "COLUMNS": str(WIDTH), "LINES": str(HEIGHT)}


@contextmanager
def session() -> Iterator[Path]:
    """The folder with the two commands, whose requests are answered until the block ends."""
    with tempfile.TemporaryDirectory(prefix="typed-") as folder, serving(Path(folder)):
        yield Path(folder)


@contextmanager
def serving(folder: Path) -> Iterator[None]:
    address = folder / "socket"
    for name in NAMES:
        client = folder / name
        client.write_text(CLIENT.format(python=sys.executable, address=str(address)))
        client.chmod(client.stat().st_mode | stat.S_IXUSR)
    with socket.socket(socket.AF_UNIX) as listening, (folder / "session.log").open("w") as log:
        listening.bind(str(address))
        listening.listen()
        program = [sys.executable, __file__, str(listening.fileno())]
        process = subprocess.Popen(
            program,
            pass_fds=[listening.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | TERMINAL,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(SECONDS)


def serve(listening: socket.socket) -> None:
    """Answer one request after the other."""
    from backstory import Warehouse
    from backstory.cli.app import run

    names: dict[str, object] = {}
    former = ""
    while True:
        connection, _ = listening.accept()
        with connection:
            command, words, folder, variables, streams = received(connection)
            if folder != former:  # on another page, close open objects of the last page's programs
                for each in names.values():
                    if isinstance(each, Warehouse):
                        each.close()
                names.clear()
            former = folder
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(variables)
            with standing_in(streams):
                try:
                    code = run(words) if command == "backstory" else follow(Path(words[0]), names)
                except Exception:  # noqa: BLE001 - it is shown as Python shows it, and ends no other program
                    traceback.print_exc()
                    code = 1
            connection.send(bytes([code]))


def received(connection: socket.socket) -> tuple[str, list[str], str, dict[str, str], list[int]]:
    length, streams, _, _ = socket.recv_fds(connection, 4, 3)
    text = b""
    while len(text) < int.from_bytes(length, "big"):
        text += connection.recv(1 << 16)
    return *json.loads(text), streams


@contextmanager
def standing_in(streams: list[int]) -> Iterator[None]:
    """Connect this process to the streams of the caller."""
    originals = [os.dup(number) for number in range(3)]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, stream in enumerate(originals):
            os.dup2(stream, number)
            os.close(stream)


def follow(program: Path, names: dict[str, object]) -> int:
    """Run a program with the names of earlier programs. Returns 1 if a value differs from its comment."""
    text = program.read_text("utf-8")
    lines = text.splitlines()
    for statement in ast.parse(text).body:
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), str(program), "exec"), names)
            continue
        value = eval(compile(ast.Expression(statement.value), str(program), "eval"), names)
        _, _, comment = lines[statement.end_lineno - 1].partition("  # ")
        try:
            shown = ast.literal_eval(comment)
        except (SyntaxError, ValueError):
            continue
        if value != shown:
            sys.stdout.write(f"{lines[statement.end_lineno - 1]}\nis {value!r}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    serve(socket.socket(fileno=int(sys.argv[1])))
