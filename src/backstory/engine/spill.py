"""Rows that the driver cannot hold together, in files of a temporary folder, encrypted."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE, LENGTH = 12, 8
# Rows are written some at a time: what is encrypted is in memory as a whole.
AT_ONCE = 1 << 17


class Spill:
    """A temporary folder of files of rows; their key is nowhere but in this process."""

    def __init__(self, kept: ExitStack) -> None:
        """Files that go when `kept` ends."""
        self._folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="backstory-rows-")))
        self._cipher = AESGCM(AESGCM.generate_key(256))
        self._files: dict[Any, BinaryIO] = {}
        self._written = 0
        kept.callback(self._close)

    def put(self, name: Any, rows: pa.Table) -> None:
        """Add rows to the file of this name."""
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = (self._folder / str(len(self._files))).open("w+b")
        for first in range(0, len(rows), AT_ONCE):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, rows.schema) as stream:
                stream.write_table(rows.slice(first, AT_ONCE))
            nonce = self._written.to_bytes(NONCE, "big")
            self._written += 1
            sealed = self._cipher.encrypt(nonce, sink.getvalue().to_pybytes(), None)
            file.write(nonce + len(sealed).to_bytes(LENGTH, "big") + sealed)

    def rows(self, name: Any) -> Iterator[pa.Table]:
        """The rows of a file, some at a time, in their order."""
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
        file = self._files.pop(name, None)
        if file is not None:
            file.truncate(0)
            file.close()

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
