"""Text files of any encoding, read as UTF-8 in blocks or lines. Errors name the line."""

import codecs
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from backstory.errors import Refused, UsageError
from backstory.formats.produced import malformed_row

BLOCK = 1 << 22
UTF8 = "utf-8"
LONGEST_LINE = 1 << 28
LF = 10
SHORT = 1 << 12
BOM = "\ufeff".encode()
REMEDY = "Fix the file, or name its encoding with `encoding` in `read`."
_GZIP = b"\x1f\x8b"
# The first bytes of files that are not UTF-8, and descriptions of these files.
_OTHERS = {
    codecs.BOM_UTF16_LE: "; the file is in UTF-16",
    codecs.BOM_UTF16_BE: "; the file is in UTF-16",
    _GZIP: "; the file is packed by gzip, so its name must end with .gz",
}
# The first bytes of files that are not text in any encoding, and names of their formats.
_BINARY = {
    b"PK\x03\x04": "a zip archive or a workbook",
    b"\xd0\xcf\x11\xe0": "a workbook",
    b"Obj\x01": "an Avro file",
    b"ARROW1\0\0": "an Arrow file",
}
# A file of a manifest, where the name does not matter.
_PACKED = "; the file is packed by gzip, so `prepare` needs the step {kind: Decompress, format: Gzip}"
# A function that makes the error for a malformed file from its name, place, cause and remedy.
Wrong = Callable[[str, str, str, str], Refused]


def encoding(name: str) -> str:
    """Python's name for a text encoding. Raises UsageError if the name is unknown."""
    try:
        with io.TextIOWrapper(io.BytesIO(), encoding=name):  # accepts text encodings only
            return codecs.lookup(name).name
    except (LookupError, ValueError):
        message = f"The option `encoding` of the reader: `{name}` is not known."
        raise UsageError("unsupported-option", message, "Use one like `utf8` or `latin1`.") from None


def utf8_blocks(path: Path, name: str, encoding: str, wrong: Wrong = malformed_row) -> Iterator[bytes]:
    """The bytes of a file converted to UTF-8, without a byte order mark.

    Raises the error that `wrong` makes for bytes that are invalid in the encoding, and for files of binary
    formats. The bytes of files in UTF-8 are passed through unchecked.
    """
    decoder = None if encoding == UTF8 else codecs.getincrementaldecoder(encoding)()
    line, first = 1, True
    with path.open("rb") as file:
        while True:
            block = file.read(BLOCK)
            if first:
                _refuse_binary(block, name, wrong)
            try:
                text = block if decoder is None else decoder.decode(block, final=not block).encode()
            except UnicodeError:
                raise _not_encoded(name, line, encoding, wrong) from None
            line += 0 if decoder is None else lines(text)
            if first and text:
                text, first = text.removeprefix(BOM), False
            if text:
                yield text
            if not block:
                return


def utf8_lines(path: Path, name: str, encoding: str) -> Iterator[tuple[int, str]]:
    """The file's lines with their numbers from 1.

    Raises Refused for a line that is too long, or whose bytes are invalid in the encoding.
    """
    rest, number = b"", 1
    for block in utf8_blocks(path, name, encoding):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield number, decode(line, name, number)
            number += 1
        if len(rest) > LONGEST_LINE:
            raise malformed_row(name, f"line {number}", f"it is longer than {LONGEST_LINE >> 20} MiB")
    if rest:
        yield number, decode(rest, name, number)


def decode(text: bytes, name: str, line: int, wrong: Wrong = malformed_row) -> str:
    """Decode UTF-8 bytes that begin at line `line`.

    Raises the error that `wrong` makes for an invalid byte.
    """
    try:
        return text.decode()
    except UnicodeDecodeError as stop:
        start = text[:2] if line == 1 else b""
        other = _PACKED if start == _GZIP and name.endswith(".gz") else _OTHERS.get(start, "")
        raise _not_encoded(name, line + lines(text[: stop.start]), f"UTF-8{other}", wrong) from None


def lines(text: bytes) -> int:
    """The number of line ends in the bytes: LF, CR LF or CR."""
    # `bytes.count` is slow if there are many matches; numpy counts in bulk.
    many = len(text) > SHORT
    ends = int(np.count_nonzero(np.frombuffer(text, np.uint8) == LF)) if many else text.count(b"\n")
    return ends + text.count(b"\r") - text.count(b"\r\n") if b"\r" in text else ends


def _refuse_binary(block: bytes, name: str, wrong: Wrong) -> None:
    for start, form in _BINARY.items():
        if block.startswith(start):
            remedy = "Unpack it, or write its rows as CSV or Parquet."
            raise wrong(name, "line 1", f"the file is {form}, not text", remedy)


def _not_encoded(name: str, line: int, encoding: str, wrong: Wrong) -> Refused:
    return wrong(name, f"line {line}", f"the text from here on is not {encoding}", REMEDY)
