"""Text of any encoding as UTF-8, a block at a time, and what is not of its encoding by its line."""

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
# The error for a file that is not of its format, by its name, place, cause and remedy.
Wrong = Callable[[str, str, str, str], Refused]


def encoding(name: str) -> str:
    """Python's name of a text encoding; UsageError if there is none of this name."""
    try:
        with io.TextIOWrapper(io.BytesIO(), encoding=name):  # it takes encodings of text only
            return codecs.lookup(name).name
    except (LookupError, ValueError):
        told = f"The option `encoding` of the reader: `{name}` is not known."
        raise UsageError("unsupported-option", told, "Use one like `utf8` or `latin1`.") from None


def utf8_blocks(path: Path, name: str, encoding: str, wrong: Wrong = malformed_row) -> Iterator[bytes]:
    """The file's text without a byte order mark.

    Raises `wrong` for what is not of the encoding; what says it is UTF-8 already is not looked at.
    """
    decoder = None if encoding == UTF8 else codecs.getincrementaldecoder(encoding)()
    line, first = 1, True
    with path.open("rb") as file:
        while True:
            block = file.read(BLOCK)
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
    """The file's lines with their numbers from 1; Refused for what is not of the encoding."""
    held, number = b"", 1
    for block in utf8_blocks(path, name, encoding):
        *whole, held = (held + block).split(b"\n")
        for line in whole:
            yield number, decode(line, name, number)
            number += 1
        if len(held) > LONGEST_LINE:
            raise malformed_row(name, f"line {number}", f"it is longer than {LONGEST_LINE >> 20} MiB")
    if held:
        yield number, decode(held, name, number)


def decode(text: bytes, name: str, line: int, wrong: Wrong = malformed_row) -> str:
    """UTF-8 as text; `line` is the first one's number. Raises `wrong` with the line that is not UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError as stop:
        raise _not_encoded(name, line + lines(text[: stop.start]), "UTF-8", wrong) from None


def lines(text: bytes) -> int:
    """How many lines end in the text: after LF, CR LF or CR."""
    # Bytes are counted one after the other where they find a letter; numpy takes many at a time.
    many = len(text) > SHORT
    found = int(np.count_nonzero(np.frombuffer(text, np.uint8) == LF)) if many else text.count(b"\n")
    return found + text.count(b"\r") - text.count(b"\r\n") if b"\r" in text else found


def _not_encoded(name: str, line: int, encoding: str, wrong: Wrong) -> Refused:
    return wrong(name, f"line {line}", f"the text from here on is not {encoding}", REMEDY)
