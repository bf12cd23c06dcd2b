"""Decryption of batch files: AES-256 in CBC mode, with the IV as the first 16 bytes (section 3.1)."""

import io
import os
from typing import BinaryIO

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.padding import PKCS7

from backstory.errors import Refused

BLOCK = 16
KEY_SIZE = 32
WINDOW = 1 << 20


class DecryptingReader(io.RawIOBase):
    """A stream that decrypts an open file, with one window in memory at a time.

    Raises Refused if the length is not a whole number of blocks, or the padding is wrong. The cause is a
    wrong key or a truncated file.
    """

    def __init__(self, file: BinaryIO, key: bytes, name: str) -> None:
        super().__init__()
        size = os.fstat(file.fileno()).st_size
        if len(key) != KEY_SIZE:
            raise _unreadable(name, "its key is not 32 bytes long")
        if size < 2 * BLOCK or size % BLOCK:
            raise _unreadable(name, "its size is not an IV and whole cipher blocks")
        self._name = name
        self._file = file
        self._decryptor = Cipher(AES(key), CBC(self._file.read(BLOCK))).decryptor()
        self._unpadder = PKCS7(AES.block_size).unpadder()
        self._clear = memoryview(b"")
        self._done = False

    def readable(self) -> bool:
        """Always true."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to `size` decrypted bytes, or no bytes at the end."""
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(WINDOW), b""))
        while not self._clear and not self._done:
            self._clear = memoryview(self._next_window())
        taken, self._clear = self._clear[:size], self._clear[size:]
        return bytes(taken)

    def close(self) -> None:
        """Close this reader and the encrypted file."""
        if not self.closed:
            self._file.close()
        super().close()

    def _next_window(self) -> bytes:
        window = self._file.read(WINDOW)
        if window:
            return self._unpadder.update(self._decryptor.update(window))
        self._done = True
        try:
            tail = self._unpadder.update(self._decryptor.finalize())
            return tail + self._unpadder.finalize()
        except ValueError as broken:
            raise _unreadable(self._name, "its padding is wrong") from broken


def _unreadable(name: str, why: str) -> Refused:
    return Refused(
        "unreadable-file",
        f"{name} cannot be decrypted: {why}; the key is wrong or the file was cut.",
        "Nothing was written; send the file again with its own key.",
    )
