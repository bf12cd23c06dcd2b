"""A file of an object store: opened by one request, and read in as few more as can be, side by side."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from io import BufferedReader, BytesIO, RawIOBase
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any, Final

from backstory.stores.s3 import S3Options

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow.fs import FileSystem

# A smaller file is read whole: one request more would take longer than its bytes.
WHOLE: Final = 1 << 20
# Requests wait for the network, not for this machine's cores.
AT_ONCE: Final = 16
# So many bytes that nobody asked for cost less than another request does.
HOLE: Final = 512 << 10
# What one request asks for: more are sent side by side.
PIECE: Final = 8 << 20
# A Parquet file ends with what it says of itself, which mostly is shorter.
ENDING: Final = 256 << 10

Span = tuple[int, int]


class RemoteFile:
    """A file of an object store. What was fetched of it stays until `keep` lets it go; a small one stays.

    `file` is Arrow's, opened. Reading raises the OSError of the storage.
    """

    def __init__(self, file: "pa.NativeFile") -> None:
        self._file = file
        self.size = int(file.size())
        self.metadata: pq.FileMetaData | None = None
        self._pieces: list[tuple[int, bytes]] = []
        self.is_whole = self.size <= WHOLE
        if self.is_whole:
            self._pieces = [(0, self._request((0, self.size)))]

    def read(self, offset: int, length: int) -> bytes:
        """A piece of it, shorter where it ends: out of what was fetched, else by a request."""
        end = min(offset + length, self.size)
        for start, piece in self._pieces:
            if start <= offset and end <= start + len(piece):
                return piece[offset - start : end - start]
        return self._request((offset, end)) if offset < end else b""

    def fetch(self, spans: Iterable[Span]) -> None:
        """Have these parts of it, from their first byte to behind their last, side by side."""
        missing = [each for each in spans if not self._has(each)]
        requests = [part for span in merge_spans(missing, HOLE) for part in _parts(span)]
        if not requests:
            return
        with ThreadPoolExecutor(min(AT_ONCE, len(requests))) as pool:
            found = list(pool.map(self._request, requests))
        self._pieces += _glued(requests, found)

    def keep(self, span: Span) -> None:
        """Let go what was fetched of other parts."""
        if not self.is_whole:
            least, most = span
            self._pieces = [
                each for each in self._pieces if each[0] < most and each[0] + len(each[1]) > least
            ]

    def open(self) -> IO[bytes]:
        """A reader of it that may be closed."""
        return BytesIO(self._pieces[0][1]) if self.is_whole else BufferedReader(self.raw(), WHOLE)

    def raw(self) -> RawIOBase:
        """A reader of it that asks for no more than its reader does."""
        return _Reader(self)

    def _has(self, span: Span) -> bool:
        return any(start <= span[0] and span[1] <= start + len(piece) for start, piece in self._pieces)

    def _request(self, span: Span) -> bytes:
        return bytes(self._file.read_at(span[1] - span[0], span[0])) if span[0] < span[1] else b""


class _Reader(RawIOBase):
    """A remote file for whoever reads files as Python does."""

    def __init__(self, remote: RemoteFile) -> None:
        super().__init__()
        self._remote = remote
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = offset + (0, self._place, self._remote.size)[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> bytes:
        found = self._remote.read(self._place, self._remote.size if size < 0 else size)
        self._place += len(found)
        return found

    def readinto(self, buffer: Any) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


def merge_spans(spans: Iterable[Span], hole: int) -> list[Span]:
    """Spans in their order; those that lie no further apart than a hole are one."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] <= hole:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _parts(span: Span) -> list[Span]:
    """A span in parts of about the same size, none larger than a request's."""
    start, end = span
    number = max(1, -(-(end - start) // PIECE))
    bounds = [start + (end - start) * place // number for place in range(number + 1)]
    return list(pairwise(bounds))


def _glued(spans: Sequence[Span], pieces: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Pieces with the place of each; those of one span are one again, for a column may lie across them."""
    found: list[tuple[int, list[bytes]]] = []
    behind = -1
    for (start, end), piece in zip(spans, pieces, strict=True):
        if start == behind:
            found[-1][1].append(piece)
        else:
            found.append((start, [piece]))
        behind = end
    return [(start, parts[0] if len(parts) == 1 else b"".join(parts)) for start, parts in found]


@lru_cache(maxsize=8)
def file_system(options: S3Options) -> "FileSystem":
    """The file system of these options, with its connections."""
    return options.file_system()
