"""Sources of CSV bytes, from files or deliveries, with the remedies for their errors."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backstory.errors import Refused
from backstory.formats.encoded import BOM, REMEDY, utf8_blocks
from backstory.formats.memory import MemoryLease, Meter
from backstory.formats.produced import MEND
from backstory.formats.wrapping.batch_file import BatchFile, Encoding

BLOCK = 1 << 22


@dataclass(frozen=True, slots=True)
class CsvSource:
    """A CSV that can be read repeatedly from its start.

    Attributes:
        name: its name in messages.
        blocks: its bytes as UTF-8, without a byte order mark.
        remedy: the remedy in errors for broken CSV.
        text_remedy: the remedy in errors for bytes that are invalid in the encoding.
    """

    name: str
    blocks: Callable[[], Iterator[bytes]]
    remedy: str
    text_remedy: str

    def refusal(self, place: str, why: str) -> Refused:
        """The error for broken CSV. `place` is its line."""
        return Refused("broken-csv", f"{self.name}{place and f', {place}'}: {why}.", self.remedy)

    def no_text(self, _name: str, place: str, why: str, _remedy: str) -> Refused:
        """The error for bytes that are invalid in the encoding."""
        return Refused("unreadable-file", f"{self.name}, {place}: {why}.", self.text_remedy)


def file_source(
    path: Path, name: str, encoding: str, mend: str = f"{MEND}.", text_mend: str = REMEDY
) -> CsvSource:
    """The CSV source for a file of any encoding. `mend` and `text_mend` are the remedies in its errors."""

    def blocks() -> Iterator[bytes]:
        return utf8_blocks(path, name, encoding, source.no_text)

    source = CsvSource(name, blocks, mend, text_mend)
    return source


def delivered_source(file: BatchFile, encoding: Encoding, lease: MemoryLease | None = None) -> CsvSource:
    """The CSV source for a delivered file, decrypted and decompressed.

    Its decoded bytes are counted while it is read. Reading raises Refused for a file that is missing, wrongly
    wrapped or a decompression bomb. Reading raises TooLarge if the lease is exceeded.
    """

    def blocks() -> Iterator[bytes]:
        meter = Meter(file, lease)
        try:
            with file.open(encoding) as stream:
                mark = BOM
                while block := _block(stream):
                    meter.add(len(block))
                    yield block.removeprefix(mark)
                    mark = b""
        except OSError:
            raise file.unreadable(f"it is not {encoding.compression}; the key may be wrong") from None

    whole = "Nothing was written; send the batch again with complete files"
    return CsvSource(file.name, blocks, f"{whole}.", f"{whole} and their own keys.")


def _block(stream: Any) -> bytes:
    """The next block of bytes, which is shorter only at the end of the stream."""
    parts: list[bytes] = []
    size = 0
    while size < BLOCK and (part := stream.read(BLOCK - size)):
        parts.append(part)
        size += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
