"""Plain rows become batch files as Fivetran writes them (section 3)."""

import base64
import csv
import gzip
import hashlib
import hmac
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.padding import PKCS7

from backstory.formats.wrapping.batch_file import BatchFile, Compression, Encoding, Format
from backstory.strategies.actions import UNMODIFIED

NULL_STRING = "null-m8yilkvPsNulehxl2G6pmSQ3G3WWdLP"
UNMODIFIED_STRING = "unmod-NcK9NIjPUutCsz4mjOQQztbnwnE1sY3"
AS_FIVETRAN = Encoding(Format.CSV, Compression.ZSTD, True, NULL_STRING, UNMODIFIED_STRING)

Row = Mapping[str, object]


def write_batch_file(
    folder: Path,
    rows: Iterable[Row],
    columns: Sequence[str],
    encoding: Encoding = AS_FIVETRAN,
    secret: bytes | None = None,
) -> BatchFile:
    """A new file in the folder with these rows, and its key if it is encrypted.

    A row's value is a Python value, a text that is written as it is, None for NULL, or UNMODIFIED;
    a column that a row lacks is NULL.
    """
    content = _content(rows, columns, encoding)
    return seal(folder, content, encoding, secret)


def seal(folder: Path, content: bytes, encoding: Encoding, secret: bytes | None = None) -> BatchFile:
    """A new file with this content, compressed and encrypted with a key and an IV of its own.

    With a secret its name, key and IV follow from that and the content: the same file again, to the byte.
    """
    clear = hashlib.sha256(content).digest()

    def drawn(what: str, size: int) -> bytes:
        if secret is None:
            return os.urandom(size)
        return hmac.digest(secret, what.encode() + clear, "sha256")[:size]

    if encoding.compression is Compression.ZSTD:
        content = _zstd(content)
    elif encoding.compression is Compression.GZIP:
        content = gzip.compress(content, mtime=0)
    key = drawn("key", 32) if encoding.encrypted else None
    if key is not None:
        content = encrypt(content, key, drawn("iv", 16))
    path = folder / f"{drawn('name', 16).hex()}.{encoding.format}"
    path.write_bytes(content)
    return BatchFile(path, key)


def encrypt(content: bytes, key: bytes, iv: bytes) -> bytes:
    """The IV and the ciphertext: AES-256, CBC, PKCS#7 padding."""
    padder = PKCS7(AES.block_size).padder()
    encryptor = Cipher(AES(key), CBC(iv)).encryptor()
    padded = padder.update(content) + padder.finalize()
    return iv + encryptor.update(padded) + encryptor.finalize()


def _zstd(content: bytes) -> bytes:
    """One frame without the content's size in its header, as Fivetran's streaming writer makes it."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


def _content(rows: Iterable[Row], columns: Sequence[str], encoding: Encoding) -> bytes:
    texts = [[_text(row.get(name), encoding) for name in columns] for row in rows]
    if encoding.format is Format.PARQUET:
        arrays = [pa.array([row[place] for row in texts], pa.string()) for place in range(len(columns))]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(arrays, names=list(columns)), sink)
        return bytes(sink.getvalue())
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    for row in texts:
        writer.writerow(row)
    return out.getvalue().encode()


def _text(value: object, encoding: Encoding) -> str:
    """The text form of a value (section 3.3)."""
    if value is None:
        return encoding.null_string
    if value is UNMODIFIED:
        return encoding.unmodified_string
    match value:
        case bool():
            text = "true" if value else "false"
        case bytes():
            text = base64.b64encode(value).decode()
        case datetime(tzinfo=zone) if zone is not None:
            text = instant(value)
        case date() | time():
            text = value.isoformat()
        case Decimal():
            text = format(value, "f")
        case _:
            text = str(value)
    return text


def instant(value: datetime) -> str:
    """An instant as Java's ISO_INSTANT writes it: UTC, with 0, 3 or 6 digits of the second."""
    utc = value.astimezone(UTC).replace(tzinfo=None)
    micros = utc.microsecond
    digits = "seconds" if not micros else "milliseconds" if micros % 1000 == 0 else "microseconds"
    return utc.isoformat(timespec=digits) + "Z"
