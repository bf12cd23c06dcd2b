"""Rows that the driver cannot hold together, in files of a temporary folder, encrypted."""

import tempfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE, LENGTH = 12, 8
# Rows are written so many bytes at a time: memory for more is taken from the system each time, page by page.
AT_ONCE = 4 << 20
# So many tables wait for the thread that writes, while the next ones are made.
WAITING = 16


class Spill:
    """A temporary folder of files of rows; their key is nowhere but in this process."""

    def __init__(self, kept: ExitStack) -> None:
        """Files that go when `kept` ends."""
        self._folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="backstory-rows-")))
        self._cipher = AESGCM(AESGCM.generate_key(256))
        self._files: dict[Any, BinaryIO] = {}
        self._written = 0
        self._writer = ThreadPoolExecutor(1, "spill")
        self._waiting = deque[Future[None]]()
        kept.callback(self._close)

    def put(self, name: Any, rows: pa.Table) -> None:
        """Add rows to the file of this name; what fails is raised by a later call."""
        self._waiting.append(self._writer.submit(self._write, name, rows))
        self._wait(WAITING)

    def _write(self, name: Any, rows: pa.Table) -> None:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = (self._folder / str(len(self._files))).open("w+b")
        count = max(1, AT_ONCE * len(rows) // max(1, rows.nbytes))
        for first in range(0, len(rows), count):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, rows.schema) as stream:
                stream.write_table(rows.slice(first, count))
            nonce = self._written.to_bytes(NONCE, "big")
            self._written += 1
            sealed = self._cipher.encrypt(nonce, memoryview(sink.getvalue()).cast("B"), None)
            file.write(nonce + len(sealed).to_bytes(LENGTH, "big") + sealed)

    def rows(self, name: Any) -> Iterator[pa.Table]:
        """The rows of a file, some at a time, in their order."""
        self._wait(0)
        file = self._files.get(name)
        if file is None:
            return
        file.flush()
        file.seek(0)
        while head := file.read(NONCE + LENGTH):
            sealed = file.read(int.from_bytes(head[NONCE:], "big"))
            with pa.ipc.open_stream(self._cipher.decrypt(head[:NONCE], sealed, None)) as stream:
                yield stream.read_all()

    def drop(self, name: Any) -> None:
        """Forget the rows of a file, and give their room back."""
        self._wait(0)
        file = self._files.pop(name, None)
        if file is not None:
            file.truncate(0)
            file.close()

    def _wait(self, count: int) -> None:
        """Until no more than so many tables are unwritten."""
        while len(self._waiting) > count:
            self._waiting.popleft().result()

    def _close(self) -> None:
        self._writer.shutdown(cancel_futures=True)
        for file in self._files.values():
            file.close()
